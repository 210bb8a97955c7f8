//! [`First`]: pieces of a job that others of the same job need.

use super::super::sync::{AtomicBool, AtomicUsize, Ordering, SPINS, spin_loop, yield_now};

/// Pieces that must be done before others of the same job can be finished. Each thread helps with these before a
/// piece of the job, so whatever it waits for is already under way.
#[repr(align(128))]
pub(crate) struct First {
    pieces: usize,
    next: AtomicUsize,
    left: AtomicUsize,
    done: AtomicBool,
}

impl First {
    pub(crate) fn new(pieces: usize) -> First {
        let next = AtomicUsize::new(0);
        First { pieces, next, left: AtomicUsize::new(pieces), done: AtomicBool::new(false) }
    }

    /// Runs the pieces that no thread has taken yet.
    pub(crate) fn help(&self, mut work: impl FnMut(usize)) {
        while self.next.load(Ordering::Relaxed) < self.pieces {
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            if piece >= self.pieces {
                return;
            }
            let on_panic = Released(self);
            work(piece);
            if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.done.store(true, Ordering::Release);
            }
            std::mem::forget(on_panic);
        }
    }

    /// Waits until all are done.
    pub(crate) fn wait(&self) {
        let mut turns = 0;
        while !self.done.load(Ordering::Acquire) {
            turns += 1;
            if turns < SPINS { spin_loop() } else { yield_now() }
        }
    }
}

/// Releases threads that wait for a piece that panicked: their results are discarded.
struct Released<'a>(&'a First);

impl Drop for Released<'_> {
    fn drop(&mut self) {
        self.0.done.store(true, Ordering::Release);
    }
}
