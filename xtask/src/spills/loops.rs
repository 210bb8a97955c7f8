//! The innermost loops of a function: strongly connected sets of basic blocks that contain no further ones once the
//! jumps to their entries are removed.

use std::collections::BTreeMap;
use std::ops::Range;

use super::listing::Function;

/// A basic block: its instructions, and its successors.
struct Block {
    body: Range<usize>,
    next: Vec<usize>,
}

/// Each innermost loop, as the instructions of its blocks, in the order of their addresses.
pub(super) fn innermost(function: &Function<'_>) -> Vec<Vec<usize>> {
    let blocks = blocks(function);
    let mut found = Vec::new();
    let mut open = knots(&blocks, &(0..blocks.len()).collect::<Vec<_>>(), &[]);
    while let Some((knot, mut cut)) = open.pop() {
        // Its entries from outside; the loop at the function's start is entered at its beginning.
        let mut entered = vec![false; blocks.len()];
        let outside = (0..blocks.len()).filter(|b| knot.binary_search(b).is_err());
        outside.for_each(|b| blocks[b].next.iter().for_each(|n| entered[*n] = true));
        let heads: Vec<usize> = knot.iter().copied().filter(|b| entered[*b]).collect();
        cut.extend(if heads.is_empty() { vec![knot[0]] } else { heads });
        match knots(&blocks, &knot, &cut) {
            inner if inner.is_empty() => found.push(knot),
            inner => open.extend(inner),
        }
    }
    found.iter().map(|knot| knot.iter().flat_map(|b| blocks[*b].body.clone()).collect()).collect()
}

fn blocks(function: &Function<'_>) -> Vec<Block> {
    let body = &function.body;
    let index: BTreeMap<u64, usize> = body.iter().enumerate().map(|(i, x)| (x.at, i)).collect();
    let target = |i: usize| index.get(&body[i].target()?).copied();
    // First instruction of each block, and the block's index.
    let mut begins = BTreeMap::from([(0, 0)]);
    for (i, x) in body.iter().enumerate() {
        begins.extend(target(i).map(|to| (to, 0)));
        if x.target().is_some() || x.ends() {
            begins.insert(i + 1, 0);
        }
    }
    begins.values_mut().enumerate().for_each(|(block, n)| *n = block);
    let starts: Vec<usize> = begins.keys().copied().filter(|i| *i < body.len()).collect();
    let ends = starts.iter().skip(1).copied().chain([body.len()]);
    let block = |(start, end): (usize, usize)| {
        let falls = (!body[end - 1].ends() && end < body.len()).then_some(end);
        let next = target(end - 1).into_iter().chain(falls).filter_map(|i| begins.get(&i).copied());
        Block { body: start..end, next: next.collect() }
    };
    starts.iter().copied().zip(ends).map(block).collect()
}

/// A strongly connected component, and the blocks to which jumps are ignored.
type Knot = (Vec<usize>, Vec<usize>);

/// Strongly connected components among some blocks, ignoring jumps to the blocks in `cut`.
fn knots(blocks: &[Block], among: &[usize], cut: &[usize]) -> Vec<Knot> {
    let next = |b: usize| {
        let counts = |n: &&usize| among.binary_search(n).is_ok() && !cut.contains(n);
        blocks[b].next.iter().filter(counts).copied()
    };
    let mut before: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    among.iter().for_each(|a| next(*a).for_each(|b| before.entry(b).or_default().push(*a)));
    // Kosaraju's algorithm: back along the edges, in reverse order of finishing.
    let mut seen = vec![false; blocks.len()];
    let mut left = Vec::new();
    for root in among {
        let mut path = vec![(*root, false)];
        while let Some((b, done)) = path.pop() {
            if done {
                left.push(b);
            } else if !std::mem::replace(&mut seen[b], true) {
                path.push((b, true));
                path.extend(next(b).map(|n| (n, false)));
            }
        }
    }
    let mut knots = Vec::new();
    for root in left.into_iter().rev() {
        let (mut knot, mut path) = (Vec::new(), vec![root]);
        while let Some(b) = path.pop() {
            if std::mem::replace(&mut seen[b], false) {
                knot.push(b);
                path.extend(before.get(&b).into_iter().flatten());
            }
        }
        knot.sort_unstable();
        let is_loop = knot.len() > 1 || knot.iter().any(|b| next(*b).any(|n| n == *b));
        if is_loop {
            knots.push((knot, cut.to_vec()));
        }
    }
    knots
}
