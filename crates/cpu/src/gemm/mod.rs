//! Products of packed weights with rows of input.
//!
//! ```text
//!                        packed panels (memory)
//!                               |
//!              few rows of      |  many rows
//!              input            |  of input
//!             .-----------------+-----------------.
//!             v                                   v
//!       gemv: codes go from              unpack: a chunk to one byte per
//!       memory to registers              code (or to f32), in L1
//!       and are multiplied               tiles, i8mm, amx: multiply it
//!       with every row                   with every row
//!             '-----------------+-----------------'
//!                               v
//!                 Sums: 2 x 16 f32 per row of input
//!                               v
//!              epilogue: bias, scale, softcap, residual,
//!                    or activation of gate and up
//! ```
//!
//! BF16 weights are not widened where the CPU has dot products of pairs or matrix products of them (`bf16_pairs`, `bf16_matrices`,
//! `amx::bf16`).
//!
//! All take some rows of input at a time, as many as fit into registers (`rows`). From one tile of GEMV on each thread tries which of
//! the two is faster ([`KernelChoices`](crate::choices::KernelChoices)).
//!
//! # Safety
//!
//! As for [`kernels`](crate::kernels): unsafe functions here may only run on a CPU that has the instruction set of
//! their `S` or `L`, and while nobody else uses the part of the output that they write.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod amx;
#[cfg(target_arch = "aarch64")]
pub(crate) mod bf16_matrices;
#[cfg(target_arch = "x86_64")]
pub(crate) mod bf16_pairs;
mod epilogue;
mod gemv;
#[cfg(target_arch = "aarch64")]
pub(crate) mod i8mm;
mod rows;
mod tiles;
mod unpack;

use std::marker::PhantomData;
use std::ops::Range;

use half::bf16;

pub(crate) use epilogue::{Activated, Finish, OutputTask, activate_sums, finish};
pub(crate) use gemv::{GemvRows, GemvTask, gemv};
pub(crate) use tiles::{FloatGemmTask, GemmTask, gemm, gemm_float};
pub(crate) use unpack::{Chunk, Plain, prefetch_strided, unpack, unpack_plain};

use crate::choices::Prefetch;
use crate::mat::Mat;
use crate::pack::{CHUNK, HasPackedKind, PackedWeights, ROWS};
use crate::simd::{IntKind, RunKind, StepKind};

/// Sums of one row of input with the 32 rows of a pair of panels.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Sums(pub [[f32; ROWS]; 2]);

impl Sums {
    pub(crate) const ZERO: Sums = Sums([[0.0; ROWS]; 2]);
}

/// A pair of BF16 panels, to be multiplied with rows of bf16.
pub(crate) struct Bf16Task<'a> {
    pub w: PackedWeights<'a>,
    pub pair: usize,
    /// [rows, inputs], with zeros up to a whole number of sub-blocks, and as many rows more as a tile may read past the last.
    pub x: Mat<'a, bf16>,
    /// Rows of the input.
    pub rows: Range<usize>,
    /// Sums of each of `rows`. Those of an unused panel are arbitrary.
    pub sums: &'a mut [Sums],
    pub prefetch: Prefetch,
}

/// Summation of the products of a `PackedKind`.
struct Kind<F>(PhantomData<F>);

impl<F: HasPackedKind> StepKind for Kind<F> {
    const STEP: usize = F::SHAPE.step();
    const WIDE: bool = F::SHAPE.is_wide();
    const GROUPS: usize = F::SHAPE.groups_at_once(Self::STEP);
}

/// For a `PackedKind` with integer scales.
impl<F: HasPackedKind> IntKind for Kind<F> {
    const NARROW: bool = F::SHAPE.is_narrow();
    const MINS: usize = if F::SHAPE.has_mins() { CHUNK / F::SHAPE.run / 2 } else { 0 };
    const RUN: usize = F::SHAPE.run;
    const RUN_GROUPS: usize = F::SHAPE.groups_at_once(Self::RUN);
}

/// Runs of `RUN` inputs with float scales, with minimums or not, of wide codes or not, whose products are summed in pairs over
/// `GROUPS` groups. GEMM is compiled for these and not for each `PackedKind`: in an unpacked chunk many look alike.
enum Runs<const RUN: usize, const MINS: bool, const GROUPS: usize> {}

/// Values of up to four bits.
type NibbleRuns = Runs<32, false, 8>;
/// The same with minimums.
type NibbleMinRuns = Runs<32, true, 8>;
/// Values of up to five bits.
type NarrowRuns = Runs<32, false, 4>;
/// The same in runs of 16.
type ShortRuns = Runs<16, false, 4>;
/// The same with minimums.
type MinRuns = Runs<32, true, 4>;
/// Signed bytes: codes of 8 bits, or from a table.
type WideRuns = Runs<32, false, 1>;

impl<const RUN: usize, const MINS: bool, const GROUPS: usize> StepKind for Runs<RUN, MINS, GROUPS> {
    const STEP: usize = RUN;
    const WIDE: bool = GROUPS == 1;
    const GROUPS: usize = GROUPS;
}

impl<const RUN: usize, const MINS: bool, const GROUPS: usize> RunKind for Runs<RUN, MINS, GROUPS> {
    const MINS: bool = MINS;
}
