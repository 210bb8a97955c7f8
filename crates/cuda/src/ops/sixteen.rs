//! Products with weights that are floats of 16 or 8 bits in [`Arithmetic::Fast`](tallow_core::Arithmetic::Fast): the input is rounded to
//! 16 bits, and multiplied by tensor cores. The kernels are in `sixteen_rows.cu` and `sixteen_products.cuh`.

use tallow_core::{DType, Memory, Result, Tensor};

use super::layers::{Input, Layers, Sixteens};
use super::products::{PANEL, ROUNDING_CTAS, THREADS, panels_of_few};
use crate::args::Args;
use crate::device::Cuda;
use crate::gpu::Launch;
use crate::kernels::Kernel;
use crate::weights::Sixteen;

/// Inputs that a warp multiplies at a time.
pub(super) const SEGMENT: usize = 64;
/// Segments that a CTA rounds at a time.
pub(super) const ROUNDED: usize = THREADS as usize / 16;
/// Rows of a CTA: as few as there are, or those of a tile; and its panels.
const TILE_ROWS: [usize; 2] = [16, 32];
const TILE: usize = 64;
const PANELS_OF_TILE: usize = 8;
/// Tiles from which on they are enough to keep a GPU busy.
const TILES: usize = 64;
/// Panels of a CTA with fewer rows, if they are a block's gate and up or there are enough for more CTAs than this.
const CTAS: usize = 512;

impl Cuda {
    /// Room for rows in f16 or in bf16.
    pub(super) fn sixteens(&self, rows: usize, cols: usize, is_f16: bool) -> Result<Sixteens> {
        let segments = cols.div_ceil(SEGMENT);
        Ok(Sixteens {
            rows: self.alloc(DType::U32, rows, segments * SEGMENT / 2)?,
            factors: if is_f16 { Some(self.like(rows, segments)?) } else { None },
        })
    }

    /// Rounds rows to f16 or to bf16, and adds rows up to those that tiles read.
    pub(super) fn round_to_sixteen(&self, input: &Input<'_>, is_f16: bool) -> Result<Sixteens> {
        let tile = TILE_ROWS.into_iter().find(|tile| input.rows() <= *tile).unwrap_or(TILE);
        let (rows, segments) = (input.rows().next_multiple_of(tile), input.cols().div_ceil(SEGMENT));
        let sixteens = self.sixteens(rows, input.cols(), is_f16)?;
        let args = input
            .arg(Args::new())
            .pointer(&sixteens.rows)
            .optional_pointer(sixteens.factors.as_ref())
            .word(input.rows())
            .word(segments);
        let stretches = segments.div_ceil(ROUNDED);
        let stretches = match input.has_norm() {
            true => (ROUNDING_CTAS / rows.max(1)).clamp(1, stretches.max(1)),
            false => stretches,
        };
        self.gpu.launch(&Launch {
            kernel: Kernel { module: "sixteen_rows", name: if is_f16 { "round_f16" } else { "round_bf16" } },
            grid: [rows as u32, stretches as u32, 1],
            block: THREADS,
            shared: 0,
            args,
        })?;
        Ok(sixteens)
    }

    /// Products with an input of few rows, which the kernel rounds.
    pub(super) fn multiply_few_sixteens(
        &self,
        kernels: Sixteen,
        input: &Input<'_>,
        layers: &Layers<'_>,
        out: &Tensor<Cuda>,
    ) -> Result<()> {
        let (all, least) = panels(layers);
        let panels = panels_of_few(all, least);
        let args = input.arg(layers.arg(Args::new())).word(panels);
        self.gpu.launch(&Launch {
            kernel: Kernel { module: kernels.module, name: "sixteen_few" },
            grid: [all.div_ceil(panels) as u32, 1, 1],
            block: THREADS,
            shared: 0,
            args: layers.finish(args, out),
        })
    }

    /// Products with an input that is rounded before. All kernels give a row the same bits: which of them takes it is a matter of
    /// speed.
    pub(super) fn multiply_sixteens(
        &self,
        kernels: Sixteen,
        input: &Input<'_>,
        layers: &Layers<'_>,
        out: &Tensor<Cuda>,
    ) -> Result<()> {
        let rounded = input.sixteens(self, kernels.is_f16)?;
        let (all, least) = panels(layers);
        let rows = out.rows();
        let args = layers.arg(Args::new()).pointer(&rounded.rows).optional_pointer(rounded.factors.as_ref());
        let tiles = [all.div_ceil(PANELS_OF_TILE), rows.div_ceil(TILE)];
        let (name, [x, y], args) = if rows >= TILE && tiles[0] * tiles[1] >= TILES {
            ("sixteen_64", tiles, args)
        } else {
            let [few, more] = TILE_ROWS;
            let (name, each) = if rows <= few { ("sixteen_16", few) } else { ("sixteen_32", more) };
            let panels = if all / 2 > CTAS { 2 } else { least };
            (name, [all.div_ceil(panels), rows.div_ceil(each)], args.word(panels))
        };
        self.gpu.launch(&Launch {
            kernel: Kernel { module: kernels.module, name },
            grid: [x as u32, y as u32, 1],
            block: THREADS,
            shared: 0,
            args: layers.finish(args, out),
        })
    }
}

/// Panels of layers, and how many a CTA must have: those of a block's gate and up meet there.
fn panels(layers: &Layers<'_>) -> (usize, usize) {
    let least = if layers.is_gated() { 2 } else { 1 };
    (least * layers.groups_of(PANEL), least)
}
