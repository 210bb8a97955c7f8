//! [`LogHealth`]: whether the log can be written.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time to write a log line above which something is wrong.
const SLOW: Duration = Duration::from_secs(5);

/// Health of the log. Updated by the log writer; reported by `/health` and `/metrics`.
#[derive(Debug, Default)]
pub struct LogHealth {
    dropped: AtomicU64,
    now: Mutex<Writing>,
}

#[derive(Debug, Default)]
struct Writing {
    /// Since when a line is being written.
    since: Option<Instant>,
    /// Lines dropped since the last one was written.
    dropped: u64,
    /// Why the last line could not be written.
    error: Option<String>,
}

impl LogHealth {
    fn now<T>(&self, with: impl FnOnce(&mut Writing) -> T) -> T {
        with(&mut self.now.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records that a line is being written.
    pub fn begin(&self) {
        self.now(|now| now.since = Some(Instant::now()));
    }

    /// Records that a line was written. Returns how many had been dropped before it.
    pub fn written(&self) -> u64 {
        self.now(std::mem::take).dropped
    }

    /// Records that a line could not be written.
    pub fn failed(&self, why: &dyn std::fmt::Display) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        self.now(|now| {
            *now = Writing { since: None, dropped: now.dropped + 1, error: Some(why.to_string()) };
        });
    }

    /// Records that a line was dropped because there was no room for it.
    pub fn dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        self.now(|now| now.dropped += 1);
    }

    /// Lines dropped since the start.
    pub fn total_dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The current problem, if any.
    pub fn problem(&self) -> Option<String> {
        self.now(|now| {
            let slow = now.since.map(|since| since.elapsed()).filter(|took| *took > SLOW);
            let lines = now.dropped;
            match (&now.error, slow) {
                (Some(why), _) => Some(format!("the log cannot be written: {why}; lines dropped: {lines}")),
                (None, None) if lines == 0 => None,
                _ => Some(format!("the log is not being read, or too slowly; lines dropped: {lines}")),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_in_trouble_says_so_until_it_is_written_again() {
        let log = LogHealth::default();
        assert_eq!(log.problem(), None);
        log.begin();
        assert_eq!((log.problem(), log.written()), (None, 0));
        log.failed(&"No space left on device");
        log.dropped();
        let why = "the log cannot be written: No space left on device; lines dropped: 2";
        assert_eq!(log.problem().as_deref(), Some(why));
        assert_eq!((log.written(), log.problem(), log.total_dropped()), (2, None, 2));
        log.dropped();
        let why = "the log is not being read, or too slowly; lines dropped: 1";
        assert_eq!(log.problem().as_deref(), Some(why));
        log.now(|now| *now = Writing { since: Instant::now().checked_sub(2 * SLOW), ..Writing::default() });
        assert!(log.problem().unwrap().contains("not being read"));
    }
}
