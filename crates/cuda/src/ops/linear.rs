//! Linear layers, embedding lookup and `dequant`: whatever reads weights. The kernels are in `linear.cu` and `embed.cu`, and those
//! of rounded input in [`products`](super::products).

use tallow_core::ops::{Dequant, Embed, Epilogue, Linear, Matmul};
use tallow_core::{Result, Tensor, Weight};

use super::products::{Input, Product};
use crate::args::Args;
use crate::device::Cuda;
use crate::gpu::Launch;
use crate::kernels::Kernel;
use crate::weights;

/// Threads of a CTA.
const THREADS: u32 = 256;
/// Outputs of a CTA.
const OUTPUTS: usize = 32;
/// Rows of a CTA, where there is more than one.
const ROWS: usize = 8;

impl Cuda {
    pub(crate) fn embed_into(&self, op: &Embed<'_, Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        self.rows_into(op.table, Which::Ids(op.ids), op.scale, out)
    }

    pub(crate) fn dequant_into(&self, op: &Dequant<'_, Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        self.rows_into(op.w, Which::From(op.rows.start), 1.0, out)
    }

    fn rows_into(&self, w: &Weight<Cuda>, which: Which<'_>, scale: f32, out: &Tensor<Cuda>) -> Result<()> {
        let (ids, first) = match which {
            Which::Ids(ids) => (Some(ids), 0),
            Which::From(row) => (None, row),
        };
        let args = weights::arg(Args::new(), w).optional_pointer(ids).matrix(out).word(first).float(scale);
        self.gpu.launch(&Launch {
            kernel: Kernel { module: "embed", name: "embed" },
            grid: [out.rows() as u32, 1, 1],
            block: THREADS,
            shared: 0,
            args,
        })
    }

    pub(crate) fn matmul_into(&self, op: &Matmul<'_, Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        let weight = &Weight::Dense(op.weight.clone());
        self.multiply_exactly(op.x, &Product { weight, bias: op.bias, epilogue: op.epilogue }, out)
    }

    /// For a layer with this weight, whose columns are in the order of the inputs.
    pub(crate) fn linear_into(
        &self,
        op: &Linear<'_, Cuda>,
        weight: &Weight<Cuda>,
        out: &Tensor<Cuda>,
    ) -> Result<()> {
        let bias = op.weights.bias.as_ref();
        self.multiply(&Input::new(op.x), &Product { weight, bias, epilogue: op.epilogue }, out)
    }

    /// A product in `f32`.
    pub(super) fn multiply_exactly(
        &self,
        x: &Tensor<Cuda>,
        product: &Product<'_>,
        out: &Tensor<Cuda>,
    ) -> Result<()> {
        let Epilogue { scale, softcap, residual } = product.epilogue;
        let args = weights::arg(Args::new().matrix(x), product.weight)
            .optional_pointer(product.bias)
            .optional(residual)
            .matrix(out)
            .float(scale)
            .float(softcap.unwrap_or(0.0));
        let (name, rows) = if out.rows() <= 1 { ("linear_1", 1) } else { ("linear_8", ROWS) };
        self.gpu.launch(&Launch {
            kernel: Kernel { module: "linear", name },
            grid: [out.cols().div_ceil(OUTPUTS) as u32, out.rows().div_ceil(rows) as u32, 1],
            block: THREADS,
            shared: 0,
            args,
        })
    }
}

/// Rows of a weight.
enum Which<'a> {
    /// Rows by index.
    Ids(&'a Tensor<Cuda>),
    /// Consecutive rows from this one on, as many as the result has.
    From(usize),
}
