//! [`Pieces`]: the pieces of a job, shared out among the threads.

use std::ops::Range;

use super::super::sync::{AtomicU64, Ordering};
use super::gate::{CachePadded, JobWord};

/// Bits of a piece's index; the rest of the word has the last 40 bits of the job's number. The next job with the same is some
/// twelve days of ops of a microsecond away.
const BITS: u32 = 24;
/// Most pieces of a job.
pub(crate) const MOST: usize = (1 << BITS) - 1;

/// For each thread the next of its own pieces, with the number of the job. A thread's pieces are contiguous, as is the memory they read,
/// which is fastest if each thread reads front to back. A thread that is done with its own takes others' (work stealing).
///
/// A word of another job stands for a thread that has not begun. So nobody writes to all words before a job begins.
pub(super) struct Pieces(Vec<CachePadded<AtomicU64>>);

impl Pieces {
    pub(super) fn new(threads: usize) -> Pieces {
        Pieces((0..threads).map(|_| CachePadded(AtomicU64::new(0))).collect())
    }

    pub(super) fn threads(&self) -> usize {
        self.0.len()
    }

    /// Pieces owned by thread `who`.
    fn own(&self, who: usize, pieces: usize) -> Range<usize> {
        let threads = self.0.len();
        pieces * who / threads..pieces * (who + 1) / threads
    }

    /// Takes the next of the pieces that thread `whose` owns, if one is left.
    pub(super) fn take(&self, whose: usize, job: JobWord, pieces: usize) -> Option<usize> {
        let (own, next) = (self.own(whose, pieces), &self.0[whose].0);
        let job = (job.number() as u64) << BITS;
        let mut word = next.load(Ordering::Relaxed);
        loop {
            let piece = if word & !(MOST as u64) == job { word as usize & MOST } else { own.start };
            if piece >= own.end {
                return None;
            }
            let after = job | (piece + 1) as u64;
            match next.compare_exchange_weak(word, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(piece),
                Err(now) => word = now,
            }
        }
    }

    /// Has all pieces of a job that are left taken.
    pub(super) fn drop_all(&self, job: JobWord) {
        let word = (job.number() as u64) << BITS | MOST as u64;
        self.0.iter().for_each(|next| next.0.store(word, Ordering::Relaxed));
    }
}
