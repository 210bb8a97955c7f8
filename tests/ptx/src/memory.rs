//! Global and shared memory, with shadow state for each byte: initialised or not, and its last accesses, to detect races.

use std::collections::HashMap;

use crate::fault::Trouble;
use crate::registers::LANES;

/// Bits of an address within an allocation. Those above number the allocation, so that no pointer strays into another.
const WITHIN: u32 = 36;

/// Who executes an instruction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Who {
    /// Its CTA, by a number that no earlier launch has used.
    pub cta: u32,
    /// Barriers that the CTA has passed.
    pub epoch: u16,
    pub warp: u8,
}

/// The last of those who touched a word, and which of its bytes: 0 is nobody. One number, so that the usual question, whether it
/// is who touches it now, is one comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Touch(u64);

impl Touch {
    fn new(cta: u32, epoch: u16, warp: u8, bytes: u8) -> Touch {
        Touch(u64::from(cta) << 32 | u64::from(epoch) << 16 | u64::from(warp) << 8 | u64::from(bytes))
    }

    fn cta(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn epoch(self) -> u16 {
        (self.0 >> 16) as u16
    }

    fn warp(self) -> u8 {
        (self.0 >> 8) as u8
    }

    fn bytes(self) -> u8 {
        self.0 as u8
    }
}

/// In place of a warp: it was an atomic, and these do not race with each other.
const ATOMIC: u8 = u8::MAX;
/// In place of a warp: several of the CTA, or some of several CTAs.
const SEVERAL: u8 = ATOMIC - 1;
const SEVERAL_CTAS: u8 = SEVERAL - 1;

/// Who last wrote and read four bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    writer: Touch,
    reader: Touch,
}

impl Word {
    /// Notes a touch, and finds whom it races with.
    #[inline(always)]
    fn touch(
        &mut self,
        me: Touch,
        how: Touching,
        is_ordered: impl Fn(u32, u16, u8) -> bool,
    ) -> Result<(), Trouble> {
        // As it was a moment ago.
        if how == Touching::Read && self.reader == me
            || how == Touching::Write && self.writer == me && self.reader == Touch(0)
        {
            return Ok(());
        }
        let clashes = |touch: Touch| {
            touch.bytes() & me.bytes() != 0
                && !(how == Touching::Atomic && touch.warp() == ATOMIC)
                && !is_ordered(touch.cta(), touch.epoch(), touch.warp())
        };
        let does = if how == Touching::Read { "reads" } else { "writes" };
        if clashes(self.writer) {
            return Err(Trouble::Race { does, did: "wrote", other: self.writer.cta() });
        }
        if how != Touching::Read {
            if clashes(self.reader) {
                return Err(Trouble::Race { does, did: "read", other: self.reader.cta() });
            }
            self.writer = me;
            // They happen before this write: whoever is ordered with it is ordered with them.
            if self.reader.bytes() & me.bytes() != 0 {
                self.reader = Touch(0);
            }
            return Ok(());
        }
        let last = self.reader;
        self.reader = match last.bytes() == 0 || is_ordered(last.cta(), last.epoch(), last.warp()) {
            true => me,
            // Whoever writes next races with one of them at least.
            false => {
                let warp = match last.warp() {
                    _ if last.cta() != me.cta() => SEVERAL_CTAS,
                    SEVERAL_CTAS => SEVERAL_CTAS,
                    warp if warp == me.warp() => warp,
                    _ => SEVERAL,
                };
                Touch::new(me.cta(), me.epoch(), warp, last.bytes() | me.bytes())
            }
        };
        Ok(())
    }
}

/// Bytes, and whether each was written.
#[derive(Debug, Default)]
pub(crate) struct Bytes {
    bytes: Vec<u8>,
    written: Vec<u8>,
    words: Vec<Word>,
}

/// How an instruction touches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touching {
    Read,
    Write,
    Atomic,
}

/// Who accesses a memory, and which accesses of others happen before.
trait Access {
    fn who(&self) -> Who;
    /// The memory's name in faults.
    fn space(&self) -> &'static str;
    /// Whether an access of this CTA, barrier epoch and warp happens before.
    fn is_ordered(&self, cta: u32, epoch: u16, warp: u8) -> bool;
}

/// An access to global memory, in a launch whose first CTA has this number.
struct Global<'a> {
    who: Who,
    order: &'a Order,
    first: u32,
}

impl Access for Global<'_> {
    fn who(&self) -> Who {
        self.who
    }

    fn space(&self) -> &'static str {
        "global memory"
    }

    #[inline(always)]
    fn is_ordered(&self, cta: u32, epoch: u16, warp: u8) -> bool {
        let by = self.who.cta;
        cta < self.first || warp != SEVERAL_CTAS && (cta == by || self.order.is_over(cta, epoch, warp, by))
    }
}

/// An access to a CTA's shared memory: ordered by a barrier in between, or within the warp.
struct Shared(Who);

impl Access for Shared {
    fn who(&self) -> Who {
        self.0
    }

    fn space(&self) -> &'static str {
        "shared memory"
    }

    #[inline(always)]
    fn is_ordered(&self, _: u32, epoch: u16, warp: u8) -> bool {
        epoch < self.0.epoch || warp == self.0.warp
    }
}

impl Bytes {
    pub(crate) fn new(size: usize) -> Bytes {
        Bytes {
            bytes: vec![0; size],
            written: vec![0; size.div_ceil(8)],
            words: vec![Word::default(); size.div_ceil(4)],
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets what was written.
    pub(crate) fn forget(&mut self) {
        self.written.fill(0);
        self.words.fill(Word::default());
    }

    /// Whether `size` bytes (a power of two up to eight, aligned) were written.
    fn is_written(&self, at: usize, size: usize) -> bool {
        let bits = ((1u32 << size) - 1) as u8;
        self.written[at / 8] >> (at % 8) & bits == bits
    }

    fn mark(&mut self, at: usize, size: usize) {
        self.written[at / 8] |= (((1u32 << size) - 1) << (at % 8)) as u8;
    }

    fn get(&self, at: usize, size: usize) -> u64 {
        let bytes = &self.bytes[at..at + size];
        match *bytes {
            [a] => u64::from(a),
            [a, b] => u64::from(u16::from_le_bytes([a, b])),
            [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            _ => 0,
        }
    }

    fn set(&mut self, at: usize, size: usize, value: u64) {
        let from = value.to_le_bytes();
        self.bytes[at..at + size].iter_mut().zip(from).for_each(|(to, from)| *to = from);
        self.mark(at, size);
    }

    /// Bytes that were all written.
    fn run(&self, at: usize, size: usize, what: &'static str) -> Result<&[u8], Trouble> {
        let is_whole = at.is_multiple_of(8) && size.is_multiple_of(8);
        let written = match is_whole {
            true => self.written[at / 8..(at + size) / 8].iter().all(|bits| *bits == u8::MAX),
            false => (at..at + size).all(|at| self.is_written(at, 1)),
        };
        match written {
            true => Ok(&self.bytes[at..at + size]),
            false => {
                let at = (at..at + size).find(|at| !self.is_written(*at, 1)).unwrap_or(at);
                Err(Trouble::Unwritten { what, at })
            }
        }
    }

    /// Reads elements of all lanes, aligned and of at most four bytes. False, with nothing promised, where one cannot be read.
    #[inline(always)]
    fn gather(&mut self, places: [u64; LANES], size: usize, by: &impl Access, to: &mut [u64; LANES]) -> bool {
        let who = by.who();
        let limit = self.bytes.len().saturating_sub(size - 1) as u64;
        let aligned = |at: u64| at & (size as u64 - 1) == 0;
        if size > 4 || places.iter().any(|at| *at >= limit || !aligned(*at)) {
            return false;
        }
        let unused = 32 - 8 * size;
        for (at, to) in places.into_iter().zip(to) {
            let at = at as usize;
            let bytes = ((1u8 << size) - 1) << (at % 4);
            if !self.is_written(at, size) {
                return false;
            }
            let me = Touch::new(who.cta, who.epoch, who.warp, bytes);
            if self.words[at / 4]
                .touch(me, Touching::Read, |cta, epoch, warp| by.is_ordered(cta, epoch, warp))
                .is_err()
            {
                return false;
            }
            // Allocations may end within a word.
            *to = match self.bytes.get(at..at + 4) {
                Some(&[a, b, c, d]) => u64::from(u32::from_le_bytes([a, b, c, d]) << unused >> unused),
                _ => self.get(at, size),
            };
        }
        true
    }

    fn set_run(&mut self, at: usize, data: &[u8]) {
        let end = at + data.len();
        self.bytes[at..end].copy_from_slice(data);
        match at.is_multiple_of(8) && end.is_multiple_of(8) {
            true => self.written[at / 8..end / 8].fill(u8::MAX),
            false => (at..end).for_each(|at| self.mark(at, 1)),
        }
    }

    #[inline(always)]
    fn read_at(&mut self, at: usize, size: usize, by: &impl Access) -> Result<u64, Trouble> {
        if !self.is_written(at, size) {
            return Err(Trouble::Unwritten { what: by.space(), at });
        }
        self.touch(at, size, Touching::Read, by)?;
        Ok(self.get(at, size))
    }

    fn read_run_at(&mut self, at: usize, size: usize, by: &impl Access) -> Result<&[u8], Trouble> {
        self.touch(at, size, Touching::Read, by)?;
        self.run(at, size, by.space())
    }

    #[inline(always)]
    fn write_at(&mut self, at: usize, size: usize, value: u64, by: &impl Access) -> Result<(), Trouble> {
        self.touch(at, size, Touching::Write, by)?;
        self.set(at, size, value);
        Ok(())
    }

    fn write_run_at(&mut self, at: usize, data: &[u8], by: &impl Access) -> Result<(), Trouble> {
        self.touch(at, data.len(), Touching::Write, by)?;
        self.set_run(at, data);
        Ok(())
    }

    /// An atomic: reads, and writes the new value in place of the old one, which it returns.
    fn change_at(
        &mut self,
        at: usize,
        size: usize,
        by: &impl Access,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<u64, Trouble> {
        if !self.is_written(at, size) {
            return Err(Trouble::Unwritten { what: by.space(), at });
        }
        self.touch(at, size, Touching::Atomic, by)?;
        let old = self.get(at, size);
        self.set(at, size, change(old));
        Ok(old)
    }

    /// Records an access, and detects races with earlier ones.
    #[inline(always)]
    fn touch(&mut self, at: usize, size: usize, how: Touching, by: &impl Access) -> Result<(), Trouble> {
        let (who, is_ordered) = (by.who(), |cta, epoch, warp| by.is_ordered(cta, epoch, warp));
        let warp = if how == Touching::Atomic { ATOMIC } else { who.warp };
        let me = |bytes: u8| Touch::new(who.cta, who.epoch, warp, bytes);
        let (first, end) = (at / 4, at + size);
        if at % 4 + size <= 4 {
            let bytes = ((1u8 << size) - 1) << (at % 4);
            return self.words[first].touch(me(bytes), how, is_ordered);
        }
        for (i, word) in self.words[first..=(end - 1) / 4].iter_mut().enumerate() {
            let here = (first + i) * 4;
            let (from, to) = (at.max(here) - here, end.min(here + 4) - here);
            word.touch(me(((1u8 << to) - 1) & !((1u8 << from) - 1)), how, is_ordered)?;
        }
        Ok(())
    }
}

/// A CTA's vector clock, from fences and the atomics after them: for each other CTA the barrier epoch up to which its accesses
/// happen before, and the warps whose accesses of that epoch do.
type Clock = HashMap<u32, (u16, u32)>;

fn join(into: &mut Clock, from: &Clock) {
    for (&cta, &(epoch, warps)) in from {
        let known = into.entry(cta).or_default();
        match epoch.cmp(&known.0) {
            std::cmp::Ordering::Greater => *known = (epoch, warps),
            std::cmp::Ordering::Equal => known.1 |= warps,
            std::cmp::Ordering::Less => {}
        }
    }
}

/// Happens-before between the CTAs of a launch.
#[derive(Debug, Default)]
struct Order {
    /// The clock that each CTA released at its last fence.
    fenced: HashMap<u32, Clock>,
    /// The clock released at each address, by atomics.
    handed: HashMap<u64, Clock>,
    known: HashMap<u32, Clock>,
}

impl Order {
    fn fence(&mut self, who: Who) {
        let mut clock = self.known.get(&who.cta).cloned().unwrap_or_default();
        let own = HashMap::from([(who.cta, (who.epoch, 1u32 << (who.warp % 32)))]);
        join(&mut clock, &own);
        join(self.fenced.entry(who.cta).or_default(), &clock);
    }

    fn atomic(&mut self, who: Who, address: u64) {
        let handed = self.handed.entry(address).or_default();
        if let Some(fenced) = self.fenced.get(&who.cta) {
            join(handed, fenced);
        }
        join(self.known.entry(who.cta).or_default(), handed);
    }

    fn is_over(&self, of: u32, epoch: u16, warp: u8, by: u32) -> bool {
        let Some((until, warps)) = self.known.get(&by).and_then(|clock| clock.get(&of)) else { return false };
        epoch < *until || epoch == *until && warps >> (warp % 32) & 1 == 1
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
    #[inline(always)]
    fn find(&mut self, address: u64, size: usize) -> Result<(&mut Bytes, usize), Trouble> {
        self.find_for(address, size, Who::default()).map(|(bytes, at, _)| (bytes, at))
    }

    /// The same, for an access of a kernel.
    #[inline(always)]
    fn find_for(
        &mut self,
        address: u64,
        size: usize,
        who: Who,
    ) -> Result<(&mut Bytes, usize, Global<'_>), Trouble> {
        let index = (address >> WITHIN).wrapping_sub(1) as usize;
        let at = (address & ((1 << WITHIN) - 1)) as usize;
        let Some(Some(bytes)) = self.allocations.get_mut(index) else {
            return Err(Trouble::NoMemory { address });
        };
        if at + size > bytes.len() {
            let past = (at + size - bytes.len()) as u64;
            return Err(Trouble::OutOfBounds { size: bytes.len(), past });
        }
        Ok((bytes, at, Global { who, order: &self.order, first: self.first }))
    }

    /// A launch of so many CTAs begins: what was before is over. Returns the first one's number.
    pub(crate) fn begin(&mut self, ctas: u32) -> u32 {
        // Zero is nobody.
        self.first = self.next.max(1);
        if self.first.checked_add(ctas).is_none() {
            self.allocations.iter_mut().flatten().for_each(|bytes| bytes.words.fill(Word::default()));
            self.first = 1;
        }
        self.next = self.first + ctas;
        self.order = Order::default();
        self.first
    }

    pub(crate) fn fence(&mut self, who: Who) {
        self.order.fence(who);
    }

    #[inline(always)]
    pub(crate) fn read(&mut self, address: u64, size: usize, who: Who) -> Result<u64, Trouble> {
        let (bytes, at, by) = self.find_for(address, size, who)?;
        bytes.read_at(at, size, &by)
    }

    /// A coalesced read.
    pub(crate) fn read_run(&mut self, address: u64, size: usize, who: Who) -> Result<&[u8], Trouble> {
        let (bytes, at, by) = self.find_for(address, size, who)?;
        bytes.read_run_at(at, size, &by)
    }

    /// A coalesced write.
    pub(crate) fn write_run(&mut self, address: u64, data: &[u8], who: Who) -> Result<(), Trouble> {
        let (bytes, at, by) = self.find_for(address, data.len(), who)?;
        bytes.write_run_at(at, data, &by)
    }

    #[inline]
    pub(crate) fn write(&mut self, address: u64, size: usize, value: u64, who: Who) -> Result<(), Trouble> {
        let (bytes, at, by) = self.find_for(address, size, who)?;
        bytes.write_at(at, size, value, &by)
    }

    /// Reads elements of all lanes in one allocation, each at its own place. False, with nothing promised, where that is not all.
    pub(crate) fn gather(
        &mut self,
        addresses: &[u64; LANES],
        size: usize,
        who: Who,
        to: &mut [u64; LANES],
    ) -> bool {
        let base = addresses[0] >> WITHIN;
        let Ok((bytes, _, by)) = self.find_for(addresses[0], size, who) else { return false };
        addresses.iter().all(|address| address >> WITHIN == base)
            && bytes.gather(addresses.map(|address| address & ((1 << WITHIN) - 1)), size, &by, to)
    }

    /// An atomic.
    pub(crate) fn change(
        &mut self,
        address: u64,
        size: usize,
        who: Who,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<u64, Trouble> {
        let (bytes, at, by) = self.find_for(address, size, who)?;
        let old = bytes.change_at(at, size, &by, change)?;
        self.order.atomic(who, address);
        Ok(old)
    }

    /// Copies from the host.
    pub(crate) fn upload(&mut self, address: u64, data: &[u8]) -> Result<(), Trouble> {
        let (bytes, at, ..) = self.find(address, data.len())?;
        bytes.set_run(at, data);
        Ok(())
    }

    /// The first of these bytes that nobody has written.
    pub(crate) fn unwritten(&mut self, address: u64, size: usize) -> Option<usize> {
        let (bytes, at, ..) = self.find(address, size).ok()?;
        (0..size).find(|i| !bytes.is_written(at + i, 1))
    }

    /// Copies within the device, and of each byte whether it was written.
    pub(crate) fn copy(&mut self, to: u64, from: u64, size: usize) -> Result<(), Trouble> {
        let (bytes, at, ..) = self.find(from, size)?;
        let copied: Vec<(u8, bool)> =
            (at..at + size).map(|at| (bytes.bytes[at], bytes.is_written(at, 1))).collect();
        let (bytes, at, ..) = self.find(to, size)?;
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
        let (bytes, at, ..) = self.find(address, data.len())?;
        data.copy_from_slice(&bytes.bytes[at..at + data.len()]);
        Ok(())
    }
}

/// The shared memory of a CTA.
impl Bytes {
    /// Whether `size` bytes are there.
    fn within(&self, address: u64, size: usize) -> Result<usize, Trouble> {
        let at = usize::try_from(address).unwrap_or(usize::MAX);
        match at.checked_add(size).filter(|end| *end <= self.len()) {
            Some(_) => Ok(at),
            None => {
                let past = at.saturating_add(size).saturating_sub(self.len()) as u64;
                Err(Trouble::OutOfBounds { size: self.len(), past })
            }
        }
    }

    #[inline(always)]
    pub(crate) fn read(&mut self, address: u64, size: usize, who: Who) -> Result<u64, Trouble> {
        let at = self.within(address, size)?;
        self.read_at(at, size, &Shared(who))
    }

    pub(crate) fn read_run(&mut self, address: u64, size: usize, who: Who) -> Result<&[u8], Trouble> {
        let at = self.within(address, size)?;
        self.read_run_at(at, size, &Shared(who))
    }

    pub(crate) fn write_run(&mut self, address: u64, data: &[u8], who: Who) -> Result<(), Trouble> {
        let at = self.within(address, data.len())?;
        self.write_run_at(at, data, &Shared(who))
    }

    #[inline]
    pub(crate) fn write(&mut self, address: u64, size: usize, value: u64, who: Who) -> Result<(), Trouble> {
        let at = self.within(address, size)?;
        self.write_at(at, size, value, &Shared(who))
    }

    /// As [`Memory::gather`].
    pub(crate) fn gather_here(
        &mut self,
        addresses: &[u64; LANES],
        size: usize,
        who: Who,
        to: &mut [u64; LANES],
    ) -> bool {
        self.gather(*addresses, size, &Shared(who), to)
    }

    /// An asynchronous copy to these bytes begins: it may land from now on, and until it is waited for they are uninitialised.
    pub(crate) fn expect(&mut self, address: u64, size: usize, who: Who) -> Result<(), Trouble> {
        let at = self.within(address, size)?;
        self.touch(at, size, Touching::Write, &Shared(who))?;
        (at..at + size).for_each(|at| self.written[at / 8] &= !(1 << (at % 8)));
        Ok(())
    }

    /// An atomic.
    pub(crate) fn change(
        &mut self,
        address: u64,
        size: usize,
        who: Who,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<u64, Trouble> {
        let at = self.within(address, size)?;
        self.change_at(at, size, &Shared(who), change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_does_not_miss_a_later_write() {
        let by = |cta| Touch::new(cta, 0, 0, 15);
        let mut word = Word::default();
        word.touch(by(1), Touching::Read, |_, _, _| false).unwrap();
        // The writer knows that the read is over; the reader does not know of the write.
        word.touch(by(2), Touching::Write, |_, _, _| true).unwrap();
        let again = word.touch(by(1), Touching::Read, |cta, _, _| cta == 1);
        assert_eq!(again, Err(Trouble::Race { does: "reads", did: "wrote", other: 2 }));
    }
}
