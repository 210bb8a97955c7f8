//! Online softmax: from scores to weights, and merging of segments.

use std::ops::Range;

use super::ROWS;
use crate::simd::{self, Simd};

/// `dim` rounded up to whole vectors.
pub(super) fn padded(dim: usize) -> usize {
    dim.next_multiple_of(16)
}

/// Online softmax state of some rows: maximum score, sum of weights, weighted sum of values.
pub(super) struct OnlineSoftmax<'a> {
    pub most: &'a mut [f32],
    pub sum: &'a mut [f32],
    /// [rows, wide]
    pub values: &'a mut [f32],
    /// Row stride of `values`, see [`padded`].
    pub wide: usize,
}

impl OnlineSoftmax<'_> {
    pub(super) fn clear(&mut self) {
        self.most.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.values.fill(0.0);
    }
}

/// Multiplies scores or weights by the scales of keys or values. Both slices are whole vectors.
#[inline(always)]
pub(super) unsafe fn multiply<S: Simd>(s: &mut [f32], by: &[f32]) {
    let (n, by, s) = (s.len().min(by.len()), by.as_ptr(), s.as_mut_ptr());
    // SAFETY: within both slices; the caller guarantees the instruction set.
    unsafe {
        for at in (0..n).step_by(S::LANES) {
            S::store(s.add(at), S::mul(S::load(s.add(at)), S::load(by.add(at))));
        }
    }
}

/// Turns scores into weights. Returns the maximum score and the sum of the weights.
///
/// Positions of `s` outside `seen` get weight 0. `s` is whole vectors.
#[inline(always)]
pub(super) unsafe fn exp<S: Simd>(s: &mut [f32], seen: Range<usize>, softcap: Option<f32>) -> (f32, f32) {
    if seen.is_empty() {
        s.fill(0.0);
        return (f32::NEG_INFINITY, 0.0);
    }
    // SAFETY: within the slice; the caller guarantees the instruction set.
    unsafe {
        if let Some(cap) = softcap {
            crate::rowwise::softcap::<S>(s, cap);
        }
        let all = seen.len() == s.len();
        if !all {
            s[..seen.start].fill(f32::NEG_INFINITY);
            s[seen.end..].fill(f32::NEG_INFINITY);
        }
        let len = s.len();
        let vectors = || (0..len).step_by(S::LANES);
        // Two maxima in parallel: the order does not change the result.
        let mut top = [S::splat(f32::NEG_INFINITY); 2];
        for at in vectors() {
            let i = at / S::LANES % 2;
            top[i] = S::max(top[i], S::load(s.as_ptr().add(at)));
        }
        let most = S::largest(S::max(top[0], top[1]));
        let (shift, mut sum) = (S::splat(-most), S::splat(0.0));
        for at in vectors() {
            let w = simd::exp::<S>(S::add(S::load(s.as_ptr().add(at)), shift));
            S::store(s.as_mut_ptr().add(at), w);
            sum = S::add(sum, w);
        }
        if !all {
            s[..seen.start].fill(0.0);
            s[seen.end..].fill(0.0);
            sum = S::splat(0.0);
            for at in vectors() {
                sum = S::add(sum, S::load(s.as_ptr().add(at)));
            }
        }
        (most, S::sum(sum))
    }
}

/// Merges a segment of the rows `group`, at most 16, into the segments before it.
#[inline(always)]
pub(super) unsafe fn merge<S: Simd>(
    segment: &OnlineSoftmax<'_>,
    total: &mut OnlineSoftmax<'_>,
    group: Range<usize>,
) {
    // Rounded up to whole vectors.
    const LANES: usize = ROWS.next_multiple_of(16);
    let wide = total.wide;
    let (mut keep, mut add) = ([f32::NEG_INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    for (r, i) in group.clone().enumerate() {
        let (before, here) = (total.most[i], segment.most[r]);
        let most = before.max(here);
        (keep[r], add[r]) = (before - most, here - most);
    }
    // SAFETY: all arrays are whole vectors; the caller guarantees the instruction set.
    unsafe {
        for at in (0..LANES).step_by(S::LANES) {
            S::store(keep.as_mut_ptr().add(at), simd::exp::<S>(S::load(keep.as_ptr().add(at))));
            S::store(add.as_mut_ptr().add(at), simd::exp::<S>(S::load(add.as_ptr().add(at))));
        }
        for (r, i) in group.enumerate() {
            let (before, here) = (total.most[i], segment.most[r]);
            if here == f32::NEG_INFINITY {
                continue;
            }
            let keep = if before == f32::NEG_INFINITY { 0.0 } else { keep[r] };
            total.most[i] = before.max(here);
            total.sum[i] = total.sum[i] * keep + segment.sum[r] * add[r];
            let (values, more) =
                (&mut total.values[i * wide..][..wide], &segment.values[r * segment.wide..][..wide]);
            let (keep, add) = (S::splat(keep), S::splat(add[r]));
            for at in (0..wide).step_by(S::LANES) {
                let kept = S::mul(S::load(values.as_ptr().add(at)), keep);
                S::store(values.as_mut_ptr().add(at), S::fma(add, S::load(more.as_ptr().add(at)), kept));
            }
        }
    }
}
