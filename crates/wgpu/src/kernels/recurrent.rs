//! Ops with a recurrent state per sequence: causal convolution and gated delta rule.

use tallow_core::ops::{CausalConv, GatedDelta};
use tallow_core::{DeltaHeads, Result, Sharing, StepPlan, Tensor};

use super::operand;
use crate::device::{Wgpu, block};
use crate::gpu::Param::{F, U};
use crate::gpu::{Access, Arg, Kernel, Launch, Param};

/// Columns of a head's state matrix per workgroup; half as many if keys are longer than `LONG_KEY`, so that they fit
/// into workgroup memory.
const COLUMNS: usize = 16;
const LONG_KEY: usize = 192;
/// Invocations per column.
const PARTS: usize = 8;

/// Binds the step plan, and adds the offsets of its arrays to `params`.
fn plan_operand<'a>(plan: &'a StepPlan<Wgpu>, params: &mut Vec<Param>) -> Result<Arg<'a>> {
    params.extend([
        U("starts_at", plan.starts.offset() as u32),
        U("lens_at", plan.lens.offset() as u32),
        U("states_at", plan.states.offset() as u32),
        U("spans", plan.host().spans.len() as u32),
    ]);
    Ok(Arg { name: "plan", of: "u32", access: Access::Read, block: block(&plan.starts)? })
}

impl Wgpu {
    pub(crate) fn causal_conv_into(&self, op: &CausalConv<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let (kernel, cols) = (op.weight.rows(), op.x.cols());
        let shared = |params: &mut Vec<Param>| -> Result<Vec<Arg<'_>>> {
            params.extend([U("kernel", kernel as u32), U("width", cols as u32)]);
            Ok(vec![operand("x", Access::Read, op.x, params)?, plan_operand(op.plan, params)?])
        };
        let mut params = Vec::new();
        let mut args = shared(&mut params)?;
        args.push(operand("weight", Access::Read, op.weight, &mut params)?);
        args.push(operand("window", Access::Read, op.window, &mut params)?);
        args.push(operand("out", Access::Write, out, &mut params)?);
        self.by_element(Kernel::new("causal_conv"), (op.x.rows(), cols), args, params)?;

        let mut params = Vec::new();
        let mut args = shared(&mut params)?;
        args.push(operand("window", Access::Write, op.window, &mut params)?);
        let shape = (op.plan.host().spans.len(), (kernel - 1) * cols);
        self.by_element(Kernel::new("causal_conv_state"), shape, args, params)
    }

    pub(crate) fn gated_delta_into(&self, op: &GatedDelta<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
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
        let sharing = match sharing {
            Sharing::Grouped => "grouped",
            Sharing::RoundRobin => "round_robin",
        };
        let kernel = Kernel::new("gated_delta")
            .with("KEY_HEADS", keys)
            .with("VALUE_HEADS", values)
            .with("KEY_DIM", key_dim)
            .with("VALUE_DIM", value_dim)
            .with("COLUMNS", columns)
            .with("PARTS", PARTS)
            .with("SHARING", sharing);
        let grid = [value_dim.div_ceil(columns), values, op.plan.host().spans.len()].map(|n| n as u32);
        let work = 4 * (op.v.rows() * op.heads.state_len()) as u64;
        self.gpu.launch(&Launch { kernel, args, params, grid, work })
    }
}
