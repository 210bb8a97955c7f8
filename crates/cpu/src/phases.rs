//! Phases of a layer on the CPU: linear layers over one input, split by outputs among the threads.

use std::ops::Range;

use tallow_core::ops::{Epilogue, Ffn, Normalize};
use tallow_core::{Backend, DType, LinearWeights, Norm, Result, Tensor, Weight};

use crate::Arithmetic;
use crate::backend::{Cpu, norm_task};
use crate::kernels::{
    ActivationInput, ActivationTask, Kernels, LinearTask, MatrixSource, NormTask, Packed, Product,
    activate_rows, linear,
};
use crate::lora::{LoraA, LoraDeltas};
use crate::mat::{Mat, MatMut};
use crate::packed::PAIR;
use crate::quantize::{QuantizedRows, RowSums};

/// A weight as kernels read it.
pub(crate) fn source(w: &Weight<Cpu>) -> MatrixSource<'_> {
    match w {
        Weight::Dense(t) => dense(t),
        Weight::Blocks { data, format, cols, .. } => MatrixSource::Packed(Packed::new(data, *format, *cols)),
    }
}

/// A dense matrix as kernels read it.
pub(crate) fn dense(t: &Tensor<Cpu>) -> MatrixSource<'_> {
    match t.dtype() {
        DType::F16 => MatrixSource::F16(Mat::new(t)),
        DType::BF16 => MatrixSource::BF16(Mat::new(t)),
        _ => MatrixSource::F32(Mat::new(t)),
    }
}

/// One linear layer of a phase, and where its outputs go in the phase's result.
pub(crate) struct OutputColumns<'a> {
    pub w: MatrixSource<'a>,
    pub bias: Option<Mat<'a, f32>>,
    pub outputs: usize,
    /// First column in the phase's result.
    pub column: usize,
}

impl<'a> OutputColumns<'a> {
    /// Its columns in the phase's result.
    pub(crate) fn columns(&self) -> Range<usize> {
        self.column..self.column + self.outputs
    }

    /// Linear layers with their outputs side by side (as in fused QKV or gate-up); `None` if one has act-order.
    pub(crate) fn side_by_side(by: &'a [LinearWeights<Cpu>]) -> Option<Vec<OutputColumns<'a>>> {
        let mut parts = Vec::with_capacity(by.len());
        let mut column = 0;
        for l in by {
            let (w, outputs) = (source(l.weight.in_order()?), l.weight.rows());
            parts.push(OutputColumns { w, bias: l.bias.as_ref().map(Mat::new), outputs, column });
            column += outputs;
        }
        Some(parts)
    }
}

/// Input of a phase, [rows, inputs], in the forms that its weights take.
pub(crate) struct LinearInput {
    rows: usize,
    /// f32. `None` where no weight takes that.
    plain: Option<Tensor<Cpu>>,
    /// 8-bit codes. `None` where no weight takes those.
    rounded: Option<QuantizedRows>,
}

impl LinearInput {
    pub(crate) fn times<'a>(&'a self, k: &Kernels, w: MatrixSource<'a>) -> Product<'a> {
        let x = self.plain.as_ref().map_or_else(|| Mat::without_columns(self.rows), Mat::new);
        let rounded = self.rounded.as_ref().and_then(|r| r.of(w.row_sums(k)?));
        Product { w, x, rounded }
    }
}

impl Cpu {
    /// Outputs per piece: whole pairs of panels, enough to be worth taking, few enough to balance the threads.
    pub(crate) fn piece(&self, outputs: usize) -> usize {
        (outputs / (16 * self.pool.threads())).next_multiple_of(PAIR).clamp(PAIR, 8 * PAIR)
    }

    /// Row sums that a weight needs of quantized input; `None` if it is multiplied with f32.
    pub(crate) fn row_sums(&self, w: &MatrixSource<'_>) -> Option<RowSums> {
        if self.arithmetic == Arithmetic::Fast { w.row_sums(self.kernels) } else { None }
    }

    /// Input of a phase, normalised if `norm` is set, and quantized once for all weights that take it so.
    pub(crate) fn input<'a>(
        &self,
        x: &Tensor<Cpu>,
        norm: Option<&Norm<Cpu>>,
        by: impl Iterator<Item = &'a MatrixSource<'a>> + Clone,
    ) -> Result<LinearInput> {
        let sides = || by.clone().map(|w| self.row_sums(w));
        let plain = match norm {
            None => Some(x.clone()),
            // Every weight takes quantized rows: the norm is fused into the quantization.
            Some(_) if sides().all(|side| side.is_some()) => None,
            Some(norm) => Some(self.normalize(&Normalize { x, norm, residual: None })?),
        };
        let from = Mat::new(plain.as_ref().unwrap_or(x));
        let norm = norm.filter(|_| plain.is_none()).map(norm_task);
        let rounded = self.rounded(x.rows(), x.cols(), sides().flatten(), norm, |r| from.row(r))?;
        Ok(LinearInput { rows: x.rows(), plain, rounded })
    }

    /// Input of a phase gathered from rows `at` of `x`, with repetitions.
    pub(crate) fn picked<'a>(
        &self,
        x: &Tensor<Cpu>,
        at: &[u32],
        by: impl Iterator<Item = &'a MatrixSource<'a>> + Clone,
    ) -> Result<LinearInput> {
        let sides = || by.clone().map(|w| self.row_sums(w));
        let from = Mat::<f32>::new(x);
        let row = |place: usize| from.row(at[place] as usize);
        let plain = match sides().all(|side| side.is_some()) {
            true => None,
            false => Some(self.by_rows(at.len(), x.cols(), |_, place, out| out.copy_from_slice(row(place)))?),
        };
        let rounded = self.rounded(at.len(), x.cols(), sides().flatten(), None, row)?;
        Ok(LinearInput { rows: at.len(), plain, rounded })
    }

    /// Quantized rows with the row sums in `needs`, or `None` if there are none.
    fn rounded<'a>(
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

    /// Runs one phase: every output of every part, for all rows, plus the LoRA deltas.
    pub(crate) fn multiply(
        &self,
        x: &LinearInput,
        parts: &[OutputColumns<'_>],
        out: &Tensor<Cpu>,
        then: Epilogue<'_, Cpu>,
        downs: &LoraA<'_>,
    ) {
        let (out, residual) = (MatMut::new(out), then.residual.map(Mat::new));
        let mut tasks = Vec::with_capacity(parts.len());
        for (i, part) in parts.iter().enumerate() {
            let of = x.times(self.kernels, part.w);
            tasks.push(LinearTask {
                added: downs.to(i),
                bias: part.bias,
                scale: then.scale,
                softcap: then.softcap,
                residual,
                ..LinearTask::plain(of, 0..x.rows, out.columns(part.columns()))
            });
        }
        let piece = self.piece(tasks.iter().map(|t| t.out.cols).sum());
        let count = |task: &LinearTask<'_>| task.out.cols.div_ceil(piece);
        let cost = tasks.iter().map(LinearTask::cost).sum();
        self.share(tasks.iter().map(count).sum(), cost, |scratch, mut i| {
            downs.help(&mut scratch.room);
            for task in &tasks {
                if i < count(task) {
                    let outputs = i * piece..task.out.cols.min((i + 1) * piece);
                    return linear(self.kernels, task, outputs, &mut scratch.room);
                }
                i -= count(task);
            }
        });
    }

    /// First phase of an FFN: gate, up and activation fused, so that the sums stay in the nearest cache. Returns the
    /// input of down, [rows, width].
    pub(crate) fn gated_up(&self, op: &Ffn<'_, Cpu>, parts: &[OutputColumns<'_>]) -> Result<Tensor<Cpu>> {
        let (width, rows) = (op.down.weight.cols(), op.x.rows());
        let added = LoraDeltas::new(self, op.up, op.adapters, rows)?;
        let x = self.input(op.x, op.norm, parts.iter().map(|p| &p.w).chain(added.lora_a()))?;
        let downs = added.over(self.kernels, &x);
        let mut given = Vec::with_capacity(parts.len());
        for (i, p) in parts.iter().enumerate() {
            let (of, added) = (x.times(self.kernels, p.w), downs.to(i));
            given.push(ActivationInput { of, added, bias: p.bias, columns: p.columns() });
        }
        let bent = self.alloc(DType::F32, rows, width)?;
        let out = MatMut::new(&bent);
        let (act, apart, piece) = (op.act, op.is_gated().then_some(width), self.piece(width));
        self.share(width.div_ceil(piece), cost(rows, parts), |scratch, i| {
            downs.help(&mut scratch.room);
            let columns = i * piece..width.min((i + 1) * piece);
            let task = ActivationTask { given: &given, apart, act, out: &out, rows: 0..rows, columns };
            activate_rows(self.kernels, &task, &mut scratch.room);
        });
        Ok(bent)
    }
}

/// Approximate number of multiplications of a phase.
pub(crate) fn cost(rows: usize, parts: &[OutputColumns<'_>]) -> usize {
    parts.iter().map(|p| rows * p.outputs * p.w.cols()).sum()
}

#[cfg(test)]
mod tests {
    use tallow_core::{Activation, Format, HostWeight, Memory, NormKind, compose};

    use super::*;
    use crate::Isa;

    /// Pseudo-random values in -1..1.
    fn numbers(seed: u32, count: usize) -> Vec<f32> {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn layer(b: &Cpu, format: Format, outputs: usize, inputs: usize, bias: bool) -> LinearWeights<Cpu> {
        let x = numbers(outputs as u32, outputs * inputs);
        let bytes: Vec<u8> = match format {
            // The f16 scale 2^-7, then the codes.
            Format::Q8_0 => {
                let block = |x: &[f32]| {
                    [0, 0x20].into_iter().chain(x.iter().map(|x| (x * 127.0) as i8 as u8)).collect()
                };
                x.chunks(32).flat_map(|x| -> Vec<u8> { block(x) }).collect()
            }
            _ => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
        };
        let weight = b.prepare(HostWeight::new(format, outputs, inputs, &bytes)).unwrap();
        let bias = bias.then(|| b.upload_row(&numbers(7, outputs)).unwrap());
        LinearWeights::new(weight, bias)
    }

    #[test]
    fn a_block_gives_the_bits_of_its_smaller_ops() {
        const Q: Format = Format::Q8_0;
        const P: Format = Format::F32;
        let case = |up: &[(Format, usize)], down: Format, width: usize| (up.to_vec(), down, width);
        let cases = [
            case(&[(Q, 96), (Q, 96)], Q, 96),
            case(&[(Q, 192)], Q, 96),
            case(&[(P, 96), (Q, 96)], Q, 96),
            case(&[(Q, 96)], Q, 96),
            case(&[(P, 80)], P, 40),
            case(&[(Q, 40), (Q, 40)], P, 40),
            case(&[(P, 9), (Q, 50), (P, 31)], P, 45),
        ];
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let b = Cpu::new(isa, 2).unwrap();
            let weight = b.upload_row(&numbers(3, 64)).unwrap();
            let norm = Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-5 };
            for (up, format, width) in &cases {
                for (rows, bias) in [(1, false), (3, true), (600, true)] {
                    let x = b.upload(&numbers(1, rows * 64), rows, 64).unwrap();
                    let up: Vec<_> = up.iter().map(|(f, n)| layer(&b, *f, *n, 64, bias)).collect();
                    let down = layer(&b, *format, 64, *width, bias);
                    let (norm, epilogue) = (Some(&norm), Epilogue::add_to(&x));
                    let op = Ffn {
                        x: &x,
                        norm,
                        up: &up,
                        act: Activation::Silu,
                        down: &down,
                        epilogue,
                        adapters: &[],
                    };
                    let bits = |t: Tensor<Cpu>| -> Vec<u32> {
                        b.download::<f32>(&t).unwrap().iter().map(|x| x.to_bits()).collect()
                    };
                    let want = bits(compose::ffn(&b, &op).unwrap());
                    let got = bits(b.run(op).unwrap());
                    assert!(got == want, "{isa}, width {width}, {rows} rows");
                }
            }
        }
    }
}
