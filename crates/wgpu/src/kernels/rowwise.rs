//! Row-wise and element-wise ops: norms, activations, gather, scatter, copies, routing.

use tallow_core::ops::{
    Activate, Copy, Eltwise, EltwiseOp, IndexMode, IndexRows, Normalize, PermuteCols, Route,
};
use tallow_core::{NormKind, Result, Scores, Tensor};

use super::operand;
use crate::device::{Wgpu, block};
use crate::gpu::Param::{F, U};
use crate::gpu::{Access, Arg, Kernel, Launch, Param};

/// Most workgroups of an element-wise kernel.
const GROUPS: usize = 4096;
/// Invocations per workgroup of an element-wise kernel.
const THREADS: usize = 256;

impl Wgpu {
    /// Launches a kernel that includes `elementwise.wgsl`.
    pub(super) fn by_element(
        &self,
        kernel: Kernel,
        (rows, cols): (usize, usize),
        args: Vec<Arg<'_>>,
        mut params: Vec<Param>,
    ) -> Result<()> {
        params.extend([U("rows", rows as u32), U("cols", cols as u32)]);
        let groups = (rows * cols).div_ceil(THREADS).min(GROUPS) as u32;
        self.gpu.launch(&Launch { kernel, args, params, grid: [groups, 1, 1], work: 0 })
    }

    pub(crate) fn normalize_into(&self, op: &Normalize<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let (by, width) = (op.norm, op.norm.weight.cols());
        let mut params = vec![
            U("width", width as u32),
            U("centred", u32::from(by.kind == NormKind::Layer)),
            F("eps", by.eps),
        ];
        let mut args = vec![
            operand("x", Access::Read, op.x, &mut params)?,
            operand("weight", Access::Read, &by.weight, &mut params)?,
            operand("out", Access::Write, out, &mut params)?,
        ];
        if let Some(bias) = &by.bias {
            args.push(operand("bias", Access::Read, bias, &mut params)?);
        }
        if let Some(residual) = op.residual {
            args.push(operand("residual", Access::Read, residual, &mut params)?);
        }
        let (bias, residual) = (by.bias.is_some(), op.residual.is_some());
        let kernel = Kernel::new("normalize").with("BIAS", bias).with("RESIDUAL", residual);
        let grid = [op.x.rows() as u32, (op.x.cols() / width) as u32, 1];
        self.gpu.launch(&Launch { kernel, args, params, grid, work: 0 })
    }

    pub(crate) fn activate_into(&self, op: &Activate<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let mut params = Vec::new();
        let mut args = vec![
            operand("gate", Access::Read, op.gate, &mut params)?,
            operand("out", Access::Write, out, &mut params)?,
        ];
        if let Some(up) = op.up {
            args.push(operand("up", Access::Read, up, &mut params)?);
        }
        let kernel = Kernel::new("activation").with("ACT", op.act as usize).with("GATED", op.up.is_some());
        self.by_element(kernel, (op.gate.rows(), op.gate.cols()), args, params)
    }

    pub(crate) fn eltwise_into(&self, op: &Eltwise<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let (name, scalar) = match op.op {
            EltwiseOp::Add(_) => ("add", 1.0),
            EltwiseOp::AddScaled(_, by) => ("add_scaled", by),
            EltwiseOp::Mul(_) => ("mul", 1.0),
            EltwiseOp::Scale(by) => ("scale", by),
            EltwiseOp::SoftCap(by) => ("softcap", by),
            EltwiseOp::Gate(_) => ("gate", 1.0),
        };
        let mut params = vec![F("scalar", scalar)];
        let mut args = vec![
            operand("x", Access::Read, op.x, &mut params)?,
            operand("out", Access::Write, out, &mut params)?,
        ];
        if let Some(y) = op.other() {
            args.push(operand("y", Access::Read, y, &mut params)?);
            params.extend([U("one_row", u32::from(y.rows() == 1)), U("one_col", u32::from(y.cols() == 1))]);
        }
        let kernel = Kernel::new("eltwise").with("OP", name).with("BINARY", op.other().is_some());
        self.by_element(kernel, (op.x.rows(), op.x.cols()), args, params)
    }

    pub(crate) fn index_rows_into(&self, op: &IndexRows<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let mut params = vec![U("count", op.indices.cols() as u32)];
        let args = vec![
            operand("x", Access::Read, op.x, &mut params)?,
            operand("indices", Access::Read, op.indices, &mut params)?,
            operand("out", Access::Write, out, &mut params)?,
        ];
        match op.mode {
            IndexMode::Gather => {
                params.push(U("x_rows", op.x.rows() as u32));
                let shape = (op.indices.cols(), op.x.cols());
                self.by_element(Kernel::new("gather_rows"), shape, args, params)
            }
            IndexMode::ScatterAdd(into) => {
                params.push(U("out_rows", into.rows() as u32));
                self.by_element(Kernel::new("scatter_add_rows"), (1, op.x.cols()), args, params)
            }
        }
    }

    pub(crate) fn permute_cols_into(&self, op: &PermuteCols<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let mut params = vec![U("x_cols", op.x.cols() as u32)];
        let args = vec![
            operand("x", Access::Read, op.x, &mut params)?,
            operand("indices", Access::Read, op.indices, &mut params)?,
            operand("out", Access::Write, out, &mut params)?,
        ];
        self.by_element(Kernel::new("permute_cols"), (op.x.rows(), op.indices.cols()), args, params)
    }

    /// Copies between different blocks.
    pub(crate) fn copy_apart(&self, op: &Copy<'_, Wgpu>) -> Result<()> {
        if self.copy_bytes(op)? {
            return Ok(());
        }
        let mut params = Vec::new();
        let args = |params: &mut Vec<Param>| -> Result<Vec<Arg<'_>>> {
            let mut args = vec![
                operand("x", Access::Read, op.from, params)?,
                operand("out", Access::Write, op.to, params)?,
            ];
            args.iter_mut().for_each(|arg| arg.of = "u32");
            Ok(args)
        };
        let args = args(&mut params)?;
        let (rows, cols, size) = (op.from.rows(), op.from.cols(), op.from.dtype().size());
        if size == 4 {
            return self.by_element(Kernel::new("copy"), (rows, cols), args, params);
        }
        let (first, last) = (op.to.offset(), op.to.offset() + rows.saturating_sub(1) * op.to.stride() + cols);
        let (first, last) = (first * size / 4, (last * size).div_ceil(4));
        params.extend([
            U("view_cols", cols as u32),
            U("first_word", first as u32),
            U("view_rows", rows as u32),
        ]);
        let kernel = Kernel::new("copy_packed").with("PACK", 4 / size);
        self.by_element(kernel, (1, last.saturating_sub(first)), args, params)
    }

    /// Copies views without gaps, of whole words, without a kernel. Returns whether they are.
    fn copy_bytes(&self, op: &Copy<'_, Wgpu>) -> Result<bool> {
        let ((start, len), (at, _)) = (Wgpu::extent(op.from), Wgpu::extent(op.to));
        let has_words = [start, at, len].iter().all(|bytes| bytes.is_multiple_of(4));
        let is_whole = op.from.is_contiguous() && op.to.is_contiguous() && has_words;
        if is_whole {
            let (from, to) = ((block(op.from)?, start as u64), (block(op.to)?, at as u64));
            self.gpu.copy(from, to, len as u64);
        }
        Ok(is_whole)
    }

    pub(crate) fn route_into(&self, op: &Route<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let by = op.routing;
        let (groups, groups_used, best) = by.groups.map_or((0, 0, 0), |g| (g.n_group, g.topk_group, g.best));
        let (scores, near) = match by.scores {
            Scores::Sigmoid => (0, 0.0),
            Scores::Softmax => (1, 0.0),
            Scores::SparseMixer { near } => (2, near),
        };
        let mut params = vec![
            U("cols", op.logits.cols() as u32),
            U("used", by.top_k as u32),
            U("scores", scores),
            F("near", near),
            U("groups", groups as u32),
            U("groups_used", groups_used as u32),
            U("best", best as u32),
            U("to_one", u32::from(by.norm_weights)),
            F("scale", by.scale),
        ];
        let mut args = vec![
            operand("logits", Access::Read, op.logits, &mut params)?,
            operand("out", Access::Write, out, &mut params)?,
        ];
        if let Some(bias) = &by.bias {
            args.push(operand("bias", Access::Read, bias, &mut params)?);
        }
        let kernel = Kernel::new("route").with("BIAS", by.bias.is_some());
        let grid = [op.logits.rows() as u32, 1, 1];
        self.gpu.launch(&Launch { kernel, args, params, grid, work: 0 })
    }

    /// True if both tensors are in the same block: wgpu does not let a kernel bind it for both reading and writing.
    pub(crate) fn share_memory(a: &Tensor<Wgpu>, b: &Tensor<Wgpu>) -> Result<bool> {
        Ok(block(a)?.is(block(b)?))
    }
}
