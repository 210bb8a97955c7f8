//! [`LinearInput`]: the input of linear layers, rounded once for all weights that take it so.

use std::ops::Range;

use half::bf16;
use tallow_core::ops::Normalize;
use tallow_core::{Arithmetic, Backend, DType, Memory, Norm, Result, Tensor};

use super::device::{Cpu, norm_task};
use crate::kernels::Kernels;
use crate::linear::{InputType, MatrixSource, Product};
use crate::mat::{Mat, MatMut};
use crate::pack::{CHUNK, SUBBLOCK};
use crate::quantize::{QuantizeOut, QuantizedView, RowSums, TILE, padded_rows};
use crate::rowwise::NormTask;
use crate::simd::prefetch_slice;

/// Input of one or more linear layers in bf16.
pub(crate) struct Bf16Rows {
    /// [rows, inputs], padded to whole sub-blocks, and as many rows more as a tile may read past the last. Whatever those are,
    /// nobody uses the products.
    rows: Tensor<Cpu>,
}

impl Bf16Rows {
    /// Uninitialised rows.
    pub(crate) fn new(b: &Cpu, rows: usize, cols: usize) -> Result<Bf16Rows> {
        Ok(Bf16Rows { rows: b.alloc(DType::BF16, rows + TILE - 1, cols.next_multiple_of(SUBBLOCK))? })
    }

    /// A view for writing.
    pub(crate) fn writer(&self) -> MatMut<'_, bf16> {
        MatMut::new(&self.rows)
    }

    /// A view for reading.
    pub(crate) fn view(&self) -> Mat<'_, bf16> {
        Mat::new(&self.rows)
    }

    /// Rows `at`, with repetitions.
    fn gathered(&self, b: &Cpu, at: &[u32]) -> Result<Bf16Rows> {
        let rows = Bf16Rows::new(b, at.len(), self.rows.cols())?;
        let (from, to) = (self.view(), rows.writer());
        b.by_tokens(at.len(), at.len() * from.cols, |_, place| {
            // SAFETY: each row is written once.
            unsafe { to.row(place) }.copy_from_slice(from.row(at[place] as usize));
        });
        Ok(rows)
    }
}

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

    /// Rows `at`, with repetitions.
    fn gathered(&self, b: &Cpu, at: &[u32]) -> Result<QuantizedRows> {
        let rows = QuantizedRows::new(b, at.len(), self.cols, self.row_sums.iter().map(|(kind, _)| *kind))?;
        let (codes, scales) = (Mat::<u8>::new(&self.codes).row(0), Mat::<f32>::new(&self.scales).row(0));
        let sums: Vec<&[u32]> = self.row_sums.iter().map(|(_, sums)| Mat::new(sums).row(0)).collect();
        let (cols, from_rows, to) = (self.cols, self.rows, rows.writer());
        b.by_tokens(at.len(), at.len() * cols, |_, place| {
            let row = at[place] as usize;
            for (chunk, first) in (0..cols).step_by(CHUNK).enumerate() {
                let inputs = CHUNK.min(cols - first);
                let of =
                    |rows: usize, row: usize| first * rows + row * inputs..first * rows + (row + 1) * inputs;
                let (from, part) = (of(from_rows, row), of(to.rows, place));
                // SAFETY: each row is written once.
                unsafe {
                    to.codes.part(0, part.clone()).copy_from_slice(&codes[from.clone()]);
                    to.scales.put(0, chunk * to.rows + place, scales[chunk * from_rows + row]);
                    for ((kind, to), sums) in to.row_sums.iter().zip(&sums) {
                        let words = |of: &Range<usize>| of.start / kind.per_word()..of.end / kind.per_word();
                        to.part(0, words(&part)).copy_from_slice(&sums[words(&from)]);
                    }
                }
            }
        });
        Ok(rows)
    }

    /// A view for writing.
    pub(crate) fn writer(&self) -> QuantizeOut<'_> {
        let (codes, scales) = (MatMut::new(&self.codes), MatMut::new(&self.scales));
        let row_sums = self.row_sums.iter().map(|(kind, t)| (*kind, MatMut::new(t))).collect();
        QuantizeOut { rows: self.rows, codes, scales, row_sums }
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
    /// `None` where no weight takes bf16.
    bf16: Option<Bf16Rows>,
    /// 8-bit codes. `None` where no weight takes those.
    quantized: Option<QuantizedRows>,
}

impl LinearInput {
    /// Product of this input with a weight.
    pub(crate) fn times<'a>(&'a self, k: &Kernels, w: MatrixSource<'a>) -> Product<'a> {
        let x = self.plain.as_ref().map_or_else(|| Mat::without_columns(self.rows), Mat::new);
        let (mut bf16, mut quantized) = (None, None);
        match w.input(k) {
            InputType::F32 => {}
            InputType::Bf16 => bf16 = self.bf16.as_ref().map(Bf16Rows::view),
            InputType::Quantized(sums) => quantized = self.quantized.as_ref().and_then(|rows| rows.of(sums)),
        }
        Product { w, x, bf16, quantized, delta: None }
    }
}

impl Cpu {
    /// The type of input that a weight is multiplied with.
    pub(crate) fn input_type(&self, w: &MatrixSource<'_>) -> InputType {
        if self.arithmetic == Arithmetic::Fast { w.input(self.kernels) } else { InputType::F32 }
    }

    /// Input of linear layers, normalised if `norm` is set, and rounded once for all weights that take it so.
    pub(crate) fn input<'a>(
        &self,
        x: &Tensor<Cpu>,
        norm: Option<&Norm<Cpu>>,
        weights: impl Iterator<Item = &'a MatrixSource<'a>> + Clone,
    ) -> Result<LinearInput> {
        let types = || weights.clone().map(|w| self.input_type(w));
        // The norm is fused with the rounding if all weights take the same type.
        let is_fused = types().all(|of| of.row_sums().is_some()) || types().all(|of| of == InputType::Bf16);
        let plain = match norm {
            None => Some(x.clone()),
            Some(_) if is_fused => None,
            Some(norm) => Some(self.normalize(&Normalize { x, norm, residual: None })?),
        };
        let from = Mat::new(plain.as_ref().unwrap_or(x));
        let norm = norm.filter(|_| plain.is_none()).map(norm_task);
        let (rows, cols) = (x.rows(), x.cols());
        let (bf16, quantized) = self.rounded(rows, cols, types(), norm, |r| from.row(r))?;
        Ok(LinearInput { rows, plain, bf16, quantized })
    }

    /// Input of linear layers gathered from rows `at` of `x`, with repetitions.
    pub(crate) fn gathered_input<'a>(
        &self,
        x: &Tensor<Cpu>,
        at: &[u32],
        weights: impl Iterator<Item = &'a MatrixSource<'a>> + Clone,
    ) -> Result<LinearInput> {
        let from = Mat::<f32>::new(x);
        let plain = match weights.clone().any(|w| self.input_type(w) == InputType::F32) {
            true => Some(self.by_rows(at.len(), x.cols(), |_, place, out| {
                out.copy_from_slice(from.row(at[place] as usize));
            })?),
            false => None,
        };
        // Rounded once for all repetitions.
        let LinearInput { bf16, quantized, .. } = self.input(x, None, weights)?;
        let bf16 = bf16.map(|rows| rows.gathered(self, at)).transpose()?;
        let quantized = quantized.map(|rows| rows.gathered(self, at)).transpose()?;
        Ok(LinearInput { rows: at.len(), plain, bf16, quantized })
    }

    /// Input of linear layers whose rows are parts of other tensors' rows.
    pub(crate) fn input_by_rows<'a, 'x>(
        &self,
        rows: usize,
        cols: usize,
        row: impl Fn(usize) -> &'x [f32] + Sync,
        weights: impl Iterator<Item = &'a MatrixSource<'a>> + Clone,
    ) -> Result<LinearInput> {
        let types = || weights.clone().map(|w| self.input_type(w));
        let plain = match types().any(|of| of == InputType::F32) {
            true => Some(self.by_rows(rows, cols, |_, r, out| out.copy_from_slice(row(r)))?),
            false => None,
        };
        let (bf16, quantized) = self.rounded(rows, cols, types(), None, row)?;
        Ok(LinearInput { rows, plain, bf16, quantized })
    }

    /// The rows in bf16 and quantized, as far as a weight takes them so.
    fn rounded<'a>(
        &self,
        rows: usize,
        cols: usize,
        types: impl Iterator<Item = InputType> + Clone,
        norm: Option<NormTask<'_>>,
        row: impl Fn(usize) -> &'a [f32] + Sync,
    ) -> Result<(Option<Bf16Rows>, Option<QuantizedRows>)> {
        let (k, mut bf16, mut quantized) = (self.kernels, None, None);
        if types.clone().any(|of| of == InputType::Bf16) {
            let to = bf16.insert(Bf16Rows::new(self, rows, cols)?).writer();
            // SAFETY: each row is written once.
            self.round_rows(rows, cols, &row, norm.as_ref(), |r, x| (k.to_bf16)(x, unsafe { to.row(r) }));
        }
        let mut needs = types.filter_map(InputType::row_sums).peekable();
        if needs.peek().is_some() {
            let to = quantized.insert(QuantizedRows::new(self, rows, cols, needs)?).writer();
            self.round_rows(rows, cols, &row, norm.as_ref(), |r, x| (k.quantize)(&to, r, 0, x));
        }
        Ok((bf16, quantized))
    }

    /// Rounds rows, which `row` returns, by `round`, after `norm` if set.
    fn round_rows<'a>(
        &self,
        rows: usize,
        cols: usize,
        row: &(impl Fn(usize) -> &'a [f32] + Sync),
        norm: Option<&NormTask<'_>>,
        round: impl Fn(usize, &[f32]) + Sync,
    ) {
        let piece = (8192 / cols.max(1)).max(1);
        self.share(rows.div_ceil(piece), 4 * rows * cols, |scratch, i| {
            for r in i * piece..rows.min((i + 1) * piece) {
                // Probably in another core's cache, or in memory.
                prefetch_slice(row(r));
                let x = match norm {
                    Some(norm) => {
                        let cols = row(r).len();
                        scratch.floats.resize(scratch.floats.len().max(cols), 0.0);
                        (self.kernels.norm)(norm, row(r), &mut scratch.floats[..cols]);
                        &scratch.floats[..cols]
                    }
                    None => row(r),
                };
                round(r, x);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    #[test]
    fn every_instruction_set_gives_the_same_codes_and_sums() {
        let kinds = [
            RowSums::Begin { run: 16, bias: 8 },
            RowSums::Begin { run: 32, bias: 128 },
            RowSums::Mins,
            RowSums::Pairs { run: 16 },
            RowSums::Pairs { run: 32 },
        ];
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let b = Cpu::new(isa, 1).unwrap();
            for inputs in [32usize, 64, 96, 192, 224, 256, 320, 1024, 1000] {
                // Many lie halfway between two codes.
                let x: Vec<f32> = (0..inputs)
                    .map(|i| ((i * 37 % 509) as f32 - 254.0) / 2.0 * if i < 256 { 1.0 } else { 0.3 })
                    .collect();
                for kind in kinds
                    .into_iter()
                    .filter(|kind| inputs.next_multiple_of(SUBBLOCK).is_multiple_of(kind.per_word()))
                {
                    let rows = QuantizedRows::new(&b, 1, inputs, [kind].into_iter()).unwrap();
                    (b.kernels.quantize)(&rows.writer(), 0, 0, &x);
                    let got = rows.of(kind).unwrap();
                    for (c, x) in x.chunks(CHUNK).enumerate() {
                        let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                        let by = 127.0 / most;
                        let codes: Vec<i32> = x.iter().map(|x| (x * by).round_ties_even() as i32).collect();
                        let at = c * CHUNK;
                        let is: Vec<i32> =
                            got.codes[at..at + x.len()].iter().map(|c| i32::from(*c as i8)).collect();
                        assert_eq!(is, codes, "{isa}, {inputs} inputs");
                        assert_eq!(got.scales[c], most / 127.0);
                        let words = &got.row_sums[at / kind.per_word()..];
                        for (word, codes) in words.iter().zip(codes.chunks(kind.per_word())) {
                            let sum = |codes: &[i32]| codes.iter().sum::<i32>();
                            let want = match kind {
                                RowSums::Begin { bias, .. } => -(i32::from(bias) * sum(codes)) as u32,
                                RowSums::Mins => (-(sum(codes) as f32)).to_bits(),
                                RowSums::Pairs { run } => {
                                    let (first, second) = codes.split_at(run.min(codes.len()));
                                    sum(first) as u32 & 0xffff | (sum(second) as u32) << 16
                                }
                            };
                            assert_eq!(*word, want, "{isa}, {inputs} inputs, {kind:?}");
                        }
                    }
                }
            }
        }
    }
}
