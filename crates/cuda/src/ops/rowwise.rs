//! Row-wise and element-wise ops: norms, activations, arithmetic, gather, scatter, copies. The kernels are in `rowwise.cu`.

use tallow_core::ops::{Activate, Copy, Eltwise, EltwiseOp, IndexMode, IndexRows, Normalize, PermuteCols};
use tallow_core::{Activation, Norm, NormKind, Result, Tensor};

use crate::args::{Args, words};
use crate::device::Cuda;
use crate::gpu::Launch;
use crate::kernels::Kernel;

/// Threads of a CTA.
const THREADS: u32 = 256;
/// Warps of a CTA, and the widest groups that one of them normalizes (`WARPS` and `WARP_NORM` in `kernels/norm.cuh`).
pub(crate) const WARPS: usize = 8;
pub(crate) const WARP_NORM: usize = 512;
/// Most CTAs of an element-wise kernel, whose threads then take several elements.
const CTAS: usize = 4096;

impl Cuda {
    /// Launches a kernel that loops over so many elements.
    fn by_element(&self, name: &'static str, elements: usize, args: Args) -> Result<()> {
        let ctas = elements.div_ceil(THREADS as usize).min(CTAS) as u32;
        let kernel = Kernel { module: "rowwise", name };
        self.gpu.launch(&Launch { kernel, grid: [ctas, 1, 1], block: THREADS, shared: 0, args })
    }

    pub(crate) fn normalize_into(&self, op: &Normalize<'_, Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        let width = op.norm.weight.cols();
        let args = norm(Args::new().matrix(op.x), Some(op.norm)).optional(op.residual).matrix(out);
        let (rows, groups) = (op.x.rows(), op.x.cols() / width.max(1));
        let (name, grid) = match width <= WARP_NORM {
            true => ("normalize_narrow", [(rows * groups).div_ceil(WARPS), 1, 1]),
            false => ("normalize", [rows, groups, 1]),
        };
        let (kernel, grid) = (Kernel { module: "rowwise", name }, grid.map(|n| n as u32));
        self.gpu.launch(&Launch { kernel, grid, block: THREADS, shared: 0, args })
    }

    pub(crate) fn activate_into(&self, op: &Activate<'_, Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        let args = Args::new().matrix(op.gate).optional(op.up).matrix(out).word(activation(op.act));
        self.by_element("activate", out.len(), args)
    }

    pub(crate) fn eltwise_into(&self, op: &Eltwise<'_, Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        // By the kernel's numbers.
        let (which, number) = match op.op {
            EltwiseOp::Add(_) => (0, 0.0),
            EltwiseOp::AddScaled(_, by) => (1, by),
            EltwiseOp::Mul(_) => (2, 0.0),
            EltwiseOp::Scale(by) => (3, by),
            EltwiseOp::SoftCap(by) => (4, by),
            EltwiseOp::Gate(_) => (5, 0.0),
        };
        let args = Args::new().matrix(op.x).optional(op.other()).matrix(out).word(which).float(number);
        self.by_element("eltwise", out.len(), args)
    }

    pub(crate) fn index_rows_into(&self, op: &IndexRows<'_, Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        let args = Args::new().matrix(op.x).pointer(op.indices).matrix(out);
        match op.mode {
            IndexMode::Gather => self.by_element("gather_rows", out.len(), args),
            IndexMode::ScatterAdd(_) => self.by_element("scatter_add_rows", out.cols(), args),
        }
    }

    pub(crate) fn permute_cols_into(&self, op: &PermuteCols<'_, Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        let args = Args::new().matrix(op.x).pointer(op.indices).matrix(out);
        self.by_element("permute_cols", out.len(), args)
    }

    /// Copies between views that do not overlap.
    pub(crate) fn copy_apart(&self, op: &Copy<'_, Cuda>) -> Result<()> {
        if op.from.is_contiguous() && op.to.is_contiguous() {
            return self.gpu.copy(Cuda::address(op.to), Cuda::address(op.from), op.from.bytes());
        }
        let name = match op.from.dtype().size() {
            1 => "copy_bytes",
            2 => "copy_halves",
            _ => "copy_words",
        };
        self.by_element(name, op.from.len(), Args::new().matrix(op.from).matrix(op.to))
    }
}

/// A norm: `Norm` in the kernels. All of it is zero if there is none.
pub(crate) fn norm(args: Args, by: Option<&Norm<Cuda>>) -> Args {
    let Some(Norm { kind, weight, bias, eps }) = by else { return args.wide_and(0, [0; 6]) };
    let [bias, above] = words(bias.as_ref().map_or(0, Cuda::address));
    let (width, is_centred) = (weight.cols() as u32, u32::from(*kind == NormKind::Layer));
    args.wide_and(Cuda::address(weight), [bias, above, width, is_centred, eps.to_bits(), 0])
}

/// The number of no activation in the kernels.
pub(crate) const NO_ACTIVATION: usize = 7;

/// An activation's number in the kernels (`activation.cuh`).
pub(crate) fn activation(act: Activation) -> usize {
    match act {
        Activation::Silu => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
        Activation::Relu2 => 3,
        Activation::Relu => 4,
        Activation::QuickGelu => 5,
        Activation::Clamped => 6,
    }
}
