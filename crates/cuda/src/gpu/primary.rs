//! [`Primary`]: a device's primary context, which all of a process share.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use tallow_core::{Error, Result};

use crate::driver::{Driver, Failure, Handle, attribute, code};

thread_local! {
    /// The driver and the context that this thread called last.
    static CURRENT: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

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
        driver.start(None)?;
        let failed = |failure| {
            let said = driver.describe(failure);
            let why = match taken(driver, device, failure) {
                Some(why) => format!("{why} ({said})"),
                None => said,
            };
            Error::Device { device: label.to_owned(), why }
        };
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

    /// Makes it this thread's, if another one was so last. Nobody else calls the driver in this process' threads.
    pub(super) fn make_current(&self) -> std::result::Result<(), Failure> {
        let own = (Arc::as_ptr(&self.driver).addr(), self.handle.addr());
        if CURRENT.get() == own {
            return Ok(());
        }
        // SAFETY: the context is retained.
        unsafe { self.driver.context_set(self.handle) }?;
        CURRENT.set(own);
        Ok(())
    }
}

/// Why a device that is there cannot be had, if others are the reason, and what to do.
fn taken(driver: &Driver, device: c_int, failure: Failure) -> Option<&'static str> {
    /// Compute modes: nobody may use the device, or one process at a time.
    const PROHIBITED: c_int = 2;
    const EXCLUSIVE: c_int = 3;
    if failure.code == code::OUT_OF_MEMORY {
        return Some(
            "others have taken its memory: `nvidia-smi` lists them; wait until one has ended, or take another device",
        );
    }
    if failure.code != code::UNAVAILABLE {
        return None;
    }
    let mut mode = 0;
    // SAFETY: the place is valid during the call.
    let known = unsafe { driver.device_attribute(&mut mode, attribute::COMPUTE_MODE, device) };
    Some(match known.map_or(0, |()| mode) {
        EXCLUSIVE => {
            "it is for one process at a time, and another one has it: `nvidia-smi` lists which; wait until that has ended, take another \
             device, or have an administrator allow more (nvidia-smi -c DEFAULT)"
        }
        PROHIBITED => {
            "programs may not use it: have an administrator allow them to (nvidia-smi -c DEFAULT), or take another device"
        }
        _ => {
            "it is busy, or in MIG mode without an instance: `nvidia-smi` shows which; take another device meanwhile"
        }
    })
}

impl Drop for Primary {
    fn drop(&mut self) {
        CURRENT.set((0, 0));
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
