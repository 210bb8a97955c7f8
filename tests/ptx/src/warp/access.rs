//! A warp's accesses to memory: loads, stores, atomics, asynchronous copies.

use bytemuck::cast;

use super::request::{Request, aligned};
use super::{Copy, Cta, Warp, first_lane};
use crate::code::{self, Access, Address, Atomic};
use crate::fault::Trouble;
use crate::memory::{Bytes, Memory, Space};
use crate::parse::Kind;
use crate::registers::{LANES, Lane, Mask, PART, Wide, Word};

/// A fault, and the first lane that it concerns.
type Found = (Trouble, usize);

impl Warp {
    /// Begins a copy from global to shared memory in each lane; bytes past the first `used` are zeros.
    pub(super) fn copy_async(
        &mut self,
        (to, from): (&Address, &Address),
        size: usize,
        used: Option<u16>,
        cta: &mut Cta<'_>,
        mask: Mask,
    ) -> Result<(), Found> {
        let who = self.who(cta);
        let (all_to, all_from) = (self.addresses(to), self.addresses(from));
        for lane in mask.lanes() {
            let (to, from) = (all_to[lane], all_from[lane]);
            let used = used.map_or(size, |at| (self.registers.word(at, lane) as usize).min(size));
            let begun = aligned(to, size).and_then(|()| aligned(from, size));
            let begun = begun.and_then(|()| cta.shared.view(to, who)?.expect(to, size));
            begun.map_err(|trouble| (trouble, lane))?;
            self.copies.push(Copy { group: self.copy_group, lane, to, from, size, used });
        }
        Ok(())
    }

    /// Lets copies land but for those of the last `left` groups: as late as the kernel allows.
    pub(super) fn land(&mut self, left: u32, cta: &mut Cta<'_>, mask: Mask) -> Result<(), Found> {
        let (who, until) = (self.who(cta), self.copy_group.saturating_sub(left));
        // `wait_all` waits for what is in no group yet too.
        let is_due = |copy: &Copy| (copy.group < until || left == 0) && mask.bits >> copy.lane & 1 == 1;
        for Copy { lane, to, from, size, used, .. } in self.copies.iter().filter(|copy| is_due(copy)) {
            let mut bytes = [0; 16];
            let mut copy = || {
                if *used > 0 {
                    let mut view = cta.memory.view(*from, who)?;
                    bytes[..*used].copy_from_slice(view.read_run(*from, *used)?);
                }
                cta.shared.view(*to, who)?.write_run(*to, &bytes[..*size])
            };
            copy().map_err(|trouble| (trouble, *lane))?;
        }
        self.copies.retain(|copy| !is_due(copy));
        Ok(())
    }

    #[inline(always)]
    pub(super) fn load_matrix(
        &mut self,
        address: &Address,
        count: u8,
        is_transposed: bool,
        registers: &[u16; 4],
        cta: &mut Cta<'_>,
    ) -> Result<(), Found> {
        // The first matrix may take the place of the addresses.
        let (who, addresses) = (self.who(cta), self.addresses(address));
        for (m, to) in registers[..usize::from(count)].iter().enumerate() {
            let mut matrix = [[0u16; 8]; 8];
            for (r, row) in matrix.iter_mut().enumerate() {
                let lane = 8 * m + r;
                let mut read = || {
                    aligned(addresses[lane], 16)?;
                    let mut view = cta.shared.view(addresses[lane], who)?;
                    let halves = view.read_run(addresses[lane], 16)?.as_chunks::<2>().0;
                    row.iter_mut().zip(halves).for_each(|(to, half)| *to = u16::from_le_bytes(*half));
                    Ok(())
                };
                read().map_err(|trouble| (trouble, lane))?;
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

    /// The addresses of all lanes.
    #[inline(always)]
    fn addresses(&self, address: &Address) -> [u64; LANES] {
        let mut addresses = [0; LANES];
        for (part, addresses) in addresses.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
            let bases = match address.base {
                None => [0; PART],
                Some((at, Kind::Wide)) => Wide::get(&self.registers, at, part),
                Some((at, _)) => Word::get(&self.registers, at, part).map(u64::from),
            };
            *addresses = bases.map(|base| base.wrapping_add_signed(address.offset));
        }
        addresses
    }

    /// Parameters at one address, for all lanes of a mask.
    fn load_parameters(
        &mut self,
        access: &Access,
        address: u64,
        parameters: &[u8],
        mask: Mask,
    ) -> Result<(), Trouble> {
        let (size, count) = (usize::from(access.size), usize::from(access.count));
        aligned(address, size * count)?;
        for (i, to) in access.registers[..count].iter().enumerate() {
            let value = parameter(parameters, address + (i * size) as u64, size)?;
            let value = access.extend.map_or(value, |bits| extended(value, size, bits));
            match access.kind {
                Kind::Wide => self.put_wide(*to, mask, value),
                _ => self.put(*to, mask, value as u32),
            }
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn load(&mut self, access: &Access, cta: &mut Cta<'_>, mask: Mask) -> Result<(), Found> {
        let (who, first) = (self.who(cta), first_lane(mask.bits));
        if let Address { space: code::Space::Parameters, base: None, offset } = access.address {
            let loaded = self.load_parameters(access, 0u64.wrapping_add_signed(offset), cta.parameters, mask);
            return loaded.map_err(|trouble| (trouble, first));
        }
        let addresses = &self.addresses(&access.address);
        let request = Request { who, addresses, mask };
        match access.address.space {
            code::Space::Global => self.load_from(cta.memory, access, request),
            code::Space::Shared => self.load_from(cta.shared, access, request),
            code::Space::Parameters => {
                // Lanes seldom differ.
                let mut left = mask.bits;
                while left != 0 {
                    let lane = first_lane(left);
                    let mut same = 0;
                    for (i, address) in addresses.iter().enumerate() {
                        same |= u32::from(*address == addresses[lane]) << i;
                    }
                    let same = Mask { bits: left & same };
                    let loaded = self.load_parameters(access, addresses[lane], cta.parameters, same);
                    loaded.map_err(|trouble| (trouble, lane))?;
                    left &= !same.bits;
                }
                Ok(())
            }
        }
    }

    #[inline(always)]
    fn load_from<S: Space>(
        &mut self,
        from: &mut S,
        access: &Access,
        request: Request<'_>,
    ) -> Result<(), Found> {
        match access.size * access.count {
            1 => self.load_elements::<S, 1, 1>(from, access, request),
            2 => self.load_elements::<S, 2, 1>(from, access, request),
            4 => self.load_elements::<S, 4, 1>(from, access, request),
            8 => self.load_elements::<S, 8, 2>(from, access, request),
            _ => self.load_elements::<S, 16, 4>(from, access, request),
        }
    }

    /// Loads elements that take so many bytes, and words, of each lane.
    fn load_elements<S: Space, const BYTES: usize, const WORDS: usize>(
        &mut self,
        from: &mut S,
        access: &Access,
        request: Request<'_>,
    ) -> Result<(), Found> {
        self.isa.run(
            #[inline(always)]
            || {
                let mut words = [[0; LANES]; WORDS];
                request.load::<S, BYTES, WORDS>(from, &mut words)?;
                match (access.kind, access.size) {
                    (Kind::Wide, _) => self.put_wides(access, request.mask, &words),
                    (_, 4) => {
                        for (to, words) in access.registers.iter().zip(words) {
                            Word::put_all(&mut self.registers, *to, request.mask, cast(words));
                        }
                    }
                    _ => self.put_narrow(access, request.mask, &words),
                }
                Ok(())
            },
        )
    }

    /// Puts loaded elements in registers of 64 bits.
    fn put_wides(&mut self, access: &Access, mask: Mask, words: &[[u32; LANES]]) {
        let size = usize::from(access.size);
        for (i, to) in access.registers[..usize::from(access.count)].iter().enumerate() {
            let mut values = [0; LANES];
            for (lane, value) in values.iter_mut().enumerate() {
                *value = match size {
                    8 => u64::from(words[2 * i + 1][lane]) << 32 | u64::from(words[2 * i][lane]),
                    _ => u64::from(part(words[i * size / 4][lane], i * size % 4, size)),
                };
                *value = access.extend.map_or(*value, |bits| extended(*value, size, bits));
            }
            Wide::put_all(&mut self.registers, *to, mask, cast(values));
        }
    }

    /// Puts loaded bytes or halves in registers of words.
    #[inline(always)]
    fn put_narrow(&mut self, access: &Access, mask: Mask, words: &[[u32; LANES]]) {
        let size = usize::from(access.size);
        for (i, to) in access.registers[..usize::from(access.count)].iter().enumerate() {
            let mut values = words[i * size / 4];
            values.iter_mut().for_each(|value| *value = part(*value, i * size % 4, size));
            if let Some(bits) = access.extend {
                values.iter_mut().for_each(|value| *value = extended(u64::from(*value), size, bits) as u32);
            }
            Word::put_all(&mut self.registers, *to, mask, cast(values));
        }
    }

    #[inline(always)]
    pub(super) fn store(&mut self, access: &Access, cta: &mut Cta<'_>, mask: Mask) -> Result<(), Found> {
        let addresses = &self.addresses(&access.address);
        let request = Request { who: self.who(cta), addresses, mask };
        match access.address.space {
            code::Space::Global => self.store_to(cta.memory, access, request),
            code::Space::Shared => self.store_to(cta.shared, access, request),
            code::Space::Parameters => Err((Trouble::ReadOnly, first_lane(mask.bits))),
        }
    }

    #[inline(always)]
    fn store_to<S: Space>(&self, to: &mut S, access: &Access, request: Request<'_>) -> Result<(), Found> {
        match access.size * access.count {
            1 => self.store_elements::<S, 1, 1>(to, access, request),
            2 => self.store_elements::<S, 2, 1>(to, access, request),
            4 => self.store_elements::<S, 4, 1>(to, access, request),
            8 => self.store_elements::<S, 8, 2>(to, access, request),
            _ => self.store_elements::<S, 16, 4>(to, access, request),
        }
    }

    /// Stores elements that take so many bytes, and words, of each lane.
    fn store_elements<S: Space, const BYTES: usize, const WORDS: usize>(
        &self,
        to: &mut S,
        access: &Access,
        request: Request<'_>,
    ) -> Result<(), Found> {
        self.isa.run(
            #[inline(always)]
            || {
                let (mut words, size) = ([[0; LANES]; WORDS], usize::from(access.size));
                for (i, from) in access.registers[..usize::from(access.count)].iter().enumerate() {
                    match size {
                        8 => {
                            let both = [*self.registers.words(*from), *self.registers.words(*from + 1)];
                            for (lane, both) in both.as_flattened().as_chunks::<2>().0.iter().enumerate() {
                                [words[2 * i][lane], words[2 * i + 1][lane]] = *both;
                            }
                        }
                        4 => words[i] = *self.registers.words(*from),
                        _ => {
                            let narrow = words[i * size / 4].iter_mut().zip(self.registers.words(*from));
                            narrow
                                .for_each(|(word, from)| *word |= part(*from, 0, size) << (i * size % 4 * 8));
                        }
                    }
                }
                request.store::<S, BYTES, WORDS>(to, &words)
            },
        )
    }

    pub(super) fn atomic(&mut self, atomic: &Atomic, cta: &mut Cta<'_>, mask: Mask) -> Result<(), Found> {
        let (who, addresses) = (self.who(cta), self.addresses(&atomic.address));
        let size = if atomic.kind == Kind::Wide { 8 } else { 4 };
        for lane in mask.lanes() {
            let address = addresses[lane];
            aligned(address, size).map_err(|trouble| (trouble, lane))?;
            let get = |at: u16| match atomic.kind {
                Kind::Wide => self.registers.wide(at, lane),
                _ => u64::from(self.registers.word(at, lane)),
            };
            let (by, then) = (get(atomic.by), atomic.then.map_or(0, get));
            let change = |old| atomic.op.apply(old, by, then);
            let old = match atomic.address.space {
                code::Space::Global => Memory::change(cta.memory, address, size, who, change),
                code::Space::Shared => Bytes::change(cta.shared, address, size, who, change),
                code::Space::Parameters => Err(Trouble::ReadOnly),
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
}

/// A byte or a half of a word, or all of it.
#[inline(always)]
fn part(word: u32, at: usize, size: usize) -> u32 {
    word >> (8 * at) & u32::MAX >> (32 - 8 * size)
}

/// A number of so many bytes, extended by its sign to so many bits.
#[inline(always)]
fn extended(value: u64, size: usize, bits: u8) -> u64 {
    let unused = 64 - 8 * size;
    ((value << unused) as i64 >> unused) as u64 & (u64::MAX >> (64 - bits))
}

#[inline(always)]
fn parameter(parameters: &[u8], address: u64, size: usize) -> Result<u64, Trouble> {
    let at = usize::try_from(address).unwrap_or(usize::MAX);
    let bytes = at.checked_add(size).and_then(|end| parameters.get(at..end));
    let past = address.saturating_add(size as u64).saturating_sub(parameters.len() as u64);
    let bytes = bytes.ok_or(Trouble::OutOfBounds { size: parameters.len(), past })?;
    Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}
