//! Scores and weighted sums in the summation order of AMX bf16 tiles.
//!
//! A tile instruction sums 32 products as two chains, one of the even-numbered products and one of the odd-numbered;
//! the sum of both chains is added to the accumulator. All in `f32`, where products of bf16 are exact, each sum rounded
//! to nearest. So vector code reproduces it, with or without FMA. Padding a span to 32 with zeros changes nothing: a
//! chain begins with +0, and nothing turns it negative.
//!
//! One difference: tiles flush subnormals (below 2⁻¹²⁶) to zero, vectors do not. So operands are restricted to prevent
//! them. Keys and values are at least 2⁻⁶³ in magnitude or zero ([`flush_tiny`]), queries at least 2⁻⁴⁰ or zero ([`query`]),
//! weights at least 2⁻⁴⁸ or zero. All have 8 significant bits, so products, and all sums of them, are multiples of
//! 2⁻¹²⁵: zero or normal.

use std::marker::PhantomData;
use std::ops::Range;

use half::bf16;

use super::page::{STREAMS, Segment};
use super::score::{add_products, element};
use super::softmax::padded;
use super::weights::{self, Weight};
use super::{AttendTask, BLOCK, BLOCKS, Products, SEGMENT, TILE, Work, transpose_q, with_rows};
use crate::simd::{self, Element, Simd};

/// Products that a tile instruction sums before it adds them to the accumulator.
pub(super) const SPAN: usize = 32;

/// Flushes elements for the cache that are below 2⁻⁶³ to zero.
pub(crate) fn flush_tiny(x: &mut [bf16]) {
    // The two highest bits of the exponent: either is set from 2⁻⁶³ on.
    const LARGE: u16 = 0x6000;
    x.iter_mut().for_each(|x| *x = if x.to_bits() & LARGE == 0 { bf16::ZERO } else { *x });
}

/// Smallest magnitude of a nonzero query element.
pub(super) const LEAST_QUERY: f32 = 1.0 / (1u64 << 40) as f32;

/// A scaled query element, rounded to bf16; below [`LEAST_QUERY`] it is zero.
#[inline(always)]
pub(super) fn query(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = f32::from_bits(bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000);
    if rounded.abs() < LEAST_QUERY { 0.0 } else { rounded }
}

/// Maximum rows per group on a widened copy. Each sum has two chains, and there are two vectors of each.
pub(super) const fn rows_of_copy<S: Simd>() -> usize {
    let most = 3 * S::REGISTERS / 16;
    if most < 1 { 1 } else { most }
}

/// Maximum rows per group: elements read in place come from memory and should be read once for several rows.
const fn rows_at_once<S: Simd, E: Element>() -> usize {
    if size_of::<E>() == size_of::<f32>() { rows_of_copy::<S>() } else { super::rows_at_once::<S>() }
}

/// Products in the summation order of tiles.
pub(super) struct Paired<E>(PhantomData<E>);

impl<S: Weight, E: Element> Products<S> for Paired<E> {
    type E = E;
    const INVERTED: bool = true;

    fn rows_at_once(t: &AttendTask<'_>) -> usize {
        if t.direct() { super::rows_at_once::<S>() } else { rows_of_copy::<S>() }
    }

    #[inline(always)]
    unsafe fn load_queries(t: &AttendTask<'_>, group: Range<usize>, q: &mut [f32]) {
        transpose_q(t, group, t.scale_to_two(), query, q);
    }

    #[inline(always)]
    unsafe fn score(
        q: Range<usize>,
        rows: usize,
        k: &Segment<E>,
        seen: Range<usize>,
        dim: usize,
        work: &mut Work<'_>,
    ) {
        // SAFETY: the caller upholds this function's contract.
        unsafe {
            with_rows!(rows, rows_at_once::<S, E>(), R =>
                score::<S, E, R>(&work.q[q], &k.k, seen, dim, work.s));
        }
    }

    #[inline(always)]
    unsafe fn exp(t: &AttendTask<'_>, _: usize, _: usize, own: Range<usize>, s: &mut [f32]) -> (f32, f32) {
        // SAFETY: the caller upholds this function's contract.
        unsafe {
            let most = weights::largest::<S>(s, own.clone(), t.softcap);
            let sum = weights::exp::<S>(
                s,
                own,
                most,
                #[inline(always)]
                |to, _, w| {
                    S::store(to.as_mut_ptr(), w[0]);
                    S::store(to.as_mut_ptr().add(S::LANES), w[1]);
                },
            );
            (most * std::f32::consts::LN_2, sum)
        }
    }

    #[inline(always)]
    unsafe fn gather(rows: usize, v: &Segment<E>, seen: Range<usize>, dim: usize, work: &mut Work<'_>) {
        let values = &mut *work.segment.values;
        // SAFETY: the caller upholds this function's contract.
        unsafe {
            with_rows!(rows, rows_at_once::<S, E>(), R =>
                gather::<S, E, R>(work.s, v, seen, dim, values));
        }
    }
}

/// As [`score`](super::score::score).
#[inline(always)]
pub(super) unsafe fn score<S: Simd, E: Element, const R: usize>(
    q: &[f32],
    k: &[*const E; BLOCKS + STREAMS],
    seen: Range<usize>,
    dim: usize,
    s: &mut [f32],
) {
    let (q, s) = (&q[..R * dim], &mut s[..R * SEGMENT]);
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        match const { at_once::<S>(R) } {
            8 | 4 if const { 4 * S::LANES <= TILE } => scores::<S, E, R, 4>(q, k, seen, dim, s),
            2.. => scores::<S, E, R, 2>(q, k, seen, dim, s),
            _ => scores::<S, E, R, 1>(q, k, seen, dim, s),
        }
    }
}

/// Vectors of each of `rows` sums that fit the registers at a time: a sum has two chains.
const fn at_once<S: Simd>(rows: usize) -> usize {
    simd::at_once::<S>(2 * rows)
}

/// [`score`] with `N` vectors of positions at a time.
#[inline(always)]
unsafe fn scores<S: Simd, E: Element, const R: usize, const N: usize>(
    q: &[f32],
    k: &[*const E; BLOCKS + STREAMS],
    seen: Range<usize>,
    dim: usize,
    s: &mut [f32],
) {
    // SAFETY: blocks have `BLOCK * dim` elements, `q` has `R * dim`, `s` has `R * SEGMENT`; the caller guarantees the
    // instruction set.
    unsafe {
        for at in seen.step_by(N * S::LANES) {
            let place = |i: usize| ((at + i * S::LANES) / BLOCK, (at + i * S::LANES) % BLOCK);
            let keys: [*const E; N] = std::array::from_fn(|i| k[place(i).0].add(place(i).1));
            let ahead: [*const E; N] = std::array::from_fn(|i| k[place(i).0 + STREAMS]);
            let mut sums = [[S::splat(0.0); N]; R];
            for first in (0..dim).step_by(SPAN) {
                let end = dim.min(first + SPAN);
                let (mut even, mut odd) = ([[S::splat(0.0); N]; R], [[S::splat(0.0); N]; R]);
                for d in (first..end / 2 * 2).step_by(2) {
                    // Elements read in place come from memory; a cache line holds two elements of a block.
                    if const { size_of::<E>() == 2 } {
                        for i in 0..N {
                            if i * S::LANES % BLOCK == 0 {
                                simd::prefetch_l2(ahead[i].wrapping_add(d * BLOCK));
                            }
                        }
                    }
                    element::<S, E, R, N>(&keys, q.as_ptr(), d, &mut even);
                    element::<S, E, R, N>(&keys, q.as_ptr(), d + 1, &mut odd);
                }
                if end % 2 == 1 {
                    element::<S, E, R, N>(&keys, q.as_ptr(), end - 1, &mut even);
                }
                for r in 0..R {
                    for i in 0..N {
                        sums[r][i] = S::add(sums[r][i], S::add(even[r][i], odd[r][i]));
                    }
                }
            }
            for r in 0..R {
                for i in 0..N {
                    S::store(s.as_mut_ptr().add(r * SEGMENT + at + i * S::LANES), sums[r][i]);
                }
            }
        }
    }
}

/// As [`gather`](super::gather::gather).
#[inline(always)]
pub(super) unsafe fn gather<S: Simd, E: Element, const R: usize>(
    s: &[f32],
    segment: &Segment<E>,
    seen: Range<usize>,
    dim: usize,
    values: &mut [f32],
) {
    let (s, values) = (&s[..R * SEGMENT], &mut values[..R * padded(dim)]);
    values.fill(0.0);
    let sum = Sum { s: s.as_ptr(), segment, dim, values: values.as_mut_ptr() };
    let full = dim / S::LANES;
    // As there: passes go tile by tile if values come from memory.
    let step = if segment.near { SEGMENT } else { TILE };
    // SAFETY: the slices have the sizes that `Sum` expects; the caller upholds the rest of the contract.
    unsafe {
        for at in seen.clone().step_by(step) {
            let some = at..seen.end.min(at + step);
            let mut column = 0;
            while column < full {
                let left = full - column;
                column += if const { at_once::<S>(R) >= 8 } && left >= 8 {
                    sum.columns::<S, R, 8>(some.clone(), column)
                } else if const { at_once::<S>(R) >= 4 } && left >= 4 {
                    sum.columns::<S, R, 4>(some.clone(), column)
                } else if const { at_once::<S>(R) >= 2 } && left >= 2 {
                    sum.columns::<S, R, 2>(some.clone(), column)
                } else {
                    sum.columns::<S, R, 1>(some.clone(), column)
                };
            }
            if !dim.is_multiple_of(S::LANES) {
                sum.rest::<S, R>(some);
            }
        }
    }
}

/// A weighted sum in progress.
struct Sum<'a, E> {
    /// [rows, SEGMENT]
    s: *const f32,
    segment: &'a Segment<E>,
    dim: usize,
    /// [rows, padded(dim)]
    values: *mut f32,
}

impl<E: Element> Sum<'_, E> {
    /// Adds positions to `N` vectors of columns from vector `column` on.
    #[inline(always)]
    unsafe fn columns<S: Simd, const R: usize, const N: usize>(
        &self,
        seen: Range<usize>,
        column: usize,
    ) -> usize {
        let first = column * S::LANES;
        // SAFETY: the columns are within the buffers of `Sum`; the caller upholds the rest of the contract.
        unsafe {
            self.spans::<S, R, N>(
                seen,
                (first, N * S::LANES),
                #[inline(always)]
                |v, i| E::load::<S>(v.add(i * S::LANES)),
            );
        }
        N
    }

    /// Adds positions to the last columns, which do not fill a vector.
    #[inline(always)]
    unsafe fn rest<S: Simd, const R: usize>(&self, seen: Range<usize>) {
        let first = self.dim / S::LANES * S::LANES;
        let n = self.dim - first;
        // SAFETY: as in `columns`; rows of values are padded to whole vectors.
        unsafe {
            self.spans::<S, R, 1>(
                seen,
                (first, n),
                #[inline(always)]
                |v, _| E::load_some::<S>(v, n),
            );
        }
    }

    /// Adds positions to the `count` columns from `first` on; `load` reads a vector of one position.
    #[inline(always)]
    unsafe fn spans<S: Simd, const R: usize, const N: usize>(
        &self,
        seen: Range<usize>,
        (first, count): (usize, usize),
        load: impl Fn(*const E, usize) -> S::V,
    ) {
        let wide = padded(self.dim);
        // SAFETY: rows of values are padded to whole vectors; the caller upholds the rest of the contract.
        unsafe {
            for at in seen.clone().step_by(SPAN) {
                let end = seen.end.min(at + SPAN);
                let (mut even, mut odd) = ([[S::splat(0.0); N]; R], [[S::splat(0.0); N]; R]);
                for position in (at..end / 2 * 2).step_by(2) {
                    self.add::<S, R, N>(position, (first, count), &load, &mut even);
                    self.add::<S, R, N>(position + 1, (first, count), &load, &mut odd);
                }
                if end % 2 == 1 {
                    self.add::<S, R, N>(end - 1, (first, count), &load, &mut even);
                }
                for r in 0..R {
                    for i in 0..N {
                        let out = self.values.add(r * wide + first + i * S::LANES);
                        S::store(out, S::add(S::load(out), S::add(even[r][i], odd[r][i])));
                    }
                }
            }
        }
    }

    /// Adds one position.
    #[inline(always)]
    unsafe fn add<S: Simd, const R: usize, const N: usize>(
        &self,
        position: usize,
        (first, count): (usize, usize),
        load: &impl Fn(*const E, usize) -> S::V,
        sums: &mut [[S::V; N]; R],
    ) {
        let v = &self.segment.v;
        // SAFETY: blocks have `BLOCK * dim` elements, and there is a segment of weights for each row; the caller
        // guarantees the instruction set.
        unsafe {
            // All passes together prefetch the whole of the next tile, from four streams at a time.
            if const { size_of::<E>() == 2 } {
                let (i, next) = (position % TILE, position / TILE * STREAMS + STREAMS);
                let ahead = v[next + i % STREAMS].wrapping_add(first * BLOCK + i / STREAMS * count);
                for line in (0..N * S::LANES).step_by(64 / size_of::<E>()) {
                    simd::prefetch_l2(ahead.wrapping_add(line));
                }
            }
            let v = v[position / BLOCK].add(first + position % BLOCK * self.dim);
            add_products::<S, R, N>(
                sums,
                #[inline(always)]
                |r| S::splat(*self.s.add(r * SEGMENT + position)),
                #[inline(always)]
                |i| load(v, i),
            );
        }
    }
}
