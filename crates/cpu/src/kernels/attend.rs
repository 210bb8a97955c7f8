//! Attention over the paged cache.
//!
//! A page holds, for each key head, its keys as `[element][slot]` and its values as `[slot][element]`: scores of
//! neighbouring positions and elements of one value each fill a vector, and nothing is summed across lanes.
//!
//! Positions are taken in tiles of [`TILE`] and segments of [`SEGMENT`], cut at the same absolute positions for every
//! token. A segment's softmax is computed on its own and merged with those before it in order. So a token's result
//! depends on its position and on what the cache holds, and on nothing else: not on the other tokens of the step, nor
//! on who computes which segment.

#![allow(clippy::needless_range_loop, reason = "loops over register tiles are clearest by index")]

use half::{bf16, f16};
use tallow_core::Heads;

use crate::mat::{Mat, MatMut};
use crate::simd::{self, Simd};

/// Positions that are brought in at a time.
const TILE: usize = 64;
/// Positions whose softmax is one.
const SEGMENT: usize = 512;
/// Query rows that share a load of keys or values.
const ROWS: usize = 4;

/// The cache of one layer, by what its elements are.
#[derive(Clone, Copy)]
pub(crate) enum Pages<'a> {
    F32(Mat<'a, f32>),
    F16(Mat<'a, f16>),
    BF16(Mat<'a, bf16>),
}

impl Pages<'_> {
    /// Some elements of a page, widened.
    #[inline(always)]
    unsafe fn read<S: Simd>(&self, page: usize, at: usize, out: &mut [f32]) {
        let within = at..at + out.len();
        // SAFETY: the caller has the instruction set.
        unsafe {
            match self {
                Pages::F32(m) => out.copy_from_slice(&m.row(page)[within]),
                Pages::F16(m) => simd::widen_f16::<S>(&m.row(page)[within], out),
                Pages::BF16(m) => simd::widen_bf16::<S>(&m.row(page)[within], out),
            }
        }
    }
}

/// Attention of some tokens of one sequence, for the query heads of one key head.
pub(crate) struct AttendTask<'a> {
    /// [tokens, query columns]
    pub q: Mat<'a, f32>,
    /// [tokens, query columns]. Nobody else writes the columns of these heads in these rows.
    pub out: &'a MatMut<'a, f32>,
    /// The rows of `q` and `out`.
    pub rows: std::ops::Range<usize>,
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
    pub softcap: Option<f32>,
    pub sinks: Option<Mat<'a, f32>>,
    pub causal: bool,
}

impl AttendTask<'_> {
    /// Query heads that share the key head.
    fn group(&self) -> usize {
        self.heads.q / self.heads.kv
    }

    /// Row `i` of the work: which row of `q`, which query head.
    fn place(&self, i: usize) -> (usize, usize) {
        (self.rows.start + i / self.group(), self.head * self.group() + i % self.group())
    }

    /// The positions that row `i` of the work sees.
    fn sees(&self, i: usize) -> std::ops::Range<usize> {
        let position = self.position + i / self.group();
        let end = if self.causal { position + 1 } else { self.len };
        self.window.map_or(0, |w| (position + 1).saturating_sub(w))..end
    }
}

/// A softmax under way: the largest score, the sum of weights, the weighted sum of values.
struct Running<'a> {
    most: &'a mut [f32],
    sum: &'a mut [f32],
    /// [rows, dim]
    values: &'a mut [f32],
}

impl Running<'_> {
    fn clear(&mut self) {
        self.most.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.values.fill(0.0);
    }
}

/// Everything a task needs room for.
struct Room<'a> {
    /// [dim, TILE]
    k: &'a mut [f32],
    /// [TILE, dim]
    v: &'a mut [f32],
    /// [rows, dim]: queries, scaled
    q: &'a mut [f32],
    /// [rows, TILE]: scores, then weights
    s: &'a mut [f32],
    segment: Running<'a>,
    total: Running<'a>,
}

impl<'a> Room<'a> {
    fn new(scratch: &'a mut Vec<f32>, rows: usize, dim: usize) -> Room<'a> {
        let need = 2 * TILE * dim + rows * (3 * dim + TILE + 4);
        scratch.resize(scratch.len().max(need), 0.0);
        let mut left = &mut scratch[..];
        let mut take = |n: usize| {
            let (taken, rest) = std::mem::take(&mut left).split_at_mut(n);
            left = rest;
            taken
        };
        Room {
            k: take(TILE * dim),
            v: take(TILE * dim),
            q: take(rows * dim),
            s: take(rows * TILE),
            segment: Running { most: take(rows), sum: take(rows), values: take(rows * dim) },
            total: Running { most: take(rows), sum: take(rows), values: take(rows * dim) },
        }
    }
}

#[inline(always)]
pub(super) unsafe fn attend<S: Simd>(t: &AttendTask<'_>, scratch: &mut Vec<f32>) {
    let (rows, dim) = (t.rows.len() * t.group(), t.heads.dim);
    let mut room = Room::new(scratch, rows, dim);
    for i in 0..rows {
        let (row, head) = t.place(i);
        let q = &t.q.row(row)[head * dim..][..dim];
        room.q[i * dim..][..dim].iter_mut().zip(q).for_each(|(o, q)| *o = q * t.scale);
    }
    room.total.clear();
    let first = (0..rows).map(|i| t.sees(i).start).min().unwrap_or(0);
    let end = (0..rows).map(|i| t.sees(i).end).max().unwrap_or(0);
    for segment in (first / SEGMENT * SEGMENT..end).step_by(SEGMENT) {
        room.segment.clear();
        let from = segment.max(first / TILE * TILE);
        for tile in (from..end.min(segment + SEGMENT)).step_by(TILE) {
            // SAFETY: the room has what the functions say they need; the caller has the instruction set.
            unsafe {
                bring::<S>(t, tile, room.k, room.v);
                scores::<S>(room.q, room.k, rows, dim, room.s);
                weigh::<S>(t, tile, &mut room);
                gather::<S>(room.s, room.v, rows, dim, room.segment.values);
            }
        }
        // SAFETY: the caller has the instruction set.
        unsafe { merge::<S>(&room.segment, &mut room.total, dim) };
    }
    for i in 0..rows {
        let (row, head) = t.place(i);
        // A sink takes its share of the weights and gives nothing.
        let (mut by, mut sum) = (1.0, room.total.sum[i]);
        if let Some(sinks) = t.sinks {
            let (sink, most) = (sinks.row(0)[head], room.total.most[i]);
            let top = most.max(sink);
            by = (most - top).exp();
            sum = sum * by + (sink - top).exp();
        }
        // SAFETY: these columns of this row are this task's alone.
        let out = unsafe { t.out.part(row, head * dim..(head + 1) * dim) };
        let values = &room.total.values[i * dim..][..dim];
        out.iter_mut().zip(values).for_each(|(o, v)| *o = v * by / sum);
    }
}

/// Brings in the keys and values of a tile. Positions past the sequence's end are zero.
#[inline(always)]
unsafe fn bring<S: Simd>(t: &AttendTask<'_>, tile: usize, k: &mut [f32], v: &mut [f32]) {
    let (dim, len) = (t.heads.dim, t.page_len);
    let head = t.head * dim * len;
    let end = t.len.min(tile + TILE);
    let mut at = tile;
    while at < end {
        let (page, slot) = (t.pages[at / len] as usize, at % len);
        let n = (len - slot).min(end - at);
        // SAFETY: the caller has the instruction set.
        unsafe {
            for d in 0..dim {
                t.k.read::<S>(page, head + d * len + slot, &mut k[d * TILE + at - tile..][..n]);
            }
            t.v.read::<S>(page, head + slot * dim, &mut v[(at - tile) * dim..][..n * dim]);
        }
        at += n;
    }
    if end < tile + TILE {
        let have = end.saturating_sub(tile);
        (0..dim).for_each(|d| k[d * TILE..][have..TILE].fill(0.0));
        v[have * dim..TILE * dim].fill(0.0);
    }
}

/// `s[row][position] = q[row] · k[position]`, for `rows` rows of `dim` elements and a tile of positions.
#[inline(always)]
unsafe fn scores<S: Simd>(q: &[f32], k: &[f32], rows: usize, dim: usize, s: &mut [f32]) {
    let mut i = 0;
    while i < rows {
        // SAFETY: the slices have the sizes that the function asks for; the caller has the instruction set.
        unsafe {
            if rows - i >= ROWS {
                score_rows::<S, ROWS>(&q[i * dim..], k, dim, &mut s[i * TILE..]);
                i += ROWS;
            } else {
                score_rows::<S, 1>(&q[i * dim..], k, dim, &mut s[i * TILE..]);
                i += 1;
            }
        }
    }
}

#[inline(always)]
unsafe fn score_rows<S: Simd, const R: usize>(q: &[f32], k: &[f32], dim: usize, s: &mut [f32]) {
    let (q, k, s) = (&q[..R * dim], &k[..dim * TILE], &mut s[..R * TILE]);
    // SAFETY: within the slices just taken; the caller has the instruction set.
    unsafe {
        for at in (0..TILE).step_by(2 * S::LANES) {
            let mut acc = [[S::splat(0.0); 2]; R];
            for d in 0..dim {
                let k = [
                    S::load(k.as_ptr().add(d * TILE + at)),
                    S::load(k.as_ptr().add(d * TILE + at + S::LANES)),
                ];
                for r in 0..R {
                    let q = S::splat(*q.get_unchecked(r * dim + d));
                    acc[r][0] = S::fma(q, k[0], acc[r][0]);
                    acc[r][1] = S::fma(q, k[1], acc[r][1]);
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                S::store(s.as_mut_ptr().add(r * TILE + at), acc[0]);
                S::store(s.as_mut_ptr().add(r * TILE + at + S::LANES), acc[1]);
            }
        }
    }
}

/// Turns a tile's scores into weights and brings the running softmax of each row up to date with them.
#[inline(always)]
unsafe fn weigh<S: Simd>(t: &AttendTask<'_>, tile: usize, room: &mut Room<'_>) {
    let dim = t.heads.dim;
    for (i, s) in room.s.chunks_exact_mut(TILE).enumerate().take(t.rows.len() * t.group()) {
        let sees = t.sees(i);
        let seen = sees.start.clamp(tile, tile + TILE) - tile..sees.end.clamp(tile, tile + TILE) - tile;
        if seen.is_empty() {
            s.fill(0.0);
            continue;
        }
        // SAFETY: within the slices; the caller has the instruction set.
        unsafe {
            if let Some(cap) = t.softcap {
                super::rowwise::softcap::<S>(s, cap);
            }
            s[..seen.start].fill(f32::NEG_INFINITY);
            s[seen.end..].fill(f32::NEG_INFINITY);
            let mut top = S::load(s.as_ptr());
            for at in (S::LANES..TILE).step_by(S::LANES) {
                top = S::max(top, S::load(s.as_ptr().add(at)));
            }
            let before = room.segment.most[i];
            let most = S::largest(top).max(before);
            let shift = S::splat(-most);
            let mut sum = S::splat(0.0);
            for at in (0..TILE).step_by(S::LANES) {
                let w = simd::exp::<S>(S::add(S::load(s.as_ptr().add(at)), shift));
                S::store(s.as_mut_ptr().add(at), w);
            }
            // What is not seen weighs nothing at all.
            s[..seen.start].fill(0.0);
            s[seen.end..].fill(0.0);
            for at in (0..TILE).step_by(S::LANES) {
                sum = S::add(sum, S::load(s.as_ptr().add(at)));
            }
            let by = if before == f32::NEG_INFINITY { 0.0 } else { (before - most).exp() };
            room.segment.most[i] = most;
            room.segment.sum[i] = room.segment.sum[i] * by + S::sum(sum);
            if by != 1.0 {
                room.segment.values[i * dim..][..dim].iter_mut().for_each(|v| *v *= by);
            }
        }
    }
}

/// `values[row] += Σ s[row][position] * v[position]`
#[inline(always)]
unsafe fn gather<S: Simd>(s: &[f32], v: &[f32], rows: usize, dim: usize, values: &mut [f32]) {
    let mut i = 0;
    while i < rows {
        // SAFETY: the slices have the sizes that the function asks for; the caller has the instruction set.
        unsafe {
            if rows - i >= ROWS {
                gather_rows::<S, ROWS>(&s[i * TILE..], v, dim, &mut values[i * dim..]);
                i += ROWS;
            } else {
                gather_rows::<S, 1>(&s[i * TILE..], v, dim, &mut values[i * dim..]);
                i += 1;
            }
        }
    }
}

#[inline(always)]
unsafe fn gather_rows<S: Simd, const R: usize>(s: &[f32], v: &[f32], dim: usize, values: &mut [f32]) {
    let (s, v, values) = (&s[..R * TILE], &v[..TILE * dim], &mut values[..R * dim]);
    // SAFETY: within the slices just taken; the caller has the instruction set.
    unsafe {
        let full = dim / S::LANES * S::LANES;
        for d in (0..full).step_by(S::LANES) {
            let mut acc: [S::V; R] = std::array::from_fn(|r| S::load(values.as_ptr().add(r * dim + d)));
            for p in 0..TILE {
                let v = S::load(v.as_ptr().add(p * dim + d));
                for r in 0..R {
                    acc[r] = S::fma(S::splat(*s.get_unchecked(r * TILE + p)), v, acc[r]);
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                S::store(values.as_mut_ptr().add(r * dim + d), *acc);
            }
        }
        if full < dim {
            let n = dim - full;
            let mut acc: [S::V; R] =
                std::array::from_fn(|r| S::load_some(values.as_ptr().add(r * dim + full), n));
            for p in 0..TILE {
                let v = S::load_some(v.as_ptr().add(p * dim + full), n);
                for r in 0..R {
                    acc[r] = S::fma(S::splat(*s.get_unchecked(r * TILE + p)), v, acc[r]);
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                S::store_some(values.as_mut_ptr().add(r * dim + full), n, *acc);
            }
        }
    }
}

/// Adds a finished segment to those before it.
#[inline(always)]
unsafe fn merge<S: Simd>(segment: &Running<'_>, total: &mut Running<'_>, dim: usize) {
    for i in 0..total.most.len() {
        let (a, b) = (total.most[i], segment.most[i]);
        if b == f32::NEG_INFINITY {
            continue;
        }
        let most = a.max(b);
        let scale = |m: f32| if m == f32::NEG_INFINITY { 0.0 } else { (m - most).exp() };
        let (keep, add) = (scale(a), scale(b));
        total.most[i] = most;
        total.sum[i] = total.sum[i] * keep + segment.sum[i] * add;
        let values = &mut total.values[i * dim..][..dim];
        values.iter_mut().for_each(|v| *v *= keep);
        // SAFETY: both are a row long; the caller has the instruction set.
        unsafe { super::rowwise::add_scaled::<S>(values, add, &segment.values[i * dim..][..dim]) };
    }
}
