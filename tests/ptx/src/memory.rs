//! Global and shared memory, with shadow state for each byte: initialised or not, and its last accesses, to detect races.

use std::collections::HashMap;

use crate::fault::Trouble;
use crate::registers::LANES;

/// Bits of an address within an allocation. Those above number the allocation, so that no pointer strays into another.
const WITHIN: u32 = 36;

/// Who executes an instruction.
#[derive(Clone, Copy, Debug)]
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
    fn gather(
        &mut self,
        places: [u64; LANES],
        size: usize,
        who: Who,
        is_ordered: impl Fn(u32, u16, u8) -> bool,
        to: &mut [u64; LANES],
    ) -> bool {
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
            if self.words[at / 4].touch(me, Touching::Read, &is_ordered).is_err() {
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

    /// Notes who touches bytes, and finds whom it races with. `is_ordered` says whether what another did is over for sure.
    #[inline(always)]
    fn touch(
        &mut self,
        at: usize,
        size: usize,
        how: Touching,
        who: Who,
        is_ordered: impl Fn(u32, u16, u8) -> bool,
    ) -> Result<(), Trouble> {
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
            word.touch(me(((1u8 << to) - 1) & !((1u8 << from) - 1)), how, &is_ordered)?;
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
    fn find(&mut self, address: u64, size: usize) -> Result<(&mut Bytes, usize, &Order, u32), Trouble> {
        let index = (address >> WITHIN).wrapping_sub(1) as usize;
        let at = (address & ((1 << WITHIN) - 1)) as usize;
        let Some(Some(bytes)) = self.allocations.get_mut(index) else {
            return Err(Trouble::NoMemory { address });
        };
        if at + size > bytes.len() {
            let past = (at + size - bytes.len()) as u64;
            return Err(Trouble::OutOfBounds { size: bytes.len(), past });
        }
        Ok((bytes, at, &self.order, self.first))
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
        let (bytes, at, order, first) = self.find(address, size)?;
        if !bytes.is_written(at, size) {
            return Err(Trouble::Unwritten { what: "global memory", at });
        }
        let is_ordered = between(order, first, who.cta);
        bytes.touch(at, size, Touching::Read, who, is_ordered)?;
        Ok(bytes.get(at, size))
    }

    /// Bytes that follow each other, as a warp's lanes read them together.
    pub(crate) fn read_run(&mut self, address: u64, size: usize, who: Who) -> Result<&[u8], Trouble> {
        let (bytes, at, order, first) = self.find(address, size)?;
        bytes.touch(at, size, Touching::Read, who, between(order, first, who.cta))?;
        bytes.run(at, size, "global memory")
    }

    /// Writes as [`read_run`](Memory::read_run) reads.
    pub(crate) fn write_run(&mut self, address: u64, data: &[u8], who: Who) -> Result<(), Trouble> {
        let (bytes, at, order, first) = self.find(address, data.len())?;
        bytes.touch(at, data.len(), Touching::Write, who, between(order, first, who.cta))?;
        bytes.set_run(at, data);
        Ok(())
    }

    #[inline]
    pub(crate) fn write(&mut self, address: u64, size: usize, value: u64, who: Who) -> Result<(), Trouble> {
        let (bytes, at, order, first) = self.find(address, size)?;
        bytes.touch(at, size, Touching::Write, who, between(order, first, who.cta))?;
        bytes.set(at, size, value);
        Ok(())
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
        let Ok((bytes, _, order, first)) = self.find(addresses[0], size) else { return false };
        if addresses.iter().any(|address| address >> WITHIN != base) {
            return false;
        }
        let is_ordered = between(order, first, who.cta);
        bytes.gather(addresses.map(|address| address & ((1 << WITHIN) - 1)), size, who, is_ordered, to)
    }

    /// Reads, and writes what `change` makes of it.
    pub(crate) fn change(
        &mut self,
        address: u64,
        size: usize,
        who: Who,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<u64, Trouble> {
        let (bytes, at, order, first) = self.find(address, size)?;
        if !bytes.is_written(at, size) {
            return Err(Trouble::Unwritten { what: "global memory", at });
        }
        bytes.touch(at, size, Touching::Atomic, who, between(order, first, who.cta))?;
        let old = bytes.get(at, size);
        bytes.set(at, size, change(old));
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

/// Whether what a CTA did to global memory is over for CTA `by`.
fn between(order: &Order, first: u32, by: u32) -> impl Fn(u32, u16, u8) -> bool {
    move |cta, epoch, warp| {
        cta < first || warp != SEVERAL_CTAS && (cta == by || order.is_over(cta, epoch, warp, by))
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
        if !self.is_written(at, size) {
            return Err(Trouble::Unwritten { what: "shared memory", at });
        }
        self.touch(at, size, Touching::Read, who, inside(who))?;
        Ok(self.get(at, size))
    }

    #[inline]
    pub(crate) fn read_run(&mut self, address: u64, size: usize, who: Who) -> Result<&[u8], Trouble> {
        let at = self.within(address, size)?;
        self.touch(at, size, Touching::Read, who, inside(who))?;
        self.run(at, size, "shared memory")
    }

    pub(crate) fn write_run(&mut self, address: u64, data: &[u8], who: Who) -> Result<(), Trouble> {
        let at = self.within(address, data.len())?;
        self.touch(at, data.len(), Touching::Write, who, inside(who))?;
        self.set_run(at, data);
        Ok(())
    }

    #[inline]
    pub(crate) fn write(&mut self, address: u64, size: usize, value: u64, who: Who) -> Result<(), Trouble> {
        let at = self.within(address, size)?;
        self.touch(at, size, Touching::Write, who, inside(who))?;
        self.set(at, size, value);
        Ok(())
    }

    /// As [`Memory::gather`].
    pub(crate) fn gather_here(
        &mut self,
        addresses: &[u64; LANES],
        size: usize,
        who: Who,
        to: &mut [u64; LANES],
    ) -> bool {
        self.gather(*addresses, size, who, inside(who), to)
    }

    /// A copy to these bytes begins: from now on it may land, and until it has been waited for they hold nothing.
    pub(crate) fn expect(&mut self, address: u64, size: usize, who: Who) -> Result<(), Trouble> {
        let at = self.within(address, size)?;
        self.touch(at, size, Touching::Write, who, inside(who))?;
        (at..at + size).for_each(|at| self.written[at / 8] &= !(1 << (at % 8)));
        Ok(())
    }

    pub(crate) fn change(
        &mut self,
        address: u64,
        size: usize,
        who: Who,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<u64, Trouble> {
        let at = self.within(address, size)?;
        if !self.is_written(at, size) {
            return Err(Trouble::Unwritten { what: "shared memory", at });
        }
        self.touch(at, size, Touching::Atomic, who, inside(who))?;
        let old = self.get(at, size);
        self.set(at, size, change(old));
        Ok(old)
    }
}

/// Whether what another did to shared memory is over: a barrier lies between, or it was the same warp.
fn inside(who: Who) -> impl Fn(u32, u16, u8) -> bool {
    move |_, epoch, warp| epoch < who.epoch || warp == who.warp
}
