//! Execution of a warp: converged lanes together, divergent groups by least PC.

mod access;
mod request;

use crate::code::{Code, Instruction, Lowered, Shuffle, ShuffleMode, Special, VoteMode};
use crate::fault::Trouble;
use crate::isa::Isa;
use crate::lanes::FUNCTIONS;
use crate::matrices;
use crate::memory::{Bytes, Memory, Who};
use crate::parse::Kind;
use crate::registers::{LANES, Lane, Mask, PART, PARTS, Registers, Wide, Word};

/// A CTA's place in its launch, and what its warps share.
#[derive(Debug)]
pub(crate) struct Cta<'a> {
    pub index: [u32; 3],
    pub ctas: [u32; 3],
    pub threads: [u32; 3],
    pub shared: &'a mut Bytes,
    pub parameters: &'a [u8],
    pub memory: &'a mut Memory,
    pub number: u32,
    pub epoch: u16,
}

/// Why a warp no longer executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// It has had its turn.
    Turn,
    Barrier,
    Done,
}

/// Lanes at the same instruction.
#[derive(Clone, Copy, Debug)]
struct Group {
    at: u32,
    lanes: u32,
    /// They wait for other lanes to come to their instruction.
    waits: bool,
}

/// A warp.
#[derive(Debug)]
pub(crate) struct Warp {
    registers: Registers,
    /// For each register that is watched, the lanes that have written it.
    shadows: Vec<u32>,
    groups: Vec<Group>,
    /// Copies under way, and how many groups of them were begun.
    copies: Vec<Copy>,
    copy_group: u32,
    /// Its number in the CTA.
    number: usize,
    isa: Isa,
    /// Instructions that lanes have executed.
    pub executed: u64,
}

/// A copy from global to shared memory that has not been waited for.
#[derive(Clone, Copy, Debug)]
struct Copy {
    group: u32,
    lane: usize,
    to: u64,
    from: u64,
    size: usize,
    used: usize,
}

/// A fault, the index of its instruction, and the first lane.
pub(crate) type Stopped = (Trouble, u32, usize);

/// Control flow after an instruction.
enum Flow {
    Next,
    Jump(u32),
    Exit,
    Barrier,
    /// Lanes are missing that it must be executed together with.
    Missing,
}

impl Warp {
    pub(crate) fn new(kernel: &Lowered, number: usize, lanes: u32) -> Warp {
        let mut registers = Registers {
            slots: vec![Default::default(); kernel.slots],
            predicates: vec![0; kernel.predicates],
        };
        for &(at, kind, value) in &kernel.constants {
            match kind {
                Kind::Wide => (0..LANES).for_each(|lane| registers.set_wide(at, lane, value)),
                _ => registers.set_words(at, &[value as u32; LANES]),
            }
        }
        let groups = vec![Group { at: 0, lanes, waits: false }];
        let shadows = vec![0; kernel.shadows];
        Warp {
            registers,
            shadows,
            groups,
            copies: Vec::new(),
            copy_group: 0,
            number,
            isa: Isa::detect(),
            executed: 0,
        }
    }

    /// Whether all its lanes have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.groups.is_empty()
    }

    /// Executes up to so many instructions.
    pub(crate) fn run(
        &mut self,
        code: &[Instruction],
        cta: &mut Cta<'_>,
        turn: u64,
    ) -> Result<Pause, Stopped> {
        self.isa.run(
            #[inline(always)]
            || self.take_turn(code, cta, turn),
        )
    }

    #[inline(always)]
    fn take_turn(&mut self, code: &[Instruction], cta: &mut Cta<'_>, turn: u64) -> Result<Pause, Stopped> {
        let mut left = turn;
        loop {
            // The group that is furthest behind, with whoever is at the same place.
            let Some(first) = self.groups.first() else { return Ok(Pause::Done) };
            let at = match self.groups.iter().filter(|g| !g.waits).map(|g| g.at).min() {
                Some(at) => at,
                // All that are left have come.
                None if self.groups.iter().all(|g| g.at == first.at) => first.at,
                None => {
                    let missing = self.groups.iter().filter(|g| g.at != first.at).fold(0, |l, g| l | g.lanes);
                    return Err((Trouble::Divergent { missing }, first.at, first_lane(first.lanes)));
                }
            };
            let mut lanes = 0;
            self.groups.retain(|g| {
                lanes |= if g.at == at { g.lanes } else { 0 };
                g.at != at
            });
            match self.run_group(code, cta, (at, lanes), &mut left)? {
                Pause::Turn if left == 0 => return Ok(Pause::Turn),
                Pause::Barrier => return Ok(Pause::Barrier),
                _ => {}
            }
        }
    }

    /// Executes a group until it meets another, divides, ends, or must wait.
    #[inline(always)]
    fn run_group(
        &mut self,
        code: &[Instruction],
        cta: &mut Cta<'_>,
        (start, lanes): (u32, u32),
        left: &mut u64,
    ) -> Result<Pause, Stopped> {
        let meets = self.groups.iter().map(|g| g.at).filter(|at| *at > start).min().unwrap_or(u32::MAX);
        let others = self.groups.iter().fold(0, |lanes, g| lanes | g.lanes);
        let all = Mask { bits: lanes };
        let mut at = start;
        loop {
            if *left == 0 || at >= meets {
                self.groups.push(Group { at, lanes, waits: false });
                return Ok(Pause::Turn);
            }
            *left -= 1;
            let instruction = &code[at as usize];
            let mask = match instruction.guard {
                None => all,
                Some((predicate, negated)) => {
                    let bits = self.registers.predicates[usize::from(predicate)];
                    let bits = lanes & if negated { !bits } else { bits };
                    if bits == 0 {
                        at += 1;
                        continue;
                    }
                    Mask { bits }
                }
            };
            self.executed += u64::from(mask.bits.count_ones());
            if let Code::Lanes(op, places) = &instruction.code {
                FUNCTIONS[*op as usize](self.isa, &mut self.registers, mask, places);
                at += 1;
                continue;
            }
            let flow = self.execute(&instruction.code, cta, mask, others);
            match flow.map_err(|(trouble, lane)| (trouble, at, lane))? {
                Flow::Next => at += 1,
                Flow::Jump(target) if mask.bits == lanes => {
                    // Backwards it may meet others that it had passed.
                    if target < at && self.groups.iter().any(|g| g.at <= at) {
                        self.groups.push(Group { at: target, lanes, waits: false });
                        return Ok(Pause::Turn);
                    }
                    at = target;
                }
                Flow::Jump(target) => {
                    self.groups.push(Group { at: target, lanes: mask.bits, waits: false });
                    self.groups.push(Group { at: at + 1, lanes: lanes & !mask.bits, waits: false });
                    return Ok(Pause::Turn);
                }
                Flow::Exit => {
                    if mask.bits != lanes {
                        self.groups.push(Group { at: at + 1, lanes: lanes & !mask.bits, waits: false });
                    }
                    return Ok(Pause::Turn);
                }
                Flow::Barrier => {
                    self.groups.push(Group { at: at + 1, lanes, waits: false });
                    return Ok(Pause::Barrier);
                }
                Flow::Missing => {
                    self.groups.push(Group { at, lanes, waits: true });
                    return Ok(Pause::Turn);
                }
            }
        }
    }

    #[inline(always)]
    fn who(&self, cta: &Cta<'_>) -> Who {
        Who { cta: cta.number, epoch: cta.epoch, warp: self.number as u8 }
    }

    /// Executes what is more than each lane's own business.
    #[inline(always)]
    fn execute(
        &mut self,
        code: &Code,
        cta: &mut Cta<'_>,
        mask: Mask,
        others: u32,
    ) -> Result<Flow, (Trouble, usize)> {
        let first = first_lane(mask.bits);
        match code {
            Code::Lanes(op, places) => FUNCTIONS[*op as usize](self.isa, &mut self.registers, mask, places),
            Code::Logic { places, table } => self.isa.run(
                #[inline(always)]
                || self.logic(places.to, places.from, *table, mask),
            ),
            Code::Special { to, what } => self.special(*to, *what, cta, mask),
            Code::Branch { target } => return Ok(Flow::Jump(*target)),
            Code::Exit => return Ok(Flow::Exit),
            Code::Trap => return Err((Trouble::Trap, first)),
            Code::Barrier if others != 0 => return Ok(Flow::Missing),
            Code::Barrier => return Ok(Flow::Barrier),
            Code::WarpBarrier { members } => {
                if self.misses(*members, mask, others)? {
                    return Ok(Flow::Missing);
                }
            }
            Code::Fence => {
                let who = self.who(cta);
                cta.memory.fence(who);
            }
            Code::Load(access) => self.load(access, cta, mask)?,
            Code::Store(access) => self.store(access, cta, mask)?,
            Code::Atomic(atomic) => self.atomic(atomic, cta, mask)?,
            Code::Shuffle(shuffle) => {
                if self.misses(shuffle.members, mask, others)? {
                    return Ok(Flow::Missing);
                }
                self.isa.run(
                    #[inline(always)]
                    || self.shuffle(shuffle, mask),
                )?;
            }
            Code::Vote { mode, to, from, is_negated, members } => {
                if self.misses(*members, mask, others)? {
                    return Ok(Flow::Missing);
                }
                let bits = self.registers.predicates[usize::from(*from)];
                let bits = mask.bits & if *is_negated { !bits } else { bits };
                let predicate = match mode {
                    VoteMode::Ballot => {
                        self.put(*to, mask, bits);
                        return Ok(Flow::Next);
                    }
                    VoteMode::All => bits == mask.bits,
                    VoteMode::Any => bits != 0,
                };
                let register = &mut self.registers.predicates[usize::from(*to)];
                *register = *register & !mask.bits | if predicate { mask.bits } else { 0 };
            }
            Code::ActiveMask { to } => self.put(*to, mask, mask.bits),
            Code::Reduce { op, to, from, members } => {
                if self.misses(*members, mask, others)? {
                    return Ok(Flow::Missing);
                }
                let words = mask.lanes().map(|lane| u64::from(self.registers.word(*from, lane)));
                let all = words.reduce(|a, b| op.apply(a, b, 0)).unwrap_or(0);
                self.put(*to, mask, all as u32);
            }
            Code::Mma(mma) => {
                let missing = !mask.bits;
                if missing != 0 {
                    return self.all_needed(missing, others, first);
                }
                self.isa.run(
                    #[inline(always)]
                    || matrices::multiply(&mut self.registers, mma),
                );
            }
            Code::LoadMatrix { address, count, is_transposed, registers } => {
                let missing = !mask.bits;
                if missing != 0 {
                    return self.all_needed(missing, others, first);
                }
                self.isa.run(
                    #[inline(always)]
                    || self.load_matrix(address, *count, *is_transposed, registers, cta),
                )?;
            }
            Code::CopyAsync { to, from, size, used } => {
                self.copy_async((to, from), usize::from(*size), *used, cta, mask)?
            }
            Code::CommitCopies => self.copy_group += 1,
            Code::WaitCopies { left } => self.land(*left, cta, mask)?,
            Code::CheckWritten { shadow } => {
                let unwritten = mask.bits & !self.shadows[usize::from(*shadow)];
                if unwritten != 0 {
                    return Err((Trouble::UnwrittenRegister, first_lane(unwritten)));
                }
            }
            Code::Written { shadow } => self.shadows[usize::from(*shadow)] |= mask.bits,
        }
        Ok(Flow::Next)
    }

    /// Whether lanes that an instruction names are not there yet. Fails where they cannot come.
    fn misses(&self, members: u16, mask: Mask, others: u32) -> Result<bool, (Trouble, usize)> {
        let first = first_lane(mask.bits);
        let members = self.registers.word(members, first);
        if mask.bits & !members != 0 {
            return Err((Trouble::NotMember { members }, first_lane(mask.bits & !members)));
        }
        let missing = members & !mask.bits;
        match missing {
            0 => Ok(false),
            _ if missing & !others != 0 => Err((Trouble::Divergent { missing }, first)),
            _ => Ok(true),
        }
    }

    /// An instruction of the whole warp, which lanes are missing for.
    fn all_needed(&self, missing: u32, others: u32, first: usize) -> Result<Flow, (Trouble, usize)> {
        match missing & !others {
            0 => Ok(Flow::Missing),
            _ => Err((Trouble::Divergent { missing }, first)),
        }
    }

    /// Broadcasts a word to the lanes.
    #[inline(always)]
    fn put(&mut self, to: u16, mask: Mask, word: u32) {
        Word::put_all(&mut self.registers, to, mask, [[word; PART]; PARTS]);
    }

    /// Broadcasts 64 bits.
    #[inline(always)]
    fn put_wide(&mut self, to: u16, mask: Mask, value: u64) {
        Wide::put_all(&mut self.registers, to, mask, [[value; PART]; PARTS]);
    }

    /// Chooses the result's bits by `a`, `b` and `c`, in turn.
    #[inline(always)]
    fn logic(&mut self, to: u16, from: [u16; 3], table: u8, mask: Mask) {
        let all = |bit: u8| 0u32.wrapping_sub(u32::from(table >> bit & 1));
        let choose = |by: u32, one: u32, zero: u32| zero ^ by & (one ^ zero);
        let mut results = [[0; PART]; PARTS];
        for (part, results) in results.iter_mut().enumerate() {
            let [a, b, c] = from.map(|at| Word::get(&self.registers, at, part));
            for (i, result) in results.iter_mut().enumerate() {
                let by_c = |bit: u8| choose(c[i], all(bit + 1), all(bit));
                let by_b = |bit: u8| choose(b[i], by_c(bit + 2), by_c(bit));
                *result = choose(a[i], by_b(4), by_b(0));
            }
        }
        Word::put_all(&mut self.registers, to, mask, results);
    }

    fn special(&mut self, to: u16, what: Special, cta: &Cta<'_>, mask: Mask) {
        let [width, height, _] = cta.threads;
        for lane in mask.lanes() {
            let thread = (self.number * LANES + lane) as u32;
            let value = match what {
                Special::Thread(0) => thread % width,
                Special::Thread(1) => thread / width % height,
                Special::Thread(_) => thread / width / height,
                Special::Threads(axis) => cta.threads[axis],
                Special::Cta(axis) => cta.index[axis],
                Special::Ctas(axis) => cta.ctas[axis],
                Special::Lane => lane as u32,
                Special::LanesBelow => (1 << lane) - 1,
                Special::LanesUpTo => (2u64 << lane).wrapping_sub(1) as u32,
            };
            self.registers.set_word(to, lane, value);
        }
    }

    #[inline(always)]
    fn shuffle(&mut self, s: &Shuffle, mask: Mask) -> Result<(), (Trouble, usize)> {
        match s.mode {
            ShuffleMode::Up => self.shuffle_by(s, mask, |me, by, _, _, highest| {
                (me.wrapping_sub(by), me.wrapping_sub(by) as i32 >= highest as i32)
            }),
            ShuffleMode::Down => {
                self.shuffle_by(s, mask, |me, by, _, _, highest| (me + by, me + by <= highest))
            }
            ShuffleMode::Butterfly => {
                self.shuffle_by(s, mask, |me, by, _, _, highest| (me ^ by, me ^ by <= highest))
            }
            ShuffleMode::Index => self.shuffle_by(s, mask, |_, by, segment, lowest, highest| {
                (lowest | by & !segment, lowest | by & !segment <= highest)
            }),
        }
    }

    /// `from` tells, for a lane, a number of lanes, the segment's mask, and its lowest and highest lane, whom it reads from if
    /// that is within bounds.
    #[inline(always)]
    fn shuffle_by(
        &mut self,
        s: &Shuffle,
        mask: Mask,
        from: impl Fn(u32, u32, u32, u32, u32) -> (u32, bool),
    ) -> Result<(), (Trouble, usize)> {
        let (words, by, bounds) =
            (*self.registers.words(s.from), self.registers.words(s.by), self.registers.words(s.bounds));
        let (mut sources, mut within) = ([0; LANES], 0);
        for lane in 0..LANES {
            let (clamp, segment, me) = (bounds[lane] & 31, bounds[lane] >> 8 & 31, lane as u32);
            let lowest = me & segment;
            let (from, is_within) = from(me, by[lane] & 31, segment, lowest, lowest | clamp & !segment);
            sources[lane] = if is_within { from & 31 } else { me };
            within |= u32::from(is_within) << lane;
        }
        let absent = |lane: &usize| mask.bits >> sources[*lane] & 1 == 0;
        if !mask.is_all()
            && let Some(lane) = mask.lanes().find(absent)
        {
            return Err((Trouble::AbsentLane { lane: sources[lane] as usize }, lane));
        }
        let mut results = [[0; PART]; PARTS];
        for (i, source) in sources.iter().enumerate() {
            results[i / PART][i % PART] = words[*source as usize % LANES];
        }
        Word::put_all(&mut self.registers, s.to, mask, results);
        if let Some(at) = s.within {
            let register = &mut self.registers.predicates[usize::from(at)];
            *register = *register & !mask.bits | within & mask.bits;
        }
        Ok(())
    }
}

fn first_lane(lanes: u32) -> usize {
    lanes.trailing_zeros() as usize % LANES
}
