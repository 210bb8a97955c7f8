//! Norm and RoPE of the latent rows of MLA and their write to the KV cache, in one kernel.

use tallow_core::Result;
use tallow_core::ops::LatentWrite;

use super::cache::Pages;
use super::operand;
use super::qkv_prep::pairs;
use crate::device::{Wgpu, block};
use crate::gpu::Param::{F, U};
use crate::gpu::{Access, Arg, Kernel, Launch};

impl Wgpu {
    /// The norm must be supported by the kernel: see [`is_usual`](Wgpu::is_usual).
    pub(crate) fn latent_write_to(&self, op: &LatentWrite<'_, Wgpu>) -> Result<()> {
        let pages = Pages::new(&op.kv, op.heads, op.plan)?;
        let mut params = vec![F("eps", op.norm.eps), U("slots_at", op.plan.slots.offset() as u32)];
        let mut args = vec![
            operand("x", Access::Read, op.x, &mut params)?,
            operand("weight", Access::Read, &op.norm.weight, &mut params)?,
            Arg { name: "plan", of: "u32", access: Access::Read, block: block(&op.plan.slots)? },
        ];
        let mut kernel = pages
            .define(Kernel::new("latent_write"))
            .with("HAS_k", true)
            .with("HAS_v", false)
            .with("LATENT", op.norm.weight.cols());
        if let Some(code) = pages.max_code() {
            kernel = kernel.with("MAX_CODE", code as usize);
        }
        let rope = op.rope.filter(|rope| rope.table.cols() > 0);
        kernel = match rope {
            Some(rope) => {
                params.push(U("positions_at", op.plan.positions.offset() as u32));
                args.push(operand("table", Access::Read, &rope.table, &mut params)?);
                kernel.with("PAIRS", pairs(rope.pairs)).with("ROPE_DIM", rope.table.cols())
            }
            None => kernel.with("PAIRS", "none"),
        };
        pages.args(&op.kv, Access::Write, &mut args);
        let grid = [op.x.rows() as u32, 1, 1];
        self.gpu.launch(&Launch { kernel, args, params, grid, work: 0 })
    }
}
