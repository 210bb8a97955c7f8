//! Attention over bf16 caches by dot products of pairs of bf16 (AVX-512 BF16).
//!
//! Each score is one chain over the pairs of a query's elements, in order, and each value one over the pairs of a segment's
//! positions, which begin at even ones. Many rows are multiplied in the layout of tiles ([`tiles`]); few read the
//! cache in place, and pair its elements as they pass. A pair of zeros changes nothing, since a chain begins with +0: so it
//! does not matter how a segment or a head is padded.
//!
//! The instruction takes subnormals for zero. Operands are restricted as in [`paired`].
//!
//! # Safety
//!
//! As for [`kernels`](crate::kernels): call only on a CPU with AVX-512 BF16.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::page::{Direct, Keys, Pages, STREAMS, Segment};
use super::paired::{self, Paired, SPAN};
use super::softmax::padded;
use super::tile_units::Pairs;
use super::tiles::{self, ODD, TURNS};
use super::{
    AttendTask, BLOCK, BLOCKS, Products, ROWS, SEGMENT, SegmentScratch, Stage, TILE, Work, run, with_rows,
};
use crate::simd::{self, Avx512};

/// Runs a stage on bf16 pages.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) unsafe fn attend_bf16(t: &AttendTask<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>) {
    let Pages::BF16(k) = t.k else { return };
    // SAFETY: the caller upholds the same contract; the scratch has the sizes that the functions expect.
    unsafe {
        if !t.direct() && !matches!(stage, Stage::Merge(_)) {
            return tiles::attend_bf16::<Pairs>(t, stage, scratch);
        }
        let SegmentScratch { v: copy, mut work, .. } =
            SegmentScratch::new(scratch, t.count(), t.heads.dim, t.v.is_none());
        match t.v {
            Some(Pages::BF16(v)) => run::<Avx512, Pairs, _>(t, stage, &mut work, Direct { k, v }),
            _ => {
                let v = bytemuck::cast_slice_mut(copy);
                run::<Avx512, Pairs, _>(t, stage, &mut work, Keys { k, v });
            }
        }
    }
}

impl Products<Avx512> for Pairs {
    type E = bf16;
    const INVERTED: bool = true;

    /// The pairs of a query as words: [dim / 2, rows]
    #[inline(always)]
    unsafe fn load_queries(t: &AttendTask<'_>, group: Range<usize>, q: &mut [f32]) {
        let (scale, dim, rows) = (t.scale_to_two(), t.heads.dim, group.len());
        let words: &mut [u32] = bytemuck::cast_slice_mut(q);
        let bits = |x: &f32| paired::query(x * scale).to_bits() >> 16;
        for (r, i) in group.enumerate() {
            let (row, head) = t.place(i);
            let from = &t.q.row(row)[head * dim..][..dim];
            for (two, word) in from.chunks(2).zip(words[r..].iter_mut().step_by(rows)) {
                *word = bits(&two[0]) | two.get(1).map_or(0, bits) << 16;
            }
        }
    }

    #[inline(always)]
    unsafe fn score(
        q: Range<usize>,
        rows: usize,
        k: &Segment<bf16>,
        seen: Range<usize>,
        dim: usize,
        work: &mut Work<'_>,
    ) {
        let q = bytemuck::cast_slice(&work.q[q]);
        // SAFETY: the caller upholds this function's contract.
        unsafe {
            with_rows!(rows, ROWS, R => match R {
                ..=4 => scores::<R, 4>(q, &k.k, seen, dim, work.s),
                _ => scores::<R, 2>(q, &k.k, seen, dim, work.s),
            });
        }
    }

    #[inline(always)]
    unsafe fn exp(
        t: &AttendTask<'_>,
        row: usize,
        first: usize,
        own: Range<usize>,
        s: &mut [f32],
    ) -> (f32, f32) {
        // SAFETY: the caller upholds this function's contract.
        unsafe { <Paired<bf16> as Products<Avx512>>::exp(t, row, first, own, s) }
    }

    #[inline(always)]
    unsafe fn gather(rows: usize, v: &Segment<bf16>, seen: Range<usize>, dim: usize, work: &mut Work<'_>) {
        let values = &mut work.segment.values[..rows * padded(dim)];
        let words: &mut [u32] = bytemuck::cast_slice_mut(work.rounded);
        // SAFETY: the caller upholds this function's contract.
        unsafe {
            pair_weights(rows, &seen, work.s, words);
            with_rows!(rows, ROWS, R => match R {
                ..=2 => gather::<R, 4>(words, v, seen, dim, values),
                3..=4 => gather::<R, 2>(words, v, seen, dim, values),
                _ => gather::<R, 1>(words, v, seen, dim, values),
            });
        }
    }
}

/// `sum += pairs * pair`, lane by lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn dot(sum: &mut __m512, pairs: __m512i, pair: __m512i) {
    // SAFETY: whoever calls this module's functions guarantees the instruction.
    unsafe {
        asm!(
            "vdpbf16ps {sum}, {pairs}, {pair}",
            sum = inout(zmm_reg) *sum,
            pairs = in(zmm_reg) pairs,
            pair = in(zmm_reg) pair,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
}

/// Scores of `R` rows, with `N` blocks of positions at a time. `q`: as [`Pairs::load_queries`] lays it out.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn scores<const R: usize, const N: usize>(
    q: &[u32],
    k: &[*const bf16; BLOCKS + STREAMS],
    seen: Range<usize>,
    dim: usize,
    s: &mut [f32],
) {
    let (q, s) = (&q[..R * dim.div_ceil(2)], &mut s[..R * SEGMENT]);
    // SAFETY: blocks have `BLOCK * dim` elements; the caller guarantees the instruction set.
    unsafe {
        let turns = _mm512_loadu_si512(TURNS.as_ptr().cast());
        for first in (seen.start / BLOCK..seen.end.div_ceil(BLOCK)).step_by(N) {
            let mut sums = [[_mm512_setzero_ps(); N]; R];
            for (pair, q) in q.chunks_exact(R).enumerate() {
                let at = pair * 2 * BLOCK;
                let mut keys = [_mm512_setzero_si512(); N];
                for i in 0..N {
                    let key = k[first + i].add(at);
                    keys[i] = if 2 * pair + 1 < dim {
                        // A line of the block that comes next: elements read in place come from memory.
                        simd::prefetch_l2(k[first + i + STREAMS].wrapping_add(at));
                        _mm512_permutexvar_epi16(turns, _mm512_loadu_si512(key.cast()))
                    } else {
                        let one = _mm512_castsi256_si512(_mm256_loadu_si256(key.cast()));
                        _mm512_maskz_permutexvar_epi16(0x5555_5555, turns, one)
                    };
                }
                for r in 0..R {
                    let q = _mm512_set1_epi32(q[r] as i32);
                    for i in 0..N {
                        dot(&mut sums[r][i], keys[i], q);
                    }
                }
            }
            for r in 0..R {
                for i in 0..N {
                    _mm512_storeu_ps(s.as_mut_ptr().add(r * SEGMENT + (first + i) * BLOCK), sums[r][i]);
                }
            }
        }
    }
}

/// The weights of pairs of positions as words, for each row [SEGMENT / 2].
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn pair_weights(rows: usize, seen: &Range<usize>, s: &[f32], words: &mut [u32]) {
    let (s, words) = (&s[..rows * SEGMENT], &mut words[..rows * SEGMENT / 2]);
    // SAFETY: spans are whole, and within a segment of each slice; the caller guarantees the instruction set.
    unsafe {
        let odd = _mm512_loadu_si512(ODD.as_ptr().cast());
        for r in 0..rows {
            for at in seen.clone().step_by(SPAN) {
                let from = s.as_ptr().add(r * SEGMENT + at);
                let (low, high) =
                    (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(SPAN / 2).cast()));
                let both = _mm512_permutex2var_epi16(low, odd, high);
                _mm512_storeu_si512(words.as_mut_ptr().add((r * SEGMENT + at) / 2).cast(), both);
            }
        }
    }
}

/// Columns that two vectors of sums have, one of which gets the lower halves of a value's lanes, the other the upper ones.
const COLUMNS: usize = 32;

/// Weighted sums of the values of `R` rows, with `N` times [`COLUMNS`] at a time.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn gather<const R: usize, const N: usize>(
    weights: &[u32],
    segment: &Segment<bf16>,
    seen: Range<usize>,
    dim: usize,
    values: &mut [f32],
) {
    let (weights, values) = (&weights[..R * SEGMENT / 2], &mut values[..R * padded(dim)]);
    values.fill(0.0);
    let sum = Sum { weights: weights.as_ptr(), segment, dim, values: values.as_mut_ptr() };
    // Passes go tile by tile if values come from memory.
    let step = if segment.near { SEGMENT } else { TILE };
    for at in seen.clone().step_by(step) {
        let some = at..seen.end.min(at + step);
        let mut column = 0;
        while column < dim {
            // SAFETY: the slices have the sizes that `Sum` expects; the caller upholds the rest of the contract.
            unsafe {
                if column + N * COLUMNS <= dim {
                    sum.columns::<R, N>(some.clone(), column);
                    column += N * COLUMNS;
                } else {
                    sum.columns::<R, 1>(some.clone(), column);
                    column += COLUMNS;
                }
            }
        }
    }
}

/// A weighted sum in progress.
struct Sum<'a> {
    /// [rows, SEGMENT / 2]
    weights: *const u32,
    segment: &'a Segment<bf16>,
    dim: usize,
    /// [rows, padded(dim)]
    values: *mut f32,
}

impl Sum<'_> {
    /// Adds positions, from an even one on, to `N` times [`COLUMNS`] columns from `first` on, of which the last may be
    /// missing if that is all.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn columns<const R: usize, const N: usize>(&self, seen: Range<usize>, first: usize) {
        let count = (self.dim - first).min(N * COLUMNS);
        // Elements of each vector, and whether there is a second vector of sums.
        let mask = if count < COLUMNS { (1u32 << count) - 1 } else { u32::MAX };
        let has_two = count > COLUMNS / 2;
        let v = &self.segment.v;
        // SAFETY: blocks have `BLOCK * dim` elements, loads of values are masked to the columns, rows of values are padded
        // to whole vectors, and there is a segment of weights for each row; the caller guarantees the instruction set.
        unsafe {
            let mut sums = [[[_mm512_setzero_ps(); 2]; N]; R];
            for r in 0..R {
                for i in 0..N {
                    let at = self.values.add(r * padded(self.dim) + first + i * COLUMNS);
                    let one = _mm512_loadu_ps(at);
                    let two = if has_two { _mm512_loadu_ps(at.add(COLUMNS / 2)) } else { one };
                    sums[r][i] = halves(one, two);
                }
            }
            for position in seen.clone().step_by(2) {
                // All passes together prefetch the whole of the next tile, from four streams at a time.
                for position in [position, position + 1] {
                    let (i, next) = (position % TILE, position / TILE * STREAMS + STREAMS);
                    let ahead = v[next + i % STREAMS].wrapping_add(first * BLOCK + i / STREAMS * count);
                    for line in (0..N * COLUMNS).step_by(COLUMNS) {
                        simd::prefetch_l2(ahead.wrapping_add(line));
                    }
                }
                let one = v[position / BLOCK].add(first + position % BLOCK * self.dim);
                let second = if position + 1 < seen.end { mask } else { 0 };
                let mut pairs = [[_mm512_setzero_si512(); 2]; N];
                for i in 0..N {
                    let one = one.add(i * COLUMNS);
                    let two = one.wrapping_add(self.dim);
                    let (one, two) = match N {
                        1 => (
                            _mm512_maskz_loadu_epi16(mask, one.cast()),
                            _mm512_maskz_loadu_epi16(second, two.cast()),
                        ),
                        _ => (_mm512_loadu_si512(one.cast()), _mm512_maskz_loadu_epi16(second, two.cast())),
                    };
                    pairs[i] = [_mm512_unpacklo_epi16(one, two), _mm512_unpackhi_epi16(one, two)];
                }
                for r in 0..R {
                    let weight = *self.weights.add((r * SEGMENT + position) / 2);
                    let weight = _mm512_set1_epi32(weight as i32);
                    for i in 0..N {
                        dot(&mut sums[r][i][0], pairs[i][0], weight);
                        dot(&mut sums[r][i][1], pairs[i][1], weight);
                    }
                }
            }
            for r in 0..R {
                for i in 0..N {
                    let at = self.values.add(r * padded(self.dim) + first + i * COLUMNS);
                    let [one, two] = wholes(sums[r][i]);
                    _mm512_storeu_ps(at, one);
                    if has_two {
                        _mm512_storeu_ps(at.add(COLUMNS / 2), two);
                    }
                }
            }
        }
    }
}

/// Columns 0 to 3 of each eight of 32 columns, and columns 4 to 7.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves(one: __m512, two: __m512) -> [__m512; 2] {
    let low = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    let high = _mm512_setr_epi32(4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    [_mm512_permutex2var_ps(one, low, two), _mm512_permutex2var_ps(one, high, two)]
}

/// The inverse of [`halves`].
#[inline]
#[target_feature(enable = "avx512f")]
fn wholes([low, high]: [__m512; 2]) -> [__m512; 2] {
    let one = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    let two = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    [_mm512_permutex2var_ps(low, one, high), _mm512_permutex2var_ps(low, two, high)]
}
