//! Products of packed BF16 weights with rows of bf16, on ARM with matrix products of them (`bfmmla`) and dot products of pairs
//! (`bfdot`).
//!
//! A matrix product adds, to each of its sums, the products of two pairs of inputs one after the other, as two dot products do:
//! by the definition of the architecture, both round alike (to odd, after each sum of a pair, with denormals taken for zero). So the
//! products of a single row, for which nothing needs to be paired, have the bits of those of many rows, which take half as many
//! instructions: within a chunk pairs of inputs are summed in order, and then added to the sum of the chunks before, for any
//! number of rows (batch invariance).

#![allow(clippy::needless_range_loop, reason = "loops over register tiles are clearest by index")]

use std::arch::aarch64::*;
use std::arch::asm;

use half::bf16;

use super::rows::{RowKernel, in_tiles};
use super::{Bf16Task, prefetch_strided};
use crate::choices::Prefetch;
use crate::pack::{CHUNK, LINE, ROWS};
use crate::simd::i8mm::{bfmmla, pair, pair_rows, rows_of, unpair};
use crate::simd::{Lines, Neon};

type L = Neon;

/// Lines that are paired and prefetched together, of [`INPUTS`] inputs.
const SOME: usize = 4;
/// Lines between one that is read and one that is prefetched into the nearest cache.
const AHEAD: usize = 12;
/// Inputs of a row that are loaded at once.
const INPUTS: usize = 8;
/// Pairs of rows in a panel.
const PAIRS: usize = ROWS / 2;

/// A chunk of a panel whose lines are paired.
#[repr(C, align(64))]
struct Paired([[[u8; LINE]; SOME]; CHUNK / INPUTS]);

/// Multiplies the pair of panels with all rows.
///
/// # Safety
///
/// The CPU has NEON with BF16.
#[target_feature(enable = "neon,dotprod,bf16")]
pub(crate) unsafe fn multiply(t: &mut Bf16Task<'_>) {
    let prefetches = t.prefetch == Prefetch::Strided;
    // A single row takes lines as they are.
    let mut paired = (t.sums.len() > 1).then_some(Paired([[[0; LINE]; SOME]; CHUNK / INPUTS]));
    for start in (0..t.w.cols).step_by(CHUNK) {
        for panel in 0..t.w.panels {
            let (from, inputs) = t.w.chunk(2 * t.pair + panel, start / CHUNK);
            let lines = &from.as_chunks().0[..inputs.div_ceil(2)];
            match (&mut paired, &mut *t.sums) {
                (Some(paired), sums) => {
                    let (groups, rows) = (paired.fill(lines, prefetches), sums.len());
                    let mut chunk = Bf16Chunk { task: t, start, panel, paired: &paired.0[..groups] };
                    // SAFETY: the caller has the instruction set.
                    unsafe { in_tiles::<Bf16Tile, _>(&mut chunk, rows) };
                }
                (None, sums) => {
                    for sums in sums {
                        let x = &t.x.row(t.rows.start)[start..];
                        add_one(lines, x, &mut sums.0[panel], prefetches);
                    }
                }
            }
        }
    }
}

/// Prefetches what comes after these lines, where that is not left to the hardware.
#[inline(always)]
fn prefetch(lines: &[[u8; LINE]], prefetches: bool) {
    if prefetches {
        let lines = lines.as_ptr_range();
        // SAFETY: a prefetch may be of any address, and every CPU has NEON.
        unsafe {
            prefetch_strided::<L>(lines.start.cast(), lines.end.cast());
            for line in 0..SOME {
                L::prefetch_next(lines.start.wrapping_add(AHEAD + line).cast());
            }
        }
    }
}

/// Adds the products of a row with lines of a panel to its sums.
#[target_feature(enable = "neon,bf16")]
fn add_one(lines: &[[u8; LINE]], x: &[bf16], sums: &mut [f32; ROWS], prefetches: bool) {
    // SAFETY: lines, pairs of inputs and sums are as long as what is read of them, and the CPU has NEON.
    unsafe {
        let mut all = L::words(0);
        for (some, x) in lines.chunks(SOME).zip(x.chunks(INPUTS)) {
            prefetch(some, prefetches);
            for (line, pair) in some.iter().zip(x.as_chunks::<2>().0) {
                let (w, pair) = (L::load(line.as_ptr()), L::repeat(pair.as_ptr().cast()));
                for q in 0..4 {
                    all[q] = bfdot(all[q], w[q], pair[q]);
                }
            }
        }
        let to = sums.as_mut_ptr();
        for q in 0..4 {
            let to = to.add(4 * q);
            vst1q_f32(to, vaddq_f32(vld1q_f32(to), vreinterpretq_f32_u32(all[q])));
        }
    }
}

/// Adds the products of pairs of bf16 to sums (`bfdot`). In assembly: stable Rust has no intrinsic for it yet.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn bfdot(mut sums: uint32x4_t, w: uint32x4_t, x: uint32x4_t) -> uint32x4_t {
    // SAFETY: the CPU has the instruction.
    unsafe {
        asm!(
            "bfdot {sums:v}.4s, {w:v}.8h, {x:v}.8h",
            sums = inout(vreg) sums,
            w = in(vreg) w,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

impl Paired {
    /// Pairs these lines, with zeros after them to a whole number of groups of [`SOME`], which is returned.
    #[target_feature(enable = "neon")]
    fn fill(&mut self, lines: &[[u8; LINE]], prefetches: bool) -> usize {
        for (some, to) in lines.chunks(SOME).zip(&mut self.0) {
            prefetch(some, prefetches);
            for (i, [first, second]) in to.as_chunks_mut().0.iter_mut().enumerate() {
                // SAFETY: these are lines, and the CPU has NEON.
                unsafe {
                    let line = |i: usize| some.get(i).map_or(L::words(0), |line| L::load(line.as_ptr()));
                    let pairs = pair(line(2 * i), line(2 * i + 1));
                    L::store(first.as_mut_ptr(), pairs[0]);
                    L::store(second.as_mut_ptr(), pairs[1]);
                }
            }
        }
        lines.len().div_ceil(SOME)
    }
}

/// A chunk of a panel that begins with input `start`, in groups of [`SOME`] lines.
struct Bf16Chunk<'t, 'a> {
    task: &'t mut Bf16Task<'a>,
    start: usize,
    panel: usize,
    paired: &'t [[[u8; LINE]; SOME]],
}

/// Products of such a chunk.
struct Bf16Tile;

impl RowKernel<Bf16Chunk<'_, '_>> for Bf16Tile {
    // Two pairs of rows with a panel have 16 vectors of sums.
    const MAX_ROWS: usize = 4;

    #[inline(always)]
    unsafe fn tile<const T: usize>(chunk: &mut Bf16Chunk<'_, '_>, row: usize) {
        let Bf16Chunk { task: t, start, panel, paired } = chunk;
        let x = std::array::from_fn(|i| t.x.row(t.rows.start + row + i)[*start..].as_ptr().cast());
        let sums = t.sums[row..][..T].as_mut_ptr().cast::<f32>().wrapping_add(*panel * ROWS);
        // SAFETY: rows of x have zeros up to a whole number of groups, and there are T sums from `row` on; the caller has the
        // instruction set.
        unsafe { add::<T>(paired, x, sums) }
    }
}

/// Adds the products of `T` rows to their sums with a panel, two lines apart.
#[target_feature(enable = "neon,bf16")]
unsafe fn add<const T: usize>(paired: &[[[u8; LINE]; SOME]], x: [*const u8; T], to: *mut f32) {
    let pairs_of_rows = const { T.div_ceil(2) };
    // SAFETY: the caller guarantees the inputs of all groups, and the sums; the CPU has the instruction set.
    unsafe {
        let mut all = [[vdupq_n_u32(0); PAIRS]; T];
        for (group, lines) in paired.iter().enumerate() {
            let mut halves = [[vdupq_n_u8(0); 2]; T];
            for i in 0..pairs_of_rows {
                let [a, b] = rows_of::<T>(i).map(|row| vld1q_u8(x[row].add(2 * INPUTS * group)));
                halves[i] = pair_rows(a, b);
            }
            for half in 0..2 {
                for j in 0..PAIRS {
                    let w = vld1q_u8(lines.as_ptr().cast::<u8>().add(16 * (PAIRS * half + j)));
                    for i in 0..pairs_of_rows {
                        all[i][j] = bfmmla(all[i][j], halves[i][half], w);
                    }
                }
            }
        }
        for i in 0..pairs_of_rows {
            for q in 0..4 {
                let of_both = unpair(all[i][2 * q], all[i][2 * q + 1]);
                for (row, of_row) in rows_of::<T>(i).into_iter().zip(of_both).take(T - 2 * i) {
                    let to = to.add(2 * ROWS * row + 4 * q);
                    vst1q_f32(to, vaddq_f32(vld1q_f32(to), vreinterpretq_f32_u32(of_row)));
                }
            }
        }
    }
}
