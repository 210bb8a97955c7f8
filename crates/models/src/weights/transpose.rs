//! Matrices that lie in a file with a row for each input.

use tallow_quant::Format;

use crate::error::{LoadError, Result};
use crate::formats::Stored;

/// What is to be turned must be plain numbers.
pub(super) fn plain(stored: &Stored, name: &str, format: Format) -> Result<()> {
    if format.is_plain() {
        return Ok(());
    }
    let why = format!("it has a row for each input, and {format} cannot be turned");
    Err(LoadError::unsupported(stored.file.path(), format!("tensor {name:?}"), why))
}

/// A matrix that lies in a file with a row for each of its columns, perhaps among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transpose {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Elements of one of the file's rows.
    pub(crate) across: usize,
    /// Where there the first of ours is, and how far apart they are.
    pub(crate) first: usize,
    pub(crate) step: usize,
}

impl Transpose {
    /// Rows that are written side by side, so that what is read lies together.
    const TILE: usize = 64;

    /// Is it made of no more and no less than so many elements?
    pub(crate) fn is_within(&self, count: usize) -> bool {
        let last = self.rows.saturating_sub(1).saturating_mul(self.step).saturating_add(self.first);
        last < self.across && self.across.checked_mul(self.cols) == Some(count)
    }

    /// Its bytes, a row after another, from those of the file.
    pub(crate) fn bytes(&self, from: &[u8], to: &mut [u8]) {
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
