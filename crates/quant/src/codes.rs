//! Codes to weights: the last step of unpacking, common to all formats with scales.

use std::sync::atomic::{Ordering, compiler_fence};

/// Keeps the compiler from vectorizing across parts or blocks, which needs slow gathers. It then vectorizes within each
/// part. Emits no instruction.
#[inline(always)]
fn one_by_one() {
    compiler_fence(Ordering::SeqCst);
}

/// `w = scale * code`, with one scale per part of `LEN` weights.
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

/// `w = scale * code - min`, with one scale and minimum per part of `LEN` weights.
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

/// `w = scale * (code - zero)`.
#[inline(always)]
pub(crate) fn from_zero_point<const N: usize>(
    codes: &[u8; N],
    weights: &mut [f32; N],
    scale: f32,
    zero: f32,
) {
    one_by_one();
    for i in 0..N {
        weights[i] = scale * (f32::from(codes[i]) - zero);
    }
}

/// Codes plus `bias`. `out` has `N` elements.
#[inline(always)]
pub(crate) fn unsigned<const N: usize>(codes: &[i8; N], bias: u8, out: &mut [u8]) {
    if let Some(out) = out.first_chunk_mut::<N>() {
        *out = codes.map(|c| c.wrapping_add_unsigned(bias) as u8);
    }
}

/// Low nibbles first, then the high ones, as formats with tables of 16 values store their codes.
#[inline(always)]
pub(crate) fn split_nibbles<const N: usize>(qs: &[u8; N], out: &mut [u8]) {
    let (low, high) = out.split_at_mut(N);
    for ((q, low), high) in qs.iter().zip(low).zip(high) {
        (*low, *high) = (q & 15, q >> 4);
    }
}
