//! [`StepLock`]: engines on the same CPU compute in turn.
//!
//! Each engine has threads for all of the CPU's cores. If several computed at once, threads would lose their cores to each
//! other, and every op would wait for the slowest: two engines together would be slower than one after the other. So an
//! engine computes a step with all cores, or as many as fit into 20 ms, and then it is the next one's turn: a model whose
//! steps are short would otherwise wait for a long step of each other model after each of its own. A step of a prompt is
//! limited in its time ([`step_budget`](crate::step_budget)), so that none waits for long.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time after which a turn ends with the step that is under way.
const QUANTUM: Duration = Duration::from_millis(20);

/// A lock that is granted in the order in which it is asked for. Clones are the same lock.
#[derive(Clone, Debug, Default)]
pub struct StepLock(Arc<Line>);

#[derive(Debug, Default)]
struct Line {
    numbers: Mutex<Numbers>,
    next: Condvar,
}

#[derive(Debug, Default)]
struct Numbers {
    /// Number that the next one who asks is given.
    given: u64,
    /// Number whose turn it is.
    turn: u64,
}

/// Held during the steps of a turn.
#[derive(Debug)]
pub(crate) struct Turn {
    line: Arc<Line>,
    begun: Instant,
}

impl Turn {
    /// True if the next step is another engine's.
    pub(crate) fn is_over(&self) -> bool {
        self.begun.elapsed() >= QUANTUM
    }
}

impl Line {
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StepLock {
    /// Waits until it is this thread's turn.
    pub(crate) fn turn(&self) -> Turn {
        let mut numbers = self.0.numbers();
        let own = numbers.given;
        numbers.given += 1;
        let of_others = |numbers: &mut Numbers| numbers.turn != own;
        drop(self.0.next.wait_while(numbers, of_others).unwrap_or_else(PoisonError::into_inner));
        Turn { line: self.0.clone(), begun: Instant::now() }
    }

    /// Number of turns that were asked for.
    #[cfg(test)]
    pub(crate) fn asked(&self) -> u64 {
        self.0.numbers().given
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.line.numbers().turn += 1;
        self.line.next.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn one_holds_it_at_a_time_and_none_is_overtaken() {
        let (lock, held, order) = (StepLock::default(), AtomicBool::new(false), Mutex::new(Vec::new()));
        let first = lock.turn();
        std::thread::scope(|scope| {
            for i in 0..8 {
                let (lock, held, order) = (lock.clone(), &held, &order);
                // Each asks once the one before it has.
                while lock.asked() != i + 1 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                scope.spawn(move || {
                    for _ in 0..3 {
                        let _turn = lock.turn();
                        assert!(!held.swap(true, Ordering::SeqCst), "two hold it");
                        order.lock().unwrap().push(i);
                        std::thread::sleep(Duration::from_millis(1));
                        held.store(false, Ordering::SeqCst);
                    }
                });
            }
            while lock.asked() != 9 {
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(first);
        });
        let order = order.into_inner().unwrap();
        assert_eq!(order.len(), 24);
        assert_eq!(order[..8], [0, 1, 2, 3, 4, 5, 6, 7], "who asks first comes first");
        // While all eight have turns to come, none has two before another has one.
        for turns in order[..16].chunks(8) {
            let mut turns = turns.to_vec();
            turns.sort_unstable();
            assert_eq!(turns, [0, 1, 2, 3, 4, 5, 6, 7]);
        }
    }

    #[test]
    fn a_panic_passes_the_turn_on() {
        let lock = StepLock::default();
        let other = lock.clone();
        let panicked = std::thread::spawn(move || {
            let _turn = other.turn();
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        drop(lock.turn());
    }
}
