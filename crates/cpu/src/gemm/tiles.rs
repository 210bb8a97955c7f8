//! GEMM: products of an unpacked pair of panels with rows of input, one chunk at a time. The same loops serve any
//! number of rows.
//!
//! ```text
//!                 T rows of x (as many as fit into registers)
//!               .---------------------.
//!  panel 0      | 16 x T sums         |   one register (or two, or four) for each panel and row
//!  panel 1      | 16 x T sums         |
//!               '---------------------'
//! for each run of inputs: int_sums = codes · x, then f32 sums += scale * int_sums (+ min * row_sums)   `tile`
//! integer scales:         all += scale * int_sums, and d, dmin once for the chunk                      `int_tile`
//! float weights:          sums += w * x, input by input                                                `plain_tile`
//! ```
//!
//! An output is summed over chunks of inputs in order, and within a chunk over its runs (unless that sum is exact, in
//! integers) or, in f32, over the inputs, whatever the number of rows. So a row's result does not depend on the other
//! rows (batch invariance).

#![allow(clippy::needless_range_loop, reason = "loops over register tiles are clearest by index")]

use super::unpack::{Chunk, Plain};
use super::{Kind, Sums};
use crate::mat::Mat;
use crate::pack::{CHUNK, HasPackedKind, PackedLayout, ROWS, with_packed_kind};
use crate::quantize::QuantizedView;
use crate::simd::{IntTile, Lines, Tile};

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

/// The same in f32.
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
        match (shape.has_int_scales(), shape.has_mins(), shape.is_wide()) {
            (true, ..) => with_packed_kind!(t.layout.kind, F => int_tiles::<L, F>(t)),
            (_, true, _) => tiles::<L, 32, true, false>(t),
            (.., false) => tiles::<L, 32, false, false>(t),
            _ if shape.run == 16 => tiles::<L, 16, false, true>(t),
            _ => tiles::<L, 32, false, true>(t),
        }
    }
}

/// All rows, as many at a time as fit into registers.
#[inline(always)]
unsafe fn tiles<L: Lines, const RUN: usize, const MINS: bool, const WIDE: bool>(t: &mut GemmTask<'_>) {
    let mut row = 0;
    while row < t.sums.len() {
        // SAFETY: at least `T` rows are left, as `match` says; the caller has the instruction set.
        row += unsafe {
            match (t.sums.len() - row).min(L::GEMM_ROWS) {
                1 => tile::<L, 1, RUN, MINS, WIDE>(t, row),
                2 => tile::<L, 2, RUN, MINS, WIDE>(t, row),
                3 => tile::<L, 3, RUN, MINS, WIDE>(t, row),
                4 | 5 => tile::<L, 4, RUN, MINS, WIDE>(t, row),
                _ => tile::<L, 6, RUN, MINS, WIDE>(t, row),
            }
        };
    }
}

/// Tile of `T` rows from `row` on. Returns `T`.
#[inline(always)]
unsafe fn tile<L: Lines, const T: usize, const RUN: usize, const MINS: bool, const WIDE: bool>(
    t: &mut GemmTask<'_>,
    row: usize,
) -> usize {
    if const { T > L::GEMM_ROWS } {
        return T;
    }
    let [first, second] = &*t.chunks;
    let n = t.inputs.len();
    let (codes, scales, row_sums) = t.x.chunk(t.first + row..t.first + row + T, &t.inputs);
    let tile = Tile {
        codes: [first, second].map(|c| c.codes.as_ptr().cast()),
        scales: [first, second].map(|c| c.scales.as_ptr().cast()),
        mins: [first, second].map(|c| c.mins.as_ptr().cast()),
        rows: std::array::from_fn(|i| codes[i * n..].as_ptr()),
        row_scales: scales.as_ptr(),
        row_sums: std::array::from_fn(|i| row_sums[i * n / RUN..].as_ptr()),
        sums: t.sums[row..][..T].as_mut_ptr().cast(),
        runs: n / RUN,
    };
    // SAFETY: the pointers are to arrays as long as the tile's docs require; the caller has the instruction set.
    unsafe { L::tile::<T, RUN, MINS, WIDE>(&tile) };
    T
}

/// All rows with a full chunk of integer scales, as many at a time as fit into registers.
#[inline(always)]
unsafe fn int_tiles<L: Lines, F: HasPackedKind>(t: &mut GemmTask<'_>) {
    // Blocks of these formats are full chunks (256 weights).
    assert!(const { F::SHAPE.has_int_scales() } && t.inputs.len() == CHUNK);
    let mut row = 0;
    while row < t.sums.len() {
        // SAFETY: at least `T` rows are left, as `match` says; the caller has the instruction set.
        row += unsafe {
            match (t.sums.len() - row).min(L::GEMM_ROWS) {
                1 => int_tile::<L, F, 1>(t, row),
                2 => int_tile::<L, F, 2>(t, row),
                3 => int_tile::<L, F, 3>(t, row),
                4 | 5 => int_tile::<L, F, 4>(t, row),
                _ => int_tile::<L, F, 6>(t, row),
            }
        };
    }
}

/// Tile of `T` rows from `row` on. Returns `T`.
#[inline(always)]
unsafe fn int_tile<L: Lines, F: HasPackedKind, const T: usize>(t: &mut GemmTask<'_>, row: usize) -> usize {
    if const { T > L::GEMM_ROWS } {
        return T;
    }
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
    unsafe { L::int_tile::<T, Kind<F>>(&tile) };
    T
}

/// Adds the chunk's products to the sums, in f32.
#[inline(always)]
pub(crate) unsafe fn gemm_float<L: Lines>(t: &mut FloatGemmTask<'_>) {
    let mut row = 0;
    while row < t.sums.len() {
        // SAFETY: at least `T` rows are left, as `match` says; the caller has the instruction set.
        row += unsafe {
            match (t.sums.len() - row).min(L::GEMM_ROWS_F32) {
                1 => plain_tile::<L, 1>(t, row),
                2 => plain_tile::<L, 2>(t, row),
                3 => plain_tile::<L, 3>(t, row),
                4..=7 => plain_tile::<L, 4>(t, row),
                8..=11 => plain_tile::<L, 8>(t, row),
                _ => plain_tile::<L, 12>(t, row),
            }
        };
    }
}

#[inline(always)]
unsafe fn plain_tile<L: Lines, const T: usize>(t: &mut FloatGemmTask<'_>, row: usize) -> usize {
    if const { T > L::GEMM_ROWS_F32 } {
        return T;
    }
    let x: [*const f32; T] = std::array::from_fn(|i| t.x.row(row + i)[t.inputs.clone()].as_ptr());
    let sums = t.sums[row..][..T].as_mut_ptr().cast::<f32>();
    let w = [t.plain[0].0.as_ptr().cast::<f32>(), t.plain[1].0.as_ptr().cast::<f32>()];
    // SAFETY: chunks have 256 inputs, rows of x have those of the task, and there are T sums from `row` on; the
    // caller has the instruction set.
    unsafe {
        let mut f: [[L::F; T]; 2] =
            std::array::from_fn(|p| std::array::from_fn(|i| L::load_f32(sums.add((2 * i + p) * ROWS))));
        for k in 0..t.inputs.len() {
            let w = [L::load_f32(w[0].add(k * ROWS)), L::load_f32(w[1].add(k * ROWS))];
            for i in 0..T {
                let a = L::splat(*x[i].add(k));
                f[0][i] = L::fma(w[0], a, f[0][i]);
                f[1][i] = L::fma(w[1], a, f[1][i]);
            }
        }
        for p in 0..2 {
            for i in 0..T {
                L::store_f32(sums.add((2 * i + p) * ROWS), f[p][i]);
            }
        }
    }
    T
}
