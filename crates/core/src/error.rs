//! What can go wrong below the models: an operand that does not fit, a device that fails, a weight it cannot hold.

use std::fmt;

use crate::DType;

/// The result of asking a backend for something.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an op did not run.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Operands do not fit together. Caught once, for every device, before anything is launched.
    #[error("{op}: {what} should be {want}, got {got}")]
    Shape {
        /// The op that was asked for.
        op: &'static str,
        /// The operand.
        what: &'static str,
        /// What would have fitted.
        want: String,
        /// What came.
        got: String,
    },
    /// An operand's element type is not one the op takes.
    #[error("{op}: {what} should be {want}, got {got}")]
    Type {
        /// The op that was asked for.
        op: &'static str,
        /// The operand.
        what: &'static str,
        /// The types it takes.
        want: &'static str,
        /// What came.
        got: DType,
    },
    /// The device has no room.
    #[error("{device} has no room for {asked} more bytes")]
    OutOfMemory {
        /// The device.
        device: String,
        /// Bytes asked for.
        asked: usize,
    },
    /// The device itself failed.
    #[error("{device} failed: {why}")]
    Device {
        /// The device.
        device: String,
        /// Its own words.
        why: String,
    },
    /// The device is gone: it was reset, unplugged or given up by its driver. Nothing can be asked of it any more.
    #[error("{device} is lost: {why}")]
    Lost {
        /// The device.
        device: String,
        /// Its driver's words.
        why: String,
    },
    /// The device cannot hold a weight; said at load, never in a step.
    #[error("{0}")]
    Refused(Refusal),
}

/// A weight that a device cannot store, with a way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What was refused.
    pub what: String,
    /// Why.
    pub why: String,
    /// What the user can do instead.
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
