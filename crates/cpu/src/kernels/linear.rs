//! Linear layers, y = x Wᵀ + b: GEMV for a few rows; otherwise unpack a chunk of weights, multiply it with every row
//! of the input, go on to the next.

use std::ops::Range;

use half::{bf16, f16};
use tallow_core::Tensor;
use tallow_quant::Format;

use super::Kernels;
use super::gemm::{FloatGemmTask, GemmTask, Sums};
use super::gemv::{GemvRows, GemvTask};
use super::unpack::{Chunk, Plain};
use crate::backend::Cpu;
use crate::form::PackedLayout;
use crate::mat::{Mat, MatMut};
use crate::packed::{self, CHUNK, LINE, PAIR, ROWS, SUBBLOCK};
use crate::pool::First;
use crate::quantize::{QuantizedView, RowSums};
use crate::simd::{Simd, prefetch_slice};

/// Rows of input per block, so that their sums stay in a near cache.
const TOKENS: usize = 512;

/// A weight matrix [outputs, inputs].
#[derive(Clone, Copy)]
pub(crate) enum MatrixSource<'a> {
    /// Packed panels.
    Packed(Packed<'a>),
    /// Rows of floats, as a tensor has them.
    F32(Mat<'a, f32>),
    F16(Mat<'a, f16>),
    BF16(Mat<'a, bf16>),
}

/// Packed weights: one pair of panels per row of bytes.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a> {
    pub pairs: Mat<'a, u8>,
    pub layout: &'static PackedLayout,
    /// Inputs, as kernels [compute](crate::form::PanelShape::int_inputs) them.
    pub cols: usize,
    /// Panels whose chunks alternate: two, or a single one.
    pub panels: usize,
    /// Bytes of a full chunk of a panel.
    chunk: usize,
    /// Bytes of the last chunk, if it is partial, as kernels read it; and how many of those are past its end.
    rest: usize,
    past: usize,
}

impl<'a> Packed<'a> {
    pub(crate) fn new(data: &'a Tensor<Cpu>, format: Format, cols: usize) -> Packed<'a> {
        let layout = packed::layout(format);
        let (shape, last) = (&layout.shape, cols % CHUNK);
        let (chunk, rest) = (shape.chunk(CHUNK), shape.chunk(shape.int_inputs(last)));
        let (cols, past) = (shape.int_inputs(cols), rest - shape.chunk(last));
        let panel = cols / CHUNK * chunk + if last == 0 { 0 } else { rest - past };
        let panels = if data.cols() > panel { 2 } else { 1 };
        Packed { pairs: Mat::and_past(data, past), layout, cols, panels, chunk, rest, past }
    }

    /// Groups of four inputs of a weight with one sub-block of 8-bit codes.
    pub(super) fn groups(&self) -> usize {
        (SUBBLOCK * ROWS - self.past) / LINE
    }

    /// The bytes of a chunk of a panel, and its number of inputs.
    #[inline(always)]
    pub(super) fn chunk(&self, panel: usize, chunk: usize) -> (&'a [u8], usize) {
        let inputs = CHUNK.min(self.cols - chunk * CHUNK);
        let (bytes, apart) =
            if inputs == CHUNK { (self.chunk, self.chunk) } else { (self.rest, self.rest - self.past) };
        let at = self.panels * chunk * self.chunk + (panel & (self.panels - 1)) * apart;
        (&self.pairs.row(panel / 2)[at..at + bytes], inputs)
    }
}

impl MatrixSource<'_> {
    /// Inputs of the layer, as kernels see them.
    pub(crate) fn cols(&self) -> usize {
        match self {
            MatrixSource::Packed(p) => p.cols,
            MatrixSource::F32(m) => m.cols,
            MatrixSource::F16(m) => m.cols,
            MatrixSource::BF16(m) => m.cols,
        }
    }

    /// Row sums that it needs of quantized input; `None` if it is multiplied with f32.
    pub(crate) fn row_sums(&self, k: &Kernels) -> Option<RowSums> {
        match self {
            MatrixSource::Packed(p) if !p.layout.shape.is_plain() => Some(RowSums::of(p.layout, k.biased)),
            _ => None,
        }
    }

    /// Prefetches a pair of panels.
    fn fetch(&self, pair: usize) {
        if let MatrixSource::Packed(p) = self {
            prefetch_slice(p.pairs.row(pair));
        }
    }

    /// Dequantizes one row to f32.
    pub(crate) fn unpack_row(&self, k: &Kernels, row: usize, room: &mut LinearScratch, out: &mut [f32]) {
        match self {
            MatrixSource::F32(m) => out.copy_from_slice(m.row(row)),
            MatrixSource::F16(m) => out.iter_mut().zip(m.row(row)).for_each(|(o, x)| *o = x.to_f32()),
            MatrixSource::BF16(m) => out.iter_mut().zip(m.row(row)).for_each(|(o, x)| *o = x.to_f32()),
            MatrixSource::Packed(p) => {
                for (i, out) in out.chunks_mut(CHUNK).enumerate() {
                    let (from, inputs) = p.chunk(row / ROWS, i);
                    (k.unpack_plain)(p.layout, from, inputs, &mut room.chunks[0], &mut room.plain[0]);
                    out.iter_mut().zip(&room.plain[0].0).for_each(|(o, x)| *o = x[row % ROWS]);
                }
            }
        }
    }

    /// Dequantizes a chunk of a pair of panels to f32. Rows past the last have arbitrary values.
    fn unpack_pair(&self, k: &Kernels, pair: usize, inputs: Range<usize>, room: &mut LinearScratch) {
        match self {
            MatrixSource::Packed(p) => {
                for i in 0..p.panels {
                    let (from, inputs) = p.chunk(2 * pair + i, inputs.start / CHUNK);
                    (k.unpack_plain)(p.layout, from, inputs, &mut room.chunks[0], &mut room.plain[i]);
                }
            }
            MatrixSource::F32(m) => transpose(m, pair, inputs, &mut room.plain, |x| x),
            MatrixSource::F16(m) => transpose(m, pair, inputs, &mut room.plain, f16::to_f32),
            MatrixSource::BF16(m) => transpose(m, pair, inputs, &mut room.plain, bf16::to_f32),
        }
    }
}

/// Interleaves some inputs of the rows of a pair of panels, as f32.
fn transpose<T: bytemuck::Pod>(
    m: &Mat<'_, T>,
    pair: usize,
    inputs: Range<usize>,
    out: &mut [Plain; 2],
    number: impl Fn(T) -> f32,
) {
    for row in pair * PAIR..m.rows.min((pair + 1) * PAIR) {
        let plain = &mut out[row / ROWS % 2];
        for (to, x) in plain.0.iter_mut().zip(&m.row(row)[inputs.clone()]) {
            to[row % ROWS] = number(*x);
        }
    }
}

/// Scratch memory of a thread for linear layers.
pub(crate) struct LinearScratch {
    chunks: Box<[Chunk; 2]>,
    plain: Box<[Plain; 2]>,
    /// Sums of the current pair of panels.
    pub(super) sums: Vec<Sums>,
    /// Sums of gate and up.
    pub(super) gathered: [Vec<Sums>; 2],
}

impl Default for LinearScratch {
    fn default() -> LinearScratch {
        LinearScratch {
            chunks: Box::new([const { Chunk::EMPTY }; 2]),
            plain: Box::new([const { Plain::EMPTY }; 2]),
            sums: Vec::new(),
            gathered: Default::default(),
        }
    }
}

/// A weight and its input.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    /// [outputs, inputs]
    pub w: MatrixSource<'a>,
    /// [rows, inputs], or no columns where the weight takes `rounded`.
    pub x: Mat<'a, f32>,
    /// The quantized input, if the weight is multiplied with that.
    pub rounded: Option<QuantizedView<'a>>,
}

/// LoRA terms added to the sums of a layer.
#[derive(Clone, Copy, Default)]
pub(crate) struct LoraTerms<'a> {
    pub parts: &'a [LoraTerm<'a>],
    /// The A products, which must be done before these products can start.
    pub after: Option<&'a First>,
}

/// The product with `lora_b` of one adapter, added to the sums of some rows.
pub(crate) struct LoraTerm<'a> {
    /// Index of the layer in its phase.
    pub layer: usize,
    /// Has the outputs of the layer, and all rows of the phase.
    pub of: Product<'a>,
    pub rows: Range<usize>,
}

/// A linear layer with its epilogue, for some rows.
pub(crate) struct LinearTask<'a> {
    pub of: Product<'a>,
    pub added: LoraTerms<'a>,
    /// Rows to compute. Other rows of the product are not touched.
    pub rows: Range<usize>,
    /// [rows, outputs]. Nobody else writes these rows.
    pub out: MatMut<'a, f32>,
    /// [1, outputs]
    pub bias: Option<Mat<'a, f32>>,
    /// Factor of x Wᵀ + b.
    pub scale: f32,
    /// `cap * tanh(y / cap)`
    pub softcap: Option<f32>,
    /// [rows, outputs]: added last.
    pub residual: Option<Mat<'a, f32>>,
}

impl<'a> LinearTask<'a> {
    /// The product without an epilogue.
    pub(crate) fn plain(of: Product<'a>, rows: Range<usize>, out: MatMut<'a, f32>) -> LinearTask<'a> {
        LinearTask {
            of,
            added: LoraTerms::default(),
            rows,
            out,
            bias: None,
            scale: 1.0,
            softcap: None,
            residual: None,
        }
    }

    /// Approximate number of multiplications.
    pub(crate) fn cost(&self) -> usize {
        self.rows.len() * self.out.cols * self.of.w.cols()
    }
}

/// Blocks of at most `TOKENS` rows.
pub(super) fn blocks(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    rows.clone().step_by(TOKENS).map(move |first| first..rows.end.min(first + TOKENS))
}

/// Computes some of the task's outputs, which no other thread computes.
pub(crate) fn linear(k: &Kernels, t: &LinearTask<'_>, outputs: Range<usize>, room: &mut LinearScratch) {
    if outputs.is_empty() {
        return;
    }
    let pairs = outputs.start / PAIR..outputs.end.div_ceil(PAIR);
    for rows in blocks(t.rows.clone()) {
        for pair in pairs.clone() {
            multiply(k, &t.of, t.added, pair, rows.clone(), room);
            // Outputs of this pair that are ours.
            let at = outputs.start.max(pair * PAIR)..outputs.end.min((pair + 1) * PAIR);
            let sums = &room.sums;
            (k.finish)(&Finish { task: t, sums, rows: rows.clone(), outputs: at, first: pair * PAIR });
        }
    }
}

/// Writes the sums of a pair of panels with some rows, plus LoRA terms, to `room.sums`.
pub(super) fn multiply(
    k: &Kernels,
    t: &Product<'_>,
    added: LoraTerms<'_>,
    pair: usize,
    rows: Range<usize>,
    room: &mut LinearScratch,
) {
    // Prefetch the LoRA weights: they are small and lie elsewhere, so their reads would stall.
    added.parts.iter().for_each(|more| more.of.w.fetch(pair));
    let mut sums = std::mem::take(&mut room.sums);
    sums.clear();
    sums.resize(rows.len(), Sums([[0.0; ROWS]; 2]));
    sum_up(k, t, pair, rows.clone(), room, &mut sums);
    if let Some(first) = added.after {
        first.wait();
    }
    for more in added.parts {
        let some = more.rows.start.max(rows.start)..more.rows.end.min(rows.end);
        if !some.is_empty() {
            let sums = &mut sums[some.start - rows.start..some.end - rows.start];
            sum_up(k, &more.of, pair, some, room, sums);
        }
    }
    room.sums = sums;
}

/// Adds the products of a pair of panels with some rows to `sums`.
fn sum_up(
    k: &Kernels,
    t: &Product<'_>,
    pair: usize,
    rows: Range<usize>,
    room: &mut LinearScratch,
    sums: &mut [Sums],
) {
    if let MatrixSource::Packed(w) = t.w
        && rows.len() <= k.gemv_max_rows
        && (t.rounded.is_some() || w.layout.shape.is_plain())
    {
        let x = t.rounded.map_or(GemvRows::Plain(t.x), GemvRows::Quantized);
        return (k.gemv)(&mut GemvTask { w, pair, x, rows, sums });
    }
    for start in (0..t.w.cols()).step_by(CHUNK) {
        let inputs = start..t.w.cols().min(start + CHUNK);
        if let (Some(x), MatrixSource::Packed(p)) = (t.rounded, &t.w) {
            for (i, chunk) in room.chunks.iter_mut().enumerate().take(p.panels) {
                let (from, inputs) = p.chunk(2 * pair + i, start / CHUNK);
                (k.unpack)(p.layout, from, inputs, chunk);
            }
            let (layout, first, sums) = (p.layout, rows.start, &mut *sums);
            let (chunks, panels) = (&mut *room.chunks, p.panels);
            (k.gemm)(&mut GemmTask { chunks, panels, layout, x, first, inputs, sums });
        } else {
            t.w.unpack_pair(k, pair, inputs.clone(), room);
            let (x, inputs) = (t.x.rows(rows.clone()), inputs.start..inputs.end.min(t.x.cols));
            (k.gemm_float)(&mut FloatGemmTask { plain: &room.plain, x, inputs, sums });
        }
    }
}

/// Sums to be turned into outputs.
pub(crate) struct Finish<'a> {
    task: &'a LinearTask<'a>,
    /// One for each of `rows`.
    sums: &'a [Sums],
    rows: Range<usize>,
    /// The task's outputs among those of the pair, which begins with output `first`.
    outputs: Range<usize>,
    first: usize,
}

/// Rows ahead for which outputs and residual are prefetched: rows lie far apart.
const AHEAD: usize = 12;

/// Epilogue: bias, scale, softcap, residual.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd>(f: &Finish<'_>) {
    let (t, at, ours) = (f.task, &f.outputs, f.outputs.start - f.first..f.outputs.end - f.first);
    let mut bias = [0.0; PAIR];
    if let Some(all) = t.bias {
        bias[ours.clone()].copy_from_slice(&all.row(0)[at.clone()]);
    }
    for (row, sums) in f.rows.clone().zip(f.sums) {
        let ahead = row + AHEAD;
        if ahead < f.rows.end {
            // SAFETY: the slice is only prefetched; its elements are the task's alone.
            let out = unsafe { t.out.part(ahead, at.clone()) };
            prefetch_slice(out);
            if let Some(residual) = t.residual {
                prefetch_slice(&residual.row(ahead)[at.clone()]);
            }
        }
        let mut y = Sums(sums.0);
        let y = y.0.as_flattened_mut();
        if t.bias.is_some() {
            y.iter_mut().zip(&bias).for_each(|(y, b)| *y += b);
        }
        if t.scale != 1.0 {
            y.iter_mut().for_each(|y| *y *= t.scale);
        }
        if let Some(cap) = t.softcap {
            // SAFETY: the caller has the instruction set.
            unsafe { super::rowwise::softcap::<S>(y, cap) };
        }
        // SAFETY: the task's outputs are written by this thread alone.
        let out = unsafe { t.out.part(row, at.clone()) };
        let residual = t.residual.map(|residual| &residual.row(row)[at.clone()]);
        match (out.first_chunk_mut::<PAIR>(), y.first_chunk::<PAIR>()) {
            // Length known at compile time.
            (Some(out), Some(y)) => put(out, y, residual),
            _ => put(out, &y[ours.clone()], residual),
        }
    }
}

#[inline(always)]
fn put(out: &mut [f32], y: &[f32], residual: Option<&[f32]>) {
    match residual {
        Some(residual) => {
            for ((out, y), r) in out.iter_mut().zip(y).zip(residual) {
                *out = y + r;
            }
        }
        None => out.copy_from_slice(y),
    }
}
