//! Errors of backends: operands that do not fit, device failures, weights that a device cannot store.

use std::fmt;

use crate::DType;

/// Result of a backend call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an op did not run.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Operand shapes do not fit together. Detected by device-independent checks before anything is launched.
    #[error("{op}: {what} should be {want}, got {got}")]
    Shape {
        /// The op.
        op: &'static str,
        /// The operand.
        what: &'static str,
        /// Expected shape or value.
        want: String,
        /// The actual one.
        got: String,
    },
    /// An operand's element type is not one the op takes.
    #[error("{op}: {what} should be {want}, got {got}")]
    Type {
        /// The op.
        op: &'static str,
        /// The operand.
        what: &'static str,
        /// Accepted types.
        want: &'static str,
        /// The actual one.
        got: DType,
    },
    /// Out of device memory.
    #[error("{device} has no room for {asked} more bytes")]
    OutOfMemory {
        /// The device.
        device: String,
        /// Bytes requested.
        asked: usize,
    },
    /// The device itself failed.
    #[error("{device} failed: {why}")]
    Device {
        /// The device.
        device: String,
        /// The device's message.
        why: String,
    },
    /// The device was lost: reset, unplugged or given up by its driver. Every further call fails.
    #[error("{device} is lost: {why}")]
    Lost {
        /// The device.
        device: String,
        /// The driver's message.
        why: String,
    },
    /// The device cannot store a weight. Returned at load, never in a step.
    #[error("{0}")]
    Refused(Refusal),
}

/// A weight that a device cannot store, with an alternative for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The refused op or setting.
    pub what: String,
    /// Reason.
    pub why: String,
    /// Advice to the user.
    pub instead: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.what, self.why, self.instead)
    }
}

impl From<Refusal> for Error {
    fn from(r: Refusal) -> Error {
        Error::Refused(r)
    }
}
