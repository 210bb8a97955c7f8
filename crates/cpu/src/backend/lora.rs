//! LoRA deltas of linear layers: y += scale * B (A x). The A products come first in a phase; the B products are added
//! to the layers' own sums before the epilogue or the activation.

use std::ops::Range;
use std::rc::Rc;

use tallow_core::ops::{Ffn, Lora, LoraDelta, lora_deltas};
use tallow_core::{DType, LinearWeights, LoraRows, Memory, Result, Tensor, Weight};

use super::device::Cpu;
use super::ffn::activation_inputs;
use super::input::{LinearInput, QuantizedRows};
use super::linear::{OutputColumns, source};
use crate::gemm::Sums;
use crate::kernels::Kernels;
use crate::linear::{AddToSums, LinearScratch, LinearTask, MatrixSource, Product, add_product, linear};
use crate::mat::{Mat, MatMut};
use crate::pack::CHUNK;
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
    /// The same quantized, for B weights that take quantized rows.
    quantized_ax: Option<QuantizedRows>,
}

/// The product with `lora_a` of one adapter, for the rows that use it.
struct LoraAProduct<'a> {
    weight: &'a Rc<Weight<Cpu>>,
    w: MatrixSource<'a>,
    rows: Range<usize>,
    scale: f32,
    /// First column of its result in `ax`, and first chunk in `quantized_ax`.
    column: usize,
    chunk: usize,
}

impl LoraAProduct<'_> {
    fn columns(&self) -> Range<usize> {
        self.column..self.column + self.weight.rows()
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
        let (mut column, mut chunk) = (0, 0);
        for LoraDelta { layer, rows: of, pair, scale, .. } in lora_deltas(layers, adapters) {
            // Layers fused into one tensor share one A product.
            let same = |a: &LoraAProduct<'_>| Rc::ptr_eq(a.weight, &pair.a) && a.rows == of;
            let a = all.a.iter().position(same).unwrap_or(all.a.len());
            if a == all.a.len() {
                let weight = &pair.a;
                all.a.push(LoraAProduct { weight, w: source(weight), rows: of, scale, column, chunk });
                column += pair.rank();
                chunk += pair.rank().div_ceil(CHUNK);
            }
            all.b.push(LoraBProduct { layer, a, w: source(&pair.b) });
        }
        if !all.a.is_empty() {
            all.ax = Some(b.alloc(DType::F32, rows, column)?);
            let mut row_sums = all.b.iter().filter_map(|b_product| b.row_sums(&b_product.w)).peekable();
            let quantized =
                row_sums.peek().is_some().then(|| QuantizedRows::new(b, rows, chunk * CHUNK, row_sums));
            all.quantized_ax = quantized.transpose()?;
        }
        Ok(all)
    }

    /// The A weights, which are multiplied with the layers' input.
    fn a_weights(&self) -> impl Iterator<Item = &MatrixSource<'a>> + Clone {
        self.a.iter().map(|a| &a.w)
    }

    /// The products over the input `x` of the layers.
    fn over<'t>(&'t self, k: &'static Kernels, x: &'t LinearInput) -> LoraPhase<'t> {
        let writer = self.quantized_ax.as_ref().map(QuantizedRows::writer);
        let Some(ax) = &self.ax else {
            return LoraPhase { k, pieces: Vec::new(), writer, terms: Vec::new(), first: First::new(0) };
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
                pieces.push(Piece { task, ax: from.columns(a.columns()), chunk: a.chunk });
            }
        }
        for LoraBProduct { layer, a, w } in &self.b {
            let a = &self.a[*a];
            let quantized = self.quantized_ax.as_ref().and_then(|r| r.of(w.row_sums(k)?));
            let quantized = quantized.map(|r| r.after(a.chunk));
            let product = Product { w: *w, x: from.columns(a.columns()), quantized };
            terms.push(LoraTerm { layer: *layer, product, rows: a.rows.clone() });
        }
        LoraPhase { k, first: First::new(pieces.len()), pieces, writer, terms }
    }
}

/// An A product for some rows.
struct Piece<'a> {
    task: LinearTask<'a>,
    /// Its result, and the first chunk to which that is quantized, if it is.
    ax: Mat<'a, f32>,
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
    writer: Option<QuantizeOut<'a>>,
    /// Terms of the deltas, in the order of their layers.
    terms: Vec<LoraTerm<'a>>,
    first: First,
}

impl LoraPhase<'_> {
    /// Computes the A pieces that no thread has taken yet. Every piece of the phase begins with this.
    fn help(&self, scratch: &mut LinearScratch) {
        self.first.help(|i| {
            let Piece { task, ax, chunk } = &self.pieces[i];
            linear(self.k, task, 0..task.outputs(), scratch);
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
        tasks.iter_mut().zip(&by_layer).for_each(|(task, of)| task.delta = delta(of));
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
        inputs.iter_mut().zip(&by_layer).for_each(|(input, of)| input.delta = delta(of));
        self.run_gated_up(op, &inputs, |scratch| phase.help(scratch))
    }
}
