//! [`Pool`]: a thread pool whose workers stay awake between ops and share out the pieces of each.
//!
//! A step is hundreds of short ops, so waking threads for each would cost more than the work. Workers spin for a
//! while after an op, then yield, then sleep; the next op wakes the sleepers. Pieces are taken one by one, so a
//! thread that loses its core delays only its own piece instead of halving the speed.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Spins of a waiting worker before it yields. About ten microseconds.
const SPINS: u32 = 2_000;
/// Yields of a waiting worker before it sleeps: well past the gap between two steps.
const YIELDS: u32 = 2_000;

/// Threads for the ops of one device. The thread that calls [`run`](Pool::run) is one of them. Each has scratch memory,
/// an `S`, that it keeps from piece to piece.
pub(crate) struct Pool<S> {
    shared: Arc<Shared<S>>,
    workers: Vec<JoinHandle<()>>,
}

/// Called with the thread's scratch memory and the index of a piece.
type Work<'a, S> = dyn Fn(&mut S, usize) + Sync + 'a;

/// A job, with the lifetime of its work erased: `run` does not return before every thread is done with it.
struct Job<S> {
    work: *const Work<'static, S>,
    pieces: usize,
    is_timed: bool,
}

impl<S> Clone for Job<S> {
    fn clone(&self) -> Job<S> {
        *self
    }
}

impl<S> Copy for Job<S> {}

// SAFETY: the work is `Sync`, and the pointer is only dereferenced while `run` keeps the work alive.
unsafe impl<S> Send for Job<S> {}

/// Pads what many threads write to cache lines of its own, against false sharing.
#[repr(align(128))]
struct CachePadded<T>(T);

/// One word with the current job's number, whether it may still be joined, and how many workers are in it.
///
/// Bit 0: may be joined. Bits 1 to 15: workers in it. The rest: the job's number. A worker that comes too late cannot
/// join, so nobody ever waits for a thread that has lost its core.
struct Gate(AtomicUsize);

const OPEN: usize = 1;
const ONE_INSIDE: usize = 2;
const ONE_JOB: usize = 1 << 16;

impl Gate {
    fn job(&self) -> usize {
        self.0.load(Ordering::SeqCst) / ONE_JOB
    }

    /// Opens a new job. Only called when the last one is over.
    fn open(&self) {
        let next = (self.job() + 1).wrapping_mul(ONE_JOB);
        self.0.store(next | OPEN, Ordering::SeqCst);
    }

    /// Joins the job if it may still be joined.
    fn enter(&self) -> bool {
        let join = |word| (word & OPEN != 0).then_some(word + ONE_INSIDE);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, join).is_ok()
    }

    fn leave(&self) {
        self.0.fetch_sub(ONE_INSIDE, Ordering::Release);
    }

    /// Stops workers from joining, and waits until all have left.
    fn close(&self) {
        self.0.fetch_and(!OPEN, Ordering::AcqRel);
        let mut turns = 0;
        while !self.0.load(Ordering::Acquire).is_multiple_of(ONE_JOB) {
            turns += 1;
            if turns < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

struct Shared<S> {
    gate: CachePadded<Gate>,
    /// For each thread, the next of its own pieces. A thread's pieces are contiguous, as is the memory they read,
    /// which is fastest if each thread reads front to back. A thread that is done with its own takes others' (work
    /// stealing).
    next: Vec<CachePadded<AtomicUsize>>,
    job: Mutex<Option<Job<S>>>,
    /// Nanoseconds for which all threads together have worked on a timed job.
    worked: AtomicU64,
    /// Payload of the first panic in a piece.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    asleep: Vec<CachePadded<AtomicBool>>,
    stop: AtomicBool,
}

impl<S: Default + 'static> Shared<S> {
    /// Pieces owned by thread `who`.
    fn own(&self, who: usize, pieces: usize) -> Range<usize> {
        let threads = self.next.len();
        pieces * who / threads..pieces * (who + 1) / threads
    }

    /// Runs pieces until there are none, `who`'s own first.
    fn work(&self, job: Job<S>, who: usize, scratch: &mut S) {
        // SAFETY: `share` waits for every thread in the job before the work goes out of scope.
        let work = unsafe { &*job.work };
        let began = job.is_timed.then(Instant::now);
        let all = catch_unwind(AssertUnwindSafe(|| {
            for other in 0..self.next.len() {
                let whose = (who + other) % self.next.len();
                let end = self.own(whose, job.pieces).end;
                loop {
                    let piece = self.next[whose].0.fetch_add(1, Ordering::Relaxed);
                    if piece >= end {
                        break;
                    }
                    work(scratch, piece);
                }
            }
        }));
        if let Err(why) = all {
            // The other threads need not go on.
            self.next.iter().for_each(|next| next.0.store(job.pieces, Ordering::Relaxed));
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        }
        if let Some(began) = began {
            self.worked.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }

    fn worker(&self, index: usize) {
        let (mut scratch, mut seen) = (S::default(), 0);
        loop {
            self.wait(index, seen);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            seen = self.gate.0.job();
            if self.gate.0.enter() {
                let job = *self.job.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(job) = job {
                    self.work(job, index + 1, &mut scratch);
                }
                self.gate.0.leave();
            }
        }
    }

    /// Waits for a job other than `seen`, or for the stop: spins, then yields, then sleeps.
    fn wait(&self, index: usize, seen: usize) {
        let news = || self.gate.0.job() != seen || self.stop.load(Ordering::SeqCst);
        for i in 0..SPINS + YIELDS {
            if news() {
                return;
            }
            if i < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        // No lost wake-up: `run` opens the job before it reads `asleep`, and this thread sets `asleep` before it
        // checks for a job. All are `SeqCst`, so at least one side sees the other.
        let asleep = &self.asleep[index].0;
        asleep.store(true, Ordering::SeqCst);
        while !news() {
            std::thread::park();
        }
        asleep.store(false, Ordering::SeqCst);
    }
}

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
            if turns < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
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

impl<S: Default + 'static> Pool<S> {
    /// A pool of `threads` threads, the caller's included.
    pub(crate) fn new(threads: usize) -> std::io::Result<Pool<S>> {
        let extra = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            gate: CachePadded(Gate(AtomicUsize::new(0))),
            next: (0..=extra).map(|_| CachePadded(AtomicUsize::new(0))).collect(),
            job: Mutex::new(None),
            worked: AtomicU64::new(0),
            panic: Mutex::new(None),
            asleep: (0..extra).map(|_| CachePadded(AtomicBool::new(false))).collect(),
            stop: AtomicBool::new(false),
        });
        let mut pool = Pool { shared, workers: Vec::new() };
        for index in 0..extra {
            let shared = pool.shared.clone();
            let name = format!("tallow-cpu-{}", index + 1);
            pool.workers.push(std::thread::Builder::new().name(name).spawn(move || shared.worker(index))?);
        }
        Ok(pool)
    }

    /// Number of threads, the caller's included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `work` for pieces `0..pieces` on all threads, and returns when all are done. A panic in a piece is
    /// resumed here.
    pub(crate) fn run(&self, scratch: &mut S, pieces: usize, work: impl Fn(&mut S, usize) + Sync) {
        if pieces <= 1 || self.workers.is_empty() {
            (0..pieces).for_each(|piece| work(scratch, piece));
            return;
        }
        self.share(scratch, pieces, false, &work);
    }

    /// The same. Returns for how long the threads worked, as a mean over all of them.
    pub(crate) fn run_timed(&self, scratch: &mut S, pieces: usize, work: &Work<'_, S>) -> Duration {
        let worked = if pieces <= 1 || self.workers.is_empty() {
            let began = Instant::now();
            (0..pieces).for_each(|piece| work(scratch, piece));
            began.elapsed()
        } else {
            self.shared.worked.store(0, Ordering::Relaxed);
            self.share(scratch, pieces, true, work);
            Duration::from_nanos(self.shared.worked.load(Ordering::Relaxed))
        };
        worked / self.threads() as u32
    }

    /// Runs the pieces on all threads.
    fn share(&self, scratch: &mut S, pieces: usize, is_timed: bool, work: &Work<'_, S>) {
        let work: *const Work<'_, S> = work;
        // SAFETY: only the lifetime changes. The pointer is dereferenced only by threads in the job, and `close`
        // below waits for all of them before `work` is dropped.
        let work = unsafe { std::mem::transmute::<*const Work<'_, S>, *const Work<'static, S>>(work) };
        let (s, job) = (&*self.shared, Job { work, pieces, is_timed });
        *s.job.lock().unwrap_or_else(PoisonError::into_inner) = Some(job);
        for (who, next) in s.next.iter().enumerate() {
            next.0.store(s.own(who, pieces).start, Ordering::Relaxed);
        }
        s.gate.0.open();
        for (worker, asleep) in self.workers.iter().zip(&s.asleep) {
            if asleep.0.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        s.work(job, 0, scratch);
        s.gate.0.close();
        let panic = s.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(why) = panic {
            resume_unwind(why);
        }
    }
}

impl<S> Drop for Pool<S> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // Workers catch panics of their pieces, so the result of `join` tells nothing.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_piece_is_done_once() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            for pieces in [0, 1, 2, 3, 100, 1000] {
                let done: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
                for turn in 1..=20 {
                    pool.run(&mut (), pieces, |_, i| {
                        done[i].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(
                        done.iter().all(|n| n.load(Ordering::Relaxed) == turn),
                        "{threads} threads, {pieces} pieces"
                    );
                }
            }
        }
    }

    #[test]
    fn work_is_timed_on_all_threads() {
        let each = Duration::from_millis(5);
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            for pieces in [1, 10] {
                // Another job must not count.
                pool.run_timed(&mut (), 2, &|(), _| std::thread::sleep(each));
                let began = Instant::now();
                let worked = pool.run_timed(&mut (), pieces, &|(), _| std::thread::sleep(each));
                let (least, most) = (each * pieces as u32 / threads as u32, began.elapsed());
                assert!((least..=most).contains(&worked), "{threads} threads, {pieces} pieces: {worked:?}");
            }
        }
    }

    #[test]
    fn what_comes_first_is_done_before_it_is_needed() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            for pieces in [1, 3, 50] {
                for _ in 0..20 {
                    let (first, sum) = (First::new(pieces), AtomicUsize::new(0));
                    pool.run(&mut (), 40, |_, _| {
                        first.help(|i| _ = sum.fetch_add(i + 1, Ordering::Relaxed));
                        first.wait();
                        assert_eq!(sum.load(Ordering::Relaxed), pieces * (pieces + 1) / 2);
                    });
                }
            }
        }
    }

    #[test]
    fn nobody_waits_for_what_panicked() {
        let pool = Pool::new(3).unwrap();
        for bad in 0..4 {
            let first = First::new(4);
            let run = || {
                pool.run(&mut (), 8, |_, _| {
                    first.help(|i| assert_ne!(i, bad, "piece"));
                    first.wait();
                });
            };
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        }
    }

    #[test]
    fn workers_that_sleep_wake_up() {
        let pool = Pool::new(3).unwrap();
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(30));
            let count = AtomicUsize::new(0);
            pool.run(&mut (), 7, |_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 7);
        }
    }

    #[test]
    fn a_panic_in_a_piece_is_a_panic_of_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3).unwrap();
        for bad in 0..8 {
            let run = || pool.run(&mut (), 8, |_, i| assert_ne!(i, bad, "piece"));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            let count = AtomicUsize::new(0);
            pool.run(&mut (), 50, |_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 50);
        }
    }
}
