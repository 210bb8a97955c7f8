//! Attention over the paged cache.
//!
//! Positions are taken in segments of [`SEGMENT`], cut at the same absolute positions for every token. A segment's
//! softmax is computed on its own and merged with those before it in order. So a token's result depends on its position
//! and on what the cache holds, and on nothing else: not on the other tokens of the step, nor on who computes which
//! segment.
//!
//! A few query rows read keys and values straight from the cache, for memory is what holds them up. Many rows share a
//! copy of a segment that is widened once. Both go through the same loops over the same layout, and so through the
//! same sums in the same order.
//!
//! Elements of eight bits are codes, whose scale is the same for all of a key or value. So it multiplies a score, or a
//! weight. Where codes are whole numbers, so are queries and weights when they meet them ([`bytes`]); floats of eight bits are
//! widened.
//!
//! Where the cache holds bf16, queries and weights are rounded to bf16 as well, and sums are made as tiles of matrices make
//! them ([`paired`]). So a processor that has such tiles takes them for many rows ([`tiles`]), and the same bits come out.
//!
//! # Safety
//!
//! As for [`kernels`](super): only on a CPU that has the instruction set of `S`, and nobody else may use the part of the
//! output that it is given.

#![allow(clippy::needless_range_loop, reason = "loops over register tiles are clearest by index")]

mod bytes;
mod floats;
mod page;
mod paired;
mod score;
mod softmax;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) mod tiles;
mod weighted_values;
mod weights;

use std::ops::Range;

use tallow_core::Heads;

use bytes::{Bytes, FromBytes};
use floats::Floats;
use page::{Bring, Direct, InPages, Segment, Wide};
pub(crate) use page::{PageLayout, Pages, Spread};
use paired::Paired;
pub(crate) use paired::keep;
use softmax::OnlineSoftmax;
use weights::Weight;

use super::Kernels;
use crate::mat::{Mat, MatMut};
use crate::simd::{Lines, Simd};

/// Positions that lie together in a page.
const BLOCK: usize = 16;
/// Positions whose blocks are read at the same time, each a stream of its own: one stream alone does not keep memory
/// busy.
const TILE: usize = 4 * BLOCK;
/// Positions whose softmax is one.
const SEGMENT: usize = 256;
/// Blocks of a segment.
const BLOCKS: usize = SEGMENT / BLOCK;
/// Query rows that share a load of keys or values, at most.
const ROWS: usize = 8;
/// From this many rows on, a widened copy of a segment pays.
const MANY: usize = 4 * ROWS + 1;

/// Attention of some tokens of one sequence, for the query heads of one key head.
pub(crate) struct AttendTask<'a> {
    /// [tokens, query columns]
    pub q: Mat<'a, f32>,
    /// [tokens, query columns]. Nobody else writes the columns of these heads in these rows.
    pub out: &'a MatMut<'a, f32>,
    /// The rows of `q` and `out`.
    pub rows: Range<usize>,
    /// The position of the first of them.
    pub position: usize,
    /// Tokens of the sequence in the cache.
    pub len: usize,
    /// The sequence's pages.
    pub pages: &'a [u32],
    pub page_len: usize,
    pub k: Pages<'a>,
    pub v: Pages<'a>,
    pub heads: Heads,
    /// Which key head.
    pub head: usize,
    pub scale: f32,
    pub window: Option<usize>,
    pub chunk: Option<usize>,
    pub softcap: Option<f32>,
    pub sinks: Option<Mat<'a, f32>>,
    /// [query heads, an odd number]
    pub bias: Option<Mat<'a, f32>>,
    pub causal: bool,
}

/// What of a task is to be done.
pub(crate) enum Stage<'a> {
    /// All of it.
    Whole,
    /// Some of its segments. What each comes to is kept.
    Segments(Range<usize>, Partials<'a>),
    /// What was kept is put together.
    Merge(Partials<'a>),
}

/// Where the softmax of each segment of a task is kept until all are there: a row for each query row of each segment.
#[derive(Clone, Copy)]
pub(crate) struct Partials<'a> {
    pub rows: &'a MatMut<'a, f32>,
    /// The row of the task's first segment.
    pub first: usize,
}

impl AttendTask<'_> {
    /// Query heads that share the key head.
    fn group(&self) -> usize {
        self.heads.q / self.heads.kv
    }

    /// Query rows of the work.
    pub(crate) fn count(&self) -> usize {
        self.rows.len() * self.group()
    }

    /// Row `i` of the work: which row of `q`, which query head.
    fn place(&self, i: usize) -> (usize, usize) {
        (self.rows.start + i / self.group(), self.head * self.group() + i % self.group())
    }

    /// Where a position is in the cache: its page, and its slot there.
    fn slot(&self, position: usize) -> (usize, usize) {
        (self.pages[position / self.page_len] as usize, position % self.page_len)
    }

    /// The positions that row `i` of the work sees. Later rows see no less at the end and no more at the start.
    fn sees(&self, i: usize) -> Range<usize> {
        let position = self.position + i / self.group();
        let after = self.window.map_or(self.len, |w| self.len.min(position.saturating_add(w)));
        let end = if self.causal { position + 1 } else { after };
        let first = self.window.map_or(0, |w| (position + 1).saturating_sub(w));
        first.max(self.chunk.map_or(0, |n| position - position % n))..end
    }

    /// Adds the bias to scores of row `i` of the work, the first of which is that of position `first`.
    fn add_bias(&self, i: usize, first: usize, scores: &mut [f32]) {
        let Some(bias) = self.bias else { return };
        let row = bias.row(self.place(i).1);
        let (reach, position) = (row.len() / 2, self.position + i / self.group());
        for (j, s) in scores.iter_mut().enumerate() {
            *s += row[(first + j + reach).saturating_sub(position).min(2 * reach)];
        }
    }

    /// The positions that some of rows `rows` see.
    fn see(&self, rows: Range<usize>) -> Range<usize> {
        self.sees(rows.start).start..self.sees(rows.end - 1).end
    }

    /// The segments that some row sees something of.
    pub(crate) fn segments(&self) -> Range<usize> {
        if self.count() == 0 {
            return 0..0;
        }
        let seen = self.see(0..self.count());
        seen.start / SEGMENT..seen.end.div_ceil(SEGMENT)
    }

    /// Columns of a row of [`Kept`].
    pub(crate) fn partial_cols(&self) -> usize {
        softmax::padded(self.heads.dim) + 2
    }
}

/// Everything a task needs room for.
struct SegmentScratch<'a> {
    /// A widened segment, if it is to be widened: [BLOCKS, dim, BLOCK]
    k: &'a mut [f32],
    /// [BLOCKS, BLOCK, dim]
    v: &'a mut [f32],
    work: Work<'a>,
}

/// Parts of scratch memory, each of so many numbers. They begin on cache lines.
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

/// What a task computes with and on.
struct Work<'a> {
    /// Queries, scaled, as products want them: for each group of rows [dim + 1, rows]
    q: &'a mut [f32],
    /// Scores, then weights: [ROWS, SEGMENT]
    s: &'a mut [f32],
    /// What keys and values are multiplied by, if they are: [2, SEGMENT]
    scales: &'a mut [f32],
    /// Weights that have been rounded, if they are, two in a word: [ROWS, SEGMENT / 2]
    rounded: &'a mut [f32],
    /// Of a group of rows in one segment.
    segment: OnlineSoftmax<'a>,
    /// Of all rows in all segments so far.
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
    /// Does a stage.
    pub(crate) fn run(&self, kernels: &Kernels, stage: &Stage<'_>, scratch: &mut Vec<f32>) {
        let kernel = match (&self.k, &self.v) {
            (Pages::F16(_), Pages::F16(_)) if self.direct() => kernels.attend_f16,
            // Few models have a bias, and those that have are small: one of the ways knows of it.
            (Pages::BF16(_), Pages::BF16(_)) if self.bias.is_none() => kernels.attend_bf16,
            (Pages::I8(_), Pages::I8(_)) => kernels.attend_i8,
            (Pages::F8(_), Pages::F8(_)) if self.direct() => kernels.attend_f8,
            _ => kernels.attend,
        };
        kernel(self, stage, scratch);
    }

    /// The scale of queries where one more of score is to be a factor of two, not of e.
    fn scale_to_two(&self) -> f32 {
        self.scale * std::f32::consts::LOG2_E
    }

    /// Is it better to read the pages than a copy of them?
    fn direct(&self) -> bool {
        self.page_len.is_multiple_of(BLOCK) && self.count() < MANY
    }
}

/// Does a stage whatever the cache's elements are.
#[inline(always)]
pub(super) unsafe fn attend<S: Weight>(t: &AttendTask<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>) {
    let SegmentScratch { k, v, mut work } = SegmentScratch::new(scratch, t.count(), t.heads.dim, true);
    let from = match (&t.k, &t.v) {
        (Pages::F32(k), Pages::F32(v)) if t.direct() => Wide::Direct(Direct { k: *k, v: *v }),
        _ => Wide::Copied { k, v },
    };
    // SAFETY: the room has what the function asks for; the caller has the instruction set.
    unsafe { run::<S, Floats<f32>, _>(t, stage, &mut work, from) }
}

/// Does a stage by reading pages of such elements as they are.
#[inline(always)]
pub(super) unsafe fn attend_as_is<S: Weight, E: InPages>(
    t: &AttendTask<'_>,
    stage: &Stage<'_>,
    scratch: &mut Vec<f32>,
) {
    let mut room = SegmentScratch::new(scratch, t.count(), t.heads.dim, false);
    if let (Some(k), Some(v)) = (E::of(t.k), E::of(t.v)) {
        // SAFETY: the room has what the function asks for; the caller has the instruction set.
        unsafe { run::<S, Floats<E>, _>(t, stage, &mut room.work, Direct { k, v }) }
    }
}

/// Does a stage by pages of brain floating point. All that is multiplied is rounded to it, and summed as [`paired`] says.
#[inline(always)]
pub(super) unsafe fn attend_bf16<S: Weight>(t: &AttendTask<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>) {
    let SegmentScratch { k: copy_k, v: copy_v, mut work } =
        SegmentScratch::new(scratch, t.count(), t.heads.dim, !t.direct());
    // SAFETY: the room has what the functions ask for; the caller has the instruction set.
    unsafe {
        match (t.k, t.v) {
            (Pages::BF16(k), Pages::BF16(v)) if t.direct() => {
                run::<S, Paired<_>, _>(t, stage, &mut work, Direct { k, v });
            }
            _ => {
                run::<S, Paired<_>, _>(t, stage, &mut work, Wide::Copied { k: copy_k, v: copy_v });
            }
        }
    }
}

/// Does a stage by pages of whole numbers.
#[inline(always)]
pub(super) unsafe fn attend_i8<S: Weight + Lines>(
    t: &AttendTask<'_>,
    stage: &Stage<'_>,
    scratch: &mut Vec<f32>,
) {
    let paired = t.layout().paired;
    let SegmentScratch { k: copy_k, v: copy_v, mut work } =
        SegmentScratch::new(scratch, t.count(), t.heads.dim, !paired);
    let (Pages::I8(k), Pages::I8(v)) = (t.k, t.v) else { return };
    let from = match paired {
        true => FromBytes::Direct(Direct { k, v }),
        false => FromBytes::copied(copy_k, copy_v),
    };
    // SAFETY: the room has what the function asks for; the caller has the instruction set.
    unsafe { run::<S, Bytes, _>(t, stage, &mut work, from) }
}

/// How queries meet keys, and weights values.
trait Products<S: Weight> {
    /// What segments consist of.
    type E: Copy;
    /// Are values multiplied by one over the sum of their weights? Else they are divided by it.
    const INVERTED: bool = false;

    /// Rows of the largest group that is computed together.
    fn rows_at_once(_: &AttendTask<'_>) -> usize {
        rows_at_once::<S>()
    }

    /// Scales the queries of a group of rows and lays them out.
    unsafe fn load_queries(t: &AttendTask<'_>, group: Range<usize>, q: &mut [f32]);

    /// `work.s[row][position] = query · key` for `rows` rows, whose queries are `q`, and at least the positions `seen`,
    /// which begin with a tile.
    unsafe fn score(
        q: Range<usize>,
        rows: usize,
        k: &Segment<Self::E>,
        seen: Range<usize>,
        dim: usize,
        work: &mut Work<'_>,
    );

    /// Makes weights of the scores `s` of a row, the first of which is that of position `first`, where it sees `own` of
    /// them. Returns the largest score and the sum of weights.
    #[inline(always)]
    unsafe fn exp(
        t: &AttendTask<'_>,
        row: usize,
        first: usize,
        own: Range<usize>,
        s: &mut [f32],
    ) -> (f32, f32) {
        t.add_bias(row, first + own.start, &mut s[own.clone()]);
        // SAFETY: passed on to the caller.
        unsafe { softmax::exp::<S>(s, own, t.softcap) }
    }

    /// `work.segment.values[row] = Σ work.s[row][position] * value` for the same rows and positions.
    unsafe fn weighted_values(
        rows: usize,
        v: &Segment<Self::E>,
        seen: Range<usize>,
        dim: usize,
        work: &mut Work<'_>,
    );
}

/// Goes through some segments, each as `from` brings it.
#[inline(always)]
unsafe fn run<S: Weight, P: Products<S>, F: Bring<E = P::E>>(
    t: &AttendTask<'_>,
    stage: &Stage<'_>,
    work: &mut Work<'_>,
    mut from: F,
) {
    if let Stage::Merge(kept) = stage {
        // SAFETY: passed on to the caller.
        return unsafe { merge_kept::<S, P>(t, *kept, work) };
    }
    let (rows, all) = (t.count(), t.segments());
    let wide = t.heads.dim + 1;
    for group in groups::<S, P>(t) {
        // SAFETY: passed on to the caller.
        unsafe { P::load_queries(t, group.clone(), &mut work.q[group.start * wide..group.end * wide]) };
    }
    work.total.clear();
    let (segments, kept) = match stage {
        Stage::Segments(some, kept) => (some.clone(), Some(*kept)),
        _ => (all.clone(), None),
    };
    for index in segments {
        // SAFETY: passed on to the caller.
        let segment = unsafe { from.load_kv::<S>(t, index) };
        if t.is_scaled() {
            t.load_scales(index, work.scales);
        }
        for group in groups::<S, P>(t) {
            // SAFETY: passed on to the caller.
            unsafe {
                segment_rows::<S, P>(t, index, group.clone(), &segment, work);
                match kept {
                    Some(kept) => kept.keep((index - all.start) * rows, group, &work.segment),
                    None => softmax::merge::<S>(&work.segment, &mut work.total, group),
                }
            }
        }
    }
    if kept.is_none() {
        finish(t, &work.total, P::INVERTED);
    }
}

/// Rows of the largest group that leaves registers for two vectors of each.
const fn rows_at_once<S: Simd>() -> usize {
    let most = 3 * S::REGISTERS / 8;
    if most < ROWS { most } else { ROWS }
}

/// The query rows of a task in groups that are computed together, as even as can be.
#[inline(always)]
fn groups<S: Weight, P: Products<S>>(t: &AttendTask<'_>) -> impl Iterator<Item = Range<usize>> {
    let rows = t.count();
    let count = rows.div_ceil(P::rows_at_once(t));
    (0..count).map(move |i| rows * i / count..rows * (i + 1) / count)
}

/// Lays out queries of a group, each times `scale`, so that one element of all of them lies together.
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

/// Evaluates an expression with `$r` a constant: the number of rows of a group. What a group never has is not compiled.
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

/// The softmax of a group of rows in one segment.
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
    // What is computed begins with a whole tile.
    let seen = seen.start / TILE * TILE..seen.end;
    let tiles = seen.start..seen.end.next_multiple_of(TILE);
    let q = group.start * (dim + 1)..group.end * (dim + 1);
    // SAFETY: the room has what the functions ask for; the caller has the instruction set.
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
        P::weighted_values(group.len(), segment, seen, dim, work);
    }
}

impl Partials<'_> {
    /// Keeps a group's softmax of the segment whose rows begin at `row` of the task's.
    ///
    /// # Safety
    ///
    /// Nobody else may use these rows meanwhile.
    unsafe fn keep(&self, row: usize, group: Range<usize>, segment: &OnlineSoftmax<'_>) {
        for (r, i) in group.enumerate() {
            // SAFETY: passed on to the caller.
            let out = unsafe { self.rows.row(self.first + row + i) };
            (out[0], out[1]) = (segment.most[r], segment.sum[r]);
            let wide = out.len() - 2;
            out[2..].copy_from_slice(&segment.values[r * segment.wide..][..wide]);
        }
    }
}

/// Merges what was kept of all segments, exactly as [`run`] would have.
#[inline(always)]
unsafe fn merge_kept<S: Weight, P: Products<S>>(t: &AttendTask<'_>, kept: Partials<'_>, work: &mut Work<'_>) {
    let (rows, wide) = (t.count(), work.segment.wide);
    work.total.clear();
    for segment in 0..t.segments().len() {
        for group in groups::<S, P>(t) {
            for (r, i) in group.clone().enumerate() {
                // SAFETY: whoever computed the segment is done with it.
                let row = unsafe { kept.rows.row(kept.first + segment * rows + i) };
                (work.segment.most[r], work.segment.sum[r]) = (row[0], row[1]);
                work.segment.values[r * wide..][..wide].copy_from_slice(&row[2..]);
            }
            // SAFETY: the caller has the instruction set.
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
        // A sink takes its share of the weights and gives nothing.
        let (mut by, mut sum) = (1.0, total.sum[i]);
        if let Some(sinks) = t.sinks {
            let (sink, most) = (sinks.row(0)[head], total.most[i]);
            let top = most.max(sink);
            by = (most - top).exp();
            sum = sum * by + (sink - top).exp();
        }
        // SAFETY: these columns of this row are this task's alone.
        let out = unsafe { t.out.part(row, head * dim..(head + 1) * dim) };
        let values = &total.values[i * total.wide..][..dim];
        // A zero's sign would tell how many weights of zero went into it.
        if inverted {
            let by = by / sum;
            out.iter_mut().zip(values).for_each(|(o, v)| *o = v * by + 0.0);
        } else {
            out.iter_mut().zip(values).for_each(|(o, v)| *o = v * by / sum + 0.0);
        }
    }
}
