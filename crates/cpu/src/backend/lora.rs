//! LoRA deltas of linear layers: y += B (scale * A x). The A products come first in a phase; the B products are added
//! to the layers' own sums before the epilogue or the activation.

use std::ops::Range;
use std::rc::Rc;

use half::bf16;
use tallow_core::ops::{Ffn, Lora, LoraDelta, lora_deltas};
use tallow_core::{DType, LinearWeights, LoraRows, Memory, Result, Tensor, Weight};

use super::device::Cpu;
use super::ffn::activation_inputs;
use super::input::{Bf16Rows, LinearInput, QuantizedRows};
use super::linear::{OutputColumns, source};
use crate::gemm::Sums;
use crate::kernels::Kernels;
use crate::linear::{
    AddToSums, InputType, LinearScratch, LinearTask, MatrixSource, Product, add_product, linear,
};
use crate::mat::{Mat, MatMut};
use crate::pack::{CHUNK, SUBBLOCK};
use crate::pool::First;
use crate::quantize::QuantizeOut;

/// Rows per piece of an A product.
const PIECE_ROWS: usize = 64;

/// LoRA deltas of the linear layers over one input.
#[derive(Default)]
struct LoraDeltas<'a> {
    a: Vec<LoraAProduct<'a>>,
    /// Products with `lora_b`, in the order of their layers.
    b: Vec<LoraBProduct<'a>>,
    /// [rows, ranks side by side]: scratch for the results of the A products.
    ax: Option<Tensor<Cpu>>,
    /// The same in bf16, and quantized, for B weights that take it so.
    bf16_ax: Option<Bf16Rows>,
    quantized_ax: Option<QuantizedRows>,
}

/// The product with `lora_a` of one adapter, for the rows that use it.
struct LoraAProduct<'a> {
    weight: &'a Rc<Weight<Cpu>>,
    w: MatrixSource<'a>,
    rows: Range<usize>,
    scale: f32,
    /// First column of its result in `ax`, first sub-block in `bf16_ax`, and first chunk in `quantized_ax`.
    column: usize,
    subblock: usize,
    chunk: usize,
}

impl LoraAProduct<'_> {
    fn columns(&self) -> Range<usize> {
        self.column..self.column + self.weight.rows()
    }

    fn bf16_columns(&self) -> Range<usize> {
        let first = self.subblock * SUBBLOCK;
        first..first + self.weight.rows().next_multiple_of(SUBBLOCK)
    }
}

/// The product with `lora_b`, for one layer.
struct LoraBProduct<'a> {
    layer: usize,
    /// Index of its A product.
    a: usize,
    w: MatrixSource<'a>,
}

impl<'a> LoraDeltas<'a> {
    /// The deltas of `adapters` to `layers`, for `rows` rows.
    fn new(
        b: &Cpu,
        layers: &'a [LinearWeights<Cpu>],
        adapters: &'a [LoraRows<Cpu>],
        rows: usize,
    ) -> Result<LoraDeltas<'a>> {
        let mut all = LoraDeltas::default();
        all.a.reserve(layers.len());
        all.b.reserve(layers.len());
        let (mut column, mut subblock, mut chunk) = (0, 0, 0);
        for LoraDelta { layer, rows: of, pair, scale, .. } in lora_deltas(layers, adapters) {
            // Layers fused into one tensor share one A product.
            let same =
                |a: &LoraAProduct<'_>| Rc::ptr_eq(a.weight, &pair.a) && a.rows == of && a.scale == scale;
            let a = all.a.iter().position(same).unwrap_or(all.a.len());
            if a == all.a.len() {
                let weight = &pair.a;
                let w = source(weight);
                all.a.push(LoraAProduct { weight, w, rows: of, scale, column, subblock, chunk });
                column += pair.rank();
                subblock += pair.rank().div_ceil(SUBBLOCK);
                chunk += pair.rank().div_ceil(CHUNK);
            }
            all.b.push(LoraBProduct { layer, a, w: source(&pair.b) });
        }
        if !all.a.is_empty() {
            all.ax = Some(b.alloc(DType::F32, rows, column)?);
            let types = || all.b.iter().map(|b_product| b.input_type(&b_product.w));
            let takes_bf16 = types().any(|of| of == InputType::Bf16);
            let bf16 = takes_bf16.then(|| Bf16Rows::new(b, rows, subblock * SUBBLOCK));
            let mut row_sums = types().filter_map(InputType::row_sums).peekable();
            let quantized =
                row_sums.peek().is_some().then(|| QuantizedRows::new(b, rows, chunk * CHUNK, row_sums));
            (all.bf16_ax, all.quantized_ax) = (bf16.transpose()?, quantized.transpose()?);
        }
        Ok(all)
    }

    /// The A weights, which are multiplied with the layers' input.
    fn a_weights(&self) -> impl Iterator<Item = &MatrixSource<'a>> + Clone {
        self.a.iter().map(|a| &a.w)
    }

    /// The products over the input `x` of the layers.
    fn over<'t>(&'t self, k: &'static Kernels, x: &'t LinearInput) -> LoraPhase<'t> {
        let bf16_writer = self.bf16_ax.as_ref().map(Bf16Rows::writer);
        let writer = self.quantized_ax.as_ref().map(QuantizedRows::writer);
        let Some(ax) = &self.ax else {
            let (pieces, terms) = (Vec::new(), Vec::new());
            return LoraPhase { k, pieces, bf16_writer, writer, terms, first: First::new(0) };
        };
        let count = self.a.iter().map(|a| a.rows.len().div_ceil(PIECE_ROWS)).sum();
        let (mut pieces, mut terms) = (Vec::with_capacity(count), Vec::with_capacity(self.b.len()));
        let (to, from) = (MatMut::new(ax), Mat::new(ax));
        for a in &self.a {
            let product = x.times(k, a.w);
            for first in a.rows.clone().step_by(PIECE_ROWS) {
                let rows = first..a.rows.end.min(first + PIECE_ROWS);
                let mut task = LinearTask::plain(product, rows, to.columns(a.columns()));
                task.output.scale = a.scale;
                let (ax, bf16) = (from.columns(a.columns()), a.bf16_columns());
                pieces.push(Piece { task, ax, bf16, chunk: a.chunk });
            }
        }
        for LoraBProduct { layer, a, w } in &self.b {
            let a = &self.a[*a];
            let (mut bf16, mut quantized) = (None, None);
            match w.input(k) {
                InputType::F32 => {}
                InputType::Bf16 => {
                    bf16 = self.bf16_ax.as_ref().map(|rows| rows.view().columns(a.bf16_columns()));
                }
                InputType::Quantized(sums) => {
                    let rows = self.quantized_ax.as_ref().and_then(|rows| rows.of(sums));
                    quantized = rows.map(|rows| rows.after(a.chunk));
                }
            }
            let product = Product { w: *w, x: from.columns(a.columns()), bf16, quantized, delta: None };
            terms.push(LoraTerm { layer: *layer, product, rows: a.rows.clone() });
        }
        LoraPhase { k, first: First::new(pieces.len()), pieces, bf16_writer, writer, terms }
    }
}

/// An A product for some rows.
struct Piece<'a> {
    task: LinearTask<'a>,
    /// Its result, the columns to which that is rounded, and the first chunk to which it is quantized, if it is.
    ax: Mat<'a, f32>,
    bf16: Range<usize>,
    chunk: usize,
}

/// The product with `lora_b` of one adapter, added to the sums of some rows.
struct LoraTerm<'a> {
    /// Index of the layer.
    layer: usize,
    /// Has the outputs of the layer, and all rows of the input.
    product: Product<'a>,
    rows: Range<usize>,
}

/// A products as pieces of a phase whose other pieces need their results, and B products, which those pieces add.
struct LoraPhase<'a> {
    k: &'static Kernels,
    pieces: Vec<Piece<'a>>,
    bf16_writer: Option<MatMut<'a, bf16>>,
    writer: Option<QuantizeOut<'a>>,
    /// Terms of the deltas, in the order of their layers.
    terms: Vec<LoraTerm<'a>>,
    first: First,
}

impl LoraPhase<'_> {
    /// Computes the A pieces that no thread has taken yet. Every piece of the phase begins with this.
    fn help(&self, scratch: &mut LinearScratch) {
        self.first.help(|i| {
            let Piece { task, ax, bf16, chunk } = &self.pieces[i];
            linear(self.k, task, 0..task.outputs(), scratch);
            if let Some(to) = &self.bf16_writer {
                for row in task.rows.clone() {
                    // SAFETY: nobody else has this piece, and no piece has another's rows and columns.
                    (self.k.to_bf16)(ax.row(row), unsafe { to.part(row, bf16.clone()) });
                }
            }
            if let Some(to) = &self.writer {
                task.rows.clone().for_each(|row| (self.k.quantize)(to, row, *chunk, ax.row(row)));
            }
        });
    }

    /// For each layer, the B products to be added to its sums; `None` where there are none.
    fn by_layer(&self, layers: usize) -> Vec<Option<LayerDelta<'_>>> {
        let before = |layer: usize| self.terms.partition_point(|term| term.layer < layer);
        let of = |layer: usize| {
            let terms = &self.terms[before(layer)..before(layer + 1)];
            (!terms.is_empty()).then_some(LayerDelta { terms, first: &self.first })
        };
        (0..layers).map(of).collect()
    }
}

/// The B products that are added to the sums of one layer.
struct LayerDelta<'a> {
    terms: &'a [LoraTerm<'a>],
    /// The A products, which must be done before these products can start.
    first: &'a First,
}

impl AddToSums for LayerDelta<'_> {
    /// LoRA weights are small and lie elsewhere, so their reads would stall.
    fn prefetch(&self, pair: usize) {
        self.terms.iter().for_each(|term| term.product.w.prefetch(pair));
    }

    fn add(
        &self,
        k: &Kernels,
        pair: usize,
        rows: Range<usize>,
        scratch: &mut LinearScratch,
        sums: &mut [Sums],
    ) {
        self.first.wait();
        for term in self.terms {
            let some = term.rows.start.max(rows.start)..term.rows.end.min(rows.end);
            if !some.is_empty() {
                let sums = &mut sums[some.start - rows.start..some.end - rows.start];
                add_product(k, &term.product, pair, some, scratch, sums);
            }
        }
    }
}

/// One of the deltas as the linear layers take it.
fn delta<'a>(of: &'a Option<LayerDelta<'_>>) -> Option<&'a dyn AddToSums> {
    of.as_ref().map(|delta| -> &dyn AddToSums { delta })
}

impl Cpu {
    /// [`Cpu::linear_layers`] plus the deltas of the adapters. `layers`: those of the op.
    pub(crate) fn linear_with_lora(
        &self,
        op: &Lora<'_, Cpu>,
        layers: &[OutputColumns<'_>],
    ) -> Result<Tensor<Cpu>> {
        let deltas = LoraDeltas::new(self, op.weights, op.adapters, op.x.rows())?;
        let x = self.input(op.x, op.norm, layers.iter().map(|l| &l.w).chain(deltas.a_weights()))?;
        let out = self.alloc(DType::F32, op.x.rows(), op.cols())?;
        let phase = deltas.over(self.kernels, &x);
        let by_layer = phase.by_layer(layers.len());
        let mut tasks = self.linear_tasks(&x, layers, &out, op.epilogue);
        tasks.iter_mut().zip(&by_layer).for_each(|(task, of)| task.product.delta = delta(of));
        self.run_linear(&tasks, |scratch| phase.help(scratch));
        Ok(out)
    }

    /// [`Cpu::gated_up`] plus the deltas of the adapters.
    pub(crate) fn gated_up_with_lora(
        &self,
        op: &Ffn<'_, Cpu>,
        layers: &[OutputColumns<'_>],
    ) -> Result<Tensor<Cpu>> {
        let deltas = LoraDeltas::new(self, op.up, op.adapters, op.x.rows())?;
        let x = self.input(op.x, op.norm, layers.iter().map(|l| &l.w).chain(deltas.a_weights()))?;
        let phase = deltas.over(self.kernels, &x);
        let by_layer = phase.by_layer(layers.len());
        let mut inputs = activation_inputs(self.kernels, &x, layers);
        inputs.iter_mut().zip(&by_layer).for_each(|(input, of)| input.product.delta = delta(of));
        self.run_gated_up(op, &inputs, |scratch| phase.help(scratch))
    }
}
