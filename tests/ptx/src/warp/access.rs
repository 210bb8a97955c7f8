//! A warp's accesses to memory: loads, stores, atomics, asynchronous copies.

use super::{Copy, Cta, Warp, first_lane};
use crate::code::{Access, Address, Atomic, Space};
use crate::fault::Trouble;
use crate::parse::Kind;
use crate::registers::{LANES, Lane, Mask, PART, PARTS, Wide, Word};

/// Access pattern of a warp.
enum Spread {
    /// Coalesced, from this address.
    Run(u64),
    /// All lanes at this address.
    Same(u64),
    /// Otherwise.
    Apart,
}

impl Warp {
    /// Begins a copy from global to shared memory in each lane; bytes past the first `used` are zeros.
    pub(super) fn copy_async(
        &mut self,
        (to, from): (&Address, &Address),
        size: usize,
        used: Option<u16>,
        cta: &mut Cta<'_>,
        mask: &Mask,
    ) -> Result<(), (Trouble, usize)> {
        let who = self.who(cta);
        for lane in mask.lanes() {
            let (to, from) = (self.address(to, lane), self.address(from, lane));
            let used = used.map_or(size, |at| (self.registers.word(at, lane) as usize).min(size));
            let begun = aligned(to, size).and_then(|()| aligned(from, size));
            let begun = begun.and_then(|()| cta.shared.expect(to, size, who));
            begun.map_err(|trouble| (trouble, lane))?;
            self.copies.push(Copy { group: self.copy_group, lane, to, from, size, used });
        }
        Ok(())
    }

    /// Lets copies land but for those of the last `left` groups: as late as the kernel allows.
    pub(super) fn land(&mut self, left: u32, cta: &mut Cta<'_>, mask: &Mask) -> Result<(), (Trouble, usize)> {
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

    pub(super) fn load_matrix(
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

    pub(super) fn load(
        &mut self,
        access: &Access,
        cta: &mut Cta<'_>,
        mask: &Mask,
    ) -> Result<(), (Trouble, usize)> {
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

    pub(super) fn store(
        &mut self,
        access: &Access,
        cta: &mut Cta<'_>,
        mask: &Mask,
    ) -> Result<(), (Trouble, usize)> {
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

    pub(super) fn atomic(
        &mut self,
        atomic: &Atomic,
        cta: &mut Cta<'_>,
        mask: &Mask,
    ) -> Result<(), (Trouble, usize)> {
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
