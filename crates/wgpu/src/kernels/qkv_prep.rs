//! RoPE, QK norm and writes to the KV cache, in one kernel.
//!
//! One workgroup per token and per head of Q, K or V, or per group of heads that are normalized together.

use tallow_core::ops::{KvWrite, QkvPrep, Rope};
use tallow_core::{LayerKv, Norm, NormKind, Result, RopePairs, StepPlan, Tensor};

use super::cache::Pages;
use super::operand;
use crate::device::{Wgpu, block};
use crate::gpu::Param::{F, U, View};
use crate::gpu::{Access, Arg, Kernel, Launch, Param};

/// Queries or keys with their QK norm.
struct Section<'a> {
    x: Tensor<Wgpu>,
    norm: Option<&'a Norm<Wgpu>>,
}

impl Section<'_> {
    /// Columns per workgroup.
    fn width(&self, dim: usize) -> usize {
        self.norm.map_or(dim, |n| n.weight.cols())
    }

    fn groups(&self, dim: usize) -> usize {
        self.x.cols() / self.width(dim)
    }
}

/// Arguments of the kernel: all of Q, K and V, or only some of them.
struct Prep<'a> {
    dim: usize,
    q: Option<(Section<'a>, &'a Tensor<Wgpu>)>,
    k: Option<Section<'a>>,
    v: Option<Tensor<Wgpu>>,
    rope: Option<&'a tallow_core::RopeTable<Wgpu>>,
    cache: Option<(LayerKv<'a, Wgpu>, Pages, &'a StepPlan<Wgpu>)>,
    positions: Option<&'a Tensor<Wgpu>>,
    rows: usize,
}

impl Wgpu {
    pub(crate) fn rope_into(&self, op: &Rope<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let prep = Prep {
            dim: op.head_dim,
            q: Some((Section { x: op.x.clone(), norm: None }, out)),
            k: None,
            v: None,
            rope: Some(op.rope).filter(|r| r.table.cols() > 0),
            cache: None,
            positions: Some(op.positions).filter(|_| op.rope.table.cols() > 0),
            rows: op.x.rows(),
        };
        self.prep(&prep)
    }

    pub(crate) fn kv_write_to(&self, op: &KvWrite<'_, Wgpu>) -> Result<()> {
        let prep = Prep {
            dim: op.heads.dim,
            q: None,
            k: Some(Section { x: op.k.clone(), norm: None }),
            v: op.v.cloned(),
            rope: None,
            cache: Some((op.kv, Pages::new(&op.kv, op.heads, op.plan)?, op.plan)),
            positions: None,
            rows: op.k.rows(),
        };
        self.prep(&prep)
    }

    /// Fused QK norm, RoPE and KV write. The norms must be supported by the kernel: see [`is_usual`](Wgpu::is_usual).
    pub(crate) fn qkv_prep_into(&self, op: &QkvPrep<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let (q_cols, kv_cols) = (op.heads.q_cols(), op.heads.kv_cols());
        let part = |at: usize, cols: usize| op.qkv.col_range(at..at + cols);
        let prep = Prep {
            dim: op.heads.dim,
            q: Some((Section { x: part(0, q_cols), norm: op.qk_norm.map(|n| &n.q) }, out)),
            k: Some(Section { x: part(q_cols, kv_cols), norm: op.qk_norm.map(|n| &n.k) }),
            v: Some(part(q_cols + kv_cols, kv_cols)),
            rope: op.rope.filter(|r| r.table.cols() > 0),
            cache: Some((op.kv, Pages::new(&op.kv, op.heads, op.plan)?, op.plan)),
            positions: op.rope.filter(|r| r.table.cols() > 0).map(|_| &op.plan.positions),
            rows: op.qkv.rows(),
        };
        self.prep(&prep)
    }

    /// True if the kernel supports this QK norm: RMSNorm without bias.
    pub(crate) fn is_usual(norm: &Norm<Wgpu>) -> bool {
        norm.kind == NormKind::Rms && norm.bias.is_none()
    }

    fn prep(&self, prep: &Prep<'_>) -> Result<()> {
        let (mut params, mut args) = (Vec::new(), Vec::new());
        prep.operands(&mut params, &mut args)?;
        let grid = [prep.rows as u32, prep.groups(), 1];
        self.gpu.launch(&Launch { kernel: prep.kernel(), args, params, grid, work: 0 })
    }
}

impl<'a> Prep<'a> {
    fn q_groups(&self) -> usize {
        self.q.as_ref().map_or(0, |(q, _)| q.groups(self.dim))
    }

    fn k_groups(&self) -> usize {
        self.k.as_ref().map_or(0, |k| k.groups(self.dim))
    }

    fn groups(&self) -> u32 {
        (self.q_groups() + self.k_groups() + self.v.as_ref().map_or(0, |v| v.cols() / self.dim)) as u32
    }

    /// True if Q, K and V are columns of one tensor.
    fn is_joint(&self) -> bool {
        self.q.is_some() && self.k.is_some()
    }

    fn kernel(&self) -> Kernel {
        let x = |own: &'static str| if self.is_joint() { "xq" } else { own };
        let mut kernel = Kernel::new("qkv_prep").with("CACHE", self.cache.is_some());
        kernel = match &self.cache {
            Some((_, pages, _)) => {
                let kernel = pages.define(kernel).with("HAS_k", true);
                match pages.max_code() {
                    Some(code) => kernel.with("MAX_CODE", code as usize),
                    None => kernel,
                }
            }
            None => kernel.with("DIM", self.dim),
        };
        kernel = match self.rope {
            Some(rope) => kernel.with("PAIRS", pairs(rope.pairs)).with("ROPE_DIM", rope.table.cols()),
            None => kernel.with("PAIRS", "none"),
        };
        kernel = kernel.with("GROUPS_q", self.q_groups()).with("GROUPS_k", self.k_groups());
        if let Some((q, _)) = &self.q {
            let norm = q.norm.is_some();
            kernel = kernel.with("X_q", "xq").with("NORM_q", norm).with("GROUP_DIM_q", q.width(self.dim));
        }
        if let Some(k) = &self.k {
            let norm = k.norm.is_some();
            kernel = kernel.with("X_k", x("xk")).with("NORM_k", norm).with("GROUP_DIM_k", k.width(self.dim));
        }
        match self.v {
            Some(_) => kernel.with("HAS_v", true).with("X_v", x("xv")),
            None => kernel.with("HAS_v", false),
        }
    }

    fn operands(&'a self, params: &mut Vec<Param>, args: &mut Vec<Arg<'a>>) -> Result<()> {
        let view = |name, t: &Tensor<Wgpu>| View(name, t.offset() as u32, t.stride() as u32);
        let mut plan = None;
        if let Some((q, out)) = &self.q {
            args.push(operand("xq", Access::Read, &q.x, params)?);
            args.push(operand("out", Access::Write, out, params)?);
            if let Some(norm) = q.norm {
                args.push(operand("wq", Access::Read, &norm.weight, params)?);
                params.push(F("eps_q", norm.eps));
            }
        }
        if let Some(k) = &self.k {
            match self.is_joint() {
                true => params.push(view("xk", &k.x)),
                false => args.push(operand("xk", Access::Read, &k.x, params)?),
            }
            if let Some(norm) = k.norm {
                args.push(operand("wk", Access::Read, &norm.weight, params)?);
                params.push(F("eps_k", norm.eps));
            }
        }
        if let Some(v) = &self.v {
            match self.is_joint() {
                true => params.push(view("xv", v)),
                false => args.push(operand("xv", Access::Read, v, params)?),
            }
        }
        if let Some((kv, pages, step)) = &self.cache {
            pages.args(kv, Access::Write, args);
            params.push(U("slots_at", step.slots.offset() as u32));
            plan = Some(&step.slots);
        }
        if let Some(rope) = self.rope {
            args.push(operand("table", Access::Read, &rope.table, params)?);
        }
        if let Some(positions) = self.positions {
            params.push(U("positions_at", positions.offset() as u32));
            plan = Some(positions);
        }
        if let Some(plan) = plan {
            args.push(Arg { name: "plan", of: "u32", access: Access::Read, block: block(plan)? });
        }
        Ok(())
    }
}

/// The name of the pairing in the kernel.
pub(super) fn pairs(pairs: RopePairs) -> &'static str {
    match pairs {
        RopePairs::Halves => "halves",
        RopePairs::Interleaved => "interleaved",
    }
}
