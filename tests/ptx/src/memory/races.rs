//! Detection of races: who last read and wrote each word, and what orders the CTAs of a launch.

use std::collections::HashMap;

use crate::fault::Trouble;

/// Who executes an instruction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Who {
    /// Its CTA, by a number that no earlier launch has used.
    pub cta: u32,
    /// Barriers that the CTA has passed.
    pub epoch: u16,
    pub warp: u8,
}

/// A kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touching {
    Read,
    Write,
    Atomic,
}

/// The last of those who touched a word, and which of its bytes: 0 is nobody. One number, so that the usual question, whether it
/// is who touches it now, is one comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Touch(u64);

/// All bytes of a word.
pub(super) const WHOLE: u8 = 15;

/// The bits of a touch that say which bytes, which warp and which CTA.
const BYTES: u64 = 0xff;
const WARP: u64 = 0xff00;
const CTA: u64 = !0 << 32;

/// In place of a warp: it was an atomic, and these do not race with each other.
const ATOMIC: u8 = u8::MAX;
/// In place of a warp: several of the CTA, some of several CTAs, or these where nothing was written since the launch began.
const SEVERAL: u8 = ATOMIC - 1;
const SEVERAL_CTAS: u8 = SEVERAL - 1;
const EVERYONE: u8 = SEVERAL_CTAS - 1;

impl Touch {
    #[inline(always)]
    fn new(cta: u32, epoch: u16, warp: u8) -> Touch {
        Touch(u64::from(cta) << 32 | u64::from(epoch) << 16 | u64::from(warp) << 8)
    }

    /// The same, of these bytes.
    #[inline(always)]
    pub(super) fn of(self, bytes: u8) -> Touch {
        Touch(self.0 & !BYTES | u64::from(bytes))
    }

    /// The same, unless it is of any of these bytes: then nobody.
    #[inline(always)]
    pub(super) fn unless_of(self, bytes: u8) -> Touch {
        if self.bytes() & bytes != 0 { Touch(0) } else { self }
    }

    #[inline(always)]
    fn by(self, warp: u8) -> Touch {
        Touch(self.0 & !WARP | u64::from(warp) << 8)
    }

    #[inline(always)]
    fn cta(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline(always)]
    fn epoch(self) -> u16 {
        (self.0 >> 16) as u16
    }

    #[inline(always)]
    fn warp(self) -> u8 {
        (self.0 >> 8) as u8
    }

    #[inline(always)]
    fn bytes(self) -> u8 {
        self.0 as u8
    }
}

/// Who accesses a memory, and which accesses of others happen before. Touches are of no bytes here.
pub(crate) trait Access: Copy {
    /// Bits in which readers differ that need a record each.
    const READER: u64;
    /// The memory's name in faults.
    const SPACE: &'static str;

    fn me(&self) -> Touch;
    /// The record of readers that nothing orders, where no write before could race with one more.
    fn everyone(&self) -> Touch;
    /// The record of readers that nothing orders, after this write.
    fn readers(&self, writer: Touch) -> Touch;
    /// True if it happens before.
    fn is_ordered(&self, touch: Touch) -> bool;
    /// True if it happens before, and that takes no more than a comparison to tell.
    fn is_clearly_before(&self, touch: Touch) -> bool;
    /// True if comparisons tell all that happens before: no fences have ordered other CTAs with this one.
    fn is_clear(&self) -> bool;

    /// True if a read of these bytes is on record. Whoever writes them clears that: so they were written, and may be read.
    #[inline(always)]
    fn has_read(&self, reader: Touch, bytes: u8) -> bool {
        let missing = !reader.0 & u64::from(bytes);
        let differs = |who: Touch, by: u64| (reader.0 ^ who.0) & by & !BYTES | missing;
        (differs(self.me(), Self::READER) == 0) | (differs(self.everyone(), !0) == 0)
    }

    /// The readers of a word on record once all of it is read, if that is clear and does not race.
    #[inline(always)]
    fn reading(&self, reader: Touch, writer: Touch) -> Touch {
        let is_known = self.has_read(reader, WHOLE);
        let new = if self.is_clearly_before(reader) { self.me() } else { self.readers(writer) };
        if is_known { reader } else { new.of(WHOLE) }
    }
}

/// An access to global memory, in a launch whose first CTA has this number.
#[derive(Clone, Copy)]
pub(crate) struct Global<'a> {
    pub who: Who,
    pub order: &'a Order,
    pub first: u32,
}

impl Access for Global<'_> {
    // Accesses of one CTA are in order.
    const READER: u64 = !WARP;
    const SPACE: &'static str = "global memory";

    #[inline(always)]
    fn me(&self) -> Touch {
        Touch::new(self.who.cta, self.who.epoch, self.who.warp)
    }

    #[inline(always)]
    fn everyone(&self) -> Touch {
        Touch::new(self.first, 0, EVERYONE)
    }

    #[inline(always)]
    fn readers(&self, writer: Touch) -> Touch {
        if writer.cta() < self.first { self.everyone() } else { self.me().by(SEVERAL_CTAS) }
    }

    #[inline(always)]
    fn is_ordered(&self, touch: Touch) -> bool {
        let (cta, by) = (touch.cta(), self.who.cta);
        let is_one = !matches!(touch.warp(), SEVERAL_CTAS | EVERYONE);
        cta < self.first || is_one && (cta == by || self.order.is_over(cta, touch.epoch(), touch.warp(), by))
    }

    #[inline(always)]
    fn is_clearly_before(&self, touch: Touch) -> bool {
        let warp = |warp: u8| touch.0 & WARP == u64::from(warp) << 8;
        let is_mine = (touch.0 ^ self.me().0) & CTA == 0;
        (touch.0 < Touch::new(self.first, 0, 0).0) | is_mine & !warp(SEVERAL_CTAS) & !warp(EVERYONE)
    }

    #[inline(always)]
    fn is_clear(&self) -> bool {
        !self.order.known.contains_key(&self.who.cta)
    }
}

/// An access to a CTA's shared memory: ordered by a barrier in between, or within the warp. What other CTAs did there is over.
#[derive(Clone, Copy)]
pub(crate) struct Shared(pub Who);

impl Access for Shared {
    const READER: u64 = !0;
    const SPACE: &'static str = "shared memory";

    #[inline(always)]
    fn me(&self) -> Touch {
        Touch::new(self.0.cta, self.0.epoch, self.0.warp)
    }

    #[inline(always)]
    fn everyone(&self) -> Touch {
        self.me().by(SEVERAL)
    }

    #[inline(always)]
    fn readers(&self, _: Touch) -> Touch {
        self.everyone()
    }

    #[inline(always)]
    fn is_ordered(&self, touch: Touch) -> bool {
        // Of another CTA or epoch: both are over.
        let differs = touch.0 ^ self.me().0;
        (differs & !(WARP | BYTES) != 0) | (differs & WARP == 0)
    }

    #[inline(always)]
    fn is_clearly_before(&self, touch: Touch) -> bool {
        self.is_ordered(touch)
    }

    #[inline(always)]
    fn is_clear(&self) -> bool {
        true
    }
}

/// Records a touch of these bytes of a word, and finds whom it races with.
#[inline(always)]
pub(super) fn touch(
    (reader, writer): (&mut Touch, &mut Touch),
    bytes: u8,
    how: Touching,
    by: &impl Access,
) -> Result<(), Trouble> {
    let me = if how == Touching::Atomic { by.me().by(ATOMIC) } else { by.me() }.of(bytes);
    // As it was a moment ago.
    if how == Touching::Read && by.has_read(*reader, bytes)
        || how == Touching::Write && *writer == me && *reader == Touch(0)
    {
        return Ok(());
    }
    let clashes = |touch: Touch| {
        touch.bytes() & bytes != 0
            && !(how == Touching::Atomic && touch.warp() == ATOMIC)
            && !by.is_ordered(touch)
    };
    let does = if how == Touching::Read { "reads" } else { "writes" };
    if clashes(*writer) {
        return Err(Trouble::Race { does, did: "wrote", other: writer.cta() });
    }
    if how != Touching::Read {
        if clashes(*reader) {
            return Err(Trouble::Race { does, did: "read", other: reader.cta() });
        }
        *writer = me;
        // They happen before this write: whoever is ordered with it is ordered with them.
        *reader = reader.unless_of(bytes);
        return Ok(());
    }
    let last = *reader;
    let all = last.bytes() | bytes;
    *reader = match () {
        () if (last.0 ^ me.0) & !BYTES == 0 => me.of(all),
        () if last.bytes() == 0 || by.is_ordered(last) => me,
        // Whoever writes next races with one of them at least.
        () => by.readers(*writer).of(all),
    };
    Ok(())
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
pub(crate) struct Order {
    /// The clock that each CTA released at its last fence.
    fenced: HashMap<u32, Clock>,
    /// The clock released at each address, by atomics.
    handed: HashMap<u64, Clock>,
    known: HashMap<u32, Clock>,
}

impl Order {
    pub(super) fn fence(&mut self, who: Who) {
        let mut clock = self.known.get(&who.cta).cloned().unwrap_or_default();
        let own = HashMap::from([(who.cta, (who.epoch, 1u32 << (who.warp % 32)))]);
        join(&mut clock, &own);
        join(self.fenced.entry(who.cta).or_default(), &clock);
    }

    pub(super) fn atomic(&mut self, who: Who, address: u64) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn by(cta: u32, order: &Order) -> Global<'_> {
        Global { who: Who { cta, epoch: 0, warp: 0 }, order, first: 1 }
    }

    #[test]
    fn a_reader_does_not_miss_a_later_write() {
        let (nothing, mut knows) = (Order::default(), Order::default());
        let (mut reader, mut writer) = (Touch(0), Touch(0));
        let word = &mut (&mut reader, &mut writer);
        let mut touch = |how, by: &Global<'_>| touch((word.0, word.1), 15, how, by);
        touch(Touching::Read, &by(1, &nothing)).unwrap();
        // The writer knows that the read is over; the reader does not know of the write.
        knows.fence(by(1, &nothing).who);
        knows.atomic(by(1, &nothing).who, 0);
        knows.atomic(by(2, &nothing).who, 0);
        touch(Touching::Write, &by(2, &knows)).unwrap();
        let again = touch(Touching::Read, &by(1, &nothing));
        assert_eq!(again, Err(Trouble::Race { does: "reads", did: "wrote", other: 2 }));
    }

    #[test]
    fn a_write_races_with_readers_of_several_ctas() {
        let nothing = Order::default();
        for writes in [1, 2, 3] {
            let (mut reader, mut writer) = (Touch(0), Touch(0));
            let mut touch =
                |cta, bytes, how| touch((&mut reader, &mut writer), bytes, how, &by(cta, &nothing));
            for (cta, bytes) in [(1, 3), (2, 12), (2, 3), (1, 15), (3, 15)] {
                touch(cta, bytes, Touching::Read).unwrap();
            }
            let trouble = touch(writes, 1, Touching::Write).unwrap_err();
            assert!(matches!(trouble, Trouble::Race { did: "read", .. }), "{trouble:?}");
        }
    }
}
