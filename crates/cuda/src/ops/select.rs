//! Routing, top-k, and the softmax mass outside of it.

use tallow_core::ops::{Route, TailSum, TopK, TopKOut};
use tallow_core::{Result, Scores, Tensor};

use crate::args::Args;
use crate::device::Cuda;
use crate::gpu::Launch;
use crate::kernels::Kernel;

/// Threads of a row's CTA (`WIDTH` in `kernels/common.cuh`, `SELECTORS` in `kernels/select.cu`).
const WIDTH: u32 = 256;
const SELECTORS: u32 = 1024;

impl Cuda {
    pub(crate) fn route_into(&self, op: &Route<'_, Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        let by = op.routing;
        let (scores, near) = match by.scores {
            Scores::Softmax => (0, 0.0),
            Scores::Sigmoid => (1, 0.0),
            Scores::SparseMixer { near } => (2, near),
        };
        let groups = by.groups.map_or([0; 3], |groups| [groups.n_group, groups.topk_group, groups.best]);
        let args = Args::new().matrix(op.logits).optional_pointer(by.bias.as_ref()).matrix(out);
        let args = groups
            .into_iter()
            .fold(args, Args::word)
            .word(scores)
            .float(near)
            .word(by.top_k)
            .flag(by.norm_weights)
            .float(by.scale);
        let kernel = Kernel { module: "route", name: "route" };
        let grid = [op.logits.rows() as u32, 1, 1];
        self.gpu.launch(&Launch { kernel, grid, block: WIDTH, shared: 0, args })
    }

    pub(crate) fn topk_into(&self, op: &TopK<'_, Cuda>, out: &TopKOut<Cuda>) -> Result<()> {
        let args = Args::new().matrix(op.x).matrix(&out.values).matrix(&out.ids).word(op.k);
        let kernel = Kernel { module: "select", name: "topk" };
        let grid = [op.x.rows() as u32, 1, 1];
        self.gpu.launch(&Launch { kernel, grid, block: SELECTORS, shared: 0, args })
    }

    pub(crate) fn tail_sum_into(&self, op: &TailSum<'_, Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        let args = Args::new()
            .matrix(op.x)
            .matrix(&op.top.values)
            .matrix(&op.top.ids)
            .matrix(op.temperatures)
            .matrix(out);
        let kernel = Kernel { module: "select", name: "tail_sum" };
        let grid = [out.rows() as u32, out.cols() as u32, 1];
        self.gpu.launch(&Launch { kernel, grid, block: SELECTORS, shared: 0, args })
    }
}
