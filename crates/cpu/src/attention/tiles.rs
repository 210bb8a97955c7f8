//! Attention of many rows over bf16 caches, in the layout of AMX tiles: 16 rows or columns, and pairs of bf16.
//!
//! What multiplies tiles is a [`Unit`]: AMX sums in the order of [`paired`], dot products of pairs in that of
//! [`pairs`](super::pairs). All code before and after the products is shared with the path for few rows. So results are
//! bit-identical, and a row may be computed either way.
//!
//! A segment is copied into the tile layout. Then rows are processed in groups of [`GROUP`]: scores, weights by vectors,
//! values. AMX's tile and vector instructions do not overlap, however they are interleaved: a tile product occupies one of
//! the two ports of 512-bit vectors.
//!
//! # Safety
//!
//! As for [`kernels`](crate::kernels): call only on a CPU that has the instructions of the [`Unit`], in a process that may
//! use them (see [`Isa`](crate::Isa)).

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::page::{Pages, Spread};
use super::paired::{self, SPAN};
use super::softmax::{self, OnlineSoftmax, padded};
use super::tile_units::{Product, SIDE, TILE, Unit};
use super::weights;
use super::{AttendTask, BLOCK, Partials, SEGMENT, Stage, finish, keys_as_values, split};
use crate::mat::Mat;
use crate::simd::{self, Avx512};

/// Rows that are multiplied together: two tiles.
const GROUP: usize = 32;
/// Spans (of [`SPAN`] positions) per segment, one tile each.
const SPANS: usize = SEGMENT / SPAN;
/// Row stride of scores in floats: with a power of two all rows would map to the same cache sets.
const WIDE: usize = SEGMENT + 16;

/// Attention over bf16 pages, in any stage but that of merging.
pub(crate) unsafe fn attend_bf16<U: Unit>(t: &AttendTask<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>) {
    let Pages::BF16(k) = t.k else { return };
    let v = match t.v {
        Some(Pages::BF16(v)) => Some(v),
        _ => None,
    };
    // SAFETY: the caller upholds the same contract.
    unsafe {
        U::begin();
        run::<U>(t, Cache { k, v }, stage, scratch);
    }
}

/// The KV cache pages.
#[derive(Clone, Copy)]
struct Cache<'a> {
    k: Mat<'a, bf16>,
    /// None if the values are the keys.
    v: Option<Mat<'a, bf16>>,
}

/// Scratch: tiles one after another, each 16 rows of one 64-byte line.
///
/// In a left operand, a line is 32 elements of a row. In a right operand, it is two elements (those of the line) of
/// each of 16 columns.
struct TileScratch<'a> {
    /// Queries: tiles [rows / 16, dim / 32]
    q: *mut u8,
    /// Keys: tiles [positions / 16, dim / 32]
    k: *mut u8,
    /// Values: tiles [dim / 16, positions / 32]
    v: *mut u8,
    /// Scores of a group: [GROUP, WIDE]
    s: *mut f32,
    /// Weights of a group: tiles [GROUP / 16, positions / 32]
    w: *mut u8,
    /// Softmax of a group in one segment.
    segment: OnlineSoftmax<'a>,
    /// Head dimension, padded to whole pairs of tiles.
    dims: usize,
    total: OnlineSoftmax<'a>,
}

impl<'a> TileScratch<'a> {
    fn new(scratch: &'a mut Vec<f32>, rows: usize, dim: usize) -> TileScratch<'a> {
        let (dims, wide) = (dim.next_multiple_of(SPAN), padded(dim));
        let copy = SEGMENT * dims / 2;
        let sizes = [
            rows.next_multiple_of(GROUP) * dims / 2,
            copy,
            copy,
            GROUP * WIDE,
            GROUP * SEGMENT / 2,
            GROUP,
            GROUP,
            GROUP * dims,
            rows,
            rows,
            rows * wide,
        ];
        let [q, k, v, s, w, most, sum, values, total_most, total_sum, total_values] = split(scratch, sizes);
        TileScratch {
            q: q.as_mut_ptr().cast(),
            k: k.as_mut_ptr().cast(),
            v: v.as_mut_ptr().cast(),
            s: s.as_mut_ptr(),
            w: w.as_mut_ptr().cast(),
            segment: OnlineSoftmax { most, sum, values, wide: dims },
            dims,
            total: OnlineSoftmax { most: total_most, sum: total_sum, values: total_values, wide },
        }
    }
}

/// Positions of the segment from `start` on that intersect `seen`, rounded out to whole spans.
fn stretches(start: usize, seen: Range<usize>) -> Range<usize> {
    let here = |p: usize| p.clamp(start, start + SEGMENT) - start;
    let first = here(seen.start) / SPAN * SPAN;
    first..here(seen.end).next_multiple_of(SPAN).max(first)
}

/// Permutation that interleaves two runs of 16 words.
pub(super) static TURNS: [u16; SPAN] = {
    let mut turns = [0; SPAN];
    let mut i = 0;
    while i < SPAN {
        turns[i] = (i / 2 + i % 2 * SIDE) as u16;
        i += 1;
    }
    turns
};

/// Copies the keys of a segment that some row attends to, in whole spans.
#[inline(always)]
unsafe fn copy_keys(t: &AttendTask<'_>, from: Cache<'_>, scratch: &TileScratch<'_>, index: usize) {
    let start = index * SEGMENT;
    let seen = stretches(start, t.see(0..t.count()));
    let layout = t.layout();
    let (dim, dims) = (t.heads.dim, scratch.dims);
    // SAFETY: pages have all positions before the end, the scratch has a segment; the caller guarantees the instruction
    // set.
    unsafe {
        let turns = _mm512_loadu_si512(TURNS.as_ptr().cast());
        for at in seen.step_by(BLOCK) {
            let first = start + at;
            let to = scratch.k.add(at / BLOCK * (dims / SPAN) * TILE);
            for line in dim / 2..dims / 2 {
                _mm512_store_si512(to.add(line * 64).cast(), _mm512_setzero_si512());
            }
            if first >= t.len {
                continue;
            }
            if t.page_len.is_multiple_of(BLOCK) {
                let (page, slot) = t.slot(first);
                let keys = from.k.row(page)[layout.block(t.head, slot)..][..BLOCK * dim].as_ptr();
                for line in 0..dim / 2 {
                    let two = _mm512_loadu_si512(keys.add(line * 2 * BLOCK).cast());
                    _mm512_store_si512(to.add(line * 64).cast(), _mm512_permutexvar_epi16(turns, two));
                }
                if dim % 2 == 1 {
                    let one = _mm512_castsi256_si512(_mm256_loadu_si256(keys.add((dim - 1) * BLOCK).cast()));
                    let two = _mm512_maskz_permutexvar_epi16(0x5555_5555, turns, one);
                    _mm512_store_si512(to.add(dim / 2 * 64).cast(), two);
                }
                continue;
            }
            let to = to.cast::<bf16>();
            for i in 0..BLOCK.min(t.len - first) {
                let (page, slot) = t.slot(first + i);
                let Spread { at: key, stride, .. } = layout.key(t.head, slot);
                let page = from.k.row(page);
                for d in 0..dim {
                    to.add(d / 2 * SPAN + i * 2 + d % 2).write(page[key + d * stride]);
                }
            }
            if dim % 2 == 1 {
                (0..BLOCK).for_each(|i| to.add(dim / 2 * SPAN + i * 2 + 1).write(bf16::ZERO));
            }
        }
    }
}

/// Copies the values likewise. Those past the sequence's end are zero.
#[inline(always)]
unsafe fn copy_values(t: &AttendTask<'_>, from: Cache<'_>, scratch: &TileScratch<'_>, index: usize) {
    let Some(values) = from.v else {
        // SAFETY: the caller upholds the same contract.
        return unsafe { copy_keys_as_values(t, from.k, scratch, index) };
    };
    let start = index * SEGMENT;
    let seen = stretches(start, t.see(0..t.count()));
    let layout = t.layout();
    let (dim, dims) = (t.heads.dim, scratch.dims);
    // SAFETY: as in `copy_keys`.
    unsafe {
        let turns = _mm512_loadu_si512(TURNS.as_ptr().cast());
        for at in seen.step_by(2) {
            let value = |at: usize| {
                let (page, slot) = t.slot((start + at).min(t.len - 1));
                values.row(page)[layout.value(t.head, slot).at..][..dim].as_ptr()
            };
            let (one, two) = (value(at), value(at + 1));
            let left = t.len.saturating_sub(start + at);
            for column in (0..dims).step_by(SIDE) {
                let some = |of: bool| match dim.saturating_sub(column) {
                    n if n >= SIDE && of => 0xffff,
                    n if of => ((1u32 << n) - 1) as u16,
                    _ => 0,
                };
                let load =
                    |p: *const bf16, mask| _mm256_maskz_loadu_epi16(mask, p.wrapping_add(column).cast());
                let (one, two) = (load(one, some(left > 0)), load(two, some(left > 1)));
                let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(one), two);
                let to = scratch.v.add((column / SIDE * SPANS + at / SPAN) * TILE + at % SPAN / 2 * 64);
                _mm512_store_si512(to.cast(), _mm512_permutexvar_epi16(turns, both));
            }
        }
    }
}

/// Lays out the keys as values.
#[inline(always)]
unsafe fn copy_keys_as_values(
    t: &AttendTask<'_>,
    from: Mat<'_, bf16>,
    scratch: &TileScratch<'_>,
    index: usize,
) {
    let start = index * SEGMENT;
    let (layout, dim, dims) = (t.layout(), t.heads.dim, scratch.dims);
    let mut block = Vec::new();
    for at in stretches(start, t.see(0..t.count())).step_by(BLOCK) {
        let len = t.len.saturating_sub(start + at).min(BLOCK);
        let keys: &[bf16] = if len == 0 {
            &[]
        } else if t.page_len.is_multiple_of(BLOCK) {
            let (page, slot) = t.slot(start + at);
            &from.row(page)[layout.block(t.head, slot)..][..BLOCK * dim]
        } else {
            block.resize(BLOCK * dim, bf16::ZERO);
            for i in 0..len {
                let (page, slot) = t.slot(start + at + i);
                let (page, key) = (from.row(page), layout.key(t.head, slot));
                (0..dim).for_each(|d| block[d * BLOCK + i] = page[key.element(d)]);
            }
            &block
        };
        let keys: &[u16] = bytemuck::cast_slice(keys);
        for column in (0..dims).step_by(SIDE) {
            let tile = (column / SIDE * SPANS + at / SPAN) * TILE + at % SPAN / 2 * 64;
            // SAFETY: the scratch has a segment of tiles, and a block is half of one.
            let lines = unsafe { &mut *scratch.v.add(tile).cast() };
            keys_as_values::tile_lines(&keys[keys.len().min(column * BLOCK)..], len, lines);
        }
    }
}

/// Lays out the queries, scaled and rounded, zero-padded to whole groups and tiles.
#[inline(always)]
unsafe fn load_queries(t: &AttendTask<'_>, scratch: &TileScratch<'_>) {
    // Prefetch distance in rows, which lie far from each other.
    const AHEAD: usize = 8;
    let (dim, depth, scale) = (t.heads.dim, scratch.dims / SPAN, t.scale_to_two());
    let from = |i: usize| {
        let (row, head) = t.place(i);
        &t.q.row(row)[head * dim..(head + 1) * dim]
    };
    for i in 0..t.count().next_multiple_of(GROUP) {
        if i + AHEAD < t.count() {
            simd::prefetch_slice(from(i + AHEAD));
        }
        let from = if i < t.count() { from(i) } else { &[] };
        for d in 0..depth {
            let from = &from[from.len().min(d * SPAN)..];
            // SAFETY: the loads are masked to the slice, and the scratch has that many rows of that many elements; the
            // caller guarantees the instruction set.
            unsafe {
                let to = scratch.q.add((i / SIDE * depth + d) * TILE + i % SIDE * 64);
                for half in [0, SIDE] {
                    let left = from.len().saturating_sub(half);
                    let mask = if left >= SIDE { 0xffff } else { (1u16 << left) - 1 };
                    let q = _mm512_maskz_loadu_ps(mask, from.as_ptr().wrapping_add(half));
                    _mm256_store_si256(to.add(half * 2).cast(), queries(q, scale));
                }
            }
        }
    }
}

/// [`query`](paired::query) of 16 floats, as bf16.
#[inline(always)]
unsafe fn queries(q: __m512, scale: f32) -> __m256i {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let bits = _mm512_castps_si512(_mm512_mul_ps(q, _mm512_set1_ps(scale)));
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        let size = _mm512_and_si512(rounded, _mm512_set1_epi32(0x7fff_0000));
        let large = _mm512_cmpge_epi32_mask(size, _mm512_set1_epi32(paired::LEAST_QUERY.to_bits() as i32));
        _mm512_maskz_cvtepi32_epi16(large, _mm512_srli_epi32::<16>(rounded))
    }
}

/// A group of rows in one segment.
struct RowGroup {
    /// First position of the segment.
    start: usize,
    rows: Range<usize>,
    /// Positions of the segment that some row attends to, in whole spans.
    seen: Range<usize>,
}

impl RowGroup {
    /// Computes the scores of all rows.
    #[inline(always)]
    unsafe fn score<U: Unit>(&self, scratch: &TileScratch<'_>) {
        let depth = scratch.dims / SPAN;
        for at in self.seen.clone().step_by(SPAN) {
            // SAFETY: the scratch has all tiles of the group and the segment; the caller guarantees the instruction
            // set.
            unsafe {
                let product = Product {
                    left: scratch.q.add(self.rows.start / SIDE * depth * TILE),
                    right: scratch.k.add(at / BLOCK * depth * TILE),
                    steps: depth,
                    stride: depth * TILE,
                    out: scratch.s.add(at),
                    width: WIDE * size_of::<f32>(),
                };
                U::multiply(&product, self.rows.len());
            }
        }
    }

    /// Computes the weights of all rows; calls `also` before each row.
    #[inline(always)]
    unsafe fn exp(&self, t: &AttendTask<'_>, scratch: &mut TileScratch<'_>, also: impl Fn(usize)) {
        let (seen, first) = (self.seen.clone(), self.start + self.seen.start);
        let own = |r: usize| {
            let own = t.sees(self.rows.start + r);
            let here = |p: usize| p.clamp(first, first + seen.len()) - first;
            here(own.start)..here(own.end)
        };
        // SAFETY: the scratch has scores and weights for all rows of a group; the caller guarantees the instruction
        // set.
        unsafe {
            let s =
                |r: usize| std::slice::from_raw_parts_mut(scratch.s.add(r * WIDE + seen.start), seen.len());
            let mut most = [0.0; GROUP];
            // Maxima of all rows first: they have high latency and little work.
            for r in 0..self.rows.len() {
                most[r] = weights::largest::<Avx512>(s(r), own(r), t.softcap);
            }
            let odd = _mm512_loadu_si512(ODD.as_ptr().cast());
            for r in 0..self.rows.len() {
                also(r);
                let to = scratch.w.add((r / SIDE * SPANS + seen.start / SPAN) * TILE + r % SIDE * 64);
                scratch.segment.sum[r] = weights::exp::<Avx512>(
                    s(r),
                    own(r),
                    most[r],
                    #[inline(always)]
                    |_, at, w| {
                        let [low, high] = w.map(|w| _mm512_castps_si512(w));
                        let both = _mm512_permutex2var_epi16(low, odd, high);
                        _mm512_store_si512(to.add(at / SPAN * TILE).cast(), both);
                    },
                );
                scratch.segment.most[r] = most[r] * std::f32::consts::LN_2;
            }
        }
    }

    /// Computes the weighted values of all rows.
    #[inline(always)]
    unsafe fn gather<U: Unit>(&self, scratch: &mut TileScratch<'_>) {
        let first = self.seen.start / SPAN * TILE;
        for column in (0..scratch.dims).step_by(SPAN) {
            // SAFETY: as in `score`.
            unsafe {
                let product = Product {
                    left: scratch.w.add(first),
                    right: scratch.v.add(column / SIDE * SPANS * TILE + first),
                    steps: self.seen.len() / SPAN,
                    stride: SPANS * TILE,
                    out: scratch.segment.values.as_mut_ptr().add(column),
                    width: scratch.dims * size_of::<f32>(),
                };
                U::multiply(&product, self.rows.len());
            }
        }
    }
}

/// Computes the segments of a stage.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn run<U: Unit>(t: &AttendTask<'_>, from: Cache<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>) {
    let (rows, all) = (t.count(), t.segments());
    let mut scratch = TileScratch::new(scratch, rows, t.heads.dim);
    // SAFETY: the caller upholds this function's contract.
    unsafe { load_queries(t, &scratch) };
    scratch.total.clear();
    let (segments, partials) = match stage {
        Stage::Segments(some, partials) => (some.clone(), Some(*partials)),
        _ => (all.clone(), None),
    };
    for index in segments.clone() {
        let (start, partials) =
            (index * SEGMENT, partials.map(|partials| (partials, (index - all.start) * rows)));
        let next = (index + 1 < segments.end).then_some(index + 1);
        // SAFETY: the caller upholds this function's contract.
        unsafe {
            copy_keys(t, from, &scratch, index);
            copy_values(t, from, &scratch, index);
            for first in (0..rows).step_by(GROUP) {
                let rows = first..rows.min(first + GROUP);
                let group = RowGroup { start, seen: stretches(start, t.see(rows.clone())), rows };
                group.score::<U>(&scratch);
                group.exp(t, &mut scratch, |r| {
                    if let Some(next) = next {
                        fetch(t, from, next, group.rows.start + r);
                    }
                });
                group.gather::<U>(&mut scratch);
                end(&mut scratch, &group, partials);
            }
        }
    }
    if let Stage::Whole = stage {
        finish(t, &scratch.total, true);
    }
}

/// Prefetches one row's share of a segment.
#[inline(always)]
fn fetch(t: &AttendTask<'_>, from: Cache<'_>, index: usize, row: usize) {
    // Blocks that are not contiguous are not prefetched.
    if !t.page_len.is_multiple_of(BLOCK) {
        return;
    }
    let layout = t.layout();
    // Elements per line; lines per block, and lines of the segment's keys and values per row.
    const LINE: usize = 32;
    let block = BLOCK * t.heads.dim / LINE;
    let tensors = if from.v.is_some() { 2 } else { 1 };
    let each = (tensors * SEGMENT / BLOCK * block).div_ceil(t.count());
    let mut line = row * each;
    let end = line + each;
    while line < end {
        let (which, first) = (line / block, line % block);
        let position = index * SEGMENT + which / tensors * BLOCK;
        if which >= tensors * SEGMENT / BLOCK || position >= t.len {
            return;
        }
        let (page, slot) = t.slot(position);
        let pages = from.v.filter(|_| which % 2 == 1).unwrap_or(from.k);
        let p = pages.row(page)[layout.block(t.head, slot)..].as_ptr();
        let count = (block - first).min(end - line);
        for i in first..first + count {
            simd::prefetch(p.wrapping_add(i * LINE));
        }
        line += count;
    }
}

/// Permutation that selects the odd words of two vectors: the upper halves of 32 floats.
pub(super) static ODD: [u16; SPAN] = {
    let mut odd = [0; SPAN];
    let mut i = 0;
    while i < SPAN {
        odd[i] = 2 * i as u16 + 1;
        i += 1;
    }
    odd
};

/// Merges a group's segment into the total, or stores it as a partial result.
#[inline(always)]
unsafe fn end(scratch: &mut TileScratch<'_>, group: &RowGroup, partials: Option<(Partials<'_>, usize)>) {
    let OnlineSoftmax { most, sum, values, wide } = &mut scratch.segment;
    let groups = most.chunks_mut(SIDE).zip(sum.chunks_mut(SIDE)).zip(values.chunks_mut(SIDE * *wide));
    for (first, ((most, sum), values)) in group.rows.clone().step_by(SIDE).zip(groups) {
        let rows = first..group.rows.end.min(first + SIDE);
        let segment = OnlineSoftmax { most, sum, values, wide: *wide };
        // SAFETY: the caller upholds this function's contract.
        unsafe {
            match partials {
                Some((partials, row)) => partials.store(row, rows, &segment),
                None => softmax::merge::<Avx512>(&segment, &mut scratch.total, rows),
            }
        }
    }
}
