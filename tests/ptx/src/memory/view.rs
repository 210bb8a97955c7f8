//! An allocation, or a CTA's shared memory, as a warp's instruction accesses it.

use super::Bytes;
use super::races::{Access, Touch, Touching, WHOLE};
use crate::fault::Trouble;
use crate::registers::{LANES, Mask};

/// Up to 16 bytes of each lane: their first words, their second ones, and so on. Less than a word is in the lower bits
/// of one.
pub(crate) type Words<const WORDS: usize> = [[u32; LANES]; WORDS];

/// Bytes, where they begin, and who accesses them.
pub(crate) struct View<'a, A> {
    pub(super) bytes: &'a mut Bytes,
    pub(super) start: u64,
    pub(super) by: A,
}

impl<A: Access> View<'_, A> {
    /// The place of `size` bytes.
    #[inline(always)]
    pub(super) fn place(&self, address: u64, size: usize) -> Result<usize, Trouble> {
        let (at, len) = ((address - self.start) as usize, self.bytes.size);
        let end = at.saturating_add(size);
        if end > len {
            return Err(Trouble::OutOfBounds { size: len, past: (end - len) as u64 });
        }
        Ok(at)
    }

    /// The places of all lanes' elements, if they are aligned and in this allocation.
    #[inline(always)]
    fn places<const SIZE: usize>(&self, addresses: &[u64; LANES]) -> Option<[u32; LANES]> {
        // An allocation begins at a multiple of more than a place has bits. Each loop becomes one of vectors.
        let (mut places, mut bits, mut last) = ([0; LANES], 0, 0);
        for address in addresses {
            bits |= address ^ self.start;
        }
        for (place, address) in places.iter_mut().zip(addresses) {
            *place = *address as u32;
        }
        for place in &places {
            last = last.max(*place);
        }
        let is_there = bits >> u32::BITS == 0 && last as usize + SIZE <= self.bytes.size;
        (is_there && bits & (SIZE as u64 - 1) == 0).then_some(places)
    }

    /// Reads aligned bytes.
    #[inline(always)]
    pub(crate) fn read<const SIZE: usize>(&mut self, address: u64) -> Result<[u32; 4], Trouble> {
        let at = self.place(address, SIZE)?;
        let mut words = self.bytes.readers[at / 4..][..SIZE.div_ceil(4)].iter();
        if !words.all(|reader| self.by.has_read(*reader, bytes_of_word::<SIZE>(at))) {
            self.bytes.read::<SIZE>(at, &self.by)?;
        }
        let mut words = [0; 4];
        for (i, word) in words[..SIZE.div_ceil(4)].iter_mut().enumerate() {
            *word = self.bytes.word::<SIZE>(at + 4 * i);
        }
        Ok(words)
    }

    /// Reads `SIZE` bytes, of so many words, of each lane, wherever they are. False if they are not all here, or some may
    /// not be read. Lanes beyond those of the mask's range are left out; within it, those that take no part have the
    /// address of one that does.
    #[inline(always)]
    pub(crate) fn gather<const SIZE: usize, const WORDS: usize>(
        &mut self,
        addresses: &[u64; LANES],
        mask: Mask,
        to: &mut Words<WORDS>,
    ) -> bool {
        let Some(places) = self.places::<SIZE>(addresses) else { return false };
        let places = &places[mask.range()];
        if !self.have_read::<SIZE, WORDS>(places) && !self.read_all::<SIZE, WORDS>(places) {
            return false;
        }
        for (lane, at) in mask.range().zip(places) {
            for (i, words) in to.iter_mut().enumerate() {
                words[lane] = self.bytes.word::<SIZE>(*at as usize + 4 * i);
            }
        }
        true
    }

    /// Whether reads of all elements at these places are on record.
    #[inline(always)]
    fn have_read<const SIZE: usize, const WORDS: usize>(&self, places: &[u32]) -> bool {
        let (by, readers, mut have) = (self.by, &self.bytes.readers[..], true);
        if WORDS > 1 {
            let (mut last, mut new) = (u32::MAX, [true; WORDS]);
            for at in places.iter().copied() {
                if at != last {
                    let record = words_at::<WORDS>(readers, at);
                    new = std::array::from_fn(|i| new[i] & by.has_read(record[i], WHOLE));
                    last = at;
                }
            }
            return new.into_iter().all(|new| new);
        }
        let mut records = [by.me().of(WHOLE); LANES];
        for (record, at) in records.iter_mut().zip(places) {
            *record = readers[*at as usize / 4];
            if SIZE < 4 {
                have &= by.has_read(*record, bytes_of_word::<SIZE>(*at as usize));
            }
        }
        if SIZE >= 4 {
            for record in &records {
                have &= by.has_read(*record, WHOLE);
            }
        }
        have
    }

    /// Makes sure that the elements at these places may be read.
    #[inline(always)]
    fn read_all<const SIZE: usize, const WORDS: usize>(&mut self, places: &[u32]) -> bool {
        if SIZE < 4 || !self.by.is_clear() || !self.are_clear::<SIZE, WORDS>(places) {
            return places.iter().all(|at| self.bytes.read::<SIZE>(*at as usize, &self.by).is_ok());
        }
        let (by, mut last) = (self.by, u32::MAX);
        let (readers, writers) = (&mut self.bytes.readers[..], &self.bytes.writers[..]);
        for at in places.iter().copied() {
            if at != last {
                let (reader, writer) = (words_at::<WORDS>(readers, at), words_at::<WORDS>(writers, at));
                let new = std::array::from_fn::<_, WORDS, _>(|i| by.reading(reader[i], writer[i]));
                readers[at as usize / 4..][..WORDS].copy_from_slice(&new);
                last = at;
            }
        }
        true
    }

    /// Whether the elements at these places were written, before this.
    #[inline(always)]
    fn are_clear<const SIZE: usize, const WORDS: usize>(&self, places: &[u32]) -> bool {
        let (by, writers) = (self.by, &self.bytes.writers[..]);
        let (mut last, mut are) = (u32::MAX, true);
        for at in places.iter().copied() {
            if at != last {
                are &= self.bytes.is_written(at as usize, SIZE);
                for writer in words_at::<WORDS>(writers, at) {
                    are &= by.is_clearly_before(writer);
                }
                last = at;
            }
        }
        are
    }

    /// Writes bytes of each lane of a mask, wherever they are. False, and nothing is written, if they are not all here, or
    /// it cannot be told at a glance that all may be written. Addresses of other lanes are as in `gather`.
    #[inline(always)]
    pub(crate) fn scatter<const SIZE: usize, const WORDS: usize>(
        &mut self,
        addresses: &[u64; LANES],
        mask: Mask,
        from: &Words<WORDS>,
    ) -> bool {
        let Some(places) = self.places::<SIZE>(addresses) else { return false };
        let (by, bytes) = (self.by, &mut *self.bytes);
        let (readers, writers) = (&mut bytes.readers[..], &mut bytes.writers[..]);
        let mut are_before = true;
        for at in &places[mask.range()] {
            let records = words_at::<WORDS>(readers, *at).into_iter().zip(words_at::<WORDS>(writers, *at));
            for (reader, writer) in records {
                are_before &= by.is_clearly_before(reader) & by.is_clearly_before(writer);
            }
        }
        if !are_before {
            return false;
        }
        let me = by.me();
        for lane in mask.lanes() {
            let at = places[lane] as usize;
            let touched = bytes_of_word::<SIZE>(at);
            writers[at / 4..][..WORDS].fill(me.of(touched));
            for reader in &mut readers[at / 4..][..WORDS] {
                *reader = if SIZE < 4 { reader.unless_of(touched) } else { Touch::default() };
            }
        }
        for lane in mask.lanes() {
            let at = places[lane] as usize;
            for (i, words) in from.iter().enumerate() {
                bytes.set_word::<SIZE>(at + 4 * i, words[lane]);
            }
            bytes.mark::<SIZE>(at);
        }
        true
    }

    /// Reads bytes side by side.
    #[inline(always)]
    pub(crate) fn read_run(&mut self, address: u64, size: usize) -> Result<&[u8], Trouble> {
        let at = self.place(address, size)?;
        let is_whole = at.is_multiple_of(4) && size.is_multiple_of(4);
        let mut has_read = is_whole;
        for reader in &self.bytes.readers[at / 4..][..size / 4] {
            has_read &= self.by.has_read(*reader, WHOLE);
        }
        if !(has_read || is_whole && self.bytes.read_words(at, size, &self.by)) {
            self.bytes.read_run(at, size, &self.by)?;
        }
        Ok(&self.bytes.bytes[at..at + size])
    }

    /// Writes aligned bytes.
    #[inline(always)]
    pub(crate) fn write<const SIZE: usize>(&mut self, address: u64, words: [u32; 4]) -> Result<(), Trouble> {
        let at = self.place(address, SIZE)?;
        self.bytes.touch(at, SIZE, Touching::Write, &self.by)?;
        for (i, word) in words[..SIZE.div_ceil(4)].iter().enumerate() {
            self.bytes.set_word::<SIZE>(at + 4 * i, *word);
        }
        self.bytes.mark::<SIZE>(at);
        Ok(())
    }

    /// Writes bytes side by side.
    #[inline(always)]
    pub(crate) fn write_run(&mut self, address: u64, data: &[u8]) -> Result<(), Trouble> {
        let at = self.place(address, data.len())?;
        self.bytes.write_run(at, data.len(), &self.by)?;
        self.bytes.set_run(at, data);
        Ok(())
    }

    /// An asynchronous copy to these bytes begins: it may land from now on, and until it is waited for they are
    /// uninitialised.
    pub(crate) fn expect(&mut self, address: u64, size: usize) -> Result<(), Trouble> {
        let at = self.place(address, size)?;
        self.bytes.touch(at, size, Touching::Write, &self.by)?;
        (at..at + size).for_each(|at| self.bytes.written[at / 8] &= !(1 << (at % 8)));
        Ok(())
    }

    /// An atomic: reads, and writes the new value in place of the old one, which it returns.
    pub(super) fn change(
        &mut self,
        address: u64,
        size: usize,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<u64, Trouble> {
        let at = self.place(address, size)?;
        if let Some(at) = self.bytes.unwritten(at, size) {
            return Err(Trouble::Unwritten { what: A::SPACE, at });
        }
        self.bytes.touch(at, size, Touching::Atomic, &self.by)?;
        let low = u64::from(self.bytes.word::<4>(at));
        if size == 4 {
            self.bytes.set_word::<4>(at, change(low) as u32);
            return Ok(low);
        }
        let old = u64::from(self.bytes.word::<4>(at + 4)) << 32 | low;
        let new = change(old);
        self.bytes.set_word::<4>(at, new as u32);
        self.bytes.set_word::<4>(at + 4, (new >> 32) as u32);
        Ok(old)
    }
}

/// The records of an element's words.
#[inline(always)]
fn words_at<const WORDS: usize>(records: &[Touch], at: u32) -> [Touch; WORDS] {
    let mut words = [Touch::default(); WORDS];
    words.copy_from_slice(&records[at as usize / 4..][..WORDS]);
    words
}

/// The bytes that an aligned element takes of each of its words.
#[inline(always)]
fn bytes_of_word<const SIZE: usize>(at: usize) -> u8 {
    if SIZE < 4 { ((1u8 << SIZE) - 1) << (at % 4) } else { WHOLE }
}
