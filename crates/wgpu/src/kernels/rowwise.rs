//! Row-wise and element-wise ops: norms, activations, gather, scatter, copies, routing, top-k.

use tallow_core::ops::{
    Activate, Copy, Eltwise, EltwiseOp, IndexMode, IndexRows, Normalize, PermuteCols, Route, TopK, TopKOut,
};
use tallow_core::{Backend, DType, NormKind, Result, Scores, Tensor};

use super::{block, operand};
use crate::backend::Wgpu;
use crate::gpu::Param::{F, U};
use crate::gpu::{Access, Arg, Kernel, Launch, Param};

/// Most workgroups of an element-wise kernel.
const GROUPS: usize = 4096;
/// Invocations per workgroup of an element-wise kernel.
const THREADS: usize = 256;

/// Head of an element-wise kernel: a grid-stride loop over `p.rows * p.cols` elements.
const ELEMENTS: &str = "
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) g: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
  for (var i = g.x; i < p.rows * p.cols; i += n.x * 256u) {
    let r = i / p.cols;
    let c = i % p.cols;
";

impl Wgpu {
    /// Launches an element-wise kernel. `body` has the element's row `r` and column `c`.
    pub(super) fn by_element(
        &self,
        kernel: Kernel,
        (rows, cols): (usize, usize),
        args: Vec<Arg<'_>>,
        mut params: Vec<Param>,
        body: &str,
    ) -> Result<()> {
        params.extend([U("rows", rows as u32), U("cols", cols as u32)]);
        // Declarations that the body needs come before a line of dashes.
        let (before, body) = body.split_once("----").unwrap_or(("", body));
        let source = || format!("{before}{ELEMENTS}{body}\n  }}\n}}\n");
        let groups = (rows * cols).div_ceil(THREADS).min(GROUPS) as u32;
        self.gpu.launch(&Launch { kernel, source: &source, args, params, grid: [groups, 1, 1], work: 0 })
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
        let (biased, added) = (by.bias.is_some(), op.residual.is_some());
        let source = || {
            let text =
                concat!(include_str!("../shaders/together.wgsl"), include_str!("../shaders/normalize.wgsl"));
            let y = if biased { "y = fma(y, w, bias[p.bias_at + i]);" } else { "y = y * w;" };
            let sum = "y = y + residual[p.residual_at + row * p.residual_stride + first + i];";
            text.replace("BIASED", y).replace("RESIDUAL", if added { sum } else { "" })
        };
        let kernel = Kernel { name: "normalize", variant: vec![u32::from(biased), u32::from(added)] };
        let grid = [op.x.rows() as u32, (op.x.cols() / width) as u32, 1];
        self.gpu.launch(&Launch { kernel, source: &source, args, params, grid, work: 0 })
    }

    pub(crate) fn glu_into(&self, op: &Activate<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let (mut params, act) = (Vec::new(), op.act as u32);
        let mut args = vec![
            operand("gate", Access::Read, op.gate, &mut params)?,
            operand("out", Access::Write, out, &mut params)?,
        ];
        let mut y = "bend(gate[p.gate_at + r * p.gate_stride + c])".to_owned();
        if let Some(up) = op.up {
            args.push(operand("up", Access::Read, up, &mut params)?);
            y += " * gated(up[p.up_at + r * p.up_stride + c])";
        }
        let bend = include_str!("../shaders/bend.wgsl");
        let body = format!("const ACT = {act}u;\n{bend}----    out[p.out_at + r * p.out_stride + c] = {y};");
        let kernel = Kernel { name: "glu", variant: vec![act, u32::from(op.up.is_some())] };
        self.by_element(kernel, (op.gate.rows(), op.gate.cols()), args, params, &body)
    }

    pub(crate) fn eltwise_into(&self, op: &Eltwise<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let (which, by, y) = match op.op {
            EltwiseOp::Add(_) => (0, 1.0, "a + b"),
            EltwiseOp::AddScaled(_, by) => (1, by, "fma(b, p.by, a)"),
            EltwiseOp::Mul(_) => (2, 1.0, "a * b"),
            EltwiseOp::Scale(by) => (3, by, "a * p.by"),
            EltwiseOp::SoftCap(by) => (4, by, "p.by * tanh(clamp(a / p.by, -20.0, 20.0))"),
            EltwiseOp::Gate(_) => (5, 1.0, "a / (1.0 + exp(min(-b, 80.0)))"),
        };
        let mut params = vec![F("by", by)];
        let mut args = vec![
            operand("x", Access::Read, op.x, &mut params)?,
            operand("out", Access::Write, out, &mut params)?,
        ];
        let mut body = "    let a = x[p.x_at + r * p.x_stride + c];\n".to_owned();
        if let Some(other) = op.other() {
            args.push(operand("y", Access::Read, other, &mut params)?);
            params
                .extend([U("one", u32::from(other.rows() == 1)), U("column", u32::from(other.cols() == 1))]);
            body += "    let other = select(r, 0u, p.one == 1u) * p.y_stride + select(c, 0u, p.column == 1u);\n    \
                     let b = y[p.y_at + other];\n";
        }
        body += &format!("    out[p.out_at + r * p.out_stride + c] = {y};");
        let kernel = Kernel { name: "eltwise", variant: vec![which] };
        self.by_element(kernel, (op.x.rows(), op.x.cols()), args, params, &body)
    }

    pub(crate) fn rows_into(&self, op: &IndexRows<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let mut params = vec![U("count", op.indices.cols() as u32)];
        let mut args = vec![
            operand("x", Access::Read, op.x, &mut params)?,
            operand("at", Access::Read, op.indices, &mut params)?,
        ];
        args.push(operand("out", Access::Write, out, &mut params)?);
        match op.mode {
            IndexMode::Gather => {
                params.push(U("x_rows", op.x.rows() as u32));
                let body = "    let source = at[p.at_at + r];\n    var y = 0.0;\n    \
                            if (source < p.x_rows) { y = x[p.x_at + source * p.x_stride + c]; }\n    \
                            out[p.out_at + r * p.out_stride + c] = y;";
                let kernel = Kernel { name: "rows", variant: vec![0] };
                self.by_element(kernel, (op.indices.cols(), op.x.cols()), args, params, body)
            }
            IndexMode::ScatterAdd(into) => {
                // One invocation adds all rows of a column, in order, since several may have the same target.
                params.push(U("out_rows", into.rows() as u32));
                let body = "    for (var source = 0u; source < p.count; source++) {\n      let sink = at[p.at_at + source];\n      \
                            if (sink < p.out_rows) {\n        let o = p.out_at + sink * p.out_stride + c;\n        \
                            out[o] = out[o] + x[p.x_at + source * p.x_stride + c];\n      }\n    }";
                let kernel = Kernel { name: "rows", variant: vec![1] };
                self.by_element(kernel, (1, op.x.cols()), args, params, body)
            }
        }
    }

    pub(crate) fn columns_into(&self, op: &PermuteCols<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let mut params = vec![U("x_cols", op.x.cols() as u32)];
        let args = vec![
            operand("x", Access::Read, op.x, &mut params)?,
            operand("at", Access::Read, op.indices, &mut params)?,
            operand("out", Access::Write, out, &mut params)?,
        ];
        let body = "    let source = at[p.at_at + c];\n    var y = 0.0;\n    \
                    if (source < p.x_cols) { y = x[p.x_at + r * p.x_stride + source]; }\n    \
                    out[p.out_at + r * p.out_stride + c] = y;";
        let kernel = Kernel { name: "columns", variant: vec![] };
        self.by_element(kernel, (op.x.rows(), op.indices.cols()), args, params, body)
    }

    /// Copies between different blocks.
    pub(crate) fn copy_apart(&self, op: &Copy<'_, Wgpu>) -> Result<()> {
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
            let body = "    out[p.out_at + r * p.out_stride + c] = x[p.x_at + r * p.x_stride + c];";
            let kernel = Kernel { name: "copy", variant: vec![4] };
            return self.by_element(kernel, (rows, cols), args, params, body);
        }
        // Smaller elements share words, and an invocation writes whole words: each takes one word of the target and
        // replaces those of its elements that belong to the view.
        params.push(U("elements", cols as u32));
        let (first, last) = (op.to.offset(), op.to.offset() + rows.saturating_sub(1) * op.to.stride() + cols);
        let (first, last) = (first * size / 4, (last * size).div_ceil(4));
        params.extend([U("first", first as u32), U("lines", rows as u32)]);
        let body = format!(
            "    const EACH = {}u;\n    const BITS = {}u;\n    const MASK = {}u;\n    \
             var word = out[p.first + i];\n    for (var j = 0u; j < EACH; j++) {{\n      \
             let at = (p.first + i) * EACH + j;\n      if (at >= p.out_at) {{\n        \
             let line = (at - p.out_at) / p.out_stride;\n        let column = (at - p.out_at) % p.out_stride;\n        \
             if (line < p.lines && column < p.elements) {{\n          \
             let source = p.x_at + line * p.x_stride + column;\n          \
             let element = (x[source / EACH] >> (BITS * (source % EACH))) & MASK;\n          \
             word = (word & ~(MASK << (BITS * j))) | (element << (BITS * j));\n        }}\n      }}\n    }}\n    \
             out[p.first + i] = word;",
            4 / size,
            8 * size,
            (1u64 << (8 * size)) - 1
        );
        let kernel = Kernel { name: "copy", variant: vec![size as u32] };
        self.by_element(kernel, (1, last.saturating_sub(first)), args, params, &body)
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
        let biased = by.bias.is_some();
        let worth = if biased { "scores[c] + bias[p.bias_at + c]" } else { "scores[c]" };
        let source = || include_str!("../shaders/route.wgsl").replace("WORTH", worth);
        let kernel = Kernel { name: "route", variant: vec![u32::from(biased)] };
        let grid = [op.logits.rows() as u32, 1, 1];
        self.gpu.launch(&Launch { kernel, source: &source, args, params, grid, work: 0 })
    }

    pub(crate) fn topk_of(&self, op: &TopK<'_, Wgpu>) -> Result<TopKOut<Wgpu>> {
        let rows = op.x.rows();
        let (values, ids) = (self.alloc(DType::F32, rows, op.k)?, self.alloc(DType::U32, rows, op.k)?);
        let mut params = vec![U("cols", op.x.cols() as u32), U("k", op.k as u32)];
        let args = vec![
            operand("x", Access::Read, op.x, &mut params)?,
            operand("values", Access::Write, &values, &mut params)?,
            operand("ids", Access::Write, &ids, &mut params)?,
        ];
        let kernel = Kernel { name: "topk", variant: Vec::new() };
        let source = || include_str!("../shaders/topk.wgsl").to_owned();
        self.gpu.launch(&Launch {
            kernel,
            source: &source,
            args,
            params,
            grid: [rows as u32, 1, 1],
            work: 0,
        })?;
        Ok(TopKOut { values, ids })
    }

    /// Whether both tensors are in the same block: wgpu does not let a kernel bind it for both reading and writing.
    pub(crate) fn share_memory(a: &Tensor<Wgpu>, b: &Tensor<Wgpu>) -> Result<bool> {
        Ok(block(a)?.is(block(b)?))
    }
}
