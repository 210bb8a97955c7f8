//! [`Gate`]: lets workers into a job, and waits for those that are in it.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Spins of who waits before it yields. About ten microseconds.
pub(super) const SPINS: u32 = 2_000;

/// Pads what one thread writes to cache lines of its own, against false sharing.
#[repr(align(128))]
pub(super) struct CachePadded<T>(pub T);

/// The current job's word, and for each worker that of the job that it is in. A worker that comes too late cannot join, so nobody
/// waits for a thread that has lost its core.
///
/// Each word is written by one thread alone: with many threads, a word that all write to would go from core to core and take
/// longer than a short op.
pub(super) struct Gate {
    job: CachePadded<AtomicUsize>,
    inside: Vec<CachePadded<AtomicUsize>>,
}

/// A job's number, and whether it may still be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobWord(usize);

impl JobWord {
    const OPEN: usize = 1;

    /// The job's number.
    pub(super) fn number(self) -> usize {
        self.0 / 2
    }
}

impl Gate {
    pub(super) fn new(workers: usize) -> Gate {
        let inside = (0..workers).map(|_| CachePadded(AtomicUsize::new(0))).collect();
        Gate { job: CachePadded(AtomicUsize::new(0)), inside }
    }

    /// The current job.
    pub(super) fn job(&self) -> JobWord {
        JobWord(self.job.0.load(Ordering::SeqCst))
    }

    /// Opens a new job. Only called when the last one is over.
    pub(super) fn open(&self) -> JobWord {
        let job = JobWord((self.job().number().wrapping_add(1)).wrapping_mul(2) | JobWord::OPEN);
        self.job.0.store(job.0, Ordering::SeqCst);
        job
    }

    /// Joins a job if it may still be joined.
    pub(super) fn enter(&self, worker: usize, job: JobWord) -> bool {
        if job.0 & JobWord::OPEN == 0 {
            return false;
        }
        // Either this thread sees that the job is closed, or the one that closes it sees that this thread is inside: both write
        // before they read, and all is `SeqCst`.
        self.inside[worker].0.store(job.0, Ordering::SeqCst);
        let joined = self.job() == job;
        if !joined {
            self.leave(worker);
        }
        joined
    }

    /// Leaves the job that the worker is in. Who closes it sees what the worker has written.
    pub(super) fn leave(&self, worker: usize) {
        self.inside[worker].0.store(0, Ordering::Release);
    }

    /// Stops workers from joining, and waits until all have left.
    pub(super) fn close(&self) {
        let job = self.job();
        self.job.0.store(job.0 & !JobWord::OPEN, Ordering::SeqCst);
        for inside in &self.inside {
            let mut turns = 0;
            while inside.0.load(Ordering::SeqCst) == job.0 {
                turns += 1;
                if turns < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
    }
}
