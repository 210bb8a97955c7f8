//! [`Context`]: a device's context and its one stream, through which everything else calls the driver; and what becomes of its
//! errors.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::thread;
use std::time::{Duration, Instant};

use tallow_core::{Error, Result};

use super::find::Found;
use super::primary::Primary;
use crate::driver::{Driver, Failure, Handle, code};

/// A stream that does not wait for the stream of those who have none of their own.
const NON_BLOCKING: u32 = 1;
/// Work that takes longer than this does not end.
const PATIENCE: Duration = Duration::from_secs(60);
/// So long a wait asks again at once, as the driver's own do, and a step of decoding is read as soon as it has ended.
const IMPATIENCE: Duration = Duration::from_millis(20);

/// The context in use, and its stream. All work is done in the order in which it was asked for.
pub(super) struct Context {
    /// Its device, in messages.
    label: String,
    stream: Handle,
    /// Why the device was lost; never cleared.
    lost: RefCell<Option<String>>,
    patience: Cell<Duration>,
    // Last, since what is above lives in it.
    primary: Primary,
}

impl Context {
    pub(super) fn open(found: &Found) -> Result<Context> {
        let primary = found.retain()?;
        let mut stream = null_mut();
        // SAFETY: the place is valid during the call, and the context is this thread's.
        unsafe { primary.driver().stream_create(&mut stream, NON_BLOCKING) }.map_err(|e| found.failed(e))?;
        let (label, lost) = (found.about().to_string(), RefCell::default());
        Ok(Context { label, stream, lost, patience: Cell::new(PATIENCE), primary })
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    pub(super) fn stream(&self) -> Handle {
        self.stream
    }

    /// Fails if the device is lost.
    pub(super) fn check(&self) -> Result<()> {
        match &*self.lost.borrow() {
            Some(why) => Err(Error::Lost { device: self.label.clone(), why: why.clone() }),
            None => Ok(()),
        }
    }

    /// Calls the driver, with the context as this thread's. A device that is lost is not called again.
    pub(super) fn ask(&self, call: impl FnOnce(&Driver) -> std::result::Result<(), Failure>) -> Result<()> {
        self.ask_unless(0, call).map(drop)
    }

    /// The same where one code is no failure. False if that is what the driver returned.
    pub(super) fn ask_unless(
        &self,
        expected: c_int,
        call: impl FnOnce(&Driver) -> std::result::Result<(), Failure>,
    ) -> Result<bool> {
        self.check()?;
        match self.primary.make_current().and_then(|()| call(self.primary.driver())) {
            Ok(()) => Ok(true),
            Err(failure) if failure.code == expected => Ok(false),
            Err(failure) => Err(self.failed(failure)),
        }
    }

    /// A failure as an error. Of one that nothing survives a note is taken.
    fn failed(&self, failure: Failure) -> Error {
        let (device, why) = (self.label.clone(), self.primary.driver().describe(failure));
        if code::LOST.contains(&failure.code) {
            self.lost.borrow_mut().get_or_insert(why.clone());
            return Error::Lost { device, why };
        }
        Error::Device { device, why }
    }

    pub(super) fn out_of_memory(&self, asked: u64) -> Error {
        Error::OutOfMemory { device: self.label.clone(), asked: usize::try_from(asked).unwrap_or(usize::MAX) }
    }

    /// Waits until all work is done.
    pub(super) fn wait(&self) -> Result<()> {
        // SAFETY: the stream is the context's own.
        self.wait_until(|driver| unsafe { driver.stream_query(self.stream) })
    }

    /// Waits until the driver no longer answers that it is not ready. Work that does not end loses the device: the driver's own
    /// waits would never return.
    pub(super) fn wait_until(
        &self,
        query: impl Fn(&Driver) -> std::result::Result<(), Failure>,
    ) -> Result<()> {
        let mut began = None;
        while !self.ask_unless(code::NOT_READY, &query)? {
            let waited = began.get_or_insert_with(Instant::now).elapsed();
            match waited {
                _ if waited >= self.patience.get() => return Err(self.hangs()),
                _ if waited < IMPATIENCE => thread::yield_now(),
                // What is slept too long is a small part of the wait.
                _ => thread::sleep((waited / 64).min(Duration::from_millis(1))),
            }
        }
        Ok(())
    }

    /// The device is lost with work that does not end.
    fn hangs(&self) -> Error {
        let why = format!(
            "its work has not ended for {} s; see with nvidia-smi whether another program keeps it busy, and restart this one",
            self.patience.get().as_secs_f64()
        );
        self.lost.borrow_mut().get_or_insert(why.clone());
        self.primary.abandon();
        Error::Lost { device: self.label.clone(), why }
    }

    /// From now on work that takes longer does not end.
    #[cfg(test)]
    pub(super) fn wait_at_most(&self, patience: Duration) {
        self.patience.set(patience);
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A device that is lost has lost its stream too.
        let _ = self.wait();
        // SAFETY: nothing is left that uses the stream: whatever does holds the context.
        let _ = self.ask(|driver| unsafe { driver.stream_destroy(self.stream) });
    }
}
