//! A thread's part of linear layers, y = x Wᵀ + b: GEMV for a few rows; otherwise GEMM, which unpacks a chunk of
//! weights, multiplies it with every row of the input, and goes on to the next.

use std::ops::Range;

use half::{bf16, f16};

use crate::choices::{Kernel, KernelChoices, PrefetchChoices};
use crate::gemm::{
    Bf16Task, Chunk, Finish, FloatGemmTask, GemmTask, GemvRows, GemvTask, OutputTask, Plain, Sums,
};
use crate::kernels::Kernels;
use crate::mat::{Mat, MatMut};
use crate::pack::{CHUNK, PAIR, PackedKind, PackedWeights, ROWS};
use crate::quantize::{QuantizedView, RowSums};
use crate::simd::prefetch_slice;

/// Rows of input per block, so that their sums stay in a near cache.
const BLOCK_ROWS: usize = 512;

/// A weight matrix [outputs, inputs].
#[derive(Clone, Copy)]
pub(crate) enum MatrixSource<'a> {
    /// Packed panels.
    Packed(PackedWeights<'a>),
    /// Rows of floats, as a tensor has them.
    F32(Mat<'a, f32>),
    F16(Mat<'a, f16>),
    BF16(Mat<'a, bf16>),
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

    /// The type of input that it is multiplied with in fast arithmetic.
    pub(crate) fn input(&self, k: &Kernels) -> InputType {
        match self {
            MatrixSource::Packed(p) if !p.layout.shape.is_plain() => {
                InputType::Quantized(RowSums::of(p.layout, k.biased))
            }
            MatrixSource::Packed(p) if p.layout.kind == PackedKind::BF16 && k.bf16.is_some() => {
                InputType::Bf16
            }
            _ => InputType::F32,
        }
    }

    /// Prefetches a pair of panels.
    pub(crate) fn prefetch(&self, pair: usize) {
        if let MatrixSource::Packed(p) = self {
            prefetch_slice(p.pairs.row(pair));
        }
    }

    /// Dequantizes one row to f32.
    pub(crate) fn unpack_row(&self, k: &Kernels, row: usize, scratch: &mut LinearScratch, out: &mut [f32]) {
        match self {
            MatrixSource::F32(m) => out.copy_from_slice(m.row(row)),
            MatrixSource::F16(m) => out.iter_mut().zip(m.row(row)).for_each(|(o, x)| *o = x.to_f32()),
            MatrixSource::BF16(m) => out.iter_mut().zip(m.row(row)).for_each(|(o, x)| *o = x.to_f32()),
            MatrixSource::Packed(p) => {
                for (i, out) in out.chunks_mut(CHUNK).enumerate() {
                    let (from, inputs) = p.chunk(row / ROWS, i);
                    let (chunk, plain) = (&mut scratch.chunks[0], &mut scratch.plain[0]);
                    (k.unpack_plain)(p.layout, from, inputs, chunk, plain);
                    out.iter_mut().zip(&plain.0).for_each(|(o, x)| *o = x[row % ROWS]);
                }
            }
        }
    }

    /// Dequantizes a chunk of a pair of panels to f32. Rows past the last have arbitrary values.
    fn unpack_pair(&self, k: &Kernels, pair: usize, inputs: Range<usize>, scratch: &mut LinearScratch) {
        match self {
            MatrixSource::Packed(p) => {
                for i in 0..p.panels {
                    let (from, inputs) = p.chunk(2 * pair + i, inputs.start / CHUNK);
                    let (chunk, plain) = (&mut scratch.chunks[0], &mut scratch.plain[i]);
                    (k.unpack_plain)(p.layout, from, inputs, chunk, plain);
                }
            }
            MatrixSource::F32(m) => transpose(m, pair, inputs, &mut scratch.plain, |x| x),
            MatrixSource::F16(m) => transpose(m, pair, inputs, &mut scratch.plain, f16::to_f32),
            MatrixSource::BF16(m) => transpose(m, pair, inputs, &mut scratch.plain, bf16::to_f32),
        }
    }
}

/// What the input of a linear layer is rounded to before it is multiplied with a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputType {
    F32,
    Bf16,
    /// 8 bits, with such row sums.
    Quantized(RowSums),
}

impl InputType {
    /// Row sums of quantized input.
    pub(crate) fn row_sums(self) -> Option<RowSums> {
        match self {
            InputType::Quantized(sums) => Some(sums),
            InputType::F32 | InputType::Bf16 => None,
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
    pub sums: Vec<Sums>,
    /// Sums of gate and of up.
    pub gate: Vec<Sums>,
    pub up: Vec<Sums>,
    prefetch: PrefetchChoices,
    kernels: KernelChoices,
}

impl Default for LinearScratch {
    fn default() -> LinearScratch {
        LinearScratch {
            chunks: Box::new([const { Chunk::EMPTY }; 2]),
            plain: Box::new([const { Plain::EMPTY }; 2]),
            sums: Vec::new(),
            gate: Vec::new(),
            up: Vec::new(),
            prefetch: PrefetchChoices::default(),
            kernels: KernelChoices::default(),
        }
    }
}

/// A weight and its input, and what is added to their product.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    /// [outputs, inputs]
    pub w: MatrixSource<'a>,
    /// [rows, inputs], or no columns where the weight takes `bf16` or `quantized`.
    pub x: Mat<'a, f32>,
    /// The input in bf16, if the weight is multiplied with that.
    pub bf16: Option<Mat<'a, bf16>>,
    /// The quantized input, if the weight is multiplied with that.
    pub quantized: Option<QuantizedView<'a>>,
    pub delta: Option<&'a dyn AddToSums>,
}

/// A term added to the sums of a linear layer before its epilogue: LoRA deltas.
pub(crate) trait AddToSums: Sync {
    /// Prefetches what is read for a pair of panels.
    fn prefetch(&self, pair: usize);

    /// Adds to the sums of a pair of panels with `rows`.
    fn add(
        &self,
        k: &Kernels,
        pair: usize,
        rows: Range<usize>,
        scratch: &mut LinearScratch,
        sums: &mut [Sums],
    );
}

/// A linear layer with its epilogue, for some rows.
pub(crate) struct LinearTask<'a> {
    pub product: Product<'a>,
    /// Rows to compute. Other rows of the product are not touched.
    pub rows: Range<usize>,
    pub output: OutputTask<'a>,
}

impl<'a> LinearTask<'a> {
    /// The product without an epilogue.
    pub(crate) fn plain(product: Product<'a>, rows: Range<usize>, out: MatMut<'a, f32>) -> LinearTask<'a> {
        let output = OutputTask { out, bias: None, scale: 1.0, softcap: None, residual: None };
        LinearTask { product, rows, output }
    }

    /// Number of outputs.
    pub(crate) fn outputs(&self) -> usize {
        self.output.out.cols
    }

    /// Approximate number of multiplications.
    pub(crate) fn cost(&self) -> usize {
        self.rows.len() * self.outputs() * self.product.w.cols()
    }
}

/// Blocks of at most `BLOCK_ROWS` rows.
pub(crate) fn blocks(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    rows.clone().step_by(BLOCK_ROWS).map(move |first| first..rows.end.min(first + BLOCK_ROWS))
}

/// Computes some of the task's outputs, which no other thread computes.
pub(crate) fn linear(k: &Kernels, t: &LinearTask<'_>, outputs: Range<usize>, scratch: &mut LinearScratch) {
    if outputs.is_empty() {
        return;
    }
    let pairs = outputs.start / PAIR..outputs.end.div_ceil(PAIR);
    for rows in blocks(t.rows.clone()) {
        for pair in pairs.clone() {
            multiply(k, &t.product, pair, rows.clone(), scratch);
            // Outputs of this pair that are ours.
            let outputs = outputs.start.max(pair * PAIR)..outputs.end.min((pair + 1) * PAIR);
            let (task, sums, rows) = (&t.output, &scratch.sums, rows.clone());
            (k.finish)(&Finish { task, sums, rows, outputs, first: pair * PAIR });
        }
    }
}

/// Writes the sums of a pair of panels with some rows to `scratch.sums`.
pub(crate) fn multiply(
    k: &Kernels,
    t: &Product<'_>,
    pair: usize,
    rows: Range<usize>,
    scratch: &mut LinearScratch,
) {
    let mut sums = std::mem::take(&mut scratch.sums);
    sums.clear();
    sums.resize(rows.len(), Sums::ZERO);
    multiply_into(k, t, pair, rows, scratch, &mut sums);
    scratch.sums = sums;
}

/// Adds the products of a pair of panels with some rows, and the delta, to `sums`.
pub(crate) fn multiply_into(
    k: &Kernels,
    t: &Product<'_>,
    pair: usize,
    rows: Range<usize>,
    scratch: &mut LinearScratch,
    sums: &mut [Sums],
) {
    if let Some(delta) = t.delta {
        delta.prefetch(pair);
    }
    add_product(k, t, pair, rows.clone(), scratch, sums);
    if let Some(delta) = t.delta {
        delta.add(k, pair, rows, scratch, sums);
    }
}

/// Adds the products of a pair of panels with some rows to `sums`, without a delta.
pub(crate) fn add_product(
    k: &Kernels,
    t: &Product<'_>,
    pair: usize,
    rows: Range<usize>,
    scratch: &mut LinearScratch,
    sums: &mut [Sums],
) {
    if let (Some(x), MatrixSource::Packed(w), Some(multiply)) = (t.bf16, t.w, k.bf16) {
        return scratch.prefetch.run(w.layout.kind, rows.len(), w.pairs.cols, |prefetch| {
            multiply(&mut Bf16Task { w, pair, x, rows, sums, prefetch });
        });
    }
    let w = match t.w {
        MatrixSource::Packed(w) if t.quantized.is_some() || w.layout.shape.is_plain() => w,
        _ => return unpack_and_multiply(k, t, pair, rows, scratch, sums),
    };
    let (kind, bytes) = (w.layout.kind, w.pairs.cols);
    let gemv = |rows: Range<usize>, scratch: &mut LinearScratch, sums: &mut [Sums]| {
        let x = t.quantized.map_or(GemvRows::Plain(t.x), GemvRows::Quantized);
        scratch.prefetch.run(kind, rows.len(), bytes, |prefetch| {
            (k.gemv)(&mut GemvTask { w, pair, x, rows, sums, prefetch });
        });
    };
    if rows.len() <= k.gemv_rows {
        return gemv(rows, scratch, sums);
    }
    let first = if rows.len() <= k.gemv_max_rows { Kernel::Gemv } else { Kernel::Gemm };
    // Taken out meanwhile, as the kernels need the rest.
    let mut kernels = std::mem::take(&mut scratch.kernels);
    kernels.run(kind, (rows.len(), bytes), first, |kernel| match kernel {
        Kernel::Gemv => gemv(rows, scratch, sums),
        Kernel::Gemm => unpack_and_multiply(k, t, pair, rows, scratch, sums),
    });
    scratch.kernels = kernels;
}

/// [`add_product`] by GEMM, which takes any weights and any number of rows.
fn unpack_and_multiply(
    k: &Kernels,
    t: &Product<'_>,
    pair: usize,
    rows: Range<usize>,
    scratch: &mut LinearScratch,
    sums: &mut [Sums],
) {
    for start in (0..t.w.cols()).step_by(CHUNK) {
        let inputs = start..t.w.cols().min(start + CHUNK);
        if let (Some(x), MatrixSource::Packed(p)) = (t.quantized, &t.w) {
            for (i, chunk) in scratch.chunks.iter_mut().enumerate().take(p.panels) {
                let (from, inputs) = p.chunk(2 * pair + i, start / CHUNK);
                (k.unpack)(p.layout, from, inputs, chunk);
            }
            let (layout, first, sums) = (p.layout, rows.start, &mut *sums);
            let (chunks, panels) = (&mut *scratch.chunks, p.panels);
            (k.gemm)(&mut GemmTask { chunks, panels, layout, x, first, inputs, sums });
        } else {
            t.w.unpack_pair(k, pair, inputs.clone(), scratch);
            let (x, inputs) = (t.x.rows(rows.clone()), inputs.start..inputs.end.min(t.x.cols));
            (k.gemm_float)(&mut FloatGemmTask { plain: &scratch.plain, x, inputs, sums });
        }
    }
}
