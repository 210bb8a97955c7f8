//! [`Life`]: what is known of an engine's thread from outside: does it live, does it take requests, how many has it?

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::handle::Failure;

/// An engine's life, which its handles and its thread share.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    admitted: AtomicUsize,
    draining: AtomicBool,
    /// Why the engine has ended, once it has.
    ended: OnceLock<Failure>,
}

impl Admission {
    /// What to tell those who get no answer any more.
    pub(crate) fn shutdown_reason(&self) -> Failure {
        let stopped = || match self.draining.load(Ordering::Acquire) {
            true => Failure::ShuttingDown,
            false => Failure::Broken("the engine has stopped; restart the server".into()),
        };
        self.ended.get().cloned().unwrap_or_else(stopped)
    }

    /// Does it take requests? If not, why.
    pub(crate) fn ready(&self) -> Result<(), Failure> {
        match self.is_alive() && !self.draining.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(self.shutdown_reason()),
        }
    }

    /// Does the engine live?
    pub(crate) fn is_alive(&self) -> bool {
        self.ended.get().is_none()
    }

    /// Requests that have a place.
    pub(crate) fn admitted(&self) -> usize {
        self.admitted.load(Ordering::Acquire)
    }

    /// Gives a request one of so many places, if one is free.
    pub(crate) fn admit(&self, most: usize) -> Result<(), Failure> {
        self.ready()?;
        let more = |n| (n < most).then_some(n + 1);
        let taken = self.admitted.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.map(drop).map_err(|_| Failure::Full(most))
    }

    /// Takes a request's place back.
    pub(crate) fn release(&self) {
        self.admitted.fetch_sub(1, Ordering::AcqRel);
    }

    /// From here on nothing more is taken.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Says why the engine ends. What was said first stands.
    pub(crate) fn end(&self, why: Failure) {
        let _ = self.ended.set(why);
    }
}
