//! Global and shared memory, with shadow state for each byte: initialised or not, and its last accesses, to detect races.

mod races;

use crate::fault::Trouble;
pub(crate) use races::{Access, Global, Order, Shared, Touch, Touching, Who};

/// Bits of an address within an allocation. Those above number the allocation, so that no pointer strays into another.
const WITHIN: u32 = 36;

/// Bytes, whether each was written, and who last read and wrote each word of four.
#[derive(Debug, Default)]
pub(crate) struct Bytes {
    size: usize,
    /// Up to a whole word.
    bytes: Vec<u8>,
    written: Vec<u8>,
    readers: Vec<Touch>,
    writers: Vec<Touch>,
}

impl Bytes {
    pub(crate) fn new(size: usize) -> Bytes {
        let words = size.div_ceil(4);
        Bytes {
            size,
            bytes: vec![0; 4 * words],
            written: vec![0; size.div_ceil(8)],
            readers: vec![Touch::default(); words],
            writers: vec![Touch::default(); words],
        }
    }

    /// Forgets what was written.
    pub(crate) fn forget(&mut self) {
        self.written.fill(0);
    }

    /// Whether `size` bytes (a power of two up to eight, aligned) were written.
    fn is_written(&self, at: usize, size: usize) -> bool {
        let bits = ((1u32 << size) - 1) as u8;
        self.written[at / 8] >> (at % 8) & bits == bits
    }

    /// The first of these bytes that nobody has written.
    fn unwritten(&self, at: usize, size: usize) -> Option<usize> {
        let is_whole = at.is_multiple_of(8) && size.is_multiple_of(8);
        if is_whole && self.written[at / 8..(at + size) / 8].iter().all(|bits| *bits == u8::MAX) {
            return None;
        }
        (at..at + size).find(|at| !self.is_written(*at, 1))
    }

    #[inline(always)]
    fn mark(&mut self, at: usize, size: usize) {
        self.written[at / 8] |= (((1u32 << size) - 1) << (at % 8)) as u8;
    }

    #[inline(always)]
    fn get<const SIZE: usize>(&self, at: usize) -> u64 {
        let mut value = [0; 8];
        value[..SIZE].copy_from_slice(&self.bytes[at..at + SIZE]);
        u64::from_le_bytes(value)
    }

    #[inline(always)]
    fn set<const SIZE: usize>(&mut self, at: usize, value: u64) {
        self.bytes[at..at + SIZE].copy_from_slice(&value.to_le_bytes()[..SIZE]);
        self.mark(at, SIZE);
    }

    fn set_run(&mut self, at: usize, data: &[u8]) {
        let end = at + data.len();
        self.bytes[at..end].copy_from_slice(data);
        match at.is_multiple_of(8) && end.is_multiple_of(8) {
            true => self.written[at / 8..end / 8].fill(u8::MAX),
            false => (at..end).for_each(|at| self.mark(at, 1)),
        }
    }

    /// Makes sure that an aligned element may be read: it was written, and nothing races with that.
    fn read<const SIZE: usize>(&mut self, at: usize, by: &impl Access) -> Result<(), Trouble> {
        match self.is_written(at, SIZE) {
            true => self.touch(at, SIZE, Touching::Read, by),
            false => self.read_run(at, SIZE, by),
        }
    }

    /// Makes sure that bytes may be read.
    fn read_run(&mut self, at: usize, size: usize, by: &impl Access) -> Result<(), Trouble> {
        match self.unwritten(at, size) {
            Some(at) => Err(Trouble::Unwritten { what: space(by), at }),
            None => self.touch(at, size, Touching::Read, by),
        }
    }

    /// Records an access, and detects races with earlier ones.
    #[inline(always)]
    fn touch(&mut self, at: usize, size: usize, how: Touching, by: &impl Access) -> Result<(), Trouble> {
        let (first, end) = (at / 4, at + size);
        if at % 4 + size <= 4 {
            let bytes = ((1u8 << size) - 1) << (at % 4);
            return races::touch((&mut self.readers[first], &mut self.writers[first]), bytes, how, by);
        }
        let words = first..=(end - 1) / 4;
        let words = self.readers[words.clone()].iter_mut().zip(&mut self.writers[words]);
        for (i, word) in words.enumerate() {
            let here = (first + i) * 4;
            let (from, to) = (at.max(here) - here, end.min(here + 4) - here);
            races::touch(word, ((1u8 << to) - 1) & !((1u8 << from) - 1), how, by)?;
        }
        Ok(())
    }
}

fn space<A: Access>(_: &A) -> &'static str {
    A::SPACE
}

/// An allocation, or a CTA's shared memory, as an instruction accesses it.
pub(crate) struct View<'a, A> {
    bytes: &'a mut Bytes,
    start: u64,
    by: A,
}

impl<A: Access> View<'_, A> {
    /// True if an address is in this allocation, or beyond its end.
    #[inline(always)]
    pub(crate) fn holds(&self, address: u64) -> bool {
        (address ^ self.start) >> WITHIN == 0
    }

    /// The place of `size` bytes.
    #[inline(always)]
    fn place(&self, address: u64, size: usize) -> Result<usize, Trouble> {
        let (at, len) = ((address - self.start) as usize, self.bytes.size);
        let end = at.saturating_add(size);
        if end > len {
            return Err(Trouble::OutOfBounds { size: len, past: (end - len) as u64 });
        }
        Ok(at)
    }

    /// Reads an aligned element.
    #[inline(always)]
    pub(crate) fn read<const SIZE: usize>(&mut self, address: u64) -> Result<u64, Trouble> {
        let at = self.place(address, SIZE)?;
        let bytes = if SIZE < 4 { ((1u8 << SIZE) - 1) << (at % 4) } else { 15 };
        let mut words = self.bytes.readers[at / 4..][..SIZE.div_ceil(4)].iter();
        if !words.all(|reader| self.by.has_read(*reader, bytes)) {
            self.bytes.read::<SIZE>(at, &self.by)?;
        }
        Ok(self.bytes.get::<SIZE>(at))
    }

    /// Reads bytes side by side.
    #[inline(always)]
    pub(crate) fn read_run(&mut self, address: u64, size: usize) -> Result<&[u8], Trouble> {
        let at = self.place(address, size)?;
        let is_whole = at.is_multiple_of(4) && size.is_multiple_of(4);
        let mut has_read = is_whole;
        for reader in &self.bytes.readers[at / 4..][..size / 4] {
            has_read &= self.by.has_read(*reader, 15);
        }
        if !has_read {
            self.bytes.read_run(at, size, &self.by)?;
        }
        Ok(&self.bytes.bytes[at..at + size])
    }

    /// Writes an aligned element.
    #[inline(always)]
    pub(crate) fn write<const SIZE: usize>(&mut self, address: u64, value: u64) -> Result<(), Trouble> {
        let at = self.place(address, SIZE)?;
        self.bytes.touch(at, SIZE, Touching::Write, &self.by)?;
        self.bytes.set::<SIZE>(at, value);
        Ok(())
    }

    /// Writes bytes side by side.
    #[inline(always)]
    pub(crate) fn write_run(&mut self, address: u64, data: &[u8]) -> Result<(), Trouble> {
        let at = self.place(address, data.len())?;
        self.bytes.touch(at, data.len(), Touching::Write, &self.by)?;
        self.bytes.set_run(at, data);
        Ok(())
    }

    /// An asynchronous copy to these bytes begins: it may land from now on, and until it is waited for they are uninitialised.
    pub(crate) fn expect(&mut self, address: u64, size: usize) -> Result<(), Trouble> {
        let at = self.place(address, size)?;
        self.bytes.touch(at, size, Touching::Write, &self.by)?;
        (at..at + size).for_each(|at| self.bytes.written[at / 8] &= !(1 << (at % 8)));
        Ok(())
    }

    /// An atomic: reads, and writes the new value in place of the old one, which it returns.
    fn change(&mut self, address: u64, size: usize, change: impl FnOnce(u64) -> u64) -> Result<u64, Trouble> {
        let at = self.place(address, size)?;
        if let Some(at) = self.bytes.unwritten(at, size) {
            return Err(Trouble::Unwritten { what: A::SPACE, at });
        }
        self.bytes.touch(at, size, Touching::Atomic, &self.by)?;
        let old = if size == 8 { self.bytes.get::<8>(at) } else { self.bytes.get::<4>(at) };
        match size {
            8 => self.bytes.set::<8>(at, change(old)),
            _ => self.bytes.set::<4>(at, change(old)),
        }
        Ok(old)
    }
}

/// Memory that instructions access: global, or shared.
pub(crate) trait Space {
    type By<'a>: Access
    where
        Self: 'a;

    /// The allocation that an address is in.
    fn view(&mut self, address: u64, who: Who) -> Result<View<'_, Self::By<'_>>, Trouble>;

    /// An atomic on 4 or 8 aligned bytes.
    fn change(
        &mut self,
        address: u64,
        size: usize,
        who: Who,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<u64, Trouble>;
}

impl Space for Bytes {
    type By<'a> = Shared;

    #[inline(always)]
    fn view(&mut self, _: u64, who: Who) -> Result<View<'_, Shared>, Trouble> {
        Ok(View { bytes: self, start: 0, by: Shared(who) })
    }

    fn change(
        &mut self,
        address: u64,
        size: usize,
        who: Who,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<u64, Trouble> {
        self.view(address, who)?.change(address, size, change)
    }
}

impl Space for Memory {
    type By<'a> = Global<'a>;

    #[inline(always)]
    fn view(&mut self, address: u64, who: Who) -> Result<View<'_, Global<'_>>, Trouble> {
        let index = (address >> WITHIN).wrapping_sub(1) as usize;
        let Some(Some(bytes)) = self.allocations.get_mut(index) else {
            return Err(Trouble::NoMemory { address });
        };
        let start = address >> WITHIN << WITHIN;
        Ok(View { bytes, start, by: Global { who, order: &self.order, first: self.first } })
    }

    fn change(
        &mut self,
        address: u64,
        size: usize,
        who: Who,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<u64, Trouble> {
        let old = self.view(address, who)?.change(address, size, change)?;
        self.order.atomic(who, address);
        Ok(old)
    }
}

/// The memory of a device.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    allocations: Vec<Option<Bytes>>,
    /// The first CTA of the launch; those below belong to earlier ones.
    first: u32,
    next: u32,
    order: Order,
}

impl Memory {
    pub(crate) fn alloc(&mut self, size: usize) -> u64 {
        self.allocations.push(Some(Bytes::new(size)));
        (self.allocations.len() as u64) << WITHIN
    }

    /// Returns whether there was such an allocation.
    pub(crate) fn free(&mut self, address: u64) -> bool {
        let index = (address >> WITHIN).wrapping_sub(1) as usize;
        let is_start = address & ((1 << WITHIN) - 1) == 0;
        is_start && self.allocations.get_mut(index).is_some_and(|slot| slot.take().is_some())
    }

    /// The allocation that an address is in, and the place within it of `size` bytes.
    fn find(&mut self, address: u64, size: usize) -> Result<(&mut Bytes, usize), Trouble> {
        let view = self.view(address, Who::default())?;
        let at = view.place(address, size)?;
        Ok((view.bytes, at))
    }

    /// A launch of so many CTAs begins: what was before is over. Returns the first one's number.
    pub(crate) fn begin(&mut self, ctas: u32) -> u32 {
        // Zero is nobody.
        self.first = self.next.max(1);
        if self.first.checked_add(ctas).is_none() {
            for bytes in self.allocations.iter_mut().flatten() {
                bytes.readers.fill(Touch::default());
                bytes.writers.fill(Touch::default());
            }
            self.first = 1;
        }
        self.next = self.first + ctas;
        self.order = Order::default();
        self.first
    }

    pub(crate) fn fence(&mut self, who: Who) {
        self.order.fence(who);
    }

    /// Copies from the host.
    pub(crate) fn upload(&mut self, address: u64, data: &[u8]) -> Result<(), Trouble> {
        let (bytes, at) = self.find(address, data.len())?;
        bytes.set_run(at, data);
        Ok(())
    }

    /// The first of these bytes that nobody has written.
    pub(crate) fn unwritten(&mut self, address: u64, size: usize) -> Option<usize> {
        let (bytes, at) = self.find(address, size).ok()?;
        bytes.unwritten(at, size).map(|found| found - at)
    }

    /// Copies within the device, and of each byte whether it was written.
    pub(crate) fn copy(&mut self, to: u64, from: u64, size: usize) -> Result<(), Trouble> {
        let (bytes, at) = self.find(from, size)?;
        let copied: Vec<(u8, bool)> =
            (at..at + size).map(|at| (bytes.bytes[at], bytes.is_written(at, 1))).collect();
        let (bytes, at) = self.find(to, size)?;
        for (at, (byte, is_written)) in (at..).zip(copied) {
            bytes.bytes[at] = byte;
            match is_written {
                true => bytes.mark(at, 1),
                false => bytes.written[at / 8] &= !(1 << (at % 8)),
            }
        }
        Ok(())
    }

    /// Copies to the host, whether or not it was written: a copy reads gaps between rows too.
    pub(crate) fn download(&mut self, address: u64, data: &mut [u8]) -> Result<(), Trouble> {
        let (bytes, at) = self.find(address, data.len())?;
        data.copy_from_slice(&bytes.bytes[at..at + data.len()]);
        Ok(())
    }
}
