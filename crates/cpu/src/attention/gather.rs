//! Weighted sum of the values of a segment.

use std::ops::Range;

use super::page::{STREAMS, Segment};
use super::score::add_products;
use super::softmax::padded;
use super::{BLOCK, SEGMENT, TILE};
use crate::simd::{self, Element, Simd};

/// `values[row] = Σ s[row][position] * v[position]` for `R` rows over the positions `seen`, which begin at a tile
/// boundary.
///
/// `s` is `[_, SEGMENT]`, `values` is `[_, padded(dim)]`. The positions of a tile are interleaved: slot by slot through
/// its blocks, so that the blocks are read concurrently. The order is the same in all cases.
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
    // Each group of columns is a pass over the values. If they come from memory, passes go tile by tile, so that all
    // but the first find the tile in cache.
    let step = if segment.near || full <= simd::at_once::<S>(R) { SEGMENT } else { TILE };
    // SAFETY: the slices have the sizes that `Sum` expects; the caller upholds the rest of the contract.
    unsafe {
        for at in seen.clone().step_by(step) {
            let some = at..seen.end.min(at + step);
            let mut column = 0;
            while column < full {
                let left = full - column;
                column += if const { simd::at_once::<S>(R) >= 8 } && left >= 8 {
                    sum.columns::<S, R, 8>(some.clone(), column)
                } else if const { simd::at_once::<S>(R) >= 4 } && left >= 4 {
                    sum.columns::<S, R, 4>(some.clone(), column)
                } else if const { simd::at_once::<S>(R) >= 2 } && left >= 2 {
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
        let (first, wide) = (column * S::LANES, padded(self.dim));
        // SAFETY: the columns and positions are within the buffers of `Sum`; the caller guarantees the instruction set.
        unsafe {
            let out = |r: usize, i: usize| self.values.add(r * wide + first + i * S::LANES);
            let mut sums = [[S::splat(0.0); N]; R];
            for r in 0..R {
                for i in 0..N {
                    sums[r][i] = S::load(out(r, i));
                }
            }
            self.each(
                seen,
                (first, N * S::LANES),
                #[inline(always)]
                |v, ahead, s| {
                    for line in (0..N * S::LANES).step_by((64 / size_of::<E>()).max(1)) {
                        simd::prefetch_l2(ahead.wrapping_add(line));
                    }
                    add_products::<S, R, N>(
                        &mut sums,
                        #[inline(always)]
                        |r| S::splat(*s.add(r * SEGMENT)),
                        #[inline(always)]
                        |i| E::load::<S>(v.add(i * S::LANES)),
                    );
                },
            );
            for r in 0..R {
                for i in 0..N {
                    S::store(out(r, i), sums[r][i]);
                }
            }
        }
        N
    }

    /// Adds positions to the last columns, which do not fill a vector.
    #[inline(always)]
    unsafe fn rest<S: Simd, const R: usize>(&self, seen: Range<usize>) {
        let first = self.dim / S::LANES * S::LANES;
        let (n, wide) = (self.dim - first, padded(self.dim));
        // SAFETY: as in `columns`; rows of values are padded to whole vectors.
        unsafe {
            let mut sums = [S::splat(0.0); R];
            for r in 0..R {
                sums[r] = S::load(self.values.add(r * wide + first));
            }
            self.each(
                seen,
                (first, n),
                #[inline(always)]
                |v, _, s| {
                    let v = E::load_some::<S>(v, n);
                    for r in 0..R {
                        sums[r] = S::fma(S::splat(*s.add(r * SEGMENT)), v, sums[r]);
                    }
                },
            );
            for r in 0..R {
                S::store(self.values.add(r * wide + first), sums[r]);
            }
        }
    }

    /// Calls `add` for each position with a pointer to `count` elements of its value from element `first` on, a pointer
    /// to as many to prefetch, and a pointer to its weight.
    #[inline(always)]
    unsafe fn each(
        &self,
        seen: Range<usize>,
        (first, count): (usize, usize),
        mut add: impl FnMut(*const E, *const E, *const f32),
    ) {
        let v = &self.segment.v;
        for at in seen.clone().step_by(TILE) {
            let block = at / BLOCK;
            // SAFETY: blocks have `BLOCK * dim` elements.
            let now: [*const E; STREAMS] = std::array::from_fn(|b| unsafe { v[block + b].add(first) });
            // All passes together prefetch the whole of the next blocks, each block from start to end.
            let ahead: [*const E; STREAMS] =
                std::array::from_fn(|b| v[block + STREAMS + b].wrapping_add(first * BLOCK));
            let left = seen.end - at;
            // SAFETY: slots are in their blocks, positions in the segment.
            unsafe {
                // Elements narrower than `f32` are memory-bound, so the shorter loop below is as fast.
                if const { size_of::<E>() == 4 } && left >= TILE {
                    for slot in 0..BLOCK {
                        let step = slot * self.dim;
                        for b in 0..STREAMS {
                            let s = self.s.add(at + b * BLOCK + slot);
                            add(now[b].add(step), ahead[b].wrapping_add(slot * count), s);
                        }
                    }
                    continue;
                }
                for i in 0..TILE {
                    let (slot, b) = (i / STREAMS, i % STREAMS);
                    if b * BLOCK + slot < left {
                        let step = slot * self.dim;
                        let s = self.s.add(at + b * BLOCK + slot);
                        add(now[b].add(step), ahead[b].wrapping_add(slot * count), s);
                    }
                }
            }
        }
    }
}
