//! Products with stacks of weights: linear layers of heads, and the layers of experts. The kernels are in `stacked.cu`,
//! `stacked_products.cuh` and `stacked_sixteen.cuh`.

use tallow_core::ops::LinearHeads;
use tallow_core::{Activation, Arithmetic, Result, Tensor};

use super::layers::{Rounded, Sixteens};
use super::products::Products;
use super::rowwise::{NO_ACTIVATION, activation};
use crate::args::Args;
use crate::device::Cuda;
use crate::gpu::Launch;
use crate::kernels::Kernel;
use crate::weights::{Sixteen, Stacked};

/// Threads of a CTA.
const THREADS: u32 = 256;
/// Inputs that share a scale.
pub(super) const CHUNK: usize = 256;
/// Bytes of the sums of a chunk of a row.
pub(super) const SUMS: usize = 64;
/// Outputs of a panel.
const PANEL: usize = 16;
/// Outputs of a CTA of an exact kernel.
const OUTPUTS: usize = 32;
/// Panels of a CTA with input in 8 bits.
const JOBS: usize = 4;
/// Panels of a CTA with input in 16 bits, of few rows and of many.
const PANELS: [usize; 2] = [4, 2];
/// Rows of a CTA: few, or many. Exact kernels are for one or few.
pub(super) const FEW: usize = 8;
pub(super) const MANY: usize = 32;

/// Lists of the rows that experts take: `Routed` of the kernels. `top_k` is 0 if x has a row for each slot.
#[derive(Clone, Copy)]
pub(super) struct Routed {
    pub tiles: u64,
    pub pairs: u64,
    pub weights: u64,
    pub top_k: usize,
}

impl Routed {
    pub(super) fn arg(self, args: Args) -> Args {
        args.wide(self.tiles).wide(self.pairs).wide(self.weights).word(self.top_k).word(0)
    }
}

/// The rows that are multiplied with each weight.
#[derive(Clone, Copy)]
pub(super) enum Rows<'a> {
    /// Tiles of rows that experts take, and how many rows a tile has at most.
    Routed { routed: Routed, tiles: usize, tile: usize },
    /// All of them, some columns for each head.
    Heads(&'a LinearHeads<'a, Cuda>),
}

/// The input of experts slot by slot, rounded: in 8 bits, in bf16 and in f16, as their layers take it.
#[derive(Default)]
pub(super) struct RoundedSlots {
    pub eights: Option<Rounded>,
    pub sixteens: [Option<Sixteens>; 2],
}

/// Products with the weights of a stack, or of two side by side.
pub(super) struct Product<'a> {
    pub first: &'a Stacked<'a>,
    /// The layer up, if the first is the gate.
    pub second: Option<&'a Stacked<'a>>,
    pub x: &'a Tensor<Cuda>,
    /// What is not there is rounded by the kernels that need it so.
    pub rounded: &'a RoundedSlots,
    /// Outputs of the gate, if the first is the layer up.
    pub gate: Option<&'a Tensor<Cuda>>,
    pub act: Option<Activation>,
    pub rows: Rows<'a>,
    pub out: &'a Tensor<Cuda>,
}

impl Cuda {
    /// The kernels that multiply such weights in this device's arithmetic.
    pub(super) fn stacked_products(&self, stack: &Stacked<'_>) -> Products {
        if self.arithmetic != Arithmetic::Fast {
            return Products::Exact;
        }
        let eights = stack.products().map(Products::Eights);
        eights.or_else(|| stack.sixteen().map(Products::Sixteens)).unwrap_or(Products::Exact)
    }

    pub(super) fn multiply_stacked(&self, product: &Product<'_>) -> Result<()> {
        let Product { first, second, rounded, rows, out, .. } = *product;
        let products = self.stacked_products(first);
        let most = match rows {
            Rows::Routed { tile, .. } => tile,
            Rows::Heads(_) => out.rows(),
        };
        let (name, width) = match products {
            Products::Exact if most > 1 => ("stacked_8", FEW),
            Products::Exact => ("stacked_1", 1),
            _ if most > FEW => ("stacked_32", MANY),
            _ => ("stacked_8", FEW),
        };
        let stacks = if second.is_some() { 2 } else { 1 };
        let [y, z] = match rows {
            Rows::Routed { tiles, .. } => [tiles, most.div_ceil(width)],
            Rows::Heads(op) => [out.rows().div_ceil(width), op.weights.len()],
        };
        let args = arg(first.weights_arg(Args::new()), product);
        let (module, outputs, shared, args) = match products {
            Products::Exact => ("stacked", OUTPUTS, 0, args),
            Products::Eights(module) => {
                let (kept, bytes) = room(width, first.cols().div_ceil(CHUNK));
                let rounded = rounded.eights.as_ref();
                let args = args
                    .optional_pointer(rounded.map(|rounded| &rounded.codes))
                    .optional_pointer(rounded.map(|rounded| &rounded.sums))
                    .optional_pointer(rounded.map(|rounded| &rounded.scales))
                    .word(kept);
                (module, PANEL * JOBS / stacks, bytes as u32, args)
            }
            Products::Sixteens(Sixteen { module, is_f16 }) => {
                let rounded = rounded.sixteens[usize::from(is_f16)].as_ref();
                let args = args
                    .optional_pointer(rounded.map(|rounded| &rounded.rows))
                    .optional_pointer(rounded.and_then(|rounded| rounded.factors.as_ref()));
                (module, PANEL * PANELS[usize::from(width == MANY)] / stacks, 0, args)
            }
        };
        let kernel = Kernel { module, name };
        let grid = [first.rows().div_ceil(outputs) as u32, y as u32, z as u32];
        self.gpu.launch(&Launch { kernel, grid, block: THREADS, shared, args })
    }

    /// All heads in one launch.
    pub(crate) fn linear_heads_into(
        &self,
        op: &LinearHeads<'_, Cuda>,
        weights: &Stacked<'_>,
        out: &Tensor<Cuda>,
    ) -> Result<()> {
        self.multiply_stacked(&Product {
            first: weights,
            second: None,
            x: op.x,
            rounded: &RoundedSlots::default(),
            gate: None,
            act: None,
            rows: Rows::Heads(op),
            out,
        })
    }
}

/// Chunks that a CTA with so many rows has at a time, and the shared memory for them.
fn room(rows: usize, chunks: usize) -> (usize, usize) {
    // With 8 rows a chunk for each warp, with more as many as there is room for.
    let kept = chunks.min(if rows == FEW { 8 } else { 2 });
    let row = (CHUNK + 64) + (SUMS + 16) + 4 + JOBS * 20 * 4;
    (kept, kept * rows * row + JOBS * rows * PANEL * 4)
}

/// `Stacked` of the kernels.
fn arg(args: Args, product: &Product<'_>) -> Args {
    let args = Stacked::arg(Some(product.first), args);
    let args = Stacked::arg(product.second, args);
    let args = match product.rows {
        Rows::Routed { routed, .. } => routed.arg(args),
        Rows::Heads(_) => Routed { tiles: 0, pairs: 0, weights: 0, top_k: 0 }.arg(args),
    };
    let args = args.matrix(product.x).optional(product.gate).matrix(product.out);
    let args = args.wide(product.act.map_or(NO_ACTIVATION, activation) as u64);
    match product.rows {
        Rows::Routed { .. } => [0; 5].into_iter().fold(args, Args::wide),
        Rows::Heads(op) => {
            let columns = [op.inputs.start, op.head_dim, op.copied.len(), op.out_dim(), op.copied.start];
            columns.into_iter().fold(args, |args, n| args.wide(n as u64))
        }
    }
}
