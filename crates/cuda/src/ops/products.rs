//! Products with weights in blocks in [`Arithmetic::Fast`]: the input is rounded to 8 bits, and multiplied by tensor cores. The kernels
//! are in `quantize.cu` and `products.cuh`.

use tallow_core::{Arithmetic, DType, Memory, Result, Tensor, Weight};

use super::layers::{Input, Layers, Rounded};
use crate::args::Args;
use crate::device::Cuda;
use crate::gpu::Launch;
use crate::kernels::Kernel;
use crate::weights::{self, Sixteen};

/// Threads of a CTA.
pub(super) const THREADS: u32 = 256;
/// Outputs of a panel.
pub(super) const PANEL: usize = 16;
/// Inputs that share a scale.
const CHUNK: usize = 256;
/// Bytes of the sums of a chunk of a row.
const SUMS: usize = 64;
/// The room in shared memory for the products of a row of x with a panel.
const ROW: usize = 20 * 4;
/// Shared memory for products of chunks, at most.
const SHARED: usize = 40 << 10;
/// Chunks that a CTA's warps multiply, or round, at a time.
const WARPS: usize = THREADS as usize / 32;
/// Rows that a kernel rounds itself, at most.
pub(super) const FEW: usize = 8;
/// Shared memory for products of chunks in that kernel, at most: what it rounds lies there too.
const SHARED_OF_FEW: usize = 26 << 10;
/// Panels that a CTA multiplies with what it rounds, where there are enough of them for more CTAs than this.
const PANELS: [usize; 2] = [4, 2];
const CTAS: usize = 512;
/// CTAs of a launch that rounds, at most, unless there are more rows: each normalizes a row.
pub(super) const ROUNDING_CTAS: usize = 256;
/// Numbers of rows that there are kernels for, and their names.
const TILES: [(usize, &str); 4] =
    [(8, "products_8"), (16, "products_16"), (32, "products_32"), (64, "products_64")];

/// Kernels of products.
#[derive(Clone, Copy)]
pub(super) enum Products {
    /// With the input as it is, in `f32`.
    Exact,
    /// With input rounded to 8 bits: their module.
    Eights(&'static str),
    /// With input rounded to 16 bits.
    Sixteens(Sixteen),
}

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

/// Panels of a CTA that rounds its input itself, of so many panels in all; `least` of them at least.
pub(super) fn panels_of_few(all: usize, least: usize) -> usize {
    PANELS.into_iter().find(|each| all / each > CTAS).unwrap_or(1).max(least)
}

/// Chunks whose products are in shared memory at a time, of `most` for which there is room.
fn kept(most: usize, input: &Input<'_>) -> usize {
    most.min(input.cols().div_ceil(CHUNK).next_multiple_of(WARPS)).max(WARPS)
}

impl Cuda {
    /// The kernels that multiply a weight in this device's arithmetic.
    pub(super) fn products_of(&self, weight: &Weight<Cuda>) -> Products {
        if self.arithmetic != Arithmetic::Fast {
            return Products::Exact;
        }
        let eights = weights::products(weight).map(Products::Eights);
        eights.or_else(|| weights::sixteen(weight).map(Products::Sixteens)).unwrap_or(Products::Exact)
    }

    /// Rounds rows, and adds rows up to those that tiles read.
    pub(super) fn round(&self, input: &Input<'_>) -> Result<Rounded> {
        let rows = tiles(input.rows()).map(|tile| tile.first + tile.rows * tile.times).max().unwrap_or(0);
        let chunks = input.cols().div_ceil(CHUNK);
        let rounded = Rounded {
            codes: self.alloc(DType::U8, rows, chunks * CHUNK)?,
            sums: self.alloc(DType::U8, rows, chunks * SUMS)?,
            scales: self.like(rows, chunks)?,
        };
        let args = input
            .arg(Args::new())
            .pointer(&rounded.codes)
            .pointer(&rounded.sums)
            .pointer(&rounded.scales)
            .word(input.rows())
            .word(chunks);
        let stretches = chunks.div_ceil(WARPS);
        let stretches = match input.has_norm() {
            true => (ROUNDING_CTAS / rows.max(1)).clamp(1, stretches.max(1)),
            false => stretches,
        };
        self.gpu.launch(&Launch {
            kernel: Kernel { module: "quantize", name: "quantize" },
            grid: [rows as u32, stretches as u32, 1],
            block: THREADS,
            shared: 0,
            args,
        })?;
        Ok(rounded)
    }

    /// Products with an input of up to [`FEW`] rows, which this kernel rounds.
    pub(super) fn multiply_few(
        &self,
        kernel: Kernel,
        input: &Input<'_>,
        layers: &Layers<'_>,
        out: &Tensor<Cuda>,
    ) -> Result<()> {
        let least = if layers.is_gated() { 2 } else { 1 };
        let all = least * layers.groups_of(PANEL);
        let panels = panels_of_few(all, least);
        let of_chunk = panels * FEW * ROW + FEW * size_of::<f32>();
        let kept = kept(SHARED_OF_FEW / of_chunk / WARPS * WARPS, input);
        let args = input.arg(layers.arg(Args::new())).word(panels).word(kept);
        self.gpu.launch(&Launch {
            kernel,
            grid: [all.div_ceil(panels) as u32, 1, 1],
            block: THREADS,
            shared: (kept * of_chunk) as u32,
            args: layers.finish(args, out),
        })
    }

    /// Products with an input that is rounded before.
    pub(super) fn multiply_rounded(
        &self,
        module: &'static str,
        input: &Input<'_>,
        layers: &Layers<'_>,
        out: &Tensor<Cuda>,
    ) -> Result<()> {
        let rounded = input.rounded(self)?;
        for Tile { first, rows, times, kernel } in tiles(out.rows()) {
            let kept = kept(SHARED / (rows * ROW), input);
            let args = layers
                .arg(Args::new())
                .pointer(&rounded.codes)
                .pointer(&rounded.sums)
                .pointer(&rounded.scales)
                .word(first)
                .word(kept);
            self.gpu.launch(&Launch {
                kernel: Kernel { module, name: kernel },
                grid: [layers.groups_of(PANEL) as u32, times as u32, 1],
                block: THREADS,
                shared: (kept * rows * ROW) as u32,
                args: layers.finish(args, out),
            })?;
        }
        Ok(())
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
