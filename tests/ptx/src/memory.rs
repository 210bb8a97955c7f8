//! Global and shared memory, with shadow state for each byte: initialised or not, and its last accesses, to detect races.

mod races;
mod view;

use crate::fault::Trouble;
pub(crate) use races::Who;
use races::{Access, Global, Order, Shared, Touch, Touching, WHOLE};
pub(crate) use view::{View, Words};

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

    /// Whether an aligned element of up to 16 bytes was written.
    #[inline(always)]
    fn is_written(&self, at: usize, size: usize) -> bool {
        match size {
            16 => self.written[at / 8..][..2] == [u8::MAX; 2],
            _ => !self.written[at / 8] & bits(at, size) == 0,
        }
    }

    /// The first of these bytes that nobody has written.
    fn unwritten(&self, at: usize, size: usize) -> Option<usize> {
        let end = at + size;
        let (first, last) = (at.next_multiple_of(8).min(end), end / 8 * 8);
        let are_between =
            first > last || self.written[first / 8..last / 8].iter().all(|bits| *bits == u8::MAX);
        let is_written = |at: &usize| self.written[at / 8] >> (at % 8) & 1 == 1;
        match are_between {
            true => (at..first).chain(last.max(first)..end).find(|at| !is_written(at)),
            false => (at..end).find(|at| !is_written(at)),
        }
    }

    /// A word, or the less that an element has.
    #[inline(always)]
    fn word<const SIZE: usize>(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        let size = SIZE.min(4);
        word[..size].copy_from_slice(&self.bytes[at..at + size]);
        u32::from_le_bytes(word)
    }

    #[inline(always)]
    fn set_word<const SIZE: usize>(&mut self, at: usize, word: u32) {
        let size = SIZE.min(4);
        self.bytes[at..at + size].copy_from_slice(&word.to_le_bytes()[..size]);
    }

    /// An aligned element of up to 16 bytes is written.
    #[inline(always)]
    fn mark<const SIZE: usize>(&mut self, at: usize) {
        match SIZE {
            16 => self.written[at / 8..][..2].fill(u8::MAX),
            _ => self.written[at / 8] |= bits(at, SIZE),
        }
    }

    fn set_run(&mut self, at: usize, data: &[u8]) {
        let end = at + data.len();
        self.bytes[at..end].copy_from_slice(data);
        let (first, last) = (at.next_multiple_of(8).min(end), end / 8 * 8);
        if first < last {
            self.written[first / 8..last / 8].fill(u8::MAX);
        }
        (at..first).chain(last.max(first)..end).for_each(|at| self.written[at / 8] |= 1 << (at % 8));
    }

    /// Makes sure that an aligned element may be read: it was written, and nothing races with that.
    #[inline(always)]
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

    /// Makes sure that words side by side may be read, as is usual. False where it takes more to tell.
    #[inline(always)]
    fn read_words(&mut self, at: usize, size: usize, by: &impl Access) -> bool {
        if !by.is_clear() || self.unwritten(at, size).is_some() {
            return false;
        }
        let words = at / 4..(at + size) / 4;
        let (readers, writers) = (&mut self.readers[words.clone()], &self.writers[words]);
        let mut are_before = true;
        for writer in writers {
            are_before &= by.is_clearly_before(*writer);
        }
        if are_before {
            for (reader, writer) in readers.iter_mut().zip(writers) {
                *reader = by.reading(*reader, *writer);
            }
        }
        are_before
    }

    /// Records a write of bytes side by side, and detects races.
    #[inline(always)]
    fn write_run(&mut self, at: usize, size: usize, by: &impl Access) -> Result<(), Trouble> {
        let words = at / 4..(at + size) / 4;
        if at.is_multiple_of(4) && size.is_multiple_of(4) {
            let (readers, writers) = (&mut self.readers[words.clone()], &mut self.writers[words]);
            let mut are_before = true;
            for (reader, writer) in readers.iter().zip(&*writers) {
                are_before &= by.is_clearly_before(*reader) & by.is_clearly_before(*writer);
            }
            if are_before {
                writers.fill(by.me().of(WHOLE));
                readers.fill(Touch::default());
                return Ok(());
            }
        }
        self.touch(at, size, Touching::Write, by)
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

/// Bits of an aligned element of up to eight bytes, of those that say whether bytes were written.
#[inline(always)]
fn bits(at: usize, size: usize) -> u8 {
    (((1u32 << size) - 1) << (at % 8)) as u8
}

fn space<A: Access>(_: &A) -> &'static str {
    A::SPACE
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
                true => bytes.written[at / 8] |= 1 << (at % 8),
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
