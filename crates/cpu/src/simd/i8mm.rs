//! Matrix products of Armv8.6, and GEMM tiles by those of bytes (`smmla`). An instruction multiplies two rows of x with two rows
//! of weights:
//!
//! ```text
//!            8 inputs of each (4 of bf16)
//! x      [   row a    ][   row b    ]
//! w      [   row r    ][   row s    ]       the row after r
//! sums   [ a·r ][ a·s ][ b·r ][ b·s ]
//! ```
//!
//! Lines of codes are paired once for all rows of x ([`pair_lines`]), rows of x once for a tile. Sums stay in this order to the end of a
//! chunk. Those of integers are exact, and those of floats are scaled and added up as in [`Tile`]: so results are bit-identical to
//! those of other tiles, and of GEMV. An odd row is paired with itself.

#![allow(clippy::needless_range_loop, reason = "loops over register tiles are clearest by index")]

use std::arch::aarch64::*;
use std::arch::asm;
use std::mem::MaybeUninit;

use super::{IntKind, IntTile, Lines, Neon, OfRun, RunKind, StepKind, Tile};

type L = Neon<true>;
type Line = <L as Lines>::I;

/// Rows of x of a tile: with half a panel their sums, of a run and of the chunk, take 16 of 32 registers.
pub(super) const ROWS: usize = 4;
/// Pairs of rows in half a panel.
const HALF: usize = 4;
/// Inputs of a row that are multiplied at once.
const INPUTS: usize = 8;
/// Inputs of a chunk.
const CHUNK: usize = 256;

/// Sums of pairs of `T` rows of x with pairs of rows of half a panel. `T` rows have fewer pairs: the rest is not used.
type PairSums<V, const T: usize> = [[V; HALF]; T];

/// Adds the products of two rows of bytes with two others to their sums (`smmla`). In assembly: stable Rust has no intrinsic for
/// it yet.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub(crate) fn smmla(mut sums: uint32x4_t, x: uint8x16_t, w: uint8x16_t) -> uint32x4_t {
    // SAFETY: the CPU has the instruction.
    unsafe {
        asm!(
            "smmla {sums:v}.4s, {x:v}.16b, {w:v}.16b",
            sums = inout(vreg) sums,
            x = in(vreg) x,
            w = in(vreg) w,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// The same of bf16 and floats (`bfmmla`).
#[inline]
#[target_feature(enable = "neon,bf16")]
pub(crate) fn bfmmla(mut sums: uint32x4_t, x: uint8x16_t, w: uint8x16_t) -> uint32x4_t {
    // SAFETY: the CPU has the instruction.
    unsafe {
        asm!(
            "bfmmla {sums:v}.4s, {x:v}.8h, {w:v}.8h",
            sums = inout(vreg) sums,
            x = in(vreg) x,
            w = in(vreg) w,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Pairs two lines with words of 16 rows: the words of each row come side by side, row after row.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn pair(first: Line, second: Line) -> [Line; 2] {
    let mut pairs = [first; 2];
    for i in 0..4 {
        pairs[i / 2][2 * (i % 2)] = vzip1q_u32(first[i], second[i]);
        pairs[i / 2][2 * (i % 2) + 1] = vzip2q_u32(first[i], second[i]);
    }
    pairs
}

/// Pairs all lines of codes: two lines then have 8 inputs of one row after the other, half of the rows each.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn pair_lines(codes: &mut [[u8; 64]]) {
    for [first, second] in codes.as_chunks_mut().0 {
        // SAFETY: both are lines, and the CPU has NEON.
        unsafe {
            let pairs = pair(L::load(first.as_ptr()), L::load(second.as_ptr()));
            L::store(first.as_mut_ptr(), pairs[0]);
            L::store(second.as_mut_ptr(), pairs[1]);
        }
    }
}

/// Pairs the vectors of two rows: the first halves of both, and the second halves.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn pair_rows(a: uint8x16_t, b: uint8x16_t) -> [uint8x16_t; 2] {
    let (a, b) = (vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b));
    [vreinterpretq_u8_u64(vzip1q_u64(a, b)), vreinterpretq_u8_u64(vzip2q_u64(a, b))]
}

/// Sums of both rows of x with four rows of weights, from those of two pairs.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn unpair(first: uint32x4_t, second: uint32x4_t) -> [uint32x4_t; 2] {
    let (first, second) = (vreinterpretq_u64_u32(first), vreinterpretq_u64_u32(second));
    [vreinterpretq_u32_u64(vzip1q_u64(first, second)), vreinterpretq_u32_u64(vzip2q_u64(first, second))]
}

/// The rows of a pair, among `T`.
pub(crate) const fn rows_of<const T: usize>(pair: usize) -> [usize; 2] {
    [2 * pair, if 2 * pair + 1 < T { 2 * pair + 1 } else { 2 * pair }]
}

/// The inputs of a chunk by pairs of `T` rows, as many at a time as are multiplied at once.
struct Pairs<const T: usize>(MaybeUninit<[[uint8x16_t; T]; CHUNK / INPUTS]>);

impl<const T: usize> Pairs<T> {
    const PAIRS: usize = T.div_ceil(2);

    /// Pairs so many inputs, at most a chunk and an even number of times [`INPUTS`].
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn fill(&mut self, rows: [*const u8; T], inputs: usize) -> *const uint8x16_t {
        let start = self.0.as_mut_ptr().cast::<uint8x16_t>();
        for at in (0..inputs).step_by(2 * INPUTS) {
            for pair in 0..Self::PAIRS {
                let [a, b] = rows_of::<T>(pair);
                // SAFETY: the caller guarantees the inputs, which there is room for.
                unsafe {
                    let [first, second] = pair_rows(vld1q_u8(rows[a].add(at)), vld1q_u8(rows[b].add(at)));
                    let to = start.add(at / INPUTS * Self::PAIRS + pair);
                    to.write(first);
                    to.add(Self::PAIRS).write(second);
                }
            }
        }
        start
    }
}

/// Adds the products of a step to integer sums: half the paired lines at `codes` times the paired rows at `x`.
#[inline]
#[target_feature(enable = "neon,i8mm")]
unsafe fn add_step<K: StepKind, const T: usize>(
    int_sums: &mut PairSums<uint32x4_t, T>,
    codes: *const u8,
    x: *const uint8x16_t,
) {
    for at in 0..K::STEP / INPUTS {
        // SAFETY: the caller guarantees the lines and the rows.
        unsafe {
            let mut w = [vdupq_n_u8(0); HALF];
            for j in 0..HALF {
                w[j] = vld1q_u8(codes.add(128 * at + 16 * j));
            }
            for i in 0..Pairs::<T>::PAIRS {
                let x = x.add(at * Pairs::<T>::PAIRS + i).read();
                for j in 0..HALF {
                    int_sums[i][j] = smmla(int_sums[i][j], x, w[j]);
                }
            }
        }
    }
}

/// Word `at` of each row of a pair, as often as there are sums.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn of_rows<const T: usize>(words: &[*const u32; T], pair: usize, at: usize) -> uint32x4_t {
    let [a, b] = rows_of::<T>(pair);
    // SAFETY: the caller guarantees the words.
    unsafe { vcombine_u32(vdup_n_u32(*words[a].add(at)), vdup_n_u32(*words[b].add(at))) }
}

/// The words of a pair of rows of weights, for both rows of x.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn of_weights(words: *const u32) -> uint32x4_t {
    // SAFETY: the caller guarantees two words.
    unsafe { vreinterpretq_u32_u64(vld1q_dup_u64(words.cast())) }
}

/// As `Tile::add`, of paired lines.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(super) unsafe fn tile<K: RunKind, const T: usize>(t: &Tile<T>) {
    let mut pairs = Pairs(MaybeUninit::uninit());
    // SAFETY: there are lines and bytes for each run; the caller guarantees the instruction set.
    unsafe {
        let x = pairs.fill(t.rows, t.runs * K::STEP);
        for p in 0..2 {
            for half in 0..2 {
                half_tile::<K, T>(t, x, p, half);
            }
        }
    }
}

/// The same for half of panel `p`.
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn half_tile<K: RunKind, const T: usize>(t: &Tile<T>, x: *const uint8x16_t, p: usize, half: usize) {
    // SAFETY: there are lines, scales, minimums and row sums for each run, and sums for each row; the caller guarantees the
    // instruction set.
    unsafe {
        let mut sums: PairSums<float32x4_t, T> = [[vdupq_n_f32(0.0); HALF]; T];
        for run in 0..t.runs {
            let mut int_sums = [[vdupq_n_u32(0); HALF]; T];
            if !K::MINS {
                for i in 0..Pairs::<T>::PAIRS {
                    int_sums[i] = [of_rows(&t.row_sums, i, run); HALF];
                }
            }
            let codes = t.codes[p].add(run * K::STEP * 16 + 64 * half);
            let x = x.add(run * K::STEP / INPUTS * Pairs::<T>::PAIRS);
            add_step::<K, T>(&mut int_sums, codes, x);
            let first = run * 16 + 2 * HALF * half;
            for j in 0..HALF {
                let scale = vreinterpretq_f32_u32(of_weights(t.scales[p].add(first + 2 * j).cast()));
                for i in 0..Pairs::<T>::PAIRS {
                    let int_sum = vcvtq_f32_s32(vreinterpretq_s32_u32(int_sums[i][j]));
                    sums[i][j] = vfmaq_f32(sums[i][j], int_sum, scale);
                }
            }
            if K::MINS {
                for j in 0..HALF {
                    let min = vreinterpretq_f32_u32(of_weights(t.mins[p].add(first + 2 * j).cast()));
                    for i in 0..Pairs::<T>::PAIRS {
                        let row_sum = vreinterpretq_f32_u32(of_rows(&t.row_sums, i, run));
                        sums[i][j] = vfmaq_f32(sums[i][j], min, row_sum);
                    }
                }
            }
        }
        for i in 0..Pairs::<T>::PAIRS {
            for q in 0..2 {
                let [first, second] = [2 * q, 2 * q + 1].map(|j| vreinterpretq_u32_f32(sums[i][j]));
                for (row, of_row) in rows_of::<T>(i).into_iter().zip(unpair(first, second)).take(T - 2 * i) {
                    let sum = t.sums.add((2 * row + p) * 16 + 2 * HALF * half + 4 * q);
                    let by = vdupq_n_f32(*t.row_scales.add(row));
                    vst1q_f32(sum, vfmaq_f32(vld1q_f32(sum), vreinterpretq_f32_u32(of_row), by));
                }
            }
        }
    }
}

/// As `IntTile::add`, of paired lines. Integer scales are whole words, so the steps of a run, which have one, are joined.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(super) unsafe fn int_tile<K: IntKind, const T: usize>(t: &IntTile<T>) {
    let mut pairs = Pairs(MaybeUninit::uninit());
    // SAFETY: the pointers of the tile are valid for every step; the caller guarantees the instruction set.
    unsafe {
        let x = pairs.fill(t.rows, CHUNK);
        let mut all = [[L::words(0); T]; 2];
        for p in 0..2 {
            for half in 0..2 {
                half_int_tile::<K, T>(t, x, p, half, &mut all[p]);
            }
        }
        t.scale::<L, K>(&all);
    }
}

/// The integer sums of a chunk with half of panel `p`. Not inlined, so that no register is taken by the sums of the other halves.
#[inline(never)]
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn half_int_tile<K: IntKind, const T: usize>(
    t: &IntTile<T>,
    x: *const uint8x16_t,
    p: usize,
    half: usize,
    out: &mut [Line; T],
) {
    // SAFETY: there are lines, integer scales and, without minimums, row sums for each run; the caller guarantees the
    // instruction set.
    unsafe {
        let mut all = [[vdupq_n_u32(0); HALF]; T];
        for run in 0..CHUNK / K::RUN {
            let mut int_sums = [[vdupq_n_u32(0); HALF]; T];
            if K::MINS == 0 {
                for i in 0..Pairs::<T>::PAIRS {
                    int_sums[i] = [of_rows(&t.row_sums, i, run); HALF];
                }
            }
            let codes = t.codes[p].add(run * K::RUN * 16 + 64 * half);
            let x = x.add(run * K::RUN / INPUTS * Pairs::<T>::PAIRS);
            add_step::<OfRun<K>, T>(&mut int_sums, codes, x);
            let first = run * (K::RUN / K::STEP) * 16 + 2 * HALF * half;
            for j in 0..HALF {
                let by = of_weights(t.by[p].add(first + 2 * j).cast());
                for i in 0..Pairs::<T>::PAIRS {
                    all[i][j] = vmlaq_u32(all[i][j], int_sums[i][j], by);
                }
            }
        }
        for i in 0..Pairs::<T>::PAIRS {
            for q in 0..2 {
                let of_both = unpair(all[i][2 * q], all[i][2 * q + 1]);
                for (row, of_row) in rows_of::<T>(i).into_iter().zip(of_both).take(T - 2 * i) {
                    out[row][2 * half + q] = of_row;
                }
            }
        }
    }
}
