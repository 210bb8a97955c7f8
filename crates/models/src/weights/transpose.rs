//! Weights stored in another order, such as transposed: a row of the file per input.

use tallow_checkpoint::Stored;
use tallow_checkpoint::tensor_names::Slot;
use tallow_core::{Backend, HostWeight, LinearWeights, Stack, TensorId, Weight};
use tallow_quant::Format;

use super::{StreamCheck, Weights, not_taken, room};
use crate::error::{LoadError, Result};
use crate::spec::Bias;

/// Only unquantized tensors can be transposed: blocks run along the file's rows.
pub(super) fn plain(stored: &Stored, name: &str, format: Format) -> Result<()> {
    if format.is_plain() {
        return Ok(());
    }
    let why = format!("it has a row for each input, and {format} cannot be transposed");
    Err(LoadError::unsupported(stored.file.path(), format!("tensor {name:?}"), why))
}

impl<B: Backend> Weights<'_, B> {
    /// A weight whose tensor, of shape `stored_as`, has another order; `arrange` copies its bytes into ours.
    fn permuted(
        &mut self,
        name: &str,
        stored_as: &[usize],
        shape: (usize, usize),
        arrange: impl FnOnce(&[u8], &mut [u8]),
    ) -> Result<Weight<B>> {
        let (stored, format) = self.stored(name, stored_as)?;
        let id = self.id(name, (0, 1), shape.1);
        let arrange = |to: &mut [u8]| arrange(stored.bytes(), to);
        let weight = self.permuted_part((stored, name), &id, (format, shape.0), None, arrange);
        StreamCheck::new(stored, format, stored_as[0]).finish(name)?;
        self.loaded(name, stored)?;
        weight
    }

    /// Weight `id` of a tensor that has another order, perhaps the next of a stack; `arrange` writes its bytes:
    /// [rows, id.cols]
    pub(super) fn permuted_part(
        &self,
        (stored, name): (&Stored, &str),
        id: &TensorId,
        (format, rows): (Format, usize),
        stack: Option<&mut Stack<B>>,
        arrange: impl FnOnce(&mut [u8]),
    ) -> Result<Weight<B>> {
        let len = format.row_bytes(id.cols).and_then(|n| n.checked_mul(rows)).unwrap_or(usize::MAX);
        let mut bytes = room(len)?;
        arrange(&mut bytes);
        let weight = HostWeight { tensor: Some(id), ..HostWeight::new(format, rows, id.cols, &bytes) };
        self.give(name, weight, stack).map_err(|e| not_taken(stored, name, e))
    }

    /// A weight stored transposed, as [cols, rows]: [rows, cols]
    pub(super) fn transposed(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight<B>> {
        let (stored, format) = self.stored(name, &[cols, rows])?;
        plain(stored, name, format)?;
        let transpose = Transpose { rows, cols, source_cols: rows, first: 0, step: 1 };
        self.permuted(name, &[cols, rows], (rows, cols), |from, to| transpose.bytes(from, to))
    }

    /// A 1D convolution with kernel size 3, as a linear layer over the 3 inputs side by side.
    pub(crate) fn conv1d(&mut self, slot: Slot, outputs: usize, inputs: usize) -> Result<LinearWeights<B>> {
        let (name, shape) = (self.weight_name(slot)?, (outputs, 3 * inputs));
        let (stored, format) = self.stored(&name, &[outputs, inputs, 3])?;
        plain(stored, &name, format)?;
        let weight = self.permuted(&name, &[outputs, inputs, 3], shape, |from, to| {
            // In the file the three weights of an input are adjacent.
            let transpose = Transpose { rows: 3, cols: inputs, source_cols: 3, first: 0, step: 1 };
            let size = from.len() / outputs.max(1);
            let rows = from.chunks_exact(size.max(1)).zip(to.chunks_exact_mut(size.max(1)));
            rows.for_each(|(from, to)| transpose.bytes(from, to));
        })?;
        Ok(LinearWeights::new(weight, self.bias(slot, outputs, Bias::Yes)?))
    }
}

/// A matrix whose columns are rows of the file, possibly interleaved with other matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transpose {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Elements of a row of the file.
    pub source_cols: usize,
    /// Position in the file's row of the first output.
    pub first: usize,
    /// Distance to the next output there.
    pub step: usize,
}

impl Transpose {
    /// Rows written per pass, so that reads stay contiguous.
    const TILE: usize = 64;

    /// True if the file has exactly `count` elements and the matrix lies within them.
    pub fn is_within(&self, count: usize) -> bool {
        let last = self.rows.saturating_sub(1).saturating_mul(self.step).saturating_add(self.first);
        last < self.source_cols && self.source_cols.checked_mul(self.cols) == Some(count)
    }

    /// Transposes the file's bytes `from` into `to`, row-major.
    pub fn bytes(&self, from: &[u8], to: &mut [u8]) {
        let size = to.len() / (self.rows * self.cols).max(1);
        for (tile, to) in to.chunks_mut((Self::TILE * self.cols * size).max(1)).enumerate() {
            for (col, from) in from.chunks_exact((self.source_cols * size).max(1)).enumerate() {
                for (row, to) in to.chunks_exact_mut(self.cols * size).enumerate() {
                    let at = (self.first + (tile * Self::TILE + row) * self.step) * size;
                    to[col * size..][..size].copy_from_slice(&from[at..at + size]);
                }
            }
        }
    }
}
