//! Register allocation by liveness (linear scan), so that a warp's registers fit in the host's L1 cache. A register that is live at
//! the kernel's entry may be read uninitialised: it is tracked at run time.

use std::collections::HashMap;

use crate::code::{Code, Instruction, Lowered};
use crate::fault::Error;
use crate::parse::Kind;

/// A set of registers.
#[derive(Clone, PartialEq)]
struct Set(Vec<u64>);

impl Set {
    fn new(size: usize) -> Set {
        Set(vec![0; size.div_ceil(64)])
    }

    fn insert(&mut self, at: u16) {
        self.0[usize::from(at) / 64] |= 1 << (at % 64);
    }

    fn remove(&mut self, at: u16) {
        self.0[usize::from(at) / 64] &= !(1 << (at % 64));
    }

    fn add(&mut self, other: &Set) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }

    fn iter(&self) -> impl Iterator<Item = u16> {
        let bits = |(i, word): (usize, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| (i * 64 + bit) as u16)
        };
        self.0.iter().enumerate().flat_map(bits)
    }
}

/// Calls `each` with the registers that an instruction reads and writes.
fn touched(instruction: &Instruction, mut each: impl FnMut(u16, bool)) {
    if let Some((at, _)) = instruction.guard {
        each(at, false);
    }
    instruction.code.clone().registers(|at, _, is_written| each(*at, is_written));
}

/// A basic block.
struct Block {
    start: usize,
    end: usize,
    next: Vec<usize>,
}

fn blocks(code: &[Instruction]) -> Vec<Block> {
    let mut starts = vec![0];
    for (i, instruction) in code.iter().enumerate() {
        match instruction.code {
            Code::Branch { target } => starts.extend([target as usize, i + 1]),
            Code::Exit => starts.push(i + 1),
            _ => {}
        }
    }
    starts.sort_unstable();
    starts.dedup();
    starts.retain(|start| *start < code.len());
    let number: HashMap<usize, usize> = starts.iter().enumerate().map(|(i, start)| (*start, i)).collect();
    let ends = starts[1..].iter().copied().chain([code.len()]);
    let block = |(start, end): (&usize, usize)| {
        let last = &code[end - 1];
        let mut next = Vec::new();
        let goes_on = match last.code {
            Code::Branch { target } => {
                next.extend(number.get(&(target as usize)));
                last.guard.is_some()
            }
            Code::Exit => last.guard.is_some(),
            _ => true,
        };
        next.extend(number.get(&end).filter(|_| goes_on));
        Block { start: *start, end, next }
    };
    starts.iter().zip(ends).map(block).collect()
}

/// Live-in and live-out registers of each block.
fn live(code: &[Instruction], blocks: &[Block], registers: usize) -> (Vec<Set>, Vec<Set>) {
    let mut before = vec![Set::new(registers); blocks.len()];
    let mut after = before.clone();
    loop {
        let mut has_changed = false;
        for (i, block) in blocks.iter().enumerate().rev() {
            let mut set = Set::new(registers);
            block.next.iter().for_each(|next| set.add(&before[*next]));
            after[i] = set.clone();
            for instruction in code[block.start..block.end].iter().rev() {
                // What is written under a predicate may be kept.
                if instruction.guard.is_none() {
                    touched(instruction, |at, is_written| {
                        if is_written {
                            set.remove(at)
                        }
                    });
                }
                touched(instruction, |at, is_written| {
                    if !is_written {
                        set.insert(at)
                    }
                });
            }
            has_changed |= before[i] != set;
            before[i] = set;
        }
        if !has_changed {
            return (before, after);
        }
    }
}

/// Puts checks before what reads `watched` registers, and marks behind what writes them.
fn watch(code: Vec<Instruction>, watched: &HashMap<u16, u16>) -> Vec<Instruction> {
    if watched.is_empty() {
        return code;
    }
    let (mut out, mut starts) = (Vec::with_capacity(code.len()), Vec::with_capacity(code.len()));
    for instruction in code {
        starts.push(out.len() as u32);
        let (mut checks, mut marks) = (Vec::new(), Vec::new());
        touched(&instruction, |at, is_written| {
            if let Some(&shadow) = watched.get(&at) {
                match is_written {
                    true => marks.push(Code::Written { shadow }),
                    false => checks.push(Code::CheckWritten { shadow }),
                }
            }
        });
        let (guard, line) = (instruction.guard, instruction.line);
        let guarded = |code| Instruction { guard, line, code };
        // Whether the guard itself was written cannot be asked under the guard.
        for code in checks {
            let is_of_guard = matches!((&code, guard), (Code::CheckWritten { shadow }, Some((at, _))) if watched.get(&at) == Some(shadow));
            out.push(if is_of_guard { Instruction { guard: None, line, code } } else { guarded(code) });
        }
        out.push(instruction);
        out.extend(marks.into_iter().map(guarded));
    }
    for instruction in &mut out {
        if let Code::Branch { target } = &mut instruction.code {
            *target = starts[*target as usize];
        }
    }
    out
}

/// Gives each register a place.
pub(crate) fn allocate(
    code: Vec<Instruction>,
    kinds: &[Kind],
    constants: Vec<(u16, Kind, u64)>,
) -> Result<Lowered, Error> {
    let (before, _) = live(&code, &blocks(&code), kinds.len());
    let is_constant = |at: u16| constants.iter().any(|(constant, ..)| *constant == at);
    let unsure = before.first().into_iter().flat_map(Set::iter).filter(|at| !is_constant(*at));
    let watched: HashMap<u16, u16> = unsure.zip(0..).collect();
    let mut code = watch(code, &watched);

    // From where to where each is needed. A place is free again for what is written by the last instruction that reads it.
    let blocks = blocks(&code);
    let (before, after) = live(&code, &blocks, kinds.len());
    let mut needed: Vec<Option<(usize, usize)>> = vec![None; kinds.len()];
    let mut extend = |at: u16, from: usize, to: usize| {
        let (start, end) = needed[usize::from(at)].unwrap_or((from, to));
        needed[usize::from(at)] = Some((start.min(from), end.max(to)));
    };
    for (i, block) in blocks.iter().enumerate() {
        before[i].iter().for_each(|at| extend(at, block.start, block.start));
        after[i].iter().for_each(|at| extend(at, block.end, block.end));
        for (i, instruction) in (block.start..block.end).zip(&code[block.start..block.end]) {
            touched(instruction, |at, is_written| extend(at, i, i + usize::from(is_written)));
        }
    }
    for (at, ..) in &constants {
        extend(*at, 0, code.len());
    }

    let mut order: Vec<u16> =
        (0..kinds.len() as u16).filter(|at| needed[usize::from(*at)].is_some()).collect();
    order.sort_by_key(|at| needed[usize::from(*at)]);
    let mut places = vec![0; kinds.len()];
    // For each kind, from when on each place is free.
    let mut free: [Vec<usize>; 3] = Default::default();
    for at in order {
        let Some((start, end)) = needed[usize::from(at)] else { continue };
        let free = &mut free[kinds[usize::from(at)] as usize];
        let place = free.iter().position(|from| *from <= start).unwrap_or_else(|| {
            free.push(0);
            free.len() - 1
        });
        free[place] = end;
        places[usize::from(at)] = place;
    }
    let counts = free.map(|free| free.len());
    let words = counts[Kind::Word as usize];
    let slots = words + 2 * counts[Kind::Wide as usize];
    if slots > usize::from(u16::MAX) {
        return Err(Error::parse(0, "more registers than are needed by anything we ship"));
    }
    let place = |at: u16, kind: Kind| match kind {
        Kind::Wide => words + 2 * places[usize::from(at)],
        _ => places[usize::from(at)],
    } as u16;
    for instruction in &mut code {
        if let Some((at, _)) = &mut instruction.guard {
            *at = place(*at, Kind::Predicate);
        }
        instruction.code.registers(|at, kind, _| *at = place(*at, kind));
    }
    let constants = constants.into_iter().map(|(at, kind, value)| (place(at, kind), kind, value)).collect();
    let predicates = counts[Kind::Predicate as usize];
    Ok(Lowered { code, slots, predicates, shadows: watched.len(), constants })
}
