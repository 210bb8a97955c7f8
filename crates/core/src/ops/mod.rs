//! The ops, one file each: operands, result, check.
//!
//! `check` is shared by all devices: after it, a backend may rely on shapes and types, and a step can fail only
//! because of the device. Activations are `f32`; weights and KV caches have various types.

mod activate;
mod attend;
mod causal_conv;
mod dequant;
mod eltwise;
mod embed;
mod ffn;
mod gated_delta;
mod head;
mod index_rows;
mod kv;
mod latent_write;
mod linear;
mod linear_heads;
mod lora;
mod matmul;
mod memory;
mod moe;
mod normalize;
mod permute_cols;
mod qkv;
mod rope;
mod route;
mod tail_sum;
mod topk;

use std::fmt;

pub use activate::Activate;
pub use attend::{ATTEND_TILE, Attend};
pub use causal_conv::{CausalConv, MAX_KERNEL};
pub use dequant::Dequant;
pub use eltwise::{Eltwise, EltwiseOp};
pub use embed::Embed;
pub use ffn::Ffn;
pub use gated_delta::{GatedDelta, MAX_KEY_DIM};
pub use head::Head;
pub use index_rows::{IndexMode, IndexRows};
pub use kv::KvWrite;
pub use latent_write::LatentWrite;
pub use linear::{Linear, LinearMany};
pub use linear_heads::LinearHeads;
pub use lora::{Lora, LoraDelta, lora_deltas};
pub use matmul::{Epilogue, Matmul};
pub use memory::Copy;
pub use moe::Moe;
pub use normalize::Normalize;
pub use permute_cols::PermuteCols;
pub use qkv::QkvPrep;
pub use rope::Rope;
pub use route::{MAX_EXPERTS, Route};
pub use tail_sum::{TAIL_ELEMENT_ERROR, TAIL_SUM_ERROR, TailSum};
pub use topk::{TopK, TopKOut};

use crate::{DType, Error, Memory, Norm, Result, Tensor};

/// An operation, whichever backend runs it.
pub trait Op: fmt::Debug {
    /// Its result.
    type Out;
    /// Its name in traces and error messages.
    const NAME: &'static str;
    /// Checks that the operands' shapes and types fit together.
    fn check(&self) -> Result<()>;
}

/// An op that every backend must compute itself.
pub trait Required<B: Memory>: Op {
    /// The tensors of its result, not yet computed.
    fn out(&self, b: &B) -> Result<Self::Out>;
}

/// Checks shared by ops, for the op of this name.
struct Check(&'static str);

impl Check {
    fn that(
        &self,
        ok: bool,
        what: &'static str,
        want: impl fmt::Display,
        got: impl fmt::Display,
    ) -> Result<()> {
        match ok {
            true => Ok(()),
            false => Err(Error::Shape { op: self.0, what, want: want.to_string(), got: got.to_string() }),
        }
    }

    fn shape<B: Memory>(&self, what: &'static str, t: &Tensor<B>, rows: usize, cols: usize) -> Result<()> {
        let fits = t.rows() == rows && t.cols() == cols;
        let got = format_args!("[{}, {}]", t.rows(), t.cols());
        self.that(fits, what, format_args!("[{rows}, {cols}]"), got)
    }

    fn cols<B: Memory>(&self, what: &'static str, t: &Tensor<B>, cols: usize) -> Result<()> {
        self.that(t.cols() == cols, what, format_args!("{cols} columns"), t.cols())
    }

    fn f32<B: Memory>(&self, what: &'static str, t: &Tensor<B>) -> Result<()> {
        self.dtype(what, t, "f32", |d| d == DType::F32)
    }

    fn float<B: Memory>(&self, what: &'static str, t: &Tensor<B>) -> Result<()> {
        self.dtype(what, t, "f32, f16 or bf16", DType::is_float)
    }

    fn dtype<B: Memory>(
        &self,
        what: &'static str,
        t: &Tensor<B>,
        want: &'static str,
        ok: impl Fn(DType) -> bool,
    ) -> Result<()> {
        match ok(t.dtype()) {
            true => Ok(()),
            false => Err(Error::Type { op: self.0, what, want, got: t.dtype() }),
        }
    }

    /// `t` is [1, count] of `u32` indices.
    fn ids<B: Memory>(&self, what: &'static str, t: &Tensor<B>, count: usize) -> Result<()> {
        self.dtype(what, t, "u32", |d| d == DType::U32)?;
        self.shape(what, t, 1, count)
    }

    /// `t` is [1, count] of `f32`, such as a bias.
    fn row<B: Memory>(&self, what: &'static str, t: &Tensor<B>, count: usize) -> Result<()> {
        self.f32(what, t)?;
        self.shape(what, t, 1, count)
    }

    /// The norm divides `cols` columns into whole groups.
    fn norm<B: Memory>(&self, norm: &Norm<B>, cols: usize) -> Result<()> {
        let width = norm.weight.cols();
        self.row("the norm's weight", &norm.weight, width)?;
        self.that(
            width > 0 && cols.is_multiple_of(width),
            "the norm's width",
            format_args!("a divisor of {cols}"),
            width,
        )?;
        norm.bias.as_ref().map_or(Ok(()), |bias| self.row("the norm's bias", bias, width))
    }
}
