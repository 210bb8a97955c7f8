//! Execution of a warp: converged lanes together, divergent groups by least PC.

use crate::code::{
    Access, Address, Atomic, Code, Instruction, Lowered, Shuffle, ShuffleMode, Space, Special, VoteMode,
};
use crate::fault::Trouble;
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

/// Access pattern of a warp.
enum Spread {
    /// Coalesced, from this address.
    Run(u64),
    /// All lanes at this address.
    Same(u64),
    /// Otherwise.
    Apart,
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
            for lane in 0..LANES {
                match kind {
                    Kind::Wide => registers.set_wide(at, lane, value),
                    _ => registers.set_word(at, lane, value as u32),
                }
            }
        }
        let groups = vec![Group { at: 0, lanes, waits: false }];
        let shadows = vec![0; kernel.shadows];
        Warp { registers, shadows, groups, copies: Vec::new(), copy_group: 0, number, executed: 0 }
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
        #[cfg(target_arch = "x86_64")]
        if has_avx2() {
            // SAFETY: the processor has these, as was just asked.
            return unsafe { self.run_with_avx2(code, cta, turn) };
        }
        self.run_anywhere(code, cta, turn)
    }

    /// Compiled for AVX2 and FMA: without, `mul_add` is a library call for each lane.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    fn run_with_avx2(
        &mut self,
        code: &[Instruction],
        cta: &mut Cta<'_>,
        turn: u64,
    ) -> Result<Pause, Stopped> {
        self.run_anywhere(code, cta, turn)
    }

    #[inline(always)]
    fn run_anywhere(&mut self, code: &[Instruction], cta: &mut Cta<'_>, turn: u64) -> Result<Pause, Stopped> {
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
        let all = Mask::new(lanes);
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
                    if bits == lanes { all } else { Mask::new(bits) }
                }
            };
            self.executed += u64::from(mask.bits.count_ones());
            if let Code::Lanes(op, places) = &instruction.code {
                op.run(&mut self.registers, &mask, places);
                at += 1;
                continue;
            }
            let flow = self.execute(&instruction.code, cta, &mask, others);
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

    fn who(&self, cta: &Cta<'_>) -> Who {
        Who { cta: cta.number, epoch: cta.epoch, warp: self.number as u8 }
    }

    /// Executes what is more than each lane's own business.
    fn execute(
        &mut self,
        code: &Code,
        cta: &mut Cta<'_>,
        mask: &Mask,
        others: u32,
    ) -> Result<Flow, (Trouble, usize)> {
        let first = first_lane(mask.bits);
        match code {
            Code::Lanes(op, places) => op.run(&mut self.registers, mask, places),
            Code::Logic { places, table } => self.logic(places.to, places.from, *table, mask),
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
                self.shuffle(shuffle, mask)?;
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
                matrices::multiply(&mut self.registers, mma);
            }
            Code::LoadMatrix { address, count, is_transposed, registers } => {
                let missing = !mask.bits;
                if missing != 0 {
                    return self.all_needed(missing, others, first);
                }
                self.load_matrix(address, *count, *is_transposed, registers, cta)?;
            }
            Code::CopyAsync { to, from, size, used } => {
                let who = self.who(cta);
                for lane in mask.lanes() {
                    let (to, from) = (self.address(to, lane), self.address(from, lane));
                    let size = usize::from(*size);
                    let used = used.map_or(size, |at| (self.registers.word(at, lane) as usize).min(size));
                    let begun = aligned(to, size).and_then(|()| aligned(from, size));
                    let begun = begun.and_then(|()| cta.shared.expect(to, size, who));
                    begun.map_err(|trouble| (trouble, lane))?;
                    self.copies.push(Copy { group: self.copy_group, lane, to, from, size, used });
                }
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
    fn misses(&self, members: u16, mask: &Mask, others: u32) -> Result<bool, (Trouble, usize)> {
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

    /// Lets copies land but for those of the last `left` groups: as late as the kernel allows.
    fn land(&mut self, left: u32, cta: &mut Cta<'_>, mask: &Mask) -> Result<(), (Trouble, usize)> {
        let (who, until) = (self.who(cta), self.copy_group.saturating_sub(left));
        // `wait_all` waits for what is in no group yet too.
        let is_due = |copy: &Copy| (copy.group < until || left == 0) && mask.bits >> copy.lane & 1 == 1;
        let due: Vec<Copy> = self.copies.iter().filter(|copy| is_due(copy)).copied().collect();
        self.copies.retain(|copy| !is_due(copy));
        for Copy { lane, to, from, size, used, .. } in due {
            for at in (0..size).step_by(4) {
                let value = match at < used {
                    true => cta.memory.read(from + at as u64, 4, who),
                    false => Ok(0),
                };
                let written = value.and_then(|value| cta.shared.write(to + at as u64, 4, value, who));
                written.map_err(|trouble| (trouble, lane))?;
            }
        }
        Ok(())
    }

    fn load_matrix(
        &mut self,
        address: &Address,
        count: u8,
        is_transposed: bool,
        registers: &[u16; 4],
        cta: &mut Cta<'_>,
    ) -> Result<(), (Trouble, usize)> {
        let who = self.who(cta);
        // The first matrix may take the place of the addresses.
        let addresses = self.addresses(address);
        for (m, to) in registers[..usize::from(count)].iter().enumerate() {
            let mut matrix = [[0u16; 8]; 8];
            for (r, row) in matrix.iter_mut().enumerate() {
                let lane = 8 * m + r;
                let address = addresses[lane];
                aligned(address, 16).map_err(|trouble| (trouble, lane))?;
                for (c, value) in row.iter_mut().enumerate() {
                    let half = cta.shared.read(address + 2 * c as u64, 2, who);
                    *value = half.map_err(|trouble| (trouble, lane))? as u16;
                }
            }
            for lane in 0..LANES {
                let (r, c) = (lane / 4, lane % 4 * 2);
                let at = |i: usize| if is_transposed { matrix[c + i][r] } else { matrix[r][c + i] };
                let word = u32::from(at(1)) << 16 | u32::from(at(0));
                self.registers.set_word(*to, lane, word);
            }
        }
        Ok(())
    }

    /// Broadcasts a word to the lanes.
    fn put(&mut self, to: u16, mask: &Mask, word: u32) {
        (0..PARTS).for_each(|part| Word::put(&mut self.registers, to, part, mask, [word; 8]));
    }

    fn logic(&mut self, to: u16, from: [u16; 3], table: u8, mask: &Mask) {
        for part in 0..PARTS {
            let [a, b, c] = from.map(|at| Word::get(&self.registers, at, part));
            let values = std::array::from_fn(|i| {
                let term = |bit: u8| {
                    let choose = |word: u32, is: u8| if is != 0 { word } else { !word };
                    choose(a[i], bit & 4) & choose(b[i], bit & 2) & choose(c[i], bit & 1)
                };
                (0..8).filter(|bit| table >> bit & 1 == 1).fold(0, |word, bit| word | term(bit))
            });
            Word::put(&mut self.registers, to, part, mask, values);
        }
    }

    fn special(&mut self, to: u16, what: Special, cta: &Cta<'_>, mask: &Mask) {
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

    /// The addresses of all lanes.
    fn addresses(&self, address: &Address) -> [u64; LANES] {
        let mut addresses = [0; LANES];
        for (part, addresses) in addresses.chunks_exact_mut(PART).enumerate() {
            let bases = match address.base {
                None => [0; PART],
                Some((at, Kind::Wide)) => Wide::get(&self.registers, at, part),
                Some((at, _)) => Word::get(&self.registers, at, part).map(u64::from),
            };
            let with_offset = bases.map(|base| base.wrapping_add_signed(address.offset));
            addresses.copy_from_slice(&with_offset);
        }
        addresses
    }

    fn address(&self, address: &Address, lane: usize) -> u64 {
        let base = match address.base {
            None => 0,
            Some((at, Kind::Wide)) => self.registers.wide(at, lane),
            Some((at, _)) => u64::from(self.registers.word(at, lane)),
        };
        base.wrapping_add_signed(address.offset)
    }

    /// How the addresses of all lanes lie.
    fn spread(&self, access: &Access, mask: &Mask) -> Spread {
        let step = u64::from(access.size) * u64::from(access.count);
        let at = match (mask.bits, access.address.base) {
            (u32::MAX, Some((at, Kind::Wide)))
                if access.extend.is_none_or(|bits| bits == 8 * access.size)
                    && (access.kind == Kind::Wide) == (access.size == 8)
                    && access.address.space != Space::Parameters =>
            {
                at
            }
            _ => return Spread::Apart,
        };
        let first = self.registers.wide(at, 0);
        if first.wrapping_add_signed(access.address.offset) & (step - 1) != 0 {
            return Spread::Apart;
        }
        let are_apart_by = |step: u64| {
            (0..PARTS).all(|part| {
                let start = first.wrapping_add((part * PART) as u64 * step);
                let addresses = Wide::get(&self.registers, at, part);
                (0..PART).fold(true, |is, i| is & (addresses[i] == start.wrapping_add(i as u64 * step)))
            })
        };
        let address = first.wrapping_add_signed(access.address.offset);
        match () {
            () if are_apart_by(step) => Spread::Run(address),
            () if are_apart_by(0) => Spread::Same(address),
            () => Spread::Apart,
        }
    }

    /// A coalesced load of all lanes.
    fn load_run(&mut self, first: u64, access: &Access, cta: &mut Cta<'_>) -> Result<(), Trouble> {
        let (who, size, count) = (self.who(cta), usize::from(access.size), usize::from(access.count));
        let bytes = match access.address.space {
            Space::Global => cta.memory.read_run(first, LANES * size * count, who)?,
            _ => cta.shared.read_run(first, LANES * size * count, who)?,
        };
        for (lane, bytes) in bytes.chunks_exact(size * count).enumerate() {
            for (to, bytes) in access.registers.iter().zip(bytes.chunks_exact(size)) {
                match *bytes {
                    [a, b, c, d] => self.registers.set_word(*to, lane, u32::from_le_bytes([a, b, c, d])),
                    [a, b] => self.registers.set_word(*to, lane, u32::from(u16::from_le_bytes([a, b]))),
                    [a] => self.registers.set_word(*to, lane, u32::from(a)),
                    _ => {
                        let mut wide = [0; 8];
                        wide.copy_from_slice(bytes);
                        self.registers.set_wide(*to, lane, u64::from_le_bytes(wide));
                    }
                }
            }
        }
        Ok(())
    }

    /// A load of all lanes from one address.
    fn load_same(&mut self, address: u64, access: &Access, cta: &mut Cta<'_>) -> Result<(), Trouble> {
        let (who, size, all) = (self.who(cta), usize::from(access.size), Mask::new(u32::MAX));
        for (i, to) in access.registers[..usize::from(access.count)].iter().enumerate() {
            let address = address + (i * size) as u64;
            let value = match access.address.space {
                Space::Global => cta.memory.read(address, size, who)?,
                _ => cta.shared.read(address, size, who)?,
            };
            match access.kind {
                Kind::Wide => {
                    (0..PARTS).for_each(|part| Wide::put(&mut self.registers, *to, part, &all, [value; PART]))
                }
                _ => self.put(*to, &all, value as u32),
            }
        }
        Ok(())
    }

    /// Parameters, which are where they are for all lanes.
    fn load_parameters(&mut self, access: &Access, parameters: &[u8], mask: &Mask) -> Result<(), Trouble> {
        let (size, count) = (usize::from(access.size), usize::from(access.count));
        let first = 0u64.wrapping_add_signed(access.address.offset);
        aligned(first, size * count)?;
        for (i, to) in access.registers[..count].iter().enumerate() {
            let value = parameter(parameters, first + (i * size) as u64, size)?;
            let value = access.extend.map_or(value, |bits| extended(value, size, bits));
            match access.kind {
                Kind::Wide => {
                    (0..PARTS).for_each(|part| Wide::put(&mut self.registers, *to, part, mask, [value; PART]))
                }
                _ => self.put(*to, mask, value as u32),
            }
        }
        Ok(())
    }

    /// A scattered load of all lanes. False if it has to be done lane by lane.
    fn gather(&mut self, access: &Access, addresses: &[u64; LANES], cta: &mut Cta<'_>) -> bool {
        let (who, size) = (self.who(cta), usize::from(access.size));
        let mut values = [0; LANES];
        let is_done = match access.address.space {
            Space::Global => cta.memory.gather(addresses, size, who, &mut values),
            Space::Shared => cta.shared.gather_here(addresses, size, who, &mut values),
            Space::Parameters => false,
        };
        if !is_done {
            return false;
        }
        if let Some(bits) = access.extend {
            values = values.map(|value| extended(value, size, bits));
        }
        let all = Mask::new(u32::MAX);
        for (part, values) in values.as_chunks::<PART>().0.iter().enumerate() {
            match access.kind {
                Kind::Wide => Wide::put(&mut self.registers, access.registers[0], part, &all, *values),
                _ => Word::put(
                    &mut self.registers,
                    access.registers[0],
                    part,
                    &all,
                    values.map(|value| value as u32),
                ),
            }
        }
        true
    }

    /// A coalesced store of all lanes.
    fn store_run(&self, first: u64, access: &Access, cta: &mut Cta<'_>) -> Result<(), Trouble> {
        let (who, size, count) = (self.who(cta), usize::from(access.size), usize::from(access.count));
        let mut bytes = [0; LANES * 16];
        let bytes = &mut bytes[..LANES * size * count];
        for (lane, bytes) in bytes.chunks_exact_mut(size * count).enumerate() {
            for (from, bytes) in access.registers.iter().zip(bytes.chunks_exact_mut(size)) {
                match access.kind {
                    Kind::Wide => {
                        bytes.copy_from_slice(&self.registers.wide(*from, lane).to_le_bytes()[..size])
                    }
                    _ => bytes.copy_from_slice(&self.registers.word(*from, lane).to_le_bytes()[..size]),
                }
            }
        }
        match access.address.space {
            Space::Global => cta.memory.write_run(first, bytes, who),
            _ => cta.shared.write_run(first, bytes, who),
        }
    }

    fn load(&mut self, access: &Access, cta: &mut Cta<'_>, mask: &Mask) -> Result<(), (Trouble, usize)> {
        let (who, size, count) = (self.who(cta), usize::from(access.size), usize::from(access.count));
        if let Address { space: Space::Parameters, base: None, .. } = access.address {
            let loaded = self.load_parameters(access, cta.parameters, mask);
            return loaded.map_err(|trouble| (trouble, first_lane(mask.bits)));
        }
        // Where something is wrong, the lanes are gone through one by one to find the first that it concerns.
        match self.spread(access, mask) {
            Spread::Run(first) if self.load_run(first, access, cta).is_ok() => return Ok(()),
            Spread::Same(address) if self.load_same(address, access, cta).is_ok() => return Ok(()),
            _ => {}
        }
        let addresses = self.addresses(&access.address);
        if mask.bits == u32::MAX && count == 1 && self.gather(access, &addresses, cta) {
            return Ok(());
        }
        for lane in mask.lanes() {
            let address = addresses[lane];
            aligned(address, size * count).map_err(|trouble| (trouble, lane))?;
            for (i, to) in access.registers[..count].iter().enumerate() {
                let address = address + (i * size) as u64;
                let value = match access.address.space {
                    Space::Global => cta.memory.read(address, size, who),
                    Space::Shared => cta.shared.read(address, size, who),
                    Space::Parameters => parameter(cta.parameters, address, size),
                };
                let mut value = value.map_err(|trouble| (trouble, lane))?;
                if let Some(bits) = access.extend {
                    value = extended(value, size, bits);
                }
                match access.kind {
                    Kind::Wide => self.registers.set_wide(*to, lane, value),
                    _ => self.registers.set_word(*to, lane, value as u32),
                }
            }
        }
        Ok(())
    }

    fn store(&mut self, access: &Access, cta: &mut Cta<'_>, mask: &Mask) -> Result<(), (Trouble, usize)> {
        let (who, size, count) = (self.who(cta), usize::from(access.size), usize::from(access.count));
        if let Spread::Run(first) = self.spread(access, mask)
            && self.store_run(first, access, cta).is_ok()
        {
            return Ok(());
        }
        for lane in mask.lanes() {
            let address = self.address(&access.address, lane);
            aligned(address, size * count).map_err(|trouble| (trouble, lane))?;
            for (i, from) in access.registers[..count].iter().enumerate() {
                let address = address + (i * size) as u64;
                let value = match access.kind {
                    Kind::Wide => self.registers.wide(*from, lane),
                    _ => u64::from(self.registers.word(*from, lane)),
                };
                let written = match access.address.space {
                    Space::Global => cta.memory.write(address, size, value, who),
                    Space::Shared => cta.shared.write(address, size, value, who),
                    Space::Parameters => Err(Trouble::ReadOnly),
                };
                written.map_err(|trouble| (trouble, lane))?;
            }
        }
        Ok(())
    }

    fn atomic(&mut self, atomic: &Atomic, cta: &mut Cta<'_>, mask: &Mask) -> Result<(), (Trouble, usize)> {
        let who = self.who(cta);
        let size = if atomic.kind == Kind::Wide { 8 } else { 4 };
        for lane in mask.lanes() {
            let address = self.address(&atomic.address, lane);
            aligned(address, size).map_err(|trouble| (trouble, lane))?;
            let get = |at: u16| match atomic.kind {
                Kind::Wide => self.registers.wide(at, lane),
                _ => u64::from(self.registers.word(at, lane)),
            };
            let (by, then) = (get(atomic.by), atomic.then.map_or(0, get));
            let change = |old| atomic.op.apply(old, by, then);
            let old = match atomic.address.space {
                Space::Global => cta.memory.change(address, size, who, change),
                Space::Shared => cta.shared.change(address, size, who, change),
                Space::Parameters => Err(Trouble::ReadOnly),
            };
            let old = old.map_err(|trouble| (trouble, lane))?;
            match (atomic.to, atomic.kind) {
                (None, _) => {}
                (Some(to), Kind::Wide) => self.registers.set_wide(to, lane, old),
                (Some(to), _) => self.registers.set_word(to, lane, old as u32),
            }
        }
        Ok(())
    }

    fn shuffle(&mut self, s: &Shuffle, mask: &Mask) -> Result<(), (Trouble, usize)> {
        let words: [u32; LANES] = std::array::from_fn(|lane| self.registers.word(s.from, lane));
        let mut results = [(0, false); LANES];
        for lane in mask.lanes() {
            let (by, bounds) = (self.registers.word(s.by, lane) & 31, self.registers.word(s.bounds, lane));
            let (clamp, segment) = (bounds & 31, bounds >> 8 & 31);
            let me = lane as u32;
            let lowest = me & segment;
            let highest = lowest | clamp & !segment;
            let (from, within) = match s.mode {
                ShuffleMode::Up => (me.wrapping_sub(by), me.wrapping_sub(by) as i32 >= highest as i32),
                ShuffleMode::Down => (me + by, me + by <= highest),
                ShuffleMode::Butterfly => (me ^ by, me ^ by <= highest),
                ShuffleMode::Index => (lowest | by & !segment, lowest | by & !segment <= highest),
            };
            let from = if within { from as usize } else { lane };
            if mask.bits >> from & 1 == 0 {
                return Err((Trouble::AbsentLane { lane: from }, lane));
            }
            results[lane] = (words[from], within);
        }
        for lane in mask.lanes() {
            let (word, within) = results[lane];
            self.registers.set_word(s.to, lane, word);
            if let Some(at) = s.within {
                let register = &mut self.registers.predicates[usize::from(at)];
                *register = *register & !(1 << lane) | u32::from(within) << lane;
            }
        }
        Ok(())
    }
}

fn first_lane(lanes: u32) -> usize {
    lanes.trailing_zeros() as usize % LANES
}

/// A number of so many bytes, extended by its sign to so many bits.
fn extended(value: u64, size: usize, bits: u8) -> u64 {
    let unused = 64 - 8 * size;
    ((value << unused) as i64 >> unused) as u64 & (u64::MAX >> (64 - bits))
}

/// `size` is a power of two.
#[inline(always)]
fn aligned(address: u64, size: usize) -> Result<(), Trouble> {
    match address & (size as u64 - 1) == 0 {
        true => Ok(()),
        false => Err(Trouble::Misaligned { address, size }),
    }
}

fn parameter(parameters: &[u8], address: u64, size: usize) -> Result<u64, Trouble> {
    let at = usize::try_from(address).unwrap_or(usize::MAX);
    let bytes = at.checked_add(size).and_then(|end| parameters.get(at..end));
    let past = address.saturating_add(size as u64).saturating_sub(parameters.len() as u64);
    let bytes = bytes.ok_or(Trouble::OutOfBounds { size: parameters.len(), past })?;
    let mut value = [0; 8];
    value[..size].copy_from_slice(bytes);
    Ok(u64::from_le_bytes(value))
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}
