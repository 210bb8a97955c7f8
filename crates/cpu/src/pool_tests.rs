//! Tests of the thread pool on threads of this machine. [`pool_checked`](crate::pool_checked) runs it in a model checker.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::pool::{First, Gate, MOST, Pool};

#[test]
fn every_piece_is_done_once() {
    for threads in [1, 2, 5] {
        let pool = Pool::new(threads, |_| ()).unwrap();
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
fn more_pieces_than_a_job_may_have_are_several_jobs() {
    let (pool, sum) = (Pool::new(2, |_| ()).unwrap(), AtomicU64::new(0));
    let pieces = MOST + 5;
    pool.run(&mut 0u64, pieces, |own: &mut u64, i| {
        *own = own.wrapping_add(i as u64);
        if i % (1 << 20) == 0 || i >= MOST {
            sum.fetch_add(i as u64, Ordering::Relaxed);
        }
    });
    let want = (0..pieces).filter(|i| i % (1 << 20) == 0 || *i >= MOST).sum::<usize>();
    assert_eq!(sum.into_inner(), want as u64);
}

/// Many more threads than cores: each loses its core now and then, at any place.
#[test]
fn more_threads_than_cores_do_every_piece_once() {
    for threads in [16, 64] {
        let pool = Pool::new(threads, |_| ()).unwrap();
        for pieces in [2, 63, 64, 500] {
            let done: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
            for turn in 1..=50 {
                pool.run(&mut (), pieces, |_, i| {
                    done[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(done.iter().all(|n| n.load(Ordering::Relaxed) == turn), "{threads} threads");
            }
        }
    }
}

#[test]
fn work_is_timed_on_all_threads() {
    let each = Duration::from_millis(5);
    for threads in [1, 2, 5] {
        let pool = Pool::new(threads, |_| ()).unwrap();
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
        let pool = Pool::new(threads, |_| ()).unwrap();
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
    let pool = Pool::new(3, |_| ()).unwrap();
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
    let pool = Pool::new(3, |_| ()).unwrap();
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
    let pool = Pool::new(3, |_| ()).unwrap();
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

/// Workers come at any time, and what a job borrows must be there while they are in it.
#[test]
fn workers_are_in_no_job_but_the_current_one() {
    const WORKERS: usize = 5;
    let (gate, current, over) = (Gate::new(WORKERS), AtomicUsize::new(0), AtomicBool::new(false));
    let joined = AtomicUsize::new(0);
    let work = &|worker: usize| {
        while !over.load(Ordering::Relaxed) {
            let word = gate.word();
            let Some(job) = gate.enter(worker, word) else { continue };
            for _ in 0..3 {
                assert_eq!((job, current.load(Ordering::Relaxed)), (word.number(), word.number()));
            }
            joined.fetch_add(1, Ordering::Relaxed);
            gate.leave(worker);
        }
    };
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            scope.spawn(move || work(worker));
        }
        for job in 1..=50_000 {
            current.store(job, Ordering::Relaxed);
            // SAFETY: this thread alone opens and closes jobs.
            assert_eq!(unsafe { gate.open(job) }.number(), job);
            (0..50).for_each(|_| std::hint::spin_loop());
            gate.close();
            current.store(0, Ordering::Relaxed);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(joined.into_inner() > 0);
}
