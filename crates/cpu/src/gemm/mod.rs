//! Products of packed weights with rows of input.
//!
//! ```text
//!                        packed panels (memory)
//!                               |
//!        at most GEMV_MAX_ROWS  |  more rows
//!        rows of input          |  of input
//!             .-----------------+-----------------.
//!             v                                   v
//!       gemv: codes go from              unpack: a chunk to one byte per
//!       memory to registers              code (or to f32), in L1
//!       and are multiplied               tiles, amx: multiply it with
//!       with every row                   every row
//!             '-----------------+-----------------'
//!                               v
//!                 Sums: 2 x 16 f32 per row of input
//!                               v
//!              epilogue: bias, scale, softcap, residual,
//!                    or activation of gate and up
//! ```
//!
//! # Safety
//!
//! As for [`kernels`](crate::kernels): unsafe functions here may only run on a CPU that has the instruction set of
//! their `S` or `L`, and while nobody else uses the part of the output that they write.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod amx;
mod epilogue;
mod gemv;
mod tiles;
mod unpack;

use std::marker::PhantomData;

pub(crate) use epilogue::{Activated, Finish, OutputTask, activate_sums, finish};
pub(crate) use gemv::{GemvRows, GemvTask, gemv};
pub(crate) use tiles::{FloatGemmTask, GemmTask, gemm, gemm_float};
pub(crate) use unpack::{Chunk, Plain, prefetch_strided, unpack, unpack_plain};

use crate::pack::{CHUNK, HasPackedKind, ROWS};
use crate::simd::IntKind;

/// Sums of one row of input with the 32 rows of a pair of panels.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Sums(pub [[f32; ROWS]; 2]);

impl Sums {
    pub(crate) const ZERO: Sums = Sums([[0.0; ROWS]; 2]);
}

/// Summation of the products of a `PackedKind` with integer scales.
struct Kind<F>(PhantomData<F>);

impl<F: HasPackedKind> IntKind for Kind<F> {
    const STEP: usize = F::SHAPE.step();
    const NARROW: bool = F::SHAPE.is_narrow();
    const MINS: usize = if F::SHAPE.has_mins() { CHUNK / F::SHAPE.run / 2 } else { 0 };
    const WIDE: bool = F::SHAPE.is_wide();
}
