//! [`Primary`]: a device's primary context, which all of a process share.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use tallow_core::{Error, Result};

use crate::driver::{Driver, Failure, Handle};

/// A device's primary context, held as long as this lives. It is this thread's when it has been retained.
pub(super) struct Primary {
    driver: Arc<Driver>,
    device: c_int,
    handle: Handle,
    /// True if it is not to be released.
    abandoned: Cell<bool>,
}

impl Primary {
    /// Retains that of a device, which messages call `label`.
    pub(super) fn retain(driver: &Arc<Driver>, device: c_int, label: &str) -> Result<Primary> {
        // This may be another thread than the one that found the device.
        driver.start()?;
        let failed = |failure| Error::Device { device: label.to_owned(), why: driver.describe(failure) };
        let mut handle = null_mut();
        // SAFETY: the place is valid during the call, and the device is one that the driver named.
        unsafe { driver.context_retain(&mut handle, device) }.map_err(failed)?;
        let primary = Primary { driver: driver.clone(), device, handle, abandoned: Cell::new(false) };
        primary.make_current().map_err(failed)?;
        Ok(primary)
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Leaves it to the end of the process: to release a context whose work does not end would take as long.
    pub(super) fn abandon(&self) {
        self.abandoned.set(true);
    }

    pub(super) fn make_current(&self) -> std::result::Result<(), Failure> {
        // SAFETY: the context is retained.
        unsafe { self.driver.context_set(self.handle) }
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        // SAFETY: it was retained once and is released once, and is no longer this thread's then. A driver that fails at this has
        // lost the context anyway.
        unsafe {
            let _ = self.driver.context_set(null_mut());
            if !self.abandoned.get() {
                let _ = self.driver.context_release(self.device);
            }
        }
    }
}
