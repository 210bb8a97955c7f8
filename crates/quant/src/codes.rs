//! From codes to weights: the last step of unpacking, common to all formats that have scales.

use std::sync::atomic::{Ordering, compiler_fence};

/// Keeps the compiler from taking several parts or blocks into one vector, which it cannot do without slow gathers.
/// It then makes vectors of the weights within each. This becomes no instruction.
#[inline(always)]
fn one_by_one() {
    compiler_fence(Ordering::SeqCst);
}

/// Weights of parts of `LEN` that have a scale each.
#[inline(always)]
pub(crate) fn scaled<const N: usize, const LEN: usize>(
    codes: &[i8; N],
    weights: &mut [f32; N],
    scale: impl Fn(usize) -> f32,
) {
    for part in 0..N / LEN {
        one_by_one();
        let scale = scale(part);
        for i in part * LEN..(part + 1) * LEN {
            weights[i] = scale * f32::from(codes[i]);
        }
    }
}

/// Weights of parts of `LEN` that have a scale each, and a number to subtract.
#[inline(always)]
pub(crate) fn scaled_less<const N: usize, const LEN: usize>(
    codes: &[u8; N],
    weights: &mut [f32; N],
    scale_and_min: impl Fn(usize) -> (f32, f32),
) {
    for part in 0..N / LEN {
        one_by_one();
        let (scale, min) = scale_and_min(part);
        for i in part * LEN..(part + 1) * LEN {
            weights[i] = scale * f32::from(codes[i]) - min;
        }
    }
}
