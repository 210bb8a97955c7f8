//! `Admission`: whether a service accepts requests, and how many it has. A [`Ticket`] is an admitted request: it ends
//! exactly once, whatever happens to the service.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::failure::Failure;

/// State shared by a service's handles and its thread.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    admitted: AtomicUsize,
    draining: AtomicBool,
    /// Why the service has ended, if it has.
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

    /// Fails with the reason if requests are not accepted.
    pub(crate) fn ready(&self) -> Result<(), Failure> {
        match self.is_alive() && !self.draining.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(self.shutdown_reason()),
        }
    }

    /// True if the service is running.
    pub(crate) fn is_alive(&self) -> bool {
        self.ended.get().is_none()
    }

    /// Admitted requests.
    pub(crate) fn admitted(&self) -> usize {
        self.admitted.load(Ordering::Acquire)
    }

    /// Admits a request if fewer than `most` are admitted; its end is reported to `reply`.
    pub(crate) fn admit<R: Reply>(self: &Arc<Self>, most: usize, reply: R) -> Result<Ticket<R>, Failure> {
        self.ready()?;
        let more = |n| (n < most).then_some(n + 1);
        let admitted = self.admitted.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        admitted.map_err(|_| Failure::Full(most))?;
        Ok(Ticket { reply: Some(reply), admission: self.clone() })
    }

    /// Stops admitting requests.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Marks the service as ended. The first reason given stands.
    pub(crate) fn end(&self, why: Failure) {
        let _ = self.ended.set(why);
    }
}

/// Receiver of the end of a request.
pub trait Reply {
    /// Result of a request that succeeded.
    type Done;
    /// True if the client is gone.
    fn is_gone(&self) -> bool;
    /// Reports the end. The client may be gone.
    fn end(self, how: Result<Self::Done, Failure>);
}

/// An admitted request. Its end is reported exactly once: if it is dropped without one, it fails with the reason why
/// the service has ended.
#[derive(Debug)]
pub struct Ticket<R: Reply> {
    /// `None` once the end is reported.
    reply: Option<R>,
    admission: Arc<Admission>,
}

impl<R: Reply> Ticket<R> {
    /// Reports the end. Has no effect after the first time.
    pub fn end(&mut self, how: Result<R::Done, Failure>) {
        if let Some(reply) = self.reply.take() {
            // First, so that a client that retries on the end is admitted.
            self.admission.admitted.fetch_sub(1, Ordering::AcqRel);
            reply.end(how);
        }
    }

    /// Ends the request because of an internal error.
    pub(crate) fn fail(&mut self, why: String) {
        tracing::error!("request failed: {why}");
        self.end(Err(Failure::Broken(why)));
    }

    /// The reply, unless the request has ended.
    pub(crate) fn reply(&mut self) -> Option<&mut R> {
        self.reply.as_mut()
    }

    /// True if the client is gone or the request has ended.
    pub fn is_gone(&self) -> bool {
        self.reply.as_ref().is_none_or(Reply::is_gone)
    }
}

impl<R: Reply> Drop for Ticket<R> {
    fn drop(&mut self) {
        self.end(Err(self.admission.shutdown_reason()));
    }
}
