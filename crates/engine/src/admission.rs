//! [`Admission`]: an engine's state as seen by its handles: whether it is running, whether it accepts requests, and how
//! many it has.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::handle::Failure;

/// State shared by an engine's handles and its thread.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    admitted: AtomicUsize,
    draining: AtomicBool,
    /// Why the engine has ended, if it has.
    ended: OnceLock<Failure>,
}

impl Admission {
    /// Failure for requests that will not be served.
    pub(crate) fn shutdown_reason(&self) -> Failure {
        let stopped = || match self.draining.load(Ordering::Acquire) {
            true => Failure::ShuttingDown,
            false => Failure::Broken("the engine has stopped; restart the server".into()),
        };
        self.ended.get().cloned().unwrap_or_else(stopped)
    }

    /// Whether requests are accepted; if not, why.
    pub(crate) fn ready(&self) -> Result<(), Failure> {
        match self.is_alive() && !self.draining.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(self.shutdown_reason()),
        }
    }

    /// Whether the engine is running.
    pub(crate) fn is_alive(&self) -> bool {
        self.ended.get().is_none()
    }

    /// Admitted requests.
    pub(crate) fn admitted(&self) -> usize {
        self.admitted.load(Ordering::Acquire)
    }

    /// Admits a request if fewer than `most` are admitted.
    pub(crate) fn admit(&self, most: usize) -> Result<(), Failure> {
        self.ready()?;
        let more = |n| (n < most).then_some(n + 1);
        let taken = self.admitted.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.map(drop).map_err(|_| Failure::Full(most))
    }

    /// Releases an admitted request.
    pub(crate) fn release(&self) {
        self.admitted.fetch_sub(1, Ordering::AcqRel);
    }

    /// Stops admitting requests.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Marks the engine as ended. The first reason given stands.
    pub(crate) fn end(&self, why: Failure) {
        let _ = self.ended.set(why);
    }
}
