//! Attention scores: each query times each key of a segment.

use std::ops::Range;

use super::page::STREAMS;
use super::{BLOCK, BLOCKS, SEGMENT, TILE};
use crate::simd::{self, Element, Simd};

/// `s[row][position] = q[row] · k[position]` for `R` rows and at least the positions `seen`, which begin at a tile
/// boundary.
///
/// `q` is `[dim, R]`, `s` is `[_, SEGMENT]`. A score is summed over the elements in order, whatever the tile size.
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
        match const { least(simd::at_once::<S>(R), TILE / S::LANES) } {
            8 => tiles::<S, E, R, 8>(q, k, seen, dim, s),
            4 => tiles::<S, E, R, 4>(q, k, seen, dim, s),
            2 => tiles::<S, E, R, 2>(q, k, seen, dim, s),
            _ => tiles::<S, E, R, 1>(q, k, seen, dim, s),
        }
    }
}

/// [`score`] with `N` vectors of positions at a time.
#[inline(always)]
unsafe fn tiles<S: Simd, E: Element, const R: usize, const N: usize>(
    q: &[f32],
    k: &[*const E; BLOCKS + STREAMS],
    seen: Range<usize>,
    dim: usize,
    s: &mut [f32],
) {
    // Elements of a block's keys per cache line.
    let line = (64 / (BLOCK * size_of::<E>())).max(1);
    // SAFETY: blocks have `BLOCK * dim` elements, `q` has `R * dim`, `s` has `R * SEGMENT`; the caller guarantees the
    // instruction set.
    unsafe {
        for at in seen.step_by(N * S::LANES) {
            let place = |i: usize| ((at + i * S::LANES) / BLOCK, (at + i * S::LANES) % BLOCK);
            let keys: [*const E; N] = std::array::from_fn(|i| k[place(i).0].add(place(i).1));
            let ahead: [*const E; N] = std::array::from_fn(|i| k[place(i).0 + STREAMS]);
            let mut sums = [[S::splat(0.0); N]; R];
            // One loop: the compiler would unroll one over a line, and load the queries of all its elements at once, into more
            // registers than there are.
            for d in 0..dim {
                if d % line == 0 {
                    for i in 0..N {
                        if i * S::LANES % BLOCK == 0 {
                            simd::prefetch_l2(ahead[i].wrapping_add(d * BLOCK));
                        }
                    }
                }
                element::<S, E, R, N>(&keys, q.as_ptr(), d, &mut sums);
            }
            for r in 0..R {
                for i in 0..N {
                    S::store(s.as_mut_ptr().add(r * SEGMENT + at + i * S::LANES), sums[r][i]);
                }
            }
        }
    }
}

/// Adds the products of element `d` of the queries and of the keys.
#[inline(always)]
pub(super) unsafe fn element<S: Simd, E: Element, const R: usize, const N: usize>(
    keys: &[*const E; N],
    q: *const f32,
    d: usize,
    sums: &mut [[S::V; N]; R],
) {
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        add_products::<S, R, N>(
            sums,
            #[inline(always)]
            |r| S::splat(*q.add(d * R + r)),
            #[inline(always)]
            |i| E::load::<S>(keys[i].add(d * BLOCK)),
        );
    }
}

/// `sums[r][i] += w(r) * x(i)`. The smaller set of factors is held in registers; holding the larger would spill.
#[inline(always)]
pub(super) unsafe fn add_products<S: Simd, const R: usize, const N: usize>(
    sums: &mut [[S::V; N]; R],
    w: impl Fn(usize) -> S::V,
    x: impl Fn(usize) -> S::V,
) {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        if const { R < N } {
            let mut held = [S::splat(0.0); R];
            for r in 0..R {
                held[r] = w(r);
            }
            for i in 0..N {
                let x = x(i);
                for r in 0..R {
                    sums[r][i] = S::fma(held[r], x, sums[r][i]);
                }
            }
        } else {
            let mut held = [S::splat(0.0); N];
            for i in 0..N {
                held[i] = x(i);
            }
            for r in 0..R {
                let w = w(r);
                for i in 0..N {
                    sums[r][i] = S::fma(w, held[i], sums[r][i]);
                }
            }
        }
    }
}

const fn least(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}
