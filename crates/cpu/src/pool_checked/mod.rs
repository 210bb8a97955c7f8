//! The thread pool in a model checker: the same source files, with the checker's atomics, threads and locks.
//!
//! The checker runs one thread at a time and decides at each atomic operation which goes on, so that orders come up that a machine
//! of two cores would show once a year. Atomics are sequentially consistent there, as those that order anything in the pool
//! are.

#[path = "../pool/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "the checked pool is the whole pool")]
mod pool;

/// In place of [`crate::sync`].
mod sync {
    pub(crate) use shuttle::hint::spin_loop;
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use shuttle::sync::{Arc, Mutex};
    pub(crate) use shuttle::thread::{Builder, JoinHandle, park, yield_now};

    /// Few, so that workers sleep between jobs.
    pub(crate) const SPINS: u32 = 1;
    pub(crate) const YIELDS: u32 = 1;
}

use std::panic::{AssertUnwindSafe, catch_unwind};

use pool::{First, Pool};
use sync::{AtomicBool, AtomicUsize, Ordering};

/// Orders that each test tries, of each kind.
const ORDERS: usize = 20_000;
/// Places at which a thread is held up while others go on, in a priority-based order.
const DEPTH: usize = 3;

/// Runs `test` in many orders: random ones, and ones in which a few threads are held up for long.
fn check(test: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(test.clone(), ORDERS);
    shuttle::check_pct(test, ORDERS, DEPTH);
}

/// Data that a job borrows from the caller's stack: no thread may run a piece once `run` has returned.
struct Borrowed {
    lives: AtomicBool,
    done: Vec<AtomicUsize>,
}

impl Borrowed {
    fn new(pieces: usize) -> Borrowed {
        Borrowed { lives: AtomicBool::new(true), done: (0..pieces).map(|_| AtomicUsize::new(0)).collect() }
    }

    fn piece(&self, i: usize) {
        assert!(self.lives.load(Ordering::SeqCst), "piece {i} of a job that is over");
        self.done[i].fetch_add(1, Ordering::SeqCst);
        assert!(self.lives.load(Ordering::SeqCst), "piece {i} of a job that is over");
    }

    fn end(&self) {
        self.lives.store(false, Ordering::SeqCst);
        for (i, done) in self.done.iter().enumerate() {
            assert_eq!(done.load(Ordering::SeqCst), 1, "piece {i}");
        }
    }
}

/// Jobs follow each other at once, and workers may come to any of them, or to none.
#[test]
fn every_piece_is_done_once_and_in_time() {
    for threads in [2, 3] {
        check(move || {
            let pool = Pool::<()>::new(threads, |_| ()).unwrap();
            for pieces in [2, 3] {
                let all = Borrowed::new(pieces);
                pool.run(&mut (), pieces, |(), i| all.piece(i));
                all.end();
            }
            // All workers end, those that sleep as well.
            drop(pool);
        });
    }
}

#[test]
fn what_comes_first_is_done_before_it_is_needed() {
    check(|| {
        let pool = Pool::<()>::new(3, |_| ()).unwrap();
        let (first, all) = (First::new(2), Borrowed::new(2));
        pool.run(&mut (), 3, |(), _| {
            first.help(|i| all.piece(i));
            first.wait();
            all.done.iter().for_each(|done| assert_eq!(done.load(Ordering::SeqCst), 1));
        });
        all.end();
    });
}

#[test]
fn a_panic_in_a_piece_ends_its_job_alone() {
    check(|| {
        let pool = Pool::<()>::new(3, |_| ()).unwrap();
        let bad = AssertUnwindSafe(|| {
            pool.run(&mut (), 3, |(), i| {
                if i == 1 {
                    std::panic::resume_unwind(Box::new("piece 1"));
                }
            });
        });
        assert!(catch_unwind(bad).is_err());
        let all = Borrowed::new(2);
        pool.run(&mut (), 2, |(), i| all.piece(i));
        all.end();
    });
}
