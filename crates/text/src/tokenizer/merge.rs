//! The merge loop of byte-pair encoding: joins neighbours by rank, wherever the ranks come from.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU8, Ordering};

use hashbrown::{HashMap, HashSet};

/// No neighbour.
const NONE: u32 = u32::MAX;

/// Maximum number of cached words, and maximum bytes of one. This bounds the cache for texts of any length.
const MOST_WORDS: usize = 1 << 13;
const LONGEST_WORD: usize = 64;

/// A linked list of symbols, some of which have been merged into the one before them.
///
/// It caches the tokens of words as ranges of the output, so the output must be the same append-only list for as long
/// as the `Row` lives.
#[derive(Debug)]
pub(super) struct Row<S> {
    nodes: Vec<Node<S>>,
    words: HashMap<Box<str>, (u32, u32)>,
    /// Candidate merges: rank in the high bits, position in the low ones, so the lowest rank pops first, leftmost on
    /// ties.
    queue: BinaryHeap<Reverse<u64>>,
}

#[derive(Debug, Clone, Copy)]
struct Node<S> {
    symbol: S,
    next: u32,
    before: u32,
    gone: bool,
}

impl<S> Default for Row<S> {
    fn default() -> Row<S> {
        Row { nodes: Vec::new(), words: HashMap::default(), queue: BinaryHeap::new() }
    }
}

impl<S: Copy> Row<S> {
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
    }

    pub(super) fn push(&mut self, symbol: S) {
        let at = self.nodes.len() as u32;
        if let Some(last) = self.nodes.last_mut() {
            last.next = at;
        }
        self.nodes.push(Node { symbol, next: NONE, before: at.wrapping_sub(1), gone: false });
    }

    /// Appends the cached tokens of a word; returns whether it was cached.
    pub(super) fn recall(&self, word: &str, out: &mut Vec<u32>) -> bool {
        let place = if word.len() <= LONGEST_WORD { self.words.get(word) } else { None };
        if let Some((from, to)) = place {
            out.extend_from_within(*from as usize..*to as usize);
        }
        place.is_some()
    }

    /// Caches a word whose tokens are `out[from..]`.
    pub(super) fn remember(&mut self, word: &str, from: usize, out: &[u32]) {
        if word.len() <= LONGEST_WORD && self.words.len() < MOST_WORDS {
            self.words.insert(word.into(), (from as u32, out.len() as u32));
        }
    }

    /// Merges the pair of lowest rank until there is none. `pair` returns a pair's rank and the merged symbol.
    pub(super) fn join(&mut self, pair: impl Fn(S, S) -> Option<(u32, S)>) {
        let Row { nodes, queue, .. } = self;
        let entry = |rank: u32, at: u32| Reverse(u64::from(rank) << 32 | u64::from(at));
        queue.clear();
        queue.extend(nodes.windows(2).zip(0..).filter_map(|(two, at)| {
            let (rank, _) = pair(two[0].symbol, two[1].symbol)?;
            Some(entry(rank, at))
        }));
        while let Some(Reverse(key)) = queue.pop() {
            let (rank, at) = ((key >> 32) as u32, key as u32);
            let left = nodes[at as usize];
            if left.gone || left.next == NONE {
                continue;
            }
            let right = nodes[left.next as usize];
            // The entry may be stale: a neighbour has changed since it was queued.
            let Some((_, joined)) = pair(left.symbol, right.symbol).filter(|(now, _)| *now == rank) else {
                continue;
            };
            nodes[left.next as usize].gone = true;
            let node = &mut nodes[at as usize];
            (node.symbol, node.next) = (joined, right.next);
            if let Some(after) = nodes.get_mut(right.next as usize) {
                after.before = at;
                if let Some((rank, _)) = pair(joined, after.symbol) {
                    queue.push(entry(rank, at));
                }
            }
            if let Some(before) = nodes.get(left.before as usize)
                && let Some((rank, _)) = pair(before.symbol, joined)
            {
                queue.push(entry(rank, left.before));
            }
        }
    }

    pub(super) fn symbols(&self) -> impl Iterator<Item = S> {
        self.nodes.iter().filter(|node| !node.gone).map(|node| node.symbol)
    }
}

/// Positions where text can be split without changing any merge: before a `▁` whose preceding character never precedes a `▁`
/// inside a token.
///
/// Without such splits a SentencePiece text, which has no pre-tokenizer, would be one word.
#[derive(Debug)]
pub(super) struct Seams(HashSet<char>);

const SPACE: char = '▁';

impl Seams {
    pub(super) fn of<'a>(tokens: impl Iterator<Item = &'a str>) -> Seams {
        let before =
            |text: &'a str| text.match_indices(SPACE).filter_map(|(at, _)| text[..at].chars().next_back());
        Seams(tokens.flat_map(before).collect())
    }

    pub(super) fn cut<'t>(&self, text: &'t str, mut each: impl FnMut(&'t str)) {
        let mut from = 0;
        for (at, _) in text.match_indices(SPACE) {
            let before = text[from..at].chars().next_back();
            if before.is_some_and(|c| !self.0.contains(&c)) {
                each(&text[from..at]);
                from = at;
            }
        }
        if from < text.len() {
            each(&text[from..]);
        }
    }
}

/// Tokens that merging their own text yields. Each is computed on first use.
#[derive(Debug)]
pub(super) struct Wholes(Box<[AtomicU8]>);

const UNASKED: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

impl Wholes {
    pub(super) fn new(tokens: usize) -> Wholes {
        Wholes((0..tokens).map(|_| AtomicU8::new(UNASKED)).collect())
    }

    /// Appends the tokens of a word to `out`; `id` is the token whose text is the word itself.
    pub(super) fn add(&self, id: u32, out: &mut Vec<u32>, join: impl FnOnce(&mut Vec<u32>)) {
        let known = &self.0[id as usize];
        match known.load(Ordering::Relaxed) {
            YES => out.push(id),
            NO => join(out),
            _ => {
                let from = out.len();
                join(out);
                known.store(if out[from..] == [id] { YES } else { NO }, Ordering::Relaxed);
            }
        }
    }
}
