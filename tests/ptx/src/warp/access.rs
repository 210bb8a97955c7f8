//! A warp's accesses to memory: loads, stores, atomics, asynchronous copies.

use bytemuck::cast;

use super::{Copy, Cta, Warp, first_lane};
use crate::code::{self, Access, Address, Atomic};
use crate::fault::Trouble;
use crate::memory::{Bytes, Memory, Space, Who};
use crate::parse::Kind;
use crate::registers::{LANES, Lane, Mask, PART, Wide, Word};

/// Access pattern of a warp.
enum Spread {
    /// Coalesced.
    Run,
    /// All lanes at one address.
    Same,
    /// Otherwise.
    Apart,
}

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
        let addresses = self.addresses(&access.address);
        match access.address.space {
            code::Space::Global => self.load_from(cta.memory, who, access, &addresses, mask),
            code::Space::Shared => self.load_from(cta.shared, who, access, &addresses, mask),
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
        who: Who,
        access: &Access,
        addresses: &[u64; LANES],
        mask: Mask,
    ) -> Result<(), Found> {
        match (access.kind, access.size) {
            (Kind::Wide, _) => self.load_wide(from, who, access, addresses, mask),
            (_, 1) => self.isa.run(
                #[inline(always)]
                || self.load_words::<S, 1>(from, who, access, addresses, mask),
            ),
            (_, 2) => self.isa.run(
                #[inline(always)]
                || self.load_words::<S, 2>(from, who, access, addresses, mask),
            ),
            _ => self.isa.run(
                #[inline(always)]
                || self.load_words::<S, 4>(from, who, access, addresses, mask),
            ),
        }
    }

    /// Loads of elements that a word holds.
    #[inline(always)]
    fn load_words<S: Space, const SIZE: usize>(
        &mut self,
        from: &mut S,
        who: Who,
        access: &Access,
        addresses: &[u64; LANES],
        mask: Mask,
    ) -> Result<(), Found> {
        let count = usize::from(access.count);
        let (step, registers) = (SIZE * count, &access.registers[..count]);
        let mut values = [[0; LANES]; 4];
        // Where something is wrong, the lanes are gone through one by one to find the first that it concerns.
        let is_done = match spread(addresses, step, mask) {
            Spread::Run => from.view(addresses[0], who).is_ok_and(|mut view| {
                let bytes = view.read_run(addresses[0], LANES * step);
                let bytes = bytes.map(|bytes| apart::<SIZE>(bytes, count, &mut values));
                bytes.is_ok()
            }),
            Spread::Same => from.view(addresses[0], who).is_ok_and(|mut view| {
                let bytes = view.read_run(addresses[0], step);
                let elements = bytes.map(|bytes| bytes.as_chunks::<SIZE>().0.iter().zip(&mut values));
                elements.map(|all| all.for_each(|(bytes, values)| *values = [word(bytes); LANES])).is_ok()
            }),
            Spread::Apart => false,
        };
        if !is_done {
            let first = first_lane(mask.bits);
            let mut view = from.view(addresses[first], who).map_err(|trouble| (trouble, first))?;
            for lane in mask.lanes() {
                let address = addresses[lane];
                aligned(address, step).map_err(|trouble| (trouble, lane))?;
                if !view.holds(address) {
                    view = from.view(address, who).map_err(|trouble| (trouble, lane))?;
                }
                for (i, values) in values[..count].iter_mut().enumerate() {
                    let value = view.read::<SIZE>(address + (i * SIZE) as u64);
                    values[lane] = value.map_err(|trouble| (trouble, lane))? as u32;
                }
            }
        }
        for (to, mut values) in registers.iter().zip(values) {
            if let Some(bits) = access.extend {
                values = values.map(|value| extended(u64::from(value), SIZE, bits) as u32);
            }
            Word::put_all(&mut self.registers, *to, mask, cast(values));
        }
        Ok(())
    }

    /// Loads of what takes a register of 64 bits.
    fn load_wide<S: Space>(
        &mut self,
        from: &mut S,
        who: Who,
        access: &Access,
        addresses: &[u64; LANES],
        mask: Mask,
    ) -> Result<(), Found> {
        let (size, count) = (usize::from(access.size), usize::from(access.count));
        for lane in mask.lanes() {
            let mut read = || {
                aligned(addresses[lane], size * count)?;
                let mut view = from.view(addresses[lane], who)?;
                for (i, to) in access.registers[..count].iter().enumerate() {
                    let address = addresses[lane] + (i * size) as u64;
                    let value = match size {
                        1 => view.read::<1>(address)?,
                        2 => view.read::<2>(address)?,
                        4 => view.read::<4>(address)?,
                        _ => view.read::<8>(address)?,
                    };
                    let value = access.extend.map_or(value, |bits| extended(value, size, bits));
                    self.registers.set_wide(*to, lane, value);
                }
                Ok(())
            };
            read().map_err(|trouble| (trouble, lane))?;
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn store(&mut self, access: &Access, cta: &mut Cta<'_>, mask: Mask) -> Result<(), Found> {
        let (who, addresses) = (self.who(cta), self.addresses(&access.address));
        match access.address.space {
            code::Space::Global => self.store_to(cta.memory, who, access, &addresses, mask),
            code::Space::Shared => self.store_to(cta.shared, who, access, &addresses, mask),
            code::Space::Parameters => Err((Trouble::ReadOnly, first_lane(mask.bits))),
        }
    }

    #[inline(always)]
    fn store_to<S: Space>(
        &mut self,
        to: &mut S,
        who: Who,
        access: &Access,
        addresses: &[u64; LANES],
        mask: Mask,
    ) -> Result<(), Found> {
        match access.size {
            1 => self.isa.run(
                #[inline(always)]
                || self.store_words::<S, 1>(to, who, access, addresses, mask),
            ),
            2 => self.isa.run(
                #[inline(always)]
                || self.store_words::<S, 2>(to, who, access, addresses, mask),
            ),
            4 => self.isa.run(
                #[inline(always)]
                || self.store_words::<S, 4>(to, who, access, addresses, mask),
            ),
            _ => self.store_wide(to, who, access, addresses, mask),
        }
    }

    /// Stores of elements that a word holds.
    #[inline(always)]
    fn store_words<S: Space, const SIZE: usize>(
        &mut self,
        to: &mut S,
        who: Who,
        access: &Access,
        addresses: &[u64; LANES],
        mask: Mask,
    ) -> Result<(), Found> {
        let count = usize::from(access.count);
        let step = SIZE * count;
        if let Spread::Run = spread(addresses, step, mask) {
            let mut bytes = [0; LANES * 16];
            let bytes = &mut bytes[..LANES * step];
            for (i, from) in access.registers[..count].iter().enumerate() {
                let words = self.registers.words(*from);
                for (element, word) in bytes.chunks_exact_mut(step).zip(words) {
                    element[i * SIZE..][..SIZE].copy_from_slice(&word.to_le_bytes()[..SIZE]);
                }
            }
            let view = to.view(addresses[0], who);
            if let Ok(mut view) = view
                && view.write_run(addresses[0], bytes).is_ok()
            {
                return Ok(());
            }
        }
        let first = first_lane(mask.bits);
        let mut view = to.view(addresses[first], who).map_err(|trouble| (trouble, first))?;
        for lane in mask.lanes() {
            let address = addresses[lane];
            aligned(address, step).map_err(|trouble| (trouble, lane))?;
            if !view.holds(address) {
                view = to.view(address, who).map_err(|trouble| (trouble, lane))?;
            }
            for (i, from) in access.registers[..count].iter().enumerate() {
                let value = u64::from(self.registers.word(*from, lane));
                let written = view.write::<SIZE>(address + (i * SIZE) as u64, value);
                written.map_err(|trouble| (trouble, lane))?;
            }
        }
        Ok(())
    }

    /// Stores of registers of 64 bits.
    fn store_wide<S: Space>(
        &self,
        to: &mut S,
        who: Who,
        access: &Access,
        addresses: &[u64; LANES],
        mask: Mask,
    ) -> Result<(), Found> {
        let count = usize::from(access.count);
        for lane in mask.lanes() {
            let mut write = || {
                aligned(addresses[lane], 8 * count)?;
                let mut view = to.view(addresses[lane], who)?;
                for (i, from) in access.registers[..count].iter().enumerate() {
                    view.write::<8>(addresses[lane] + 8 * i as u64, self.registers.wide(*from, lane))?;
                }
                Ok(())
            };
            write().map_err(|trouble| (trouble, lane))?;
        }
        Ok(())
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

/// An element of up to four bytes.
#[inline(always)]
fn word<const SIZE: usize>(bytes: &[u8; SIZE]) -> u32 {
    let mut word = [0; 4];
    word[..SIZE].copy_from_slice(bytes);
    u32::from_le_bytes(word)
}

/// Sorts the elements of lanes, `count` of each, by their number in the lane.
#[inline(always)]
fn apart<const SIZE: usize>(bytes: &[u8], count: usize, values: &mut [[u32; LANES]; 4]) {
    let elements = bytes.as_chunks::<SIZE>().0;
    for (i, values) in values[..count].iter_mut().enumerate() {
        let elements = elements[i..].iter().step_by(count);
        values.iter_mut().zip(elements).for_each(|(value, bytes)| *value = word(bytes));
    }
}

/// The access pattern of these addresses.
#[inline(always)]
fn spread(addresses: &[u64; LANES], step: usize, mask: Mask) -> Spread {
    let first = addresses[0];
    if !mask.is_all() || first & (step as u64 - 1) != 0 {
        return Spread::Apart;
    }
    let are_apart_by = |step: u64| {
        let mut are = true;
        for (lane, address) in addresses.iter().enumerate() {
            are &= *address == first.wrapping_add(lane as u64 * step);
        }
        are
    };
    match addresses[1].wrapping_sub(first) {
        by if by == step as u64 && are_apart_by(by) => Spread::Run,
        0 if are_apart_by(0) => Spread::Same,
        _ => Spread::Apart,
    }
}

/// A number of so many bytes, extended by its sign to so many bits.
#[inline(always)]
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

#[inline(always)]
fn parameter(parameters: &[u8], address: u64, size: usize) -> Result<u64, Trouble> {
    let at = usize::try_from(address).unwrap_or(usize::MAX);
    let bytes = at.checked_add(size).and_then(|end| parameters.get(at..end));
    let past = address.saturating_add(size as u64).saturating_sub(parameters.len() as u64);
    let bytes = bytes.ok_or(Trouble::OutOfBounds { size: parameters.len(), past })?;
    Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}
