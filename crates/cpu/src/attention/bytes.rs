//! Integer attention products, for i8 keys and values.
//!
//! Widening i8 codes to `f32` takes longer than loading them. So the queries of a group are rounded to i16 with one
//! scale per row, and so are its weights in a segment, after they are multiplied by the scales of the values. Products
//! are added in pairs to i32 words that cannot overflow: the sums are exact in any order. The rounding error is small:
//! about 1/500 of that of the i8 codes themselves.

use std::ops::Range;

use tallow_core::DType;

use super::codes;
use super::page::{Bring, Direct, STREAMS, Segment};
use super::softmax::padded;
use super::weights::Weight;
use super::{AttendTask, BLOCK, BLOCKS, Pages, Products, SEGMENT, TILE, Work};
use super::{keys_as_values, rows_at_once, with_rows};
use crate::simd::{self, Lines};

/// 32-bit words per line (64 bytes), as many as slots per block.
const WORDS: usize = 16;
/// Largest i16.
const REACH: f32 = 32_767.0;

/// Source of i8 segments.
pub(super) enum FromBytes<'a> {
    /// The pages themselves, where their layout is paired (see [`page`](super::page)).
    Direct(Direct<'a, i8>),
    /// Buffers for a copy in the paired layout.
    Copied { k: &'a mut [i8], v: &'a mut [i8] },
}

impl<'a> FromBytes<'a> {
    pub(super) fn copied(k: &'a mut [f32], v: &'a mut [f32]) -> FromBytes<'a> {
        FromBytes::Copied { k: bytemuck::cast_slice_mut(k), v: bytemuck::cast_slice_mut(v) }
    }
}

impl Bring for FromBytes<'_> {
    type E = i8;

    #[inline(always)]
    unsafe fn load_kv<S: simd::Simd>(&mut self, t: &AttendTask<'_>, index: usize) -> Segment<i8> {
        let (k, v) = match self {
            // SAFETY: the caller upholds this function's contract.
            FromBytes::Direct(direct) => return unsafe { direct.load_kv::<S>(t, index) },
            FromBytes::Copied { k, v } => (k, v),
        };
        let size = BLOCK * t.heads.dim.next_multiple_of(2);
        copy(t, index, k, v);
        let block = |of: &[i8], i: usize| of[i % BLOCKS * size..].as_ptr();
        Segment {
            k: std::array::from_fn(|i| block(if i < BLOCKS { k } else { v }, i)),
            v: std::array::from_fn(|i| block(if i < BLOCKS { v } else { k }, i)),
            near: true,
        }
    }
}

/// Copies a segment to blocks in the paired layout. An odd head dimension is padded with a zero element.
fn copy(t: &AttendTask<'_>, index: usize, k: &mut [i8], v: &mut [i8]) {
    let (dim, start, layout) = (t.heads.dim, index * SEGMENT, t.layout());
    let wide = dim.next_multiple_of(2);
    let count = SEGMENT * wide;
    let Pages::I8(from_k) = t.k else { return };
    if layout.paired && t.v.is_none() {
        let blocks = k[..count].chunks_exact_mut(BLOCK * dim).zip(v[..count].chunks_exact_mut(BLOCK * dim));
        for (first, (k, v)) in (start..t.len.min(start + SEGMENT)).step_by(BLOCK).zip(blocks) {
            let (page, slot) = t.slot(first);
            k.copy_from_slice(&from_k.row(page)[layout.block(t.head, slot)..][..BLOCK * dim]);
            keys_as_values::pairs(k, dim, v);
        }
        return;
    }
    k[..count].fill(0);
    v[..count].fill(0);
    let from_v = match t.v {
        Some(Pages::I8(v)) => Some(v),
        _ => None,
    };
    for i in 0..t.len.saturating_sub(start).min(SEGMENT) {
        let ((page, slot), block) = (t.slot(start + i), i / BLOCK * BLOCK * wide);
        let (key, value) = (layout.key(t.head, slot), layout.value(t.head, slot));
        let (from_k, from_v, i) = (from_k.row(page), from_v.map(|v| v.row(page)), i % BLOCK);
        for d in 0..dim {
            let k_element = from_k[key.element(d)];
            k[block + d / 2 * 2 * BLOCK + 2 * i + d % 2] = k_element;
            v[block + i / 2 * 2 * wide + 2 * d + i % 2] = from_v.map_or(k_element, |v| v[value.element(d)]);
        }
    }
}

/// Rounds floats to integers of magnitude up to `reach` and stores them as i16 pairs, one 32-bit word every `stride`
/// words. Returns the scale that the integers are to be multiplied by.
#[inline(always)]
fn round(x: &[f32], reach: f32, out: &mut [f32], stride: usize) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer, in the lowest bits.
    const SHIFT: f32 = 12_582_912.0;
    let mut most = 0.0;
    codes::magnitude(x, &mut most);
    let (scale, by) = codes::scale_of(most, reach);
    let half = |x: f32| (x * by + SHIFT).to_bits() & 0xffff;
    let word = |x: &[f32]| half(x[0]) | x.get(1).map_or(0, |x| half(*x) << 16);
    let out = bytemuck::cast_slice_mut::<f32, u32>(out);
    let pairs = x.chunks_exact(2);
    let last = pairs.remainder();
    if stride == 1 {
        out.iter_mut().zip(pairs).for_each(|(o, x)| *o = word(x));
    } else {
        out.iter_mut().step_by(stride).zip(pairs).for_each(|(o, x)| *o = word(x));
    }
    if !last.is_empty() {
        out[x.len() / 2 * stride] = word(last);
    }
    scale
}

/// Lines of each of `rows` sums that fit the registers at a time.
const fn at_once<S: simd::Simd>(rows: usize) -> usize {
    let lines = simd::at_once::<S>(rows) * S::LANES / WORDS;
    if lines == 0 { 1 } else { lines }
}

pub(super) struct Bytes;

impl<S: Weight + Lines> Products<S> for Bytes {
    type E = i8;

    /// Layout: i16 pairs [dim.div_ceil(2), rows], then one scale per row.
    #[inline(always)]
    unsafe fn load_queries(t: &AttendTask<'_>, group: Range<usize>, q: &mut [f32]) {
        let (dim, rows) = (t.heads.dim, group.len());
        // Bounds queries so that the i32 sums cannot overflow.
        let most = i32::MAX as f32 / (DType::I8.max_abs().unwrap_or(1.0) * dim as f32);
        let (q, scales) = q.split_at_mut(dim.div_ceil(2) * rows);
        for (r, i) in group.enumerate() {
            let (row, head) = t.place(i);
            let from = &t.q.row(row)[head * dim..][..dim];
            scales[r] = round(from, REACH.min(most.floor() - 1.0), &mut q[r..], rows) * t.scale;
        }
    }

    #[inline(always)]
    unsafe fn score(
        q: Range<usize>,
        rows: usize,
        k: &Segment<i8>,
        seen: Range<usize>,
        dim: usize,
        work: &mut Work<'_>,
    ) {
        let (q, scales) = work.q[q].split_at(dim.div_ceil(2) * rows);
        // SAFETY: the caller upholds this function's contract.
        unsafe {
            with_rows!(rows, rows_at_once::<S>(), R =>
            match const { at_once::<S>(R) } {
                4.. => scores::<S, R, 4>(q, scales, k, seen, work.s),
                2.. => scores::<S, R, 2>(q, scales, k, seen, work.s),
                _ => scores::<S, R, 1>(q, scales, k, seen, work.s),
            });
        }
    }

    #[inline(always)]
    unsafe fn gather(rows: usize, v: &Segment<i8>, seen: Range<usize>, dim: usize, work: &mut Work<'_>) {
        let tiles = seen.start..seen.end.next_multiple_of(TILE);
        let mut scales = [0.0; super::ROWS];
        let weights = work.s.chunks_exact(SEGMENT).zip(work.rounded.chunks_exact_mut(SEGMENT / 2));
        for ((s, rounded), scale) in weights.zip(&mut scales).take(rows) {
            let rounded = &mut rounded[tiles.start / 2..tiles.end / 2];
            *scale = round(&s[tiles.clone()], REACH, rounded, 1);
        }
        let values = &mut work.segment.values[..rows * padded(dim)];
        values.fill(0.0);
        let sum = Sum {
            weights: work.rounded.as_ptr().cast(),
            segment: v,
            wide: dim.next_multiple_of(2),
            values: values.as_mut_ptr(),
            padded: padded(dim),
        };
        // SAFETY: the slices have the sizes that `Sum` expects; the caller upholds the rest of the contract.
        unsafe {
            with_rows!(rows, rows_at_once::<S>(), R => sum.gather::<S, R>(seen));
            for (r, scale) in scales.iter().enumerate().take(rows) {
                sum.scale::<S>(r, *scale);
            }
        }
    }
}

/// Scores of `R` rows, `N` blocks of positions at a time.
#[inline(always)]
unsafe fn scores<L: Lines, const R: usize, const N: usize>(
    q: &[f32],
    scales: &[f32],
    k: &Segment<i8>,
    seen: Range<usize>,
    s: &mut [f32],
) {
    let (pairs, s) = (q.len() / R, &mut s[..R * SEGMENT]);
    // SAFETY: `s` has `R * SEGMENT`, and there is a scale for each row; the caller guarantees the instruction set.
    unsafe {
        for at in seen.step_by(N * BLOCK) {
            let keys: [*const i8; N] = std::array::from_fn(|i| k.k[at / BLOCK + i]);
            let ahead: [*const i8; N] = std::array::from_fn(|i| k.k[at / BLOCK + i + STREAMS]);
            let mut sums = [[L::words(0); N]; R];
            // A line holds two element pairs of a block.
            for pair in (0..pairs / 2 * 2).step_by(2) {
                for ahead in ahead {
                    simd::prefetch_l2(ahead.wrapping_add(pair * 2 * BLOCK));
                }
                add_pair::<L, R, N>(&keys, q, pair, &mut sums);
                add_pair::<L, R, N>(&keys, q, pair + 1, &mut sums);
            }
            if !pairs.is_multiple_of(2) {
                add_pair::<L, R, N>(&keys, q, pairs - 1, &mut sums);
            }
            for r in 0..R {
                let scale = L::splat(scales[r]);
                for i in 0..N {
                    let to = s.as_mut_ptr().add(r * SEGMENT + at + i * BLOCK);
                    L::store_f32(to, L::mul(L::to_f32(sums[r][i]), scale));
                }
            }
        }
    }
}

/// Adds the products of one element pair of the queries and of the keys.
#[inline(always)]
unsafe fn add_pair<L: Lines, const R: usize, const N: usize>(
    keys: &[*const i8; N],
    q: &[f32],
    pair: usize,
    sums: &mut [[L::I; N]; R],
) {
    // SAFETY: blocks have a line for two pairs, queries a word of each for each row; the caller guarantees the
    // instruction set.
    unsafe {
        let x: [L::I; N] = std::array::from_fn(
            #[inline(always)]
            |i| L::pairs_i8(keys[i].add(pair * 2 * BLOCK).cast()),
        );
        for r in 0..R {
            let q = L::repeat(q.as_ptr().add(pair * R + r).cast());
            for i in 0..N {
                sums[r][i] = L::dot2::<false>(sums[r][i], x[i], q);
            }
        }
    }
}

/// A weighted sum in progress. Its i32 sums are stored where the f32 values will be.
struct Sum<'a> {
    /// i16 pairs [rows, SEGMENT / 2]
    weights: *const u8,
    segment: &'a Segment<i8>,
    /// `dim` rounded up to even: elements of a value.
    wide: usize,
    /// [rows, padded]
    values: *mut f32,
    padded: usize,
}

impl Sum<'_> {
    /// Adds the positions `seen`, which begin at a tile boundary.
    #[inline(always)]
    unsafe fn gather<L: Lines + simd::Simd, const R: usize>(&self, seen: Range<usize>) {
        let lines = self.padded / WORDS;
        // As for `f32`: several passes go tile by tile, so that all but the first find the tile in cache.
        let step = if lines <= const { at_once::<L>(R) } { SEGMENT } else { TILE };
        // SAFETY: the caller upholds this function's contract.
        unsafe {
            for at in seen.clone().step_by(step) {
                let some = at..seen.end.min(at + step);
                let mut line = 0;
                while line < lines {
                    let left = lines - line;
                    line += if const { at_once::<L>(R) >= 8 } && left >= 8 {
                        self.columns::<L, R, 8>(some.clone(), line)
                    } else if const { at_once::<L>(R) >= 4 } && left >= 4 {
                        self.columns::<L, R, 4>(some.clone(), line)
                    } else if const { at_once::<L>(R) >= 2 } && left >= 2 {
                        self.columns::<L, R, 2>(some.clone(), line)
                    } else {
                        self.columns::<L, R, 1>(some.clone(), line)
                    };
                }
            }
        }
    }

    /// Adds positions to `N` lines of columns.
    #[inline(always)]
    unsafe fn columns<L: Lines, const R: usize, const N: usize>(
        &self,
        seen: Range<usize>,
        line: usize,
    ) -> usize {
        let first = 2 * line * WORDS;
        // SAFETY: the columns are within the buffers of `Sum`; behind a block there are bytes to fill a line, which
        // only reach padding columns that are never read. The caller guarantees the instruction set.
        unsafe {
            let out = |r: usize, i: usize| self.values.add(r * self.padded + (line + i) * WORDS).cast::<u8>();
            let mut sums = [[L::words(0); N]; R];
            for r in 0..R {
                for i in 0..N {
                    sums[r][i] = L::load(out(r, i));
                }
            }
            for at in seen.clone().step_by(TILE) {
                let (block, left) = (at / BLOCK, seen.end - at);
                let v = &self.segment.v;
                let now: [*const i8; STREAMS] = std::array::from_fn(|b| v[block + b].wrapping_add(first));
                // All passes together prefetch the whole of the next blocks, each block from start to end.
                let ahead: [*const i8; STREAMS] =
                    std::array::from_fn(|b| v[block + STREAMS + b].wrapping_add(first * BLOCK / 2));
                for i in 0..TILE / 2 {
                    let (pair, b) = (i / STREAMS, i % STREAMS);
                    let slot = b * BLOCK + 2 * pair;
                    if slot >= left {
                        continue;
                    }
                    for line in (0..N).step_by(2) {
                        simd::prefetch_l2(ahead[b].wrapping_add((pair * N + line) * 2 * WORDS));
                    }
                    let v = now[b].add(pair * 2 * self.wide);
                    let mut w = [L::words(0); R];
                    for r in 0..R {
                        w[r] = L::repeat(self.weights.add(4 * (r * SEGMENT / 2 + (at + slot) / 2)));
                    }
                    for i in 0..N {
                        let x = L::pairs_i8(v.add(2 * i * WORDS).cast());
                        for r in 0..R {
                            sums[r][i] = L::dot2::<false>(sums[r][i], x, w[r]);
                        }
                    }
                }
            }
            for r in 0..R {
                for i in 0..N {
                    L::store(out(r, i), sums[r][i]);
                }
            }
        }
        N
    }

    /// Converts the i32 sums of a row to `f32` and scales them.
    #[inline(always)]
    unsafe fn scale<L: Lines>(&self, row: usize, scale: f32) {
        for at in (0..self.padded).step_by(WORDS) {
            // SAFETY: rows are whole lines; the caller guarantees the instruction set.
            unsafe {
                let p = self.values.add(row * self.padded + at);
                L::store_f32(p, L::mul(L::to_f32(L::load(p.cast())), L::splat(scale)));
            }
        }
    }
}
