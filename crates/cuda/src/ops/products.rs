//! Products with weights in blocks in [`Arithmetic::Fast`]: the input is rounded to 8 bits, and multiplied by tensor cores. The kernels
//! are in `quantize.cu` and `products.cuh`.

use std::cell::OnceCell;

use tallow_core::ops::{Epilogue, LinearMany, Normalize};
use tallow_core::{Arithmetic, Backend, DType, LinearWeights, Memory, Result, Tensor, Weight, compose};

use crate::args::Args;
use crate::device::Cuda;
use crate::gpu::Launch;
use crate::kernels::Kernel;
use crate::weights;

/// A product of an input with a weight.
pub(super) struct Product<'a> {
    pub weight: &'a Weight<Cuda>,
    pub bias: Option<&'a Tensor<Cuda>>,
    pub epilogue: Epilogue<'a, Cuda>,
}

/// Threads of a CTA.
const THREADS: u32 = 256;
/// Rows that a CTA of `quantize` rounds.
const ROUNDED_ROWS: usize = 8;
/// Outputs of a panel.
const PANEL: usize = 16;
/// Inputs that share a scale.
const CHUNK: usize = 256;
/// Bytes of the sums of a chunk of a row.
const SUMS: usize = 64;
/// The room in shared memory for the products of a row of x with a panel.
const ROW: usize = 20 * 4;
/// Shared memory for products of chunks, at most.
const SHARED: usize = 40 << 10;
/// Chunks that a CTA's warps multiply at a time.
const WARPS: usize = THREADS as usize / 32;
/// Numbers of rows that there are kernels for, and their names.
const TILES: [(usize, &str); 4] =
    [(8, "products_8"), (16, "products_16"), (32, "products_32"), (64, "products_64")];

/// Rows of x and the kernel that multiplies them: the first of them, how many the kernel takes, and how many times.
struct Tile {
    first: usize,
    rows: usize,
    times: usize,
    kernel: &'static str,
}

/// How some rows are multiplied: as many as possible at once, and the rest by the smallest kernel that takes it.
fn tiles(rows: usize) -> impl Iterator<Item = Tile> {
    let (most, kernel) = TILES[TILES.len() - 1];
    let whole = Tile { first: 0, rows: most, times: rows / most, kernel };
    let (first, rest) = (rows / most * most, rows % most);
    let last = TILES.into_iter().find(|(takes, _)| rest > 0 && rest <= *takes);
    let last = last.map(|(rows, kernel)| Tile { first, rows, times: 1, kernel });
    [Some(whole), last].into_iter().flatten().filter(|tile| tile.times > 0)
}

/// Rows of an input, rounded.
pub(crate) struct Rounded {
    codes: Tensor<Cuda>,
    sums: Tensor<Cuda>,
    scales: Tensor<Cuda>,
}

/// An input of linear layers. It is rounded when the first of them takes it so.
pub(super) struct Input<'a> {
    pub x: &'a Tensor<Cuda>,
    rounded: OnceCell<Rounded>,
}

impl<'a> Input<'a> {
    pub(super) fn new(x: &'a Tensor<Cuda>) -> Input<'a> {
        Input { x, rounded: OnceCell::new() }
    }
}

impl Cuda {
    /// The module whose kernels multiply a weight with rounded input; `None` if it is multiplied with the input as it is.
    fn products_of(&self, weight: &Weight<Cuda>) -> Option<&'static str> {
        if self.arithmetic == Arithmetic::Fast { weights::products(weight) } else { None }
    }

    /// Rounds rows, and adds rows of zeros up to those that tiles read.
    fn round(&self, x: &Tensor<Cuda>) -> Result<Rounded> {
        let rows = tiles(x.rows()).map(|tile| tile.first + tile.rows * tile.times).max().unwrap_or(0);
        let chunks = x.cols().div_ceil(CHUNK);
        let rounded = Rounded {
            codes: self.alloc(DType::U8, rows, chunks * CHUNK)?,
            sums: self.alloc(DType::U8, rows, chunks * SUMS)?,
            scales: self.like(rows, chunks)?,
        };
        let args = Args::new()
            .matrix(x)
            .pointer(&rounded.codes)
            .pointer(&rounded.sums)
            .pointer(&rounded.scales)
            .word(rows);
        self.gpu.launch(&Launch {
            kernel: Kernel { module: "quantize", name: "quantize" },
            grid: [chunks as u32, rows.div_ceil(ROUNDED_ROWS) as u32, 1],
            block: THREADS,
            shared: 0,
            args,
        })?;
        Ok(rounded)
    }

    /// A product in the arithmetic of this device.
    pub(super) fn multiply(
        &self,
        input: &Input<'_>,
        product: &Product<'_>,
        out: &Tensor<Cuda>,
    ) -> Result<()> {
        let Some(module) = self.products_of(product.weight) else {
            return self.multiply_exactly(input.x, product, out);
        };
        let rounded = match input.rounded.get() {
            Some(rounded) => rounded,
            None => {
                let rounded = self.round(input.x)?;
                input.rounded.get_or_init(|| rounded)
            }
        };
        let Epilogue { scale, softcap, residual } = product.epilogue;
        let chunks = product.weight.cols().div_ceil(CHUNK);
        for Tile { first, rows, times, kernel } in tiles(out.rows()) {
            let kept = (SHARED / (rows * ROW)).min(chunks.next_multiple_of(WARPS)).max(1);
            let args = weights::arg(Args::new(), product.weight)
                .pointer(&rounded.codes)
                .pointer(&rounded.sums)
                .pointer(&rounded.scales)
                .word(first)
                .word(kept)
                .optional_pointer(product.bias)
                .optional(residual)
                .matrix(out)
                .float(scale)
                .float(softcap.unwrap_or(0.0));
            self.gpu.launch(&Launch {
                kernel: Kernel { module, name: kernel },
                grid: [out.cols().div_ceil(PANEL) as u32, times as u32, 1],
                block: THREADS,
                shared: (kept * rows * ROW) as u32,
                args,
            })?;
        }
        Ok(())
    }

    /// Several layers over one input, each into its columns of the result. The input is rounded once.
    pub(crate) fn linear_many_side_by_side(&self, op: &LinearMany<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let in_order = |layer: &LinearWeights<Cuda>| layer.weight.in_order().is_some();
        if !op.weights.iter().all(in_order) {
            return compose::linear_many(self, op);
        }
        let normed = op.norm.map(|norm| self.run(Normalize { x: op.x, norm, residual: None })).transpose()?;
        let input = Input::new(normed.as_ref().unwrap_or(op.x)); // [rows, inputs]
        let out = self.like(op.x.rows(), op.cols())?; // [rows, sum of outputs]
        let mut at = 0;
        for layer in op.weights {
            let Some(weight) = layer.weight.in_order() else { continue };
            let product = Product { weight, bias: layer.bias.as_ref(), epilogue: Epilogue::NONE };
            self.multiply(&input, &product, &out.col_range(at..at + weight.rows()))?;
            at += weight.rows();
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_have_each_row_once() {
        for rows in 0..300 {
            let mut next = 0;
            for tile in tiles(rows) {
                assert_eq!(tile.first, next);
                next += tile.rows * tile.times;
            }
            assert!(next >= rows && next < rows + 32, "{rows}: {next}");
        }
    }
}
