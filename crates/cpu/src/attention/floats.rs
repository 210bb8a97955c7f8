//! Attention products in `f32`.

use std::marker::PhantomData;
use std::ops::Range;

use super::page::Segment;
use super::weights::Weight;
use super::{AttendTask, Products, Work, gather, rows_at_once, score, transpose_q, with_rows};
use crate::simd::Element;

/// Keys and values of element type `E`, widened to `f32` when loaded.
pub(super) struct Floats<E>(PhantomData<E>);

impl<S: Weight, E: Element> Products<S> for Floats<E> {
    type E = E;

    #[inline(always)]
    unsafe fn load_queries(t: &AttendTask<'_>, group: Range<usize>, q: &mut [f32]) {
        transpose_q(t, group, t.scale, |x| x, q);
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
            with_rows!(rows, rows_at_once::<S>(), R =>
                score::score::<S, E, R>(&work.q[q], &k.k, seen, dim, work.s));
        }
    }

    #[inline(always)]
    unsafe fn gather(rows: usize, v: &Segment<E>, seen: Range<usize>, dim: usize, work: &mut Work<'_>) {
        let values = &mut *work.segment.values;
        // SAFETY: the caller upholds this function's contract.
        unsafe {
            with_rows!(rows, rows_at_once::<S>(), R =>
                gather::gather::<S, E, R>(work.s, v, seen, dim, values));
        }
    }
}
