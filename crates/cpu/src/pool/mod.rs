//! [`Pool`]: a thread pool whose workers stay awake between ops and share out the pieces of each.
//!
//! A step is hundreds of short ops, so waking threads for each would cost more than the work. Workers spin for a
//! while after an op, then yield, then sleep; the next op wakes the sleepers. Pieces are taken one by one, so a
//! thread that loses its core delays only its own piece instead of halving the speed.

mod first;
mod gate;
mod pieces;

use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

pub(crate) use first::First;
pub(crate) use gate::Gate;
pub(crate) use pieces::MOST;

use gate::{CachePadded, JobWord};
use pieces::Pieces;

// All that threads share comes from there: a test has a model checker's in its place.
use super::sync::{
    Arc, AtomicBool, AtomicU64, Builder, JoinHandle, Mutex, Ordering, SPINS, YIELDS, park, spin_loop,
    yield_now,
};

/// Threads for the ops of one device. The thread that calls [`run`](Pool::run) is one of them. Each has scratch memory,
/// an `S`, that it keeps from piece to piece.
pub(crate) struct Pool<S> {
    shared: Arc<Shared<S>>,
    workers: Vec<JoinHandle<()>>,
    /// Not `Sync`: there is one job at a time.
    one_caller: PhantomData<Cell<()>>,
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

struct Shared<S> {
    gate: Gate<Job<S>>,
    pieces: Pieces,
    /// Nanoseconds for which all threads together have worked on a timed job.
    worked: AtomicU64,
    /// Payload of the first panic in a piece.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    asleep: Vec<CachePadded<AtomicBool>>,
    stop: AtomicBool,
}

impl<S: Default + 'static> Shared<S> {
    /// Runs pieces until there are none, `who`'s own first.
    fn work(&self, (number, job): (JobWord, Job<S>), who: usize, scratch: &mut S) {
        // SAFETY: `share` waits for every thread in the job before the work goes out of scope.
        let work = unsafe { &*job.work };
        let began = job.is_timed.then(Instant::now);
        let all = catch_unwind(AssertUnwindSafe(|| {
            let threads = self.pieces.threads();
            for whose in (who..threads).chain(0..who) {
                while let Some(piece) = self.pieces.take(whose, number, job.pieces) {
                    work(scratch, piece);
                }
            }
        }));
        if let Err(why) = all {
            // The other threads need not go on.
            self.pieces.drop_all(number);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        }
        if let Some(began) = began {
            self.worked.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }

    fn worker(&self, index: usize) {
        let (mut scratch, mut seen) = (S::default(), 0);
        loop {
            let number = self.wait(index, seen);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            seen = number.number();
            if let Some(job) = self.gate.enter(index, number) {
                self.work((number, job), index + 1, &mut scratch);
                self.gate.leave(index);
            }
        }
    }

    /// Waits for a job other than number `seen`, or for the stop: spins, then yields, then sleeps. Returns the current job.
    fn wait(&self, index: usize, seen: usize) -> JobWord {
        let news = || {
            let job = self.gate.word();
            (job.number() != seen || self.stop.load(Ordering::SeqCst)).then_some(job)
        };
        for i in 0..SPINS + YIELDS {
            if let Some(job) = news() {
                return job;
            }
            if i < SPINS { spin_loop() } else { yield_now() }
        }
        // No lost wake-up: `run` opens the job before it reads `asleep`, and this thread sets `asleep` before it
        // checks for a job. All are `SeqCst`, so at least one side sees the other.
        let asleep = &self.asleep[index].0;
        asleep.store(true, Ordering::SeqCst);
        let job = loop {
            match news() {
                Some(job) => break job,
                None => park(),
            }
        };
        asleep.store(false, Ordering::SeqCst);
        job
    }
}

impl<S: Default + 'static> Pool<S> {
    /// A pool of `threads` threads, the caller's included. The others begin with `begin`, which gets their index, from 1 on.
    pub(crate) fn new(
        threads: usize,
        begin: impl Fn(usize) + Clone + Send + 'static,
    ) -> std::io::Result<Pool<S>> {
        let extra = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            gate: Gate::new(extra),
            pieces: Pieces::new(extra + 1),
            worked: AtomicU64::new(0),
            panic: Mutex::new(None),
            asleep: (0..extra).map(|_| CachePadded(AtomicBool::new(false))).collect(),
            stop: AtomicBool::new(false),
        });
        let mut pool = Pool { shared, workers: Vec::new(), one_caller: PhantomData };
        for index in 0..extra {
            let (shared, begin) = (pool.shared.clone(), begin.clone());
            let name = format!("tallow-cpu-{}", index + 1);
            let work = move || {
                begin(index + 1);
                shared.worker(index);
            };
            pool.workers.push(Builder::new().name(name).spawn(work)?);
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
        if pieces > MOST {
            for first in (0..pieces).step_by(MOST) {
                let some = |scratch: &mut S, piece| work(scratch, first + piece);
                self.share(scratch, MOST.min(pieces - first), is_timed, &some);
            }
            return;
        }
        let work: *const Work<'_, S> = work;
        // SAFETY: only the lifetime changes. The pointer is dereferenced only by threads in the job, and `close`
        // below waits for all of them before `work` is dropped.
        let work = unsafe { std::mem::transmute::<*const Work<'_, S>, *const Work<'static, S>>(work) };
        let (s, job) = (&*self.shared, Job { work, pieces, is_timed });
        // SAFETY: a pool has one caller at a time, as it is not `Sync`, and this function closes what it opens.
        let number = unsafe { s.gate.open(job) };
        for (worker, asleep) in self.workers.iter().zip(&s.asleep) {
            if asleep.0.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        s.work((number, job), 0, scratch);
        s.gate.close();
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
