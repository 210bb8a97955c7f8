//! Linear layers on the device: the input's rows are quantized, then multiplied with packed panels, split by outputs
//! among the threads.

use std::ops::Range;

use tallow_core::ops::{Epilogue, LinearHeads};
use tallow_core::{DType, LinearWeights, Memory, Norm, Result, Tensor, Weight};

use super::device::Cpu;
use super::input::LinearInput;
use crate::gemm::OutputTask;
use crate::linear::{LinearScratch, LinearTask, MatrixSource, linear};
use crate::mat::{Mat, MatMut};
use crate::pack::{PAIR, PackedWeights};

/// A weight as kernels read it.
pub(crate) fn source(w: &Weight<Cpu>) -> MatrixSource<'_> {
    match w {
        Weight::Dense(t) => dense(t),
        Weight::Blocks { data, format, cols, .. } => {
            MatrixSource::Packed(PackedWeights::new(data, *format, *cols))
        }
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

/// One of several linear layers over one input, and where its outputs go in their joint result.
pub(crate) struct OutputColumns<'a> {
    pub w: MatrixSource<'a>,
    pub bias: Option<Mat<'a, f32>>,
    pub outputs: usize,
    /// First column in the joint result.
    pub column: usize,
}

impl<'a> OutputColumns<'a> {
    /// Columns of this layer in the joint result.
    pub(crate) fn columns(&self) -> Range<usize> {
        self.column..self.column + self.outputs
    }

    /// Linear layers with their outputs side by side (as in fused QKV or gate-up); `None` if one has act-order.
    pub(crate) fn side_by_side(layers: &'a [LinearWeights<Cpu>]) -> Option<Vec<OutputColumns<'a>>> {
        let mut parts = Vec::with_capacity(layers.len());
        let mut column = 0;
        for l in layers {
            let (w, outputs) = (source(l.weight.in_order()?), l.weight.rows());
            parts.push(OutputColumns { w, bias: l.bias.as_ref().map(Mat::new), outputs, column });
            column += outputs;
        }
        Some(parts)
    }
}

impl Cpu {
    /// y = x Wᵀ + b, with the outputs of several layers side by side: quantizes the rows of `x` (after `norm`) and
    /// multiplies them with the packed panels, by GEMV if they are few, else by GEMM.
    pub(crate) fn linear_layers(
        &self,
        x: &Tensor<Cpu>,
        norm: Option<&Norm<Cpu>>,
        layers: &[OutputColumns<'_>],
        epilogue: Epilogue<'_, Cpu>,
    ) -> Result<Tensor<Cpu>> {
        let input = self.input(x, norm, layers.iter().map(|l| &l.w))?;
        let out = self.alloc(DType::F32, x.rows(), layers.iter().map(|l| l.outputs).sum())?;
        self.run_linear(&self.linear_tasks(&input, layers, &out, epilogue), |_| ());
        Ok(out)
    }

    /// All heads in one phase: their inputs are quantized head by head as rows of one matrix, and each head's layer
    /// multiplies its rows.
    pub(crate) fn linear_by_head(
        &self,
        op: &LinearHeads<'_, Cpu>,
        layers: &[OutputColumns<'_>],
    ) -> Result<Tensor<Cpu>> {
        let (rows, heads, outputs) = (op.x.rows(), op.weights.len(), op.outputs());
        let (head_dim, out_dim, inputs, copied) = (op.head_dim, op.out_dim(), &op.inputs, &op.copied);
        let x = Mat::<f32>::new(op.x);
        let of_head = |row: usize, head: usize, columns: &Range<usize>| {
            &x.row(row)[head * head_dim + columns.start..head * head_dim + columns.end]
        };
        let row = |at: usize| of_head(at % rows, at / rows, inputs);
        let input =
            self.input_by_rows(heads * rows, inputs.len(), row, layers.iter().map(|layer| &layer.w))?;
        let products = self.alloc(DType::F32, heads * rows, outputs)?; // [heads * rows, outputs]
        let mut tasks = Vec::with_capacity(heads);
        for (head, layer) in layers.iter().enumerate() {
            let (product, rows) = (input.times(self.kernels, layer.w), head * rows..(head + 1) * rows);
            let mut task = LinearTask::plain(product, rows, MatMut::new(&products));
            task.output.bias = layer.bias;
            tasks.push(task);
        }
        self.run_linear(&tasks, |_| ());
        let products = Mat::<f32>::new(&products);
        self.by_rows(rows, heads * out_dim, |_, r, out| {
            for (head, out) in out.chunks_exact_mut(out_dim.max(1)).enumerate() {
                let (same, product) = out.split_at_mut(copied.len());
                same.copy_from_slice(of_head(r, head, copied));
                product.copy_from_slice(products.row(head * rows + r));
            }
        })
    }

    /// One task for each layer: all of its outputs, for all rows.
    pub(crate) fn linear_tasks<'a>(
        &self,
        x: &'a LinearInput,
        layers: &[OutputColumns<'a>],
        out: &'a Tensor<Cpu>,
        epilogue: Epilogue<'a, Cpu>,
    ) -> Vec<LinearTask<'a>> {
        let (out, residual) = (MatMut::new(out), epilogue.residual.map(Mat::new));
        let Epilogue { scale, softcap, .. } = epilogue;
        let mut tasks = Vec::with_capacity(layers.len());
        for layer in layers {
            let (product, out) = (x.times(self.kernels, layer.w), out.columns(layer.columns()));
            let mut task = LinearTask::plain(product, 0..x.rows, out);
            task.output = OutputTask { bias: layer.bias, scale, softcap, residual, ..task.output };
            tasks.push(task);
        }
        tasks
    }

    /// Computes all outputs of the tasks, split into pieces. Every piece begins with `first`.
    pub(crate) fn run_linear(&self, tasks: &[LinearTask<'_>], first: impl Fn(&mut LinearScratch) + Sync) {
        let piece = self.piece(tasks.iter().map(LinearTask::outputs).sum());
        let count = |task: &LinearTask<'_>| task.outputs().div_ceil(piece);
        let cost = tasks.iter().map(LinearTask::cost).sum();
        self.share(tasks.iter().map(count).sum(), cost, |scratch, mut i| {
            first(&mut scratch.linear);
            for task in tasks {
                if i < count(task) {
                    let outputs = i * piece..task.outputs().min((i + 1) * piece);
                    return linear(self.kernels, task, outputs, &mut scratch.linear);
                }
                i -= count(task);
            }
        });
    }

    /// Outputs per piece: whole pairs of panels, enough to be worth taking, few enough to balance the threads.
    pub(crate) fn piece(&self, outputs: usize) -> usize {
        (outputs / (16 * self.pool.threads())).next_multiple_of(PAIR).clamp(PAIR, 8 * PAIR)
    }
}
