//! Linear layers, embedding lookup and `dequant`: whatever reads weights. The kernels are in `linear.cu` and `embed.cu`, and those
//! of rounded input in [`products`](super::products) and [`sixteen`](super::sixteen).

use tallow_core::ops::{Dequant, Embed, Epilogue, Ffn, Head, Linear, LinearMany, Matmul};
use tallow_core::{LinearWeights, Result, Tensor, Weight};

use super::layers::{Input, Join, Layers, Part};
use super::products::{FEW, Products};
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
        let layer = LinearWeights::new(Weight::Dense(op.weight.clone()), op.bias.cloned());
        let layers = Layers { parts: &[Part::of(&layer)], join: Join::SideBySide, epilogue: op.epilogue };
        self.multiply_exactly(&Input::new(op.x, None), &layers, out)
    }

    pub(crate) fn linear_fused(&self, op: &Linear<'_, Cuda>) -> Result<Tensor<Cuda>> {
        self.product(Input::new(op.x, None), Part::of(op.weights), op.epilogue)
    }

    /// Several layers over one input, each into its columns of the result.
    pub(crate) fn linear_many_fused(&self, op: &LinearMany<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let (mut input, out) = (Input::new(op.x, op.norm), self.like(op.x.rows(), op.cols())?); // [rows, sum of outputs]
        for parts in Part::groups(Part::side_by_side(op.weights)) {
            input = input.ordered(parts[0].order);
            let layers = Layers { parts: &parts, join: Join::SideBySide, epilogue: Epilogue::NONE };
            self.multiply(&input, &layers, &out)?;
        }
        Ok(out)
    }

    /// A feed-forward block in two steps: up to the activation, and down. `None` if it has adapters, or layers that cannot be
    /// computed in one launch.
    pub(crate) fn ffn_fused(&self, op: &Ffn<'_, Cuda>) -> Result<Option<Tensor<Cuda>>> {
        let width = op.down.weight.cols();
        let (join, parts) = match op.is_gated() {
            true => (Join::Gated(op.act), Part::gate_and_up(op.up, width)),
            false => (Join::Activated(op.act), Some(Part::side_by_side(op.up))),
        };
        let (Some(parts), []) = (parts, op.adapters) else { return Ok(None) };
        let [parts] = &Part::groups(parts)[..] else { return Ok(None) };
        let activated = self.like(op.x.rows(), width)?; // [rows, width]
        let layers = Layers { parts, join, epilogue: Epilogue::NONE };
        self.multiply(&Input::new(op.x, op.norm).ordered(parts[0].order), &layers, &activated)?;
        self.product(Input::new(&activated, None), Part::of(op.down), op.epilogue).map(Some)
    }

    /// Logits of some rows.
    pub(crate) fn head_fused(&self, op: &Head<'_, Cuda>) -> Result<Tensor<Cuda>> {
        self.product(Input::rows_of(op.x, op.rows, Some(op.norm)), Part::of(op.weights), op.epilogue)
    }

    /// The result of one layer.
    fn product<'a>(
        &self,
        input: Input<'a>,
        part: Part<'a>,
        epilogue: Epilogue<'_, Cuda>,
    ) -> Result<Tensor<Cuda>> {
        let out = self.like(input.rows(), part.outputs())?; // [rows, outputs]
        let input = input.ordered(part.order);
        self.multiply(&input, &Layers { parts: &[part], join: Join::SideBySide, epilogue }, &out)?;
        Ok(out)
    }

    /// Products of an input with layers, in the arithmetic of this device. What a kernel for few rows does on the way, others do
    /// before for many.
    fn multiply(&self, input: &Input<'_>, layers: &Layers<'_>, out: &Tensor<Cuda>) -> Result<()> {
        input.compute_if_grouped(self)?;
        if out.is_empty() {
            return Ok(());
        }
        let is_few = out.rows() <= FEW;
        match self.products_of(layers.form()) {
            Products::Eights(module) => match input.kernel_of_few(module).filter(|_| is_few) {
                Some(kernel) => self.multiply_few(kernel, input, layers, out),
                None => self.multiply_rounded(module, input, layers, out),
            },
            Products::Sixteens(kernels) if is_few && !input.has_order() => {
                self.multiply_few_sixteens(kernels, input, layers, out)
            }
            Products::Sixteens(kernels) => self.multiply_sixteens(kernels, input, layers, out),
            Products::Exact if is_few => self.multiply_exactly(input, layers, out),
            Products::Exact => {
                input.compute(self)?;
                self.multiply_exactly(input, layers, out)
            }
        }
    }

    /// Products in `f32`.
    fn multiply_exactly(&self, input: &Input<'_>, layers: &Layers<'_>, out: &Tensor<Cuda>) -> Result<()> {
        let (name, rows) = if out.rows() <= 1 { ("linear_1", 1) } else { ("linear_8", ROWS) };
        self.gpu.launch(&Launch {
            kernel: Kernel { module: "linear", name },
            grid: [layers.groups_of(OUTPUTS) as u32, out.rows().div_ceil(rows) as u32, 1],
            block: THREADS,
            shared: 0,
            args: layers.finish(input.arg(layers.arg(Args::new())), out),
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
