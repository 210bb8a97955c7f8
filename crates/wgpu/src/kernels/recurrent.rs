//! Ops with a recurrent state per sequence: causal convolution and gated delta rule.

use tallow_core::ops::{CausalConv, GatedDelta};
use tallow_core::{DeltaHeads, Result, Sharing, StepPlan, Tensor};

use super::{block, operand};
use crate::backend::Wgpu;
use crate::gpu::Param::{F, U};
use crate::gpu::{Access, Arg, Kernel, Launch, Param};

/// Columns of a head's state matrix per workgroup; half as many if keys are longer than `LONG_KEY`, so that they fit
/// into workgroup memory.
const COLUMNS: usize = 16;
const LONG_KEY: usize = 192;
/// Invocations per column.
const PARTS: usize = 8;

/// WGSL: row `at` of the convolution's input for sequence `s`, counted from the oldest row that the state keeps.
/// `first` is the sequence's first row in the step, and `width` the number of columns.
const SEEN: &str = "
fn seen(s: u32, first: u32, begins: bool, at: u32, c: u32) -> f32 {
  if (at + 1u >= p.kernel) { return x[p.x_at + (first + at + 1u - p.kernel) * p.x_stride + c]; }
  if (begins) { return 0.0; }
  return window[p.window_at + plan[p.states_at + s] * p.window_stride + at * p.width + c];
}
";

/// Binds the step plan, and adds the offsets of its arrays to `params`.
fn plan_operand<'a>(plan: &'a StepPlan<Wgpu>, params: &mut Vec<Param>) -> Result<Arg<'a>> {
    params.extend([
        U("starts_at", plan.starts.offset() as u32),
        U("lens_at", plan.lens.offset() as u32),
        U("states_at", plan.states.offset() as u32),
        U("spans", plan.host.spans.len() as u32),
    ]);
    Ok(Arg { name: "plan", of: "u32", access: Access::Read, block: block(&plan.starts)? })
}

impl Wgpu {
    pub(crate) fn convolve_into(&self, op: &CausalConv<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let (kernel, cols) = (op.weight.rows(), op.x.cols());
        let shared = |params: &mut Vec<Param>| -> Result<Vec<Arg<'_>>> {
            params.extend([U("kernel", kernel as u32), U("width", cols as u32)]);
            Ok(vec![operand("x", Access::Read, op.x, params)?, plan_operand(op.plan, params)?])
        };
        let mut params = Vec::new();
        let mut args = shared(&mut params)?;
        args.push(operand("by", Access::Read, op.weight, &mut params)?);
        args.push(operand("window", Access::Read, op.window, &mut params)?);
        args.push(operand("out", Access::Write, out, &mut params)?);
        let body = format!(
            "{SEEN}----    var s = 0u;\n    \
             for (var i = 1u; i < p.spans; i++) {{ if (plan[p.starts_at + i] <= r) {{ s = i; }} }}\n    \
             let first = plan[p.starts_at + s];\n    \
             let begins = plan[p.lens_at + s] == plan[p.starts_at + s + 1u] - first;\n    var sum = 0.0;\n    \
             for (var j = 0u; j < p.kernel; j++) {{\n      \
             sum = fma(seen(s, first, begins, r - first + j, c), by[p.by_at + j * p.by_stride + c], sum);\n    }}\n    \
             out[p.out_at + r * p.out_stride + c] = sum / (1.0 + exp(min(-sum, 80.0)));"
        );
        let name = |variant| Kernel { name: "convolve", variant: vec![variant] };
        self.by_element(name(0), (op.x.rows(), cols), args, params, &body)?;

        let mut params = Vec::new();
        let mut args = shared(&mut params)?;
        args.push(operand("window", Access::Write, op.window, &mut params)?);
        let body = format!(
            "{SEEN}----    let first = plan[p.starts_at + r];\n    \
             let rows = plan[p.starts_at + r + 1u] - first;\n    \
             let y = seen(r, first, plan[p.lens_at + r] == rows, rows + c / p.width, c % p.width);\n    \
             window[p.window_at + plan[p.states_at + p.spans + r] * p.window_stride + c] = y;"
        );
        let shape = (op.plan.host.spans.len(), (kernel - 1) * cols);
        self.by_element(name(1), shape, args, params, &body)
    }

    pub(crate) fn delta_into(&self, op: &GatedDelta<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let DeltaHeads { keys, values, key_dim, value_dim, sharing } = op.heads;
        let mut params = vec![F("scale", 1.0 / (key_dim as f32).sqrt())];
        let args = vec![
            operand("qk", Access::Read, op.qk, &mut params)?,
            operand("v", Access::Read, op.v, &mut params)?,
            operand("gates", Access::Read, op.gates, &mut params)?,
            operand("rate", Access::Read, &op.decay.rate, &mut params)?,
            operand("bias", Access::Read, &op.decay.bias, &mut params)?,
            plan_operand(op.plan, &mut params)?,
            operand("matrices", Access::Write, op.states, &mut params)?,
            operand("out", Access::Write, out, &mut params)?,
        ];
        let columns = if key_dim > LONG_KEY { COLUMNS / 2 } else { COLUMNS };
        let source = || {
            let key_head = match sharing {
                Sharing::Grouped => format!("(head / {}u)", values / keys),
                Sharing::RoundRobin => format!("(head % {keys}u)"),
            };
            let sizes = format!(
                "const KEY = {key_dim}u;\nconst VALUE = {value_dim}u;\nconst KEY_HEADS = {keys}u;\n\
                 const HEADS = {values}u;\nconst COLUMNS = {columns}u;\nconst PARTS = {PARTS}u;\n"
            );
            sizes + &include_str!("../shaders/delta.wgsl").replace("KEY_HEAD *", &format!("{key_head} *"))
        };
        let variant = [keys, values, key_dim, value_dim, sharing as usize].map(|n| n as u32).to_vec();
        let kernel = Kernel { name: "delta", variant };
        let grid = [value_dim.div_ceil(columns), values, op.plan.host.spans.len()].map(|n| n as u32);
        let work = 4 * (op.v.rows() * op.heads.state_len()) as u64;
        self.gpu.launch(&Launch { kernel, source: &source, args, params, grid, work })
    }
}
