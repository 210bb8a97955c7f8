//! QK norm, RoPE, the KV cache and attention.
//!
//! A page of the cache has its heads one after another, of each the slots, of each the elements, `[head][slot][element]`, so that
//! a head's part of a page is one contiguous tile; keys and values alike. The scales of 8-bit codes, `[head][slot]`, follow all
//! codes of the page.

use tallow_core::ops::{Attend, KvWrite, LatentWrite, QkvPrep, Rope};
use tallow_core::{
    Arithmetic, AttnSpec, DType, Heads, Memory, Norm, Result, RopePairs, RopeTable, StepPlan, Tensor,
};

use crate::args::Args;
use crate::device::{ARRIVALS, Cuda};
use crate::gpu::Launch;
use crate::kernels::Kernel;
use crate::ops::rowwise::{WARP_NORM, WARPS, norm};

/// Threads of a CTA (`WIDTH` in `kernels/common.cuh`).
const WIDTH: u32 = 256;
/// Query rows of a CTA, and positions of a unit (`ROWS` and `UNIT` in `kernels/attention.cuh`).
const ROWS: usize = 16;
const UNIT: usize = 256;
/// Most bytes of scratch for what is then left to merge.
const SPREAD: usize = 64 << 20;

/// Widest heads that tensor cores take (`MOST_DIM` in `kernels/attention_mma.cuh`).
const MOST_DIM: usize = 576;

/// The module whose `attend` reads a cache: in [`Arithmetic::Fast`] there is one for each type of 16 or 8 bits.
fn attention(arithmetic: Arithmetic, dtype: DType, dim: usize) -> &'static str {
    if arithmetic == Arithmetic::Exact || dim > MOST_DIM {
        return "attention";
    }
    match dtype {
        DType::F16 => "attention_f16",
        DType::BF16 => "attention_bf16",
        DType::I8 => "attention_i8",
        DType::F8 => "attention_f8",
        _ => "attention",
    }
}

/// A cache's `Layout` in the kernels.
fn layout(args: Args, dtype: DType, heads: Heads, plan: &StepPlan<Cuda>) -> Args {
    let number = match dtype {
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::I8 => 3,
        DType::F8 => 4,
        _ => 0,
    };
    args.word(number).word(plan.host().page_len).word(heads.kv).word(heads.dim)
}

/// RoPE: `RopeTable` in the kernels. All of it is zero if there is none.
fn rope(args: Args, rope: Option<&RopeTable<Cuda>>) -> Args {
    let is_interleaved = rope.is_some_and(|rope| rope.pairs == RopePairs::Interleaved);
    args.optional(rope.map(|rope| &rope.table)).flag(is_interleaved).word(0)
}

/// Heads of a token that a CTA of `qkv_prep` has.
fn heads_each(norm: Option<&Norm<Cuda>>, dim: usize) -> usize {
    norm.map(|norm| norm.weight.cols()).filter(|width| *width > WARP_NORM).map_or(WARPS, |width| width / dim)
}

/// How far tokens see: `Sight` in the kernels.
fn sight(args: Args, spec: &AttnSpec<Cuda>) -> Args {
    let most = u32::MAX as usize;
    let reach = |n: Option<usize>| n.map_or(most, |n| n.min(most));
    args.word(reach(spec.window)).word(reach(spec.chunk)).flag(spec.causal)
}

impl Cuda {
    pub(crate) fn rope_into(&self, op: &Rope<'_, Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        let args = rope(Args::new().matrix(op.x), Some(op.rope));
        let args = args.pointer(op.positions).matrix(out).word(op.head_dim);
        let kernel = Kernel { module: "rope", name: "rope" };
        let grid = [out.len().div_ceil(WIDTH as usize) as u32, 1, 1];
        self.gpu.launch(&Launch { kernel, grid, block: WIDTH, shared: 0, args })
    }

    pub(crate) fn kv_write_to(&self, op: &KvWrite<'_, Cuda>) -> Result<()> {
        let args =
            Args::new().matrix(op.k).optional(op.v).matrix(op.kv.k).optional(op.kv.v).pointer(&op.plan.slots);
        let args = layout(args, op.kv.k.dtype(), op.heads, op.plan);
        let grid = [op.k.rows(), op.heads.kv, 1 + usize::from(op.v.is_some())].map(|n| n as u32);
        let kernel = Kernel { module: "cache", name: "kv_write" };
        self.gpu.launch(&Launch { kernel, grid, block: 32, shared: 0, args })
    }

    /// QK norm, RoPE and the KV cache write in one launch. The norms must span whole heads.
    pub(crate) fn qkv_prep_into(&self, op: &QkvPrep<'_, Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        let (heads, kv) = (op.heads, op.kv);
        let (q_norm, k_norm) = (op.qk_norm.map(|norm| &norm.q), op.qk_norm.map(|norm| &norm.k));
        let args = norm(norm(Args::new().matrix(op.qkv), q_norm), k_norm);
        let args = rope(args, op.rope).pointer(&op.plan.positions).pointer(&op.plan.slots);
        let args = layout(args.matrix(kv.k).optional(kv.v), kv.k.dtype(), heads, op.plan);
        let args = args.word(heads.q).matrix(out);
        let ctas = |count: usize, norm| count.div_ceil(heads_each(norm, heads.dim));
        let parts = ctas(heads.q, q_norm) + ctas(heads.kv, k_norm) + ctas(heads.kv, None);
        let grid = [op.qkv.rows(), parts, 1].map(|n| n as u32);
        let kernel = Kernel { module: "qkv_prep", name: "qkv_prep" };
        self.gpu.launch(&Launch { kernel, grid, block: WIDTH, shared: 0, args })
    }

    pub(crate) fn latent_write_to(&self, op: &LatentWrite<'_, Cuda>) -> Result<()> {
        let args = rope(norm(Args::new().matrix(op.x), Some(op.norm)), op.rope);
        let args = args.pointer(&op.plan.positions).pointer(&op.plan.slots).matrix(op.kv.k);
        let args = layout(args, op.kv.k.dtype(), op.heads, op.plan);
        let grid = [op.x.rows() as u32, 1, 1];
        let kernel = Kernel { module: "latent_write", name: "latent_write" };
        self.gpu.launch(&Launch { kernel, grid, block: WIDTH, shared: 0, args })
    }

    pub(crate) fn attend_into(&self, op: &Attend<'_, Cuda>, out: &Tensor<Cuda>) -> Result<()> {
        let (heads, spec, plan) = (op.heads, op.spec, op.plan);
        let (group, spans) = (heads.q / heads.kv, plan.host().spans.len());
        let blocks: usize = plan.host().spans.iter().map(|span| (span.rows * group).div_ceil(ROWS)).sum();
        // Of the longest sequence that the plan has room for, since a replay may be of a longer one than this. CTAs past a
        // sequence's end return at once. Those of the same rows count themselves when they are done, and the last one merges.
        let units = (plan.pages.cols() * plan.host().page_len).div_ceil(UNIT);
        let room = op.q.rows() * heads.q * units * (heads.dim + 2);
        // So many CTAs keep a device busy; where there would be fewer, each does one unit.
        let spread = units > 1 && blocks * heads.kv < ARRIVALS && room * DType::F32.size() <= SPREAD;
        let parts = match spread {
            true => Some(self.alloc(DType::F32, 1, room)?),
            false => None,
        };
        let args = Args::new().matrix(op.q).matrix(op.kv.k).matrix(op.kv.v.unwrap_or(op.kv.k));
        let args = layout(args, op.kv.k.dtype(), heads, plan);
        let args = args.pointer(&plan.starts).pointer(&plan.lens).matrix(&plan.pages).word(spans);
        let args = sight(args, spec)
            .word(group)
            .float(spec.scale)
            .float(spec.softcap.unwrap_or(0.0))
            .optional(spec.bias.as_ref())
            .optional_pointer(spec.sinks.as_ref())
            .matrix(out)
            .optional_pointer(parts.as_ref())
            .pointer(&self.arrivals);
        let module = attention(self.arithmetic, op.kv.k.dtype(), heads.dim);
        let kernel = Kernel { module, name: "attend" };
        let grid = [blocks, heads.kv, if spread { units } else { 1 }].map(|n| n as u32);
        self.gpu.launch(&Launch { kernel, grid, block: WIDTH, shared: 0, args })
    }
}
