//! Linear layers that one launch computes, and the input that they share: the structs of `layers.cuh`.

use std::cell::OnceCell;
use std::ops::Range;

use tallow_core::ops::{Epilogue, IndexMode, IndexRows, Normalize};
use tallow_core::{Activation, Backend, LinearWeights, Norm, Result, Tensor, Weight};

use super::rowwise;
use crate::args::{Args, words};
use crate::device::Cuda;
use crate::kernels::Kernel;
use crate::weights;

/// Layers of a launch, at most.
const PARTS: usize = 4;

/// Outputs of a layer.
#[derive(Clone)]
pub(super) struct Part<'a> {
    pub weight: &'a Weight<Cuda>,
    /// The input that each of its columns multiplies, if not one after the other.
    pub order: Option<&'a Tensor<Cuda>>,
    bias: Option<Tensor<Cuda>>,
    /// Rows of the weight.
    rows: Range<usize>,
    /// The column of the result that has the first of them.
    column: usize,
}

/// Join of the outputs of layers to columns of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// Side by side.
    SideBySide,
    /// Side by side, after an activation.
    Activated(Activation),
    /// The activation of the first layer's outputs, times those of the second.
    Gated(Activation),
}

/// Layers whose weights lie alike.
pub(super) struct Layers<'a> {
    pub parts: &'a [Part<'a>],
    pub join: Join,
    pub epilogue: Epilogue<'a, Cuda>,
}

/// Rows of an input, rounded.
pub(super) struct Rounded {
    pub codes: Tensor<Cuda>,
    pub sums: Tensor<Cuda>,
    pub scales: Tensor<Cuda>,
}

/// Rows of an input, rounded to 16 bits: whole segments of each, and of f16 a factor for each segment.
pub(super) struct Sixteens {
    pub rows: Tensor<Cuda>,
    pub factors: Option<Tensor<Cuda>>,
}

/// An input of layers: rows of a tensor, or those of its rows that are named, normalized or not. It is computed, or rounded, when
/// the first layer takes it so.
pub(super) struct Input<'a> {
    x: &'a Tensor<Cuda>,
    indices: Option<&'a Tensor<Cuda>>,
    /// The order in which layers take its columns.
    order: Option<&'a Tensor<Cuda>>,
    norm: Option<&'a Norm<Cuda>>,
    computed: OnceCell<Tensor<Cuda>>,
    rounded: OnceCell<Rounded>,
    /// In bf16, and in f16.
    sixteens: [OnceCell<Sixteens>; 2],
}

impl<'a> Part<'a> {
    pub(super) fn of(layer: &'a LinearWeights<Cuda>) -> Part<'a> {
        let (weight, order) = weights::in_any_order(&layer.weight);
        Part { weight, order, bias: layer.bias.clone(), rows: 0..weight.rows(), column: 0 }
    }

    /// Layers whose outputs lie side by side.
    pub(super) fn side_by_side(layers: &'a [LinearWeights<Cuda>]) -> Vec<Part<'a>> {
        let mut column = 0;
        let part = |layer| {
            let part = Part { column, ..Part::of(layer) };
            column += part.outputs();
            part
        };
        layers.iter().map(part).collect()
    }

    /// A gate and up, in two layers or in one, whose outputs share their columns. `None` if they do not begin where a kernel can.
    pub(super) fn gate_and_up(layers: &'a [LinearWeights<Cuda>], width: usize) -> Option<Vec<Part<'a>>> {
        match layers {
            [both] => {
                let both = Part::of(both);
                weights::address_of_row(both.weight, width)?;
                let half = |rows: Range<usize>| {
                    let bias = both.bias.as_ref().map(|bias| bias.col_range(rows.clone()));
                    Part { bias, rows, ..both }
                };
                Some(vec![half(0..width), half(width..2 * width)])
            }
            [gate, up] => {
                let parts = vec![Part::of(gate), Part::of(up)];
                parts.iter().all(|part| part.outputs() == width).then_some(parts)
            }
            _ => None,
        }
    }

    pub(super) fn outputs(&self) -> usize {
        self.rows.len()
    }

    /// Layers by how their weights lie and the order of their inputs, as many together as a launch takes.
    pub(super) fn groups(parts: Vec<Part<'a>>) -> Vec<Vec<Part<'a>>> {
        let are_alike =
            |a: &Part<'_>, b: &Part<'_>| weights::lie_alike(a.weight, b.weight) && are_same(a.order, b.order);
        if (1..=PARTS).contains(&parts.len()) && parts.iter().all(|part| are_alike(&parts[0], part)) {
            return vec![parts];
        }
        let mut groups: Vec<Vec<Part<'_>>> = Vec::new();
        for part in parts {
            let is_like = |group: &&mut Vec<Part<'_>>| group.len() < PARTS && are_alike(&group[0], &part);
            match groups.iter_mut().find(is_like) {
                Some(group) => group.push(part),
                None => groups.push(vec![part]),
            }
        }
        groups
    }
}

impl Layers<'_> {
    /// The weight whose form all of them have.
    pub(super) fn form(&self) -> &Weight<Cuda> {
        self.parts[0].weight
    }

    /// Groups of `each` outputs that are columns of the result.
    pub(super) fn groups_of(&self, each: usize) -> usize {
        let counted = if self.is_gated() { 1 } else { self.parts.len() };
        self.parts[..counted].iter().map(|part| part.outputs().div_ceil(each)).sum()
    }

    pub(super) fn is_gated(&self) -> bool {
        matches!(self.join, Join::Gated(_))
    }

    /// `Layers` in the kernels.
    pub(super) fn arg(&self, args: Args) -> Args {
        let mut args = weights::arg(args, self.form());
        for i in 0..PARTS {
            args = match self.parts.get(i) {
                Some(Part { weight, bias, rows, column, .. }) => {
                    let at = weights::address_of_row(weight, rows.start).unwrap_or_default();
                    let [bias, above] = words(bias.as_ref().map_or(0, Cuda::address));
                    args.wide_and(at, [bias, above, rows.len() as u32, *column as u32])
                }
                None => args.wide_and(0, [0; 4]),
            };
        }
        let act = match self.join {
            Join::SideBySide => rowwise::NO_ACTIVATION,
            Join::Activated(act) | Join::Gated(act) => rowwise::activation(act),
        };
        args.word(act).flag(self.is_gated())
    }

    /// `Finish` in the kernels, for this result.
    pub(super) fn finish(&self, args: Args, out: &Tensor<Cuda>) -> Args {
        let Epilogue { scale, softcap, residual } = self.epilogue;
        args.optional(residual).matrix(out).float(scale).float(softcap.unwrap_or(0.0))
    }
}

impl<'a> Input<'a> {
    pub(super) fn new(x: &'a Tensor<Cuda>, norm: Option<&'a Norm<Cuda>>) -> Input<'a> {
        let (computed, rounded, sixteens) = Default::default();
        Input { x, indices: None, order: None, norm, computed, rounded, sixteens }
    }

    /// Rows of a tensor by their indices.
    pub(super) fn rows_of(
        x: &'a Tensor<Cuda>,
        indices: &'a Tensor<Cuda>,
        norm: Option<&'a Norm<Cuda>>,
    ) -> Input<'a> {
        Input { indices: Some(indices), ..Input::new(x, norm) }
    }

    /// The same for layers that take its columns in this order.
    pub(super) fn ordered(self, order: Option<&'a Tensor<Cuda>>) -> Input<'a> {
        if are_same(self.order, order) {
            return self;
        }
        let (rounded, sixteens) = Default::default();
        Input { order, rounded, sixteens, ..self }
    }

    pub(super) fn rows(&self) -> usize {
        self.indices.map_or(self.x.rows(), Tensor::cols)
    }

    pub(super) fn cols(&self) -> usize {
        self.x.cols()
    }

    /// True if layers take its columns in another order than its own.
    pub(super) fn has_order(&self) -> bool {
        self.order.is_some()
    }

    /// True if it takes kernels of its own to compute it.
    fn is_grouped(&self) -> bool {
        self.norm.is_some_and(|norm| norm.weight.cols() != self.x.cols())
    }

    /// `Inputs` in the kernels.
    pub(super) fn arg(&self, args: Args) -> Args {
        match self.computed.get() {
            Some(x) => rowwise::norm(args.matrix(x).wide(0).optional_pointer(self.order), None),
            None => {
                let args = args.matrix(self.x).optional_pointer(self.indices).optional_pointer(self.order);
                rowwise::norm(args, self.norm)
            }
        }
    }

    /// The kernel of a module that rounds few rows of it; `None` if there is none for columns in its order.
    pub(super) fn kernel_of_few(&self, module: &'static str) -> Option<Kernel> {
        match self.order {
            None => Some(Kernel { module, name: "products_few" }),
            Some(_) => Some(Kernel { module, name: "products_few_in_order" }).filter(Kernel::is_there),
        }
    }

    /// True if a kernel that reads it normalizes rows.
    pub(super) fn has_norm(&self) -> bool {
        self.norm.is_some() && self.computed.get().is_none()
    }

    /// It, rounded.
    pub(super) fn rounded(&self, b: &Cuda) -> Result<&Rounded> {
        if let Some(rounded) = self.rounded.get() {
            return Ok(rounded);
        }
        let rounded = b.round(self)?;
        Ok(self.rounded.get_or_init(|| rounded))
    }

    /// It, rounded to f16 or to bf16.
    pub(super) fn sixteens(&self, b: &Cuda, is_f16: bool) -> Result<&Sixteens> {
        let cell = &self.sixteens[usize::from(is_f16)];
        if let Some(sixteens) = cell.get() {
            return Ok(sixteens);
        }
        let sixteens = b.round_to_sixteen(self, is_f16)?;
        Ok(cell.get_or_init(|| sixteens))
    }

    /// Computes what a kernel would otherwise compute when it reads rows. Columns stay where they are.
    pub(super) fn compute(&self, b: &Cuda) -> Result<()> {
        if self.computed.get().is_some() || self.indices.is_none() && self.norm.is_none() {
            return Ok(());
        }
        let gathered = match self.indices {
            Some(indices) => Some(b.run(IndexRows { x: self.x, indices, mode: IndexMode::Gather })?),
            None => None,
        };
        let x = gathered.as_ref().unwrap_or(self.x);
        let x = match self.norm {
            Some(norm) => b.run(Normalize { x, norm, residual: None })?,
            None => x.clone(),
        };
        self.computed.get_or_init(|| x);
        Ok(())
    }

    /// Computes it if a kernel that reads rows cannot.
    pub(super) fn compute_if_grouped(&self, b: &Cuda) -> Result<()> {
        if self.is_grouped() { self.compute(b) } else { Ok(()) }
    }
}

/// True if both name the same columns, or none.
fn are_same(a: Option<&Tensor<Cuda>>, b: Option<&Tensor<Cuda>>) -> bool {
    a.map(Cuda::address) == b.map(Cuda::address)
}
