//! [`Gate`]: lets workers into a job, and waits for those that are in it.

use std::cell::UnsafeCell;

use super::super::sync::{AtomicUsize, Ordering, SPINS, spin_loop, yield_now};

/// Pads what one thread writes to cache lines of its own, against false sharing.
#[repr(align(128))]
pub(super) struct CachePadded<T>(pub T);

/// The current job, and for each worker the word of the job that it is in. A worker that comes too late cannot join, so nobody
/// waits for a thread that has lost its core.
///
/// Each word is written by one thread alone: with many threads, a word that all write to would go from core to core and take
/// longer than a short op. The job is in the cache line of its word, which workers read anyway.
pub(crate) struct Gate<J> {
    current: CachePadded<Current<J>>,
    inside: Vec<CachePadded<AtomicUsize>>,
}

struct Current<J> {
    word: AtomicUsize,
    job: UnsafeCell<Option<J>>,
}

// SAFETY: the job is written by `open`, while no worker is inside, and read by workers that are.
unsafe impl<J: Copy + Send> Sync for Gate<J> {}

/// A job's number, and whether it may still be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobWord(usize);

impl JobWord {
    const OPEN: usize = 1;

    /// The job's number.
    pub(crate) fn number(self) -> usize {
        self.0 / 2
    }
}

impl<J: Copy + Send> Gate<J> {
    pub(crate) fn new(workers: usize) -> Gate<J> {
        let inside = (0..workers).map(|_| CachePadded(AtomicUsize::new(0))).collect();
        let current = Current { word: AtomicUsize::new(0), job: UnsafeCell::new(None) };
        Gate { current: CachePadded(current), inside }
    }

    /// The current job's word.
    pub(crate) fn word(&self) -> JobWord {
        JobWord(self.current.0.word.load(Ordering::SeqCst))
    }

    /// Opens a new job.
    ///
    /// # Safety
    ///
    /// One thread alone opens and closes jobs, each after the last one.
    pub(crate) unsafe fn open(&self, job: J) -> JobWord {
        let word = JobWord((self.word().number().wrapping_add(1)).wrapping_mul(2) | JobWord::OPEN);
        // SAFETY: the last job is closed, so no worker is inside.
        unsafe { *self.current.0.job.get() = Some(job) };
        self.current.0.word.store(word.0, Ordering::SeqCst);
        word
    }

    /// Joins a job if it may still be joined.
    pub(crate) fn enter(&self, worker: usize, word: JobWord) -> Option<J> {
        if word.0 & JobWord::OPEN == 0 {
            return None;
        }
        // Either this thread sees that the job is closed, or the one that closes it sees that this thread is inside: both write
        // before they read, and all is `SeqCst`.
        self.inside[worker].0.store(word.0, Ordering::SeqCst);
        if self.word() == word {
            // SAFETY: this thread is inside, so the job is not written.
            return unsafe { *self.current.0.job.get() };
        }
        self.leave(worker);
        None
    }

    /// Leaves the job that the worker is in. Who closes it sees what the worker has written.
    pub(crate) fn leave(&self, worker: usize) {
        self.inside[worker].0.store(0, Ordering::Release);
    }

    /// Stops workers from joining, and waits until all have left.
    pub(crate) fn close(&self) {
        let word = self.word().0;
        self.current.0.word.store(word & !JobWord::OPEN, Ordering::SeqCst);
        for inside in &self.inside {
            let mut turns = 0;
            while inside.0.load(Ordering::SeqCst) == word {
                turns += 1;
                if turns < SPINS { spin_loop() } else { yield_now() }
            }
        }
    }
}
