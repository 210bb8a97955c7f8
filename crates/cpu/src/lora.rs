//! LoRA deltas of linear layers: y += scale * B (A x). The A products come first in a phase; the B products are added
//! to the layers' own sums before the epilogue or the activation.

use std::ops::Range;
use std::rc::Rc;

use tallow_core::ops::{Lora, LoraDelta, lora_deltas};
use tallow_core::{Backend, DType, LinearWeights, LoraRows, Result, Tensor, Weight};

use crate::backend::Cpu;
use crate::kernels::{
    Kernels, LinearScratch, LinearTask, LoraTerm, LoraTerms, MatrixSource, Product, linear,
};
use crate::mat::{Mat, MatMut};
use crate::packed::CHUNK;
use crate::phases::{LinearInput, OutputColumns, source};
use crate::pool::First;
use crate::quantize::{QuantizeOut, QuantizedRows};

/// Rows per piece of an A product.
const TOGETHER: usize = 64;

/// LoRA deltas of the linear layers over one input.
#[derive(Default)]
pub(crate) struct LoraDeltas<'a> {
    ways: Vec<LoraAProduct<'a>>,
    /// In the order of their layers.
    ups: Vec<LoraBProduct<'a>>,
    /// [rows, ranks side by side]: scratch for the results of the A products.
    narrow: Option<Tensor<Cpu>>,
    /// The same quantized, for B weights that take quantized rows.
    rounded: Option<QuantizedRows>,
}

/// The product with `lora_a` of one adapter, for the rows that use it.
struct LoraAProduct<'a> {
    down: &'a Rc<Weight<Cpu>>,
    w: MatrixSource<'a>,
    rows: Range<usize>,
    scale: f32,
    /// First column of its result in `narrow`, and first chunk in `rounded`.
    column: usize,
    chunk: usize,
}

impl LoraAProduct<'_> {
    fn columns(&self) -> Range<usize> {
        self.column..self.column + self.down.rows()
    }
}

/// The product with `lora_b`, for one layer.
struct LoraBProduct<'a> {
    layer: usize,
    way: usize,
    w: MatrixSource<'a>,
}

impl<'a> LoraDeltas<'a> {
    /// The deltas of the adapters `with` to the layers `by`, for `rows` rows.
    pub(crate) fn new(
        b: &Cpu,
        by: &'a [LinearWeights<Cpu>],
        with: &'a [LoraRows<Cpu>],
        rows: usize,
    ) -> Result<LoraDeltas<'a>> {
        let mut all = LoraDeltas::default();
        if with.is_empty() {
            return Ok(all);
        }
        all.ways.reserve(by.len());
        all.ups.reserve(by.len());
        let (mut column, mut chunk) = (0, 0);
        for LoraDelta { layer, rows: of, pair, scale, .. } in lora_deltas(by, with) {
            // Layers fused into one tensor share one A product.
            let same = |way: &LoraAProduct<'_>| Rc::ptr_eq(way.down, &pair.a) && way.rows == of;
            let way = all.ways.iter().position(same).unwrap_or(all.ways.len());
            if way == all.ways.len() {
                let down = &pair.a;
                all.ways.push(LoraAProduct { down, w: source(down), rows: of, scale, column, chunk });
                column += pair.rank();
                chunk += pair.rank().div_ceil(CHUNK);
            }
            all.ups.push(LoraBProduct { layer, way, w: source(&pair.b) });
        }
        if !all.ways.is_empty() {
            all.narrow = Some(b.alloc(DType::F32, rows, column)?);
            let mut sides = all.ups.iter().filter_map(|up| b.row_sums(&up.w)).peekable();
            let rounded = sides.peek().is_some().then(|| QuantizedRows::new(b, rows, chunk * CHUNK, sides));
            all.rounded = rounded.transpose()?;
        }
        Ok(all)
    }

    /// The A weights, which are multiplied with the layers' input.
    pub(crate) fn lora_a(&self) -> impl Iterator<Item = &MatrixSource<'a>> + Clone {
        self.ways.iter().map(|way| &way.w)
    }

    /// The A products over the input `x`, as pieces of the layers' phase.
    pub(crate) fn over<'t>(&'t self, k: &'static Kernels, x: &'t LinearInput) -> LoraA<'t> {
        let rounding = self.rounded.as_ref().map(QuantizedRows::rounding);
        let Some(narrow) = &self.narrow else {
            return LoraA { k, pieces: Vec::new(), rounding, parts: Vec::new(), first: First::new(0) };
        };
        let count = self.ways.iter().map(|way| way.rows.len().div_ceil(TOGETHER)).sum();
        let (mut pieces, mut parts) = (Vec::with_capacity(count), Vec::with_capacity(self.ups.len()));
        let (to, from) = (MatMut::new(narrow), Mat::new(narrow));
        for way in &self.ways {
            let of = x.times(k, way.w);
            for first in way.rows.clone().step_by(TOGETHER) {
                let rows = first..way.rows.end.min(first + TOGETHER);
                let task = LinearTask::plain(of, rows, to.columns(way.columns()));
                let (task, given) = (LinearTask { scale: way.scale, ..task }, from.columns(way.columns()));
                pieces.push(Piece { task, given, chunk: way.chunk });
            }
        }
        for LoraBProduct { layer, way, w } in &self.ups {
            let way = &self.ways[*way];
            let rounded = self.rounded.as_ref().and_then(|r| r.of(w.row_sums(k)?));
            let rounded = rounded.map(|r| r.after(way.chunk));
            let of = Product { w: *w, x: from.columns(way.columns()), rounded };
            parts.push(LoraTerm { layer: *layer, of, rows: way.rows.clone() });
        }
        LoraA { k, first: First::new(pieces.len()), pieces, rounding, parts }
    }
}

/// An A product for some rows.
struct Piece<'a> {
    task: LinearTask<'a>,
    /// Its result, and the first chunk to which that is quantized, if it is.
    given: Mat<'a, f32>,
    chunk: usize,
}

/// A products as pieces of a phase whose other pieces need their results.
pub(crate) struct LoraA<'a> {
    k: &'static Kernels,
    pieces: Vec<Piece<'a>>,
    rounding: Option<QuantizeOut<'a>>,
    /// B products, in the order of their layers.
    parts: Vec<LoraTerm<'a>>,
    first: First,
}

impl LoraA<'_> {
    /// Computes the A pieces that no thread has taken yet. Every piece of the phase begins with this.
    pub(crate) fn help(&self, room: &mut LinearScratch) {
        self.first.help(|i| {
            let Piece { task, given, chunk } = &self.pieces[i];
            linear(self.k, task, 0..task.out.cols, room);
            if let Some(to) = &self.rounding {
                task.rows.clone().for_each(|row| (self.k.quantize)(to, row, *chunk, given.row(row)));
            }
        });
    }

    /// The B products to be added to `layer`.
    pub(crate) fn to(&self, layer: usize) -> LoraTerms<'_> {
        let before = |layer: usize| self.parts.partition_point(|part| part.layer < layer);
        let parts = &self.parts[before(layer)..before(layer + 1)];
        LoraTerms { parts, after: (!parts.is_empty()).then_some(&self.first) }
    }
}

impl Cpu {
    /// `parts`: the op's layers.
    pub(crate) fn linear_with_lora(
        &self,
        op: &Lora<'_, Cpu>,
        parts: &[OutputColumns<'_>],
    ) -> Result<Tensor<Cpu>> {
        let added = LoraDeltas::new(self, op.weights, op.adapters, op.x.rows())?;
        let x = self.input(op.x, op.norm, parts.iter().map(|p| &p.w).chain(added.lora_a()))?;
        let out = self.alloc(DType::F32, op.x.rows(), op.cols())?;
        self.multiply(&x, parts, &out, op.epilogue, &added.over(self.kernels, &x));
        Ok(out)
    }
}
