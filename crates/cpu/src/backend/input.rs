//! [`LinearInput`]: the input of linear layers, quantized once for all weights that take it so.

use std::ops::Range;

use tallow_core::ops::Normalize;
use tallow_core::{Arithmetic, Backend, DType, Memory, Norm, Result, Tensor};

use super::device::{Cpu, norm_task};
use crate::kernels::Kernels;
use crate::linear::{MatrixSource, Product};
use crate::mat::{Mat, MatMut};
use crate::pack::{CHUNK, SUBBLOCK};
use crate::quantize::{QuantizeOut, QuantizedView, RowSums, padded_rows};
use crate::rowwise::NormTask;
use crate::simd::prefetch_slice;

/// Quantized input of one or more linear layers.
pub(crate) struct QuantizedRows {
    /// Including padding rows.
    rows: usize,
    /// Inputs, padded to whole sub-blocks.
    cols: usize,
    codes: Tensor<Cpu>,
    scales: Tensor<Cpu>,
    row_sums: Vec<(RowSums, Tensor<Cpu>)>,
}

impl QuantizedRows {
    /// Uninitialised rows, with memory for the row sums in `needs`.
    pub(crate) fn new(
        b: &Cpu,
        rows: usize,
        cols: usize,
        needs: impl Iterator<Item = RowSums>,
    ) -> Result<QuantizedRows> {
        let (live, rows, cols) = (rows, padded_rows(rows), cols.next_multiple_of(SUBBLOCK));
        let codes = b.alloc(DType::U8, 1, rows * cols)?;
        let scales = b.alloc(DType::F32, 1, rows * cols.div_ceil(CHUNK))?;
        let mut row_sums: Vec<(RowSums, Tensor<Cpu>)> = Vec::new();
        for kind in needs {
            if row_sums.iter().all(|(k, _)| *k != kind) {
                row_sums.push((kind, b.alloc(DType::U32, 1, rows * cols / kind.per_word())?));
            }
        }
        let all = QuantizedRows { rows, cols, codes, scales, row_sums };
        all.clear(live..rows);
        Ok(all)
    }

    /// Zeroes the scales and row sums of padding rows. They are multiplied as well; any value is correct, but some
    /// are very slow.
    fn clear(&self, rows: Range<usize>) {
        let to = self.writer();
        for first in (0..self.cols).step_by(CHUNK) {
            let inputs = CHUNK.min(self.cols - first);
            let at = |row: usize, per_word: usize| (first * self.rows + row * inputs) / per_word;
            let scale = |row: usize| first / CHUNK * self.rows + row;
            // SAFETY: the rows were just allocated, and nobody else uses them yet.
            unsafe {
                to.scales.part(0, scale(rows.start)..scale(rows.end)).fill(0.0);
                for (kind, out) in &to.row_sums {
                    out.part(0, at(rows.start, kind.per_word())..at(rows.end, kind.per_word())).fill(0);
                }
            }
        }
    }

    /// A view for writing.
    pub(crate) fn writer(&self) -> QuantizeOut<'_> {
        let (codes, scales) = (MatMut::new(&self.codes), MatMut::new(&self.scales));
        let row_sums = self.row_sums.iter().map(|(kind, t)| (*kind, MatMut::new(t))).collect();
        QuantizeOut { rows: self.rows, codes, scales, row_sums }
    }

    /// Quantizes `rows` rows, which `row` returns, after `norm` if set.
    pub(crate) fn fill<'a>(
        &self,
        b: &Cpu,
        rows: usize,
        row: impl Fn(usize) -> &'a [f32] + Sync,
        norm: Option<&NormTask<'_>>,
    ) {
        let (to, k) = (self.writer(), b.kernels);
        let piece = (8192 / self.cols.max(1)).max(1);
        b.share(rows.div_ceil(piece), 4 * rows * self.cols, |scratch, i| {
            for r in i * piece..rows.min((i + 1) * piece) {
                // Probably in another core's cache, or in memory.
                prefetch_slice(row(r));
                let x = match norm {
                    Some(norm) => {
                        let cols = row(r).len();
                        scratch.floats.resize(scratch.floats.len().max(cols), 0.0);
                        (k.norm)(norm, row(r), &mut scratch.floats[..cols]);
                        &scratch.floats[..cols]
                    }
                    None => row(r),
                };
                (k.quantize)(&to, r, 0, x);
            }
        });
    }

    /// The rows with the row sums that one kind of weight needs; `None` if `new` was not called with those.
    pub(crate) fn of(&self, kind: RowSums) -> Option<QuantizedView<'_>> {
        let (_, row_sums) = self.row_sums.iter().find(|(k, _)| *k == kind)?;
        let codes = Mat::<u8>::new(&self.codes).row(0);
        let (scales, row_sums) = (Mat::new(&self.scales).row(0), Mat::new(row_sums).row(0));
        Some(QuantizedView {
            rows: self.rows,
            codes,
            scales,
            row_sums,
            shift: kind.per_word().trailing_zeros(),
        })
    }
}

/// Input of linear layers, [rows, inputs], as their weights take it.
pub(crate) struct LinearInput {
    pub rows: usize,
    /// f32. `None` where no weight takes that.
    plain: Option<Tensor<Cpu>>,
    /// 8-bit codes. `None` where no weight takes those.
    quantized: Option<QuantizedRows>,
}

impl LinearInput {
    /// Product of this input with a weight.
    pub(crate) fn times<'a>(&'a self, k: &Kernels, w: MatrixSource<'a>) -> Product<'a> {
        let x = self.plain.as_ref().map_or_else(|| Mat::without_columns(self.rows), Mat::new);
        let quantized = self.quantized.as_ref().and_then(|r| r.of(w.row_sums(k)?));
        Product { w, x, quantized }
    }
}

impl Cpu {
    /// Row sums that a weight needs of quantized input; `None` if it is multiplied with f32.
    pub(crate) fn row_sums(&self, w: &MatrixSource<'_>) -> Option<RowSums> {
        if self.arithmetic == Arithmetic::Fast { w.row_sums(self.kernels) } else { None }
    }

    /// Input of linear layers, normalised if `norm` is set, and quantized once for all weights that take it so.
    pub(crate) fn input<'a>(
        &self,
        x: &Tensor<Cpu>,
        norm: Option<&Norm<Cpu>>,
        weights: impl Iterator<Item = &'a MatrixSource<'a>> + Clone,
    ) -> Result<LinearInput> {
        let needs = || weights.clone().map(|w| self.row_sums(w));
        let plain = match norm {
            None => Some(x.clone()),
            // Every weight takes quantized rows: the norm is fused into the quantization.
            Some(_) if needs().all(|sums| sums.is_some()) => None,
            Some(norm) => Some(self.normalize(&Normalize { x, norm, residual: None })?),
        };
        let from = Mat::new(plain.as_ref().unwrap_or(x));
        let norm = norm.filter(|_| plain.is_none()).map(norm_task);
        let quantized = self.quantized(x.rows(), x.cols(), needs().flatten(), norm, |r| from.row(r))?;
        Ok(LinearInput { rows: x.rows(), plain, quantized })
    }

    /// Input of linear layers gathered from rows `at` of `x`, with repetitions.
    pub(crate) fn gathered_input<'a>(
        &self,
        x: &Tensor<Cpu>,
        at: &[u32],
        weights: impl Iterator<Item = &'a MatrixSource<'a>> + Clone,
    ) -> Result<LinearInput> {
        let from = Mat::<f32>::new(x);
        self.input_by_rows(at.len(), x.cols(), |place| from.row(at[place] as usize), weights)
    }

    /// Input of linear layers whose rows are parts of other tensors' rows.
    pub(crate) fn input_by_rows<'a, 'x>(
        &self,
        rows: usize,
        cols: usize,
        row: impl Fn(usize) -> &'x [f32] + Sync,
        weights: impl Iterator<Item = &'a MatrixSource<'a>> + Clone,
    ) -> Result<LinearInput> {
        let needs = || weights.clone().map(|w| self.row_sums(w));
        let plain = match needs().all(|sums| sums.is_some()) {
            true => None,
            false => Some(self.by_rows(rows, cols, |_, r, out| out.copy_from_slice(row(r)))?),
        };
        let quantized = self.quantized(rows, cols, needs().flatten(), None, row)?;
        Ok(LinearInput { rows, plain, quantized })
    }

    /// Quantized rows with the row sums in `needs`, or `None` if there are none.
    fn quantized<'a>(
        &self,
        rows: usize,
        cols: usize,
        needs: impl Iterator<Item = RowSums>,
        norm: Option<NormTask<'_>>,
        row: impl Fn(usize) -> &'a [f32] + Sync,
    ) -> Result<Option<QuantizedRows>> {
        let mut needs = needs.peekable();
        if needs.peek().is_none() {
            return Ok(None);
        }
        let to = QuantizedRows::new(self, rows, cols, needs)?;
        to.fill(self, rows, row, norm.as_ref());
        Ok(Some(to))
    }
}
