//! Ops with a recurrent state per sequence.

use tallow_core::ops::{CausalConv, GatedDelta};
use tallow_core::{DeltaHeads, Result, Sharing, Tensor};

use crate::args::Args;
use crate::device::Cuda;
use crate::gpu::Launch;
use crate::kernels::Kernel;

/// Threads of each column of a state matrix, and columns of a CTA (`PARTS` and `COLUMNS` in `kernels/recurrent.cu`).
const PARTS: usize = 8;
const COLUMNS: usize = 16;
/// Threads of a CTA of the causal convolution, each with a column, and tokens of it (`WIDTH` in `kernels/common.cuh`, `TOKENS` in
/// `kernels/recurrent.cu`).
const WIDTH: usize = 256;
const TOKENS: usize = 8;

impl Cuda {
    pub(crate) fn causal_conv_into(&self, op: &CausalConv<'_, Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        let (plan, spans) = (op.plan, op.plan.host().spans.len());
        let args = Args::new()
            .matrix(op.x)
            .matrix(op.weight)
            .matrix(op.window)
            .matrix(out)
            .pointer(&plan.starts)
            .pointer(&plan.lens)
            .pointer(&plan.states)
            .word(spans);
        let kernel = Kernel { module: "recurrent", name: "causal_conv" };
        let grid = [op.x.rows().div_ceil(TOKENS) + spans, op.x.cols().div_ceil(WIDTH), 1];
        let grid = grid.map(|n| n as u32);
        self.gpu.launch(&Launch { kernel, grid, block: WIDTH as u32, shared: 0, args })
    }

    pub(crate) fn gated_delta_into(&self, op: &GatedDelta<'_, Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        let (DeltaHeads { keys, values, key_dim, value_dim, sharing }, plan) = (op.heads, op.plan);
        let spans = plan.host().spans.len();
        let args = Args::new()
            .matrix(op.qk)
            .matrix(op.v)
            .matrix(op.gates)
            .pointer(&op.decay.rate)
            .pointer(&op.decay.bias)
            .matrix(op.states)
            .matrix(out)
            .pointer(&plan.starts)
            .pointer(&plan.lens)
            .pointer(&plan.states)
            .word(spans)
            .word(keys)
            .word(key_dim)
            .word(value_dim)
            .flag(sharing == Sharing::Grouped)
            .float(1.0 / (key_dim as f32).sqrt());
        let kernel = Kernel { module: "recurrent", name: "gated_delta" };
        let grid = [value_dim.div_ceil(COLUMNS), values, spans].map(|n| n as u32);
        self.gpu.launch(&Launch { kernel, grid, block: (PARTS * COLUMNS) as u32, shared: 0, args })
    }
}
