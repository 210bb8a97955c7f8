//! GEMM: products of an unpacked pair of panels with rows of input, one chunk at a time. The same loops serve any
//! number of rows.
//!
//! ```text
//!                 T rows of x (as many as fit into registers)
//!               .---------------------.
//!  panel 0      | 16 x T sums         |   one register (or two, or four) for each panel and row
//!  panel 1      | 16 x T sums         |
//!               '---------------------'
//! for each run of inputs: int_sums = codes · x, then f32 sums += scale * int_sums (+ min * row_sums)   `RunTile`
//! integer scales:         all += scale * int_sums, and d, dmin once for the chunk                      `IntScaleTile`
//! float weights:          sums += w * x, input by input                                                `FloatTile`
//! ```
//!
//! An output is summed over chunks of inputs in order, and within a chunk over its runs (unless that sum is exact, in
//! integers) or, in f32, over the inputs, whatever the number of rows. So a row's result does not depend on the other
//! rows (batch invariance).

#![allow(clippy::needless_range_loop, reason = "loops over register tiles are clearest by index")]

use std::marker::PhantomData;

use super::rows::{RowKernel, in_tiles};
use super::unpack::{Chunk, Plain};
use super::{Kind, MinRuns, NarrowRuns, NibbleMinRuns, NibbleRuns, ShortRuns, Sums, WideRuns};
use crate::mat::Mat;
use crate::pack::{CHUNK, HasPackedKind, PackedLayout, ROWS, with_packed_kind};
use crate::quantize::QuantizedView;
use crate::simd::{IntKind, IntTile, Lines, RunKind, Tile};

/// A chunk of a pair of panels, to be multiplied with all rows of an input.
pub(crate) struct GemmTask<'a> {
    /// Unpacked weights; clobbered by the kernel.
    pub chunks: &'a mut [Chunk; 2],
    /// Panels in use, one or two. Sums of an unused panel are arbitrary.
    pub panels: usize,
    pub layout: &'a PackedLayout,
    pub x: QuantizedView<'a>,
    /// Row of `x` that `sums[0]` belongs to.
    pub first: usize,
    /// Inputs of this chunk.
    pub inputs: std::ops::Range<usize>,
    /// One for each row, with the sums of the chunks before.
    pub sums: &'a mut [Sums],
}

/// A GEMM in f32.
pub(crate) struct FloatGemmTask<'a> {
    pub plain: &'a [Plain; 2],
    pub x: Mat<'a, f32>,
    pub inputs: std::ops::Range<usize>,
    pub sums: &'a mut [Sums],
}

/// Adds the products of a chunk of quantized weights to the sums.
#[inline(always)]
pub(crate) unsafe fn gemm<L: Lines>(t: &mut GemmTask<'_>) {
    let shape = t.layout.shape;
    // SAFETY: the caller has the instruction set.
    unsafe {
        match (shape.has_mins(), shape.is_nibbles()) {
            _ if shape.has_int_scales() => with_packed_kind!(t.layout.kind, F => int_tiles::<L, F>(t)),
            (true, true) => run_tiles::<L, NibbleMinRuns>(t),
            (true, false) => run_tiles::<L, MinRuns>(t),
            (false, true) => run_tiles::<L, NibbleRuns>(t),
            _ if shape.is_wide() => run_tiles::<L, WideRuns>(t),
            _ if shape.run == 16 => run_tiles::<L, ShortRuns>(t),
            _ => run_tiles::<L, NarrowRuns>(t),
        }
    }
}

/// All rows with a chunk of runs with float scales.
#[inline(always)]
unsafe fn run_tiles<L: Lines, K: RunKind>(t: &mut GemmTask<'_>) {
    let shape = t.layout.shape;
    debug_assert!((K::STEP, K::MINS, K::WIDE) == (shape.run, shape.has_mins(), shape.is_wide()));
    let rows = t.sums.len();
    // SAFETY: the caller upholds the same contract.
    unsafe { in_tiles::<RunTile<L, K>, _>(t, rows) }
}

/// All rows with a full chunk of integer scales.
#[inline(always)]
unsafe fn int_tiles<L: Lines, F: HasPackedKind>(t: &mut GemmTask<'_>) {
    // Blocks of these formats are full chunks (256 weights).
    assert!(const { F::SHAPE.has_int_scales() } && t.inputs.len() == CHUNK);
    let rows = t.sums.len();
    // SAFETY: the caller upholds the same contract.
    unsafe { in_tiles::<IntScaleTile<L, F>, _>(t, rows) }
}

/// Adds the chunk's products to the sums, in f32.
#[inline(always)]
pub(crate) unsafe fn gemm_float<L: Lines>(t: &mut FloatGemmTask<'_>) {
    // SAFETY: the caller upholds the same contract.
    unsafe {
        if const { L::GEMM_PANELS_F32 == 1 } {
            float_tiles::<L, 1>(t, 0);
            float_tiles::<L, 1>(t, 1);
        } else {
            float_tiles::<L, 2>(t, 0);
        }
    }
}

/// All rows with `P` panels from `first` on.
#[inline(always)]
unsafe fn float_tiles<L: Lines, const P: usize>(t: &mut FloatGemmTask<'_>, first: usize) {
    let rows = t.sums.len();
    let task = FloatGemmTask { plain: t.plain, x: t.x, inputs: t.inputs.clone(), sums: &mut *t.sums };
    // SAFETY: the caller upholds the same contract.
    unsafe { in_tiles::<FloatTile<L, P>, _>(&mut FloatPanels { task, first }, rows) }
}

/// [`Tile`] of a chunk of runs with float scales.
struct RunTile<L, K>(PhantomData<(L, K)>);

impl<L: Lines, K: RunKind> RowKernel<GemmTask<'_>> for RunTile<L, K> {
    const MAX_ROWS: usize = L::GEMM_ROWS;

    #[inline(always)]
    unsafe fn tile<const T: usize>(t: &mut GemmTask<'_>, row: usize) {
        let [first, second] = &*t.chunks;
        let n = t.inputs.len();
        let (codes, scales, row_sums) = t.x.chunk(t.first + row..t.first + row + T, &t.inputs);
        let tile = Tile {
            codes: [first, second].map(|c| c.codes.as_ptr().cast()),
            scales: [first, second].map(|c| c.scales.as_ptr().cast()),
            mins: [first, second].map(|c| c.mins.as_ptr().cast()),
            rows: std::array::from_fn(|i| codes[i * n..].as_ptr()),
            row_scales: scales.as_ptr(),
            row_sums: std::array::from_fn(|i| row_sums[i * n / K::STEP..].as_ptr()),
            sums: t.sums[row..][..T].as_mut_ptr().cast(),
            runs: n / K::STEP,
        };
        // SAFETY: the pointers are to arrays as long as the tile's docs require; the caller has the instruction set.
        unsafe { L::tile::<K, T>(&tile) }
    }
}

/// [`IntTile`] of a chunk with integer scales.
struct IntScaleTile<L, F>(PhantomData<(L, F)>);

impl<L: Lines, F: HasPackedKind> RowKernel<GemmTask<'_>> for IntScaleTile<L, F> {
    // Eight groups are sums of 32 inputs.
    const MAX_ROWS: usize =
        if Kind::<F>::RUN_GROUPS == 8 { L::GEMM_ROWS } else { L::GEMM_ROWS_OF_SHORT_SUMS };

    #[inline(always)]
    unsafe fn tile<const T: usize>(t: &mut GemmTask<'_>, row: usize) {
        let [first, second] = &*t.chunks;
        let (codes, scales, row_sums) = t.x.chunk(t.first + row..t.first + row + T, &t.inputs);
        let words = row_sums.len() / T;
        let tile = IntTile {
            codes: [first, second].map(|c| c.codes.as_ptr().cast()),
            by: [first, second].map(|c| c.int.by.as_ptr().cast()),
            mins: [first, second].map(|c| c.int.mins.as_ptr().cast()),
            scales: [first, second].map(|c| c.int.scales.as_ptr().cast()),
            rows: std::array::from_fn(|i| codes[i * CHUNK..].as_ptr()),
            row_scales: scales.as_ptr(),
            row_sums: std::array::from_fn(|i| row_sums[i * words..].as_ptr()),
            sums: t.sums[row..][..T].as_mut_ptr().cast(),
        };
        // SAFETY: the pointers are to arrays as long as the tile's docs require; the caller has the instruction set.
        unsafe { L::int_tile::<Kind<F>, T>(&tile) }
    }
}

/// Some panels of a GEMM in f32, from `first` on.
struct FloatPanels<'a> {
    task: FloatGemmTask<'a>,
    first: usize,
}

/// Products of a chunk of floats of `P` panels.
struct FloatTile<L, const P: usize>(PhantomData<L>);

impl<L: Lines, const P: usize> RowKernel<FloatPanels<'_>> for FloatTile<L, P> {
    const MAX_ROWS: usize = L::GEMM_ROWS_F32;

    #[inline(always)]
    unsafe fn tile<const T: usize>(panels: &mut FloatPanels<'_>, row: usize) {
        let FloatPanels { task: t, first } = panels;
        let x: [*const f32; T] = std::array::from_fn(|i| t.x.row(row + i)[t.inputs.clone()].as_ptr());
        let sums = t.sums[row..][..T].as_mut_ptr().cast::<f32>();
        let w: [*const f32; P] = std::array::from_fn(|p| t.plain[*first + p].0.as_ptr().cast());
        // SAFETY: chunks have 256 inputs, rows of x have those of the task, and there are T sums from `row` on; the
        // caller has the instruction set.
        unsafe {
            let sums = sums.add(*first * ROWS);
            let mut f = [[L::splat(0.0); T]; P];
            for p in 0..P {
                for i in 0..T {
                    f[p][i] = L::load_f32(sums.add((2 * i + p) * ROWS));
                }
            }
            for k in 0..t.inputs.len() {
                let mut at = [L::splat(0.0); P];
                for p in 0..P {
                    at[p] = L::load_f32(w[p].add(k * ROWS));
                }
                for i in 0..T {
                    let a = L::splat(*x[i].add(k));
                    for p in 0..P {
                        f[p][i] = L::fma(at[p], a, f[p][i]);
                    }
                }
            }
            for p in 0..P {
                for i in 0..T {
                    L::store_f32(sums.add((2 * i + p) * ROWS), f[p][i]);
                }
            }
        }
    }
}
