//! Attention over the paged KV cache.
//!
//! Flash attention: positions are processed in segments of [`SEGMENT`], cut at the same absolute positions for every
//! token. Each segment has its own softmax, which is merged with those of the segments before it, in order (online
//! softmax). So a token's result depends only on its position and the cache contents: not on the other tokens of the
//! step, nor on which thread computes which segment.
//!
//! Few query rows (decode) read keys and values straight from the cache, because memory bandwidth is the limit. Many
//! rows (prefill) share a copy of a segment that is widened once. Both run the same loops over the same layout, so they
//! compute the same sums in the same order.
//!
//! 8-bit elements are codes with one scale per key or value, so the scale is applied to a score or a weight. With i8
//! codes, queries and weights are rounded to integers before the product ([`bytes`]); f8 codes are widened.
//!
//! With a bf16 cache, queries and weights are rounded to bf16 as well, and sums are formed in the order of AMX tiles
//! ([`paired`]). So a CPU with AMX uses its tiles for many rows ([`tiles`]) and the result is bit-identical. A CPU that has
//! dot products of pairs of bf16 alone uses those for few rows and many ([`pairs`]), in an order of its own.
//!
//! # Safety
//!
//! As for [`kernels`](crate::kernels): call only on a CPU that has the instruction set of `S`, with exclusive access to the part
//! of the output that is passed.

#![allow(clippy::needless_range_loop, reason = "loops over register tiles are clearest by index")]

mod bytes;
mod codes;
mod floats;
mod gather;
mod keys_as_values;
mod page;
mod paired;
#[cfg(target_arch = "x86_64")]
pub(crate) mod pairs;
mod score;
mod softmax;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tile_units;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles;
mod weights;

use std::ops::Range;

use tallow_core::Heads;
use tallow_core::ops::ATTEND_TILE;

use bytes::{Bytes, FromBytes};
pub(crate) use codes::{magnitude, scale_of, to_f8, to_i8};
use floats::Floats;
use page::{Bring, Direct, InPages, Keys, Next, Segment, Wide};
pub(crate) use page::{PageLayout, Pages, Spread};
use paired::Paired;
pub(crate) use paired::flush_tiny;
use softmax::OnlineSoftmax;
use weights::Weight;

use crate::mat::{Mat, MatMut};
use crate::simd::{Lines, Simd};

/// Positions per block: they are contiguous in a page.
const BLOCK: usize = 16;
/// Positions whose blocks are read concurrently, one stream per block: a single stream does not saturate memory
/// bandwidth.
const TILE: usize = 4 * BLOCK;
const _: () = assert!(ATTEND_TILE.is_multiple_of(TILE));
/// Positions per softmax segment.
const SEGMENT: usize = 256;
/// Blocks per segment.
const BLOCKS: usize = SEGMENT / BLOCK;
/// Maximum query rows that share a load of keys or values.
const ROWS: usize = 8;
/// Minimum rows for which a widened copy of a segment pays off.
const MANY: usize = 4 * ROWS + 1;

/// Attention of some tokens of one sequence, for the query heads of one KV head.
pub(crate) struct AttendTask<'a> {
    /// [tokens, query columns]
    pub q: Mat<'a, f32>,
    /// [tokens, query columns]. Exclusive access: no other task writes the columns of these heads in these rows.
    pub out: &'a MatMut<'a, f32>,
    /// Rows of `q` and `out`.
    pub rows: Range<usize>,
    /// Position of the first of these rows.
    pub position: usize,
    /// Tokens of the sequence in the cache.
    pub len: usize,
    /// Page table of the sequence.
    pub pages: &'a [u32],
    pub page_len: usize,
    pub k: Pages<'a>,
    /// None if the values are the keys.
    pub v: Option<Pages<'a>>,
    pub heads: Heads,
    /// Index of the KV head.
    pub head: usize,
    pub scale: f32,
    pub window: Option<usize>,
    pub chunk: Option<usize>,
    pub softcap: Option<f32>,
    pub sinks: Option<Mat<'a, f32>>,
    /// Relative position bias (T5): [query heads, odd number of distances], indexed by key minus query position,
    /// clamped; distance 0 is in the middle.
    pub bias: Option<Mat<'a, f32>>,
    pub causal: bool,
    /// The task that the thread is likely to run after this one.
    pub next: Option<Next<'a>>,
}

/// Part of a task to compute.
pub(crate) enum Stage<'a> {
    /// All of it.
    Whole,
    /// Partial softmax results of some segments (split-KV).
    Segments(Range<usize>, Partials<'a>),
    /// Merging of the partial results.
    Merge(Partials<'a>),
}

/// Partial softmax results of all segments of a task until they are merged: one row per query row and segment.
#[derive(Clone, Copy)]
pub(crate) struct Partials<'a> {
    pub rows: &'a MatMut<'a, f32>,
    /// Row of the task's first segment.
    pub first: usize,
}

impl AttendTask<'_> {
    /// Query heads per KV head (GQA group size).
    fn group(&self) -> usize {
        self.heads.q / self.heads.kv
    }

    /// Query rows of the task: tokens times query heads.
    pub(crate) fn count(&self) -> usize {
        self.rows.len() * self.group()
    }

    /// Row of `q` and query head of the task's query row `i`.
    fn place(&self, i: usize) -> (usize, usize) {
        (self.rows.start + i / self.group(), self.head * self.group() + i % self.group())
    }

    /// Cache location of a position: its page, and its slot there.
    fn slot(&self, position: usize) -> (usize, usize) {
        (self.pages[position / self.page_len] as usize, position % self.page_len)
    }

    /// Positions that query row `i` attends to. Both bounds are non-decreasing in `i`.
    fn sees(&self, i: usize) -> Range<usize> {
        let position = self.position + i / self.group();
        let after = self.window.map_or(self.len, |w| self.len.min(position.saturating_add(w)));
        let end = if self.causal { position + 1 } else { after };
        let first = self.window.map_or(0, |w| (position + 1).saturating_sub(w));
        first.max(self.chunk.map_or(0, |n| position - position % n))..end
    }

    /// Adds the relative position bias to the scores of query row `i`, which begin with position `first`.
    fn add_bias(&self, i: usize, first: usize, scores: &mut [f32]) {
        let Some(bias) = self.bias else { return };
        let row = bias.row(self.place(i).1);
        let (reach, position) = (row.len() / 2, self.position + i / self.group());
        for (j, s) in scores.iter_mut().enumerate() {
            *s += row[(first + j + reach).saturating_sub(position).min(2 * reach)];
        }
    }

    /// Positions that any of the query rows `rows` attends to.
    fn see(&self, rows: Range<usize>) -> Range<usize> {
        self.sees(rows.start).start..self.sees(rows.end - 1).end
    }

    /// Segments that any row attends to.
    pub(crate) fn segments(&self) -> Range<usize> {
        if self.count() == 0 {
            return 0..0;
        }
        let seen = self.see(0..self.count());
        seen.start / SEGMENT..seen.end.div_ceil(SEGMENT)
    }

    /// Columns of a row of [`Partials`].
    pub(crate) fn partial_cols(&self) -> usize {
        softmax::padded(self.heads.dim) + 2
    }
}

/// Scratch of a task.
struct SegmentScratch<'a> {
    /// A widened segment, if the pages are copied: [BLOCKS, dim, BLOCK]
    k: &'a mut [f32],
    /// [BLOCKS, BLOCK, dim]
    v: &'a mut [f32],
    work: Work<'a>,
}

/// Splits scratch memory into parts of `sizes` floats, each aligned to a cache line.
fn split<const N: usize>(scratch: &mut Vec<f32>, sizes: [usize; N]) -> [&mut [f32]; N] {
    const LINE: usize = 16;
    let need = sizes.iter().map(|n| n.next_multiple_of(LINE)).sum::<usize>() + LINE;
    scratch.resize(scratch.len().max(need), 0.0);
    let skip = scratch.as_ptr().align_offset(size_of::<[f32; LINE]>()).min(LINE);
    let mut left = &mut scratch[skip..];
    sizes.map(|n| {
        let (taken, rest) = std::mem::take(&mut left).split_at_mut(n.next_multiple_of(LINE));
        left = rest;
        &mut taken[..n]
    })
}

/// Buffers of a task beside the widened segment.
struct Work<'a> {
    /// Queries, scaled, in the layout of [`Products::load_queries`]: per group of rows [dim + 1, rows]
    q: &'a mut [f32],
    /// Scores, then weights: [ROWS, SEGMENT]
    s: &'a mut [f32],
    /// Scales of 8-bit keys and values: [2, SEGMENT]
    scales: &'a mut [f32],
    /// Weights rounded to i16, two per word: [ROWS, SEGMENT / 2]
    rounded: &'a mut [f32],
    /// Softmax of a group of rows in one segment.
    segment: OnlineSoftmax<'a>,
    /// Softmax of all rows over all segments so far.
    total: OnlineSoftmax<'a>,
}

impl<'a> SegmentScratch<'a> {
    fn new(scratch: &'a mut Vec<f32>, rows: usize, dim: usize, widened: bool) -> SegmentScratch<'a> {
        let copy = if widened { SEGMENT * dim } else { 0 };
        let wide = softmax::padded(dim);
        let sizes = [
            copy,
            copy,
            rows * (dim + 1),
            ROWS * SEGMENT,
            2 * SEGMENT,
            ROWS * SEGMENT / 2,
            ROWS,
            ROWS,
            ROWS * wide,
            rows,
            rows,
            rows * wide,
        ];
        let [k, v, q, s, scales, rounded, most, sum, values, total_most, total_sum, total_values] =
            split(scratch, sizes);
        let segment = OnlineSoftmax { most, sum, values, wide };
        let total = OnlineSoftmax { most: total_most, sum: total_sum, values: total_values, wide };
        SegmentScratch { k, v, work: Work { q, s, scales, rounded, segment, total } }
    }
}

impl AttendTask<'_> {
    /// Query scale for base-2 softmax (`exp2`).
    fn scale_to_two(&self) -> f32 {
        self.scale * std::f32::consts::LOG2_E
    }

    /// True if reading the pages in place beats copying them.
    pub(crate) fn direct(&self) -> bool {
        self.page_len.is_multiple_of(BLOCK) && self.count() < MANY
    }
}

/// Runs a stage for any dtype of the cache.
#[inline(always)]
pub(crate) unsafe fn attend<S: Weight>(t: &AttendTask<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>) {
    let SegmentScratch { k, v, mut work } = SegmentScratch::new(scratch, t.count(), t.heads.dim, true);
    let from = match (&t.k, &t.v) {
        (Pages::F32(k), Some(Pages::F32(v))) if t.direct() => Wide::Direct(Direct { k: *k, v: *v }),
        _ => Wide::Copied { k, v },
    };
    // SAFETY: the scratch has the sizes that the function expects; the caller guarantees the instruction set.
    unsafe { run::<S, Floats<f32>, _>(t, stage, &mut work, from) }
}

/// Runs a stage reading the elements of the pages in place.
#[inline(always)]
pub(crate) unsafe fn attend_as_is<S: Weight, E: InPages>(
    t: &AttendTask<'_>,
    stage: &Stage<'_>,
    scratch: &mut Vec<f32>,
) {
    let SegmentScratch { v: copy, mut work, .. } =
        SegmentScratch::new(scratch, t.count(), t.heads.dim, t.v.is_none());
    let Some(k) = E::of(t.k) else { return };
    // SAFETY: the scratch has the sizes that the functions expect; the caller guarantees the instruction set.
    unsafe {
        match t.v.and_then(E::of) {
            Some(v) => run::<S, Floats<E>, _>(t, stage, &mut work, Direct { k, v }),
            None => {
                let v = bytemuck::cast_slice_mut(copy);
                run::<S, Floats<E>, _>(t, stage, &mut work, Keys { k, v });
            }
        }
    }
}

/// Runs a stage on bf16 pages. All operands are rounded to bf16 and summed in the order of [`paired`].
#[inline(always)]
pub(crate) unsafe fn attend_bf16<S: Weight>(t: &AttendTask<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>) {
    let SegmentScratch { k: copy_k, v: copy_v, mut work } =
        SegmentScratch::new(scratch, t.count(), t.heads.dim, !t.direct() || t.v.is_none());
    // SAFETY: the scratch has the sizes that the functions expect; the caller guarantees the instruction set.
    unsafe {
        match (t.k, t.v) {
            (Pages::BF16(k), Some(Pages::BF16(v))) if t.direct() => {
                run::<S, Paired<_>, _>(t, stage, &mut work, Direct { k, v });
            }
            (Pages::BF16(k), None) if t.direct() => {
                let v = bytemuck::cast_slice_mut(copy_v);
                run::<S, Paired<_>, _>(t, stage, &mut work, Keys { k, v });
            }
            _ => {
                run::<S, Paired<_>, _>(t, stage, &mut work, Wide::Copied { k: copy_k, v: copy_v });
            }
        }
    }
}

/// Runs a stage on i8 pages.
#[inline(always)]
pub(crate) unsafe fn attend_i8<S: Weight + Lines>(
    t: &AttendTask<'_>,
    stage: &Stage<'_>,
    scratch: &mut Vec<f32>,
) {
    let direct = match (t.k, t.v) {
        (Pages::I8(k), Some(Pages::I8(v))) if t.layout().paired => Some(Direct { k, v }),
        _ => None,
    };
    let SegmentScratch { k: copy_k, v: copy_v, mut work } =
        SegmentScratch::new(scratch, t.count(), t.heads.dim, direct.is_none());
    let from = match direct {
        Some(direct) => FromBytes::Direct(direct),
        None => FromBytes::copied(copy_k, copy_v),
    };
    // SAFETY: the scratch has the sizes that the function expects; the caller guarantees the instruction set.
    unsafe { run::<S, Bytes, _>(t, stage, &mut work, from) }
}

/// The products query · key and weight · value for one element type.
trait Products<S: Weight> {
    /// Element type of segments.
    type E: Copy;
    /// True if values are multiplied by the reciprocal of the weight sum (`v * (1 / sum)`) instead of divided by it.
    const INVERTED: bool = false;

    /// Maximum rows of a group that is computed together.
    fn rows_at_once(_: &AttendTask<'_>) -> usize {
        rows_at_once::<S>()
    }

    /// Scales the queries of a group of rows and lays them out.
    unsafe fn load_queries(t: &AttendTask<'_>, group: Range<usize>, q: &mut [f32]);

    /// `work.s[row][position] = query · key` for `rows` rows with queries `q`, over at least the positions `seen`,
    /// which begin at a tile boundary.
    unsafe fn score(
        q: Range<usize>,
        rows: usize,
        k: &Segment<Self::E>,
        seen: Range<usize>,
        dim: usize,
        work: &mut Work<'_>,
    );

    /// Turns the scores `s` of a row into softmax weights. `s` begins with position `first`; the row attends to the
    /// range `own` of it. Returns the maximum score and the sum of the weights.
    #[inline(always)]
    unsafe fn exp(
        t: &AttendTask<'_>,
        row: usize,
        first: usize,
        own: Range<usize>,
        s: &mut [f32],
    ) -> (f32, f32) {
        t.add_bias(row, first + own.start, &mut s[own.clone()]);
        // SAFETY: the caller upholds this function's contract.
        unsafe { softmax::exp::<S>(s, own, t.softcap) }
    }

    /// `work.segment.values[row] = Σ work.s[row][position] * value` for the same rows and positions.
    unsafe fn gather(rows: usize, v: &Segment<Self::E>, seen: Range<usize>, dim: usize, work: &mut Work<'_>);
}

/// Computes the segments of a stage; `from` loads each.
#[inline(always)]
unsafe fn run<S: Weight, P: Products<S>, F: Bring<E = P::E>>(
    t: &AttendTask<'_>,
    stage: &Stage<'_>,
    work: &mut Work<'_>,
    mut from: F,
) {
    if let Stage::Merge(partials) = stage {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { merge_partials::<S, P>(t, *partials, work) };
    }
    let (rows, all) = (t.count(), t.segments());
    let wide = t.heads.dim + 1;
    for group in groups::<S, P>(t) {
        // SAFETY: the caller upholds this function's contract.
        unsafe { P::load_queries(t, group.clone(), &mut work.q[group.start * wide..group.end * wide]) };
    }
    work.total.clear();
    let (segments, partials) = match stage {
        Stage::Segments(some, partials) => (some.clone(), Some(*partials)),
        _ => (all.clone(), None),
    };
    for index in segments {
        // SAFETY: the caller upholds this function's contract.
        let segment = unsafe { from.load_kv::<S>(t, index) };
        if t.is_scaled() {
            t.load_scales(index, work.scales);
        }
        for group in groups::<S, P>(t) {
            // SAFETY: the caller upholds this function's contract.
            unsafe {
                segment_rows::<S, P>(t, index, group.clone(), &segment, work);
                match partials {
                    Some(partials) => partials.store((index - all.start) * rows, group, &work.segment),
                    None => softmax::merge::<S>(&work.segment, &mut work.total, group),
                }
            }
        }
    }
    if partials.is_none() {
        finish(t, &work.total, P::INVERTED);
    }
}

/// Maximum rows per group that leaves registers for two vectors of each row.
const fn rows_at_once<S: Simd>() -> usize {
    let most = 3 * S::REGISTERS / 8;
    if most < ROWS { most } else { ROWS }
}

/// Splits the query rows of a task into groups that are computed together, as evenly as possible.
#[inline(always)]
fn groups<S: Weight, P: Products<S>>(t: &AttendTask<'_>) -> impl Iterator<Item = Range<usize>> {
    let rows = t.count();
    let count = rows.div_ceil(P::rows_at_once(t));
    (0..count).map(move |i| rows * i / count..rows * (i + 1) / count)
}

/// Transposes the queries of a group to [dim, rows], multiplied by `scale` and passed through `round`.
#[inline(always)]
fn transpose_q(
    t: &AttendTask<'_>,
    group: Range<usize>,
    scale: f32,
    round: impl Fn(f32) -> f32,
    q: &mut [f32],
) {
    for (r, i) in group.clone().enumerate() {
        let (row, head) = t.place(i);
        let from = &t.q.row(row)[head * t.heads.dim..][..t.heads.dim];
        q[r..].iter_mut().step_by(group.len()).zip(from).for_each(|(o, q)| *o = round(q * scale));
    }
}

/// Evaluates an expression with `$r` a constant: the number of rows of a group. Row counts above `$most` are not
/// compiled.
macro_rules! with_rows {
    ($rows:expr, $most:expr, $r:ident => $body:expr) => {
        with_rows!(@ $rows, $most, $r, $body, 1 2 3 4 5 6 7 8)
    };
    (@ $rows:expr, $most:expr, $r:ident, $body:expr, $($n:literal)*) => {
        match $rows {
            $($n if const { $n <= $most } => {
                const $r: usize = $n;
                $body
            })*
            _ => {}
        }
    };
}

use with_rows;

/// Softmax of a group of rows in one segment.
#[inline(always)]
unsafe fn segment_rows<S: Weight, P: Products<S>>(
    t: &AttendTask<'_>,
    index: usize,
    group: Range<usize>,
    segment: &Segment<P::E>,
    work: &mut Work<'_>,
) {
    let (start, dim) = (index * SEGMENT, t.heads.dim);
    let here = |seen: Range<usize>| {
        seen.start.clamp(start, start + SEGMENT) - start..seen.end.clamp(start, start + SEGMENT) - start
    };
    let seen = here(t.see(group.clone()));
    if seen.is_empty() {
        work.segment.most[..group.len()].fill(f32::NEG_INFINITY);
        return;
    }
    // Computation starts at a tile boundary.
    let seen = seen.start / TILE * TILE..seen.end;
    let tiles = seen.start..seen.end.next_multiple_of(TILE);
    let q = group.start * (dim + 1)..group.end * (dim + 1);
    // SAFETY: the scratch has the sizes that the functions expect; the caller guarantees the instruction set.
    unsafe {
        P::score(q, group.len(), segment, seen.clone(), dim, work);
        let scales = t.is_scaled().then(|| work.scales.split_at(SEGMENT));
        for (r, s) in work.s.chunks_exact_mut(SEGMENT).enumerate().take(group.len()) {
            let s = &mut s[tiles.clone()];
            if let Some((keys, _)) = scales {
                softmax::multiply::<S>(s, &keys[tiles.clone()]);
            }
            if !segment.near && seen.len() > TILE {
                segment.fetch_values(seen.start, dim, (r, group.len()));
            }
            let own = here(t.sees(group.start + r));
            let own = own.start.max(seen.start) - seen.start..own.end.max(seen.start) - seen.start;
            (work.segment.most[r], work.segment.sum[r]) =
                P::exp(t, group.start + r, start + seen.start, own, s);
            if let Some((_, values)) = scales {
                softmax::multiply::<S>(s, &values[tiles.clone()]);
            }
        }
        P::gather(group.len(), segment, seen, dim, work);
    }
}

impl Partials<'_> {
    /// Stores a group's softmax of the segment whose rows begin at `row` of the task's.
    ///
    /// # Safety
    ///
    /// The caller has exclusive access to these rows.
    unsafe fn store(&self, row: usize, group: Range<usize>, segment: &OnlineSoftmax<'_>) {
        for (r, i) in group.enumerate() {
            // SAFETY: the caller upholds this function's contract.
            let out = unsafe { self.rows.row(self.first + row + i) };
            (out[0], out[1]) = (segment.most[r], segment.sum[r]);
            let wide = out.len() - 2;
            out[2..].copy_from_slice(&segment.values[r * segment.wide..][..wide]);
        }
    }
}

/// Merges the partial results of all segments, bit-identical to what [`run`] computes in one pass.
#[inline(always)]
unsafe fn merge_partials<S: Weight, P: Products<S>>(
    t: &AttendTask<'_>,
    partials: Partials<'_>,
    work: &mut Work<'_>,
) {
    let (rows, wide) = (t.count(), work.segment.wide);
    work.total.clear();
    for segment in 0..t.segments().len() {
        for group in groups::<S, P>(t) {
            for (r, i) in group.clone().enumerate() {
                // SAFETY: the threads that computed the segments have finished writing.
                let row = unsafe { partials.rows.row(partials.first + segment * rows + i) };
                (work.segment.most[r], work.segment.sum[r]) = (row[0], row[1]);
                work.segment.values[r * wide..][..wide].copy_from_slice(&row[2..]);
            }
            // SAFETY: the caller guarantees the instruction set.
            unsafe { softmax::merge::<S>(&work.segment, &mut work.total, group) };
        }
    }
    finish(t, &work.total, P::INVERTED);
}

/// Divides the values by the sums of their weights.
#[inline(always)]
fn finish(t: &AttendTask<'_>, total: &OnlineSoftmax<'_>, inverted: bool) {
    let dim = t.heads.dim;
    for i in 0..t.count() {
        let (row, head) = t.place(i);
        // An attention sink adds to the weight sum and has no value.
        let (mut by, mut sum) = (1.0, total.sum[i]);
        if let Some(sinks) = t.sinks {
            let (sink, most) = (sinks.row(0)[head], total.most[i]);
            let top = most.max(sink);
            by = (most - top).exp();
            sum = sum * by + (sink - top).exp();
        }
        // SAFETY: no other task writes these columns of this row.
        let out = unsafe { t.out.part(row, head * dim..(head + 1) * dim) };
        let values = &total.values[i * total.wide..][..dim];
        // `+ 0.0` turns -0 into +0: the sign of a zero would depend on how many zero weights were added.
        if inverted {
            let by = by / sum;
            out.iter_mut().zip(values).for_each(|(o, v)| *o = v * by + 0.0);
        } else {
            out.iter_mut().zip(values).for_each(|(o, v)| *o = v * by / sum + 0.0);
        }
    }
}
