//! [`SizeError`]: bytes and weights that are not the same blocks.

use std::error::Error;
use std::fmt;

use crate::Format;

/// The bytes and the weights are not the same whole number of blocks of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeError {
    /// The requested format.
    pub format: Format,
    /// Number of bytes.
    pub bytes: usize,
    /// Number of weights.
    pub weights: usize,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SizeError { format, bytes, weights } = self;
        match format.row_bytes(*weights) {
            Some(want) => write!(f, "{weights} weights in {format} are {want} bytes, not {bytes}"),
            None => {
                write!(
                    f,
                    "{weights} weights are not whole blocks of {format}, which are {}",
                    format.block_weights()
                )
            }
        }
    }
}

impl Error for SizeError {}
