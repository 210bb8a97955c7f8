//! What a warp asks of memory: some bytes of each lane, at an address of its own.

use super::first_lane;
use crate::fault::Trouble;
use crate::memory::{Space, View, Who, Words};
use crate::registers::{LANES, Mask};

/// Access pattern of a warp.
enum Spread {
    /// Coalesced: so many lanes from the first on, side by side.
    Run(usize),
    /// All lanes at one address.
    Same,
    /// Otherwise.
    Apart,
}

/// Fewer lanes than this, apart, are accessed one by one.
const FEW: u32 = 4;

/// An access of the lanes of a mask.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub who: Who,
    pub addresses: &'a [u64; LANES],
    pub mask: Mask,
}

impl Request<'_> {
    /// Loads as many bytes, in so many words, of each lane, aligned to them. Where something is wrong, the lanes are gone
    /// through one by one to find the first that it concerns.
    #[inline(always)]
    pub(super) fn load<S: Space, const BYTES: usize, const WORDS: usize>(
        &self,
        from: &mut S,
        words: &mut Words<WORDS>,
    ) -> Result<(), (Trouble, usize)> {
        match self.load_together::<S, BYTES, WORDS>(from, words) {
            true => Ok(()),
            false => self.each(from, BYTES, |view, lane| {
                let read = view.read::<BYTES>(self.addresses[lane])?;
                words.iter_mut().zip(read).for_each(|(words, word)| words[lane] = word);
                Ok(())
            }),
        }
    }

    /// Stores as many bytes of each lane.
    #[inline(always)]
    pub(super) fn store<S: Space, const BYTES: usize, const WORDS: usize>(
        &self,
        to: &mut S,
        words: &Words<WORDS>,
    ) -> Result<(), (Trouble, usize)> {
        match self.store_together::<S, BYTES, WORDS>(to, words) {
            true => Ok(()),
            false => self.each(to, BYTES, |view, lane| {
                view.write::<BYTES>(
                    self.addresses[lane],
                    std::array::from_fn(|i| words.get(i).map_or(0, |words| words[lane])),
                )
            }),
        }
    }

    /// Calls `access` for each lane, with what its address is in.
    #[inline(always)]
    fn each<S: Space>(
        &self,
        space: &mut S,
        size: usize,
        mut access: impl FnMut(&mut View<'_, S::By<'_>>, usize) -> Result<(), Trouble>,
    ) -> Result<(), (Trouble, usize)> {
        for lane in self.mask.lanes() {
            let mut access = || {
                aligned(self.addresses[lane], size)?;
                access(&mut space.view(self.addresses[lane], self.who)?, lane)
            };
            access().map_err(|trouble| (trouble, lane))?;
        }
        Ok(())
    }

    /// False where something may be wrong.
    #[inline(always)]
    fn load_together<S: Space, const BYTES: usize, const WORDS: usize>(
        &self,
        from: &mut S,
        words: &mut Words<WORDS>,
    ) -> bool {
        let first = first_lane(self.mask.bits);
        let start = self.addresses[first];
        let Ok(mut view) = from.view(start, self.who) else { return false };
        match self.spread::<BYTES>() {
            Spread::Run(LANES) => view.read_run(start, LANES * BYTES).is_ok_and(
                #[inline(always)]
                |bytes| {
                    split::<BYTES, WORDS>(bytes, 0, words);
                    true
                },
            ),
            Spread::Run(count) => view.read_run(start, count * BYTES).is_ok_and(
                #[inline(always)]
                |bytes| {
                    split::<BYTES, WORDS>(bytes, first, words);
                    true
                },
            ),
            Spread::Same => view.read::<BYTES>(start).is_ok_and(
                #[inline(always)]
                |read| {
                    words.iter_mut().zip(read).for_each(|(to, word)| to.fill(word));
                    true
                },
            ),
            Spread::Apart => {
                self.mask.bits.count_ones() >= FEW
                    && view.gather::<BYTES, WORDS>(&self.active_addresses(), self.mask, words)
            }
        }
    }

    /// False where something may be wrong.
    #[inline(always)]
    fn store_together<S: Space, const BYTES: usize, const WORDS: usize>(
        &self,
        to: &mut S,
        words: &Words<WORDS>,
    ) -> bool {
        let first = first_lane(self.mask.bits);
        let start = self.addresses[first];
        if self.mask.bits.count_ones() < FEW {
            return false;
        }
        let Ok(mut view) = to.view(start, self.who) else { return false };
        match self.spread::<BYTES>() {
            Spread::Run(count) => {
                let mut bytes = [0; LANES * 16];
                let bytes = &mut bytes[..count * BYTES];
                join::<BYTES, WORDS>(bytes, first, words);
                view.write_run(start, bytes).is_ok()
            }
            _ => view.scatter::<BYTES, WORDS>(&self.active_addresses(), self.mask, words),
        }
    }

    /// The addresses, with the first in place of those of lanes that take no part.
    #[inline(always)]
    fn active_addresses(&self) -> [u64; LANES] {
        let mut addresses = *self.addresses;
        if !self.mask.is_all() {
            let first = addresses[first_lane(self.mask.bits)];
            for (lane, address) in addresses.iter_mut().enumerate() {
                *address = if self.mask.bits >> lane & 1 == 1 { *address } else { first };
            }
        }
        addresses
    }

    #[inline(always)]
    fn spread<const BYTES: usize>(&self) -> Spread {
        let first = first_lane(self.mask.bits);
        let start = self.addresses[first];
        if start & (BYTES as u64 - 1) != 0 {
            return Spread::Apart;
        }
        let (base, by) = (start.wrapping_sub((first * BYTES) as u64), BYTES as u64);
        let (mut from_run, mut from_same) = (0, 0);
        for (lane, address) in self.addresses.iter().enumerate() {
            let is_active = 0u64.wrapping_sub(u64::from(self.mask.bits >> lane & 1));
            from_run |= (address ^ base.wrapping_add(lane as u64 * by)) & is_active;
            from_same |= (address ^ start) & is_active;
        }
        let lanes = self.mask.bits >> first;
        match () {
            () if from_same == 0 => Spread::Same,
            () if from_run == 0 && lanes & lanes.wrapping_add(1) == 0 => {
                Spread::Run(lanes.count_ones() as usize)
            }
            () => Spread::Apart,
        }
    }
}

/// Gives the lanes from `first` on what bytes they have of a run.
#[inline(always)]
fn split<const BYTES: usize, const WORDS: usize>(run: &[u8], first: usize, words: &mut Words<WORDS>) {
    let lanes = run.as_chunks::<BYTES>().0;
    for (i, words) in words.iter_mut().enumerate() {
        for (word, bytes) in words[first..].iter_mut().zip(lanes) {
            *word = match BYTES {
                1 => u32::from(bytes[0]),
                2 => u32::from(bytes[1]) << 8 | u32::from(bytes[0]),
                _ => u32::from_le_bytes(bytes.as_chunks().0[i]),
            };
        }
    }
}

/// Makes a run of the bytes of lanes from `first` on.
#[inline(always)]
fn join<const BYTES: usize, const WORDS: usize>(run: &mut [u8], first: usize, words: &Words<WORDS>) {
    let lanes = run.as_chunks_mut::<BYTES>().0;
    for (i, words) in words.iter().enumerate() {
        for (bytes, word) in lanes.iter_mut().zip(&words[first..]) {
            let size = BYTES.min(4);
            bytes[i * size..][..size].copy_from_slice(&word.to_le_bytes()[..size]);
        }
    }
}

/// `size` is a power of two.
#[inline(always)]
pub(super) fn aligned(address: u64, size: usize) -> Result<(), Trouble> {
    match address & (size as u64 - 1) == 0 {
        true => Ok(()),
        false => Err(Trouble::Misaligned { address, size }),
    }
}
