//! Matrices stored transposed: a row of the file per input.

use tallow_checkpoint::Stored;
use tallow_quant::Format;

use crate::error::{LoadError, Result};

/// Only unquantized tensors can be transposed: blocks run along the file's rows.
pub(super) fn plain(stored: &Stored, name: &str, format: Format) -> Result<()> {
    if format.is_plain() {
        return Ok(());
    }
    let why = format!("it has a row for each input, and {format} cannot be turned");
    Err(LoadError::unsupported(stored.file.path(), format!("tensor {name:?}"), why))
}

/// A matrix whose columns are rows of the file, possibly interleaved with other matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transpose {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Elements of a row of the file.
    pub across: usize,
    /// Position in the file's row of the first output.
    pub first: usize,
    /// Distance to the next output there.
    pub step: usize,
}

impl Transpose {
    /// Rows written per pass, so that reads stay contiguous.
    const TILE: usize = 64;

    /// Whether the file has exactly `count` elements and the matrix lies within them.
    pub fn is_within(&self, count: usize) -> bool {
        let last = self.rows.saturating_sub(1).saturating_mul(self.step).saturating_add(self.first);
        last < self.across && self.across.checked_mul(self.cols) == Some(count)
    }

    /// Transposes the file's bytes `from` into `to`, row-major.
    pub fn bytes(&self, from: &[u8], to: &mut [u8]) {
        let size = to.len() / (self.rows * self.cols).max(1);
        for (tile, to) in to.chunks_mut((Self::TILE * self.cols * size).max(1)).enumerate() {
            for (col, from) in from.chunks_exact((self.across * size).max(1)).enumerate() {
                for (row, to) in to.chunks_exact_mut(self.cols * size).enumerate() {
                    let at = (self.first + (tile * Self::TILE + row) * self.step) * size;
                    to[col * size..][..size].copy_from_slice(&from[at..at + size]);
                }
            }
        }
    }
}
