//! Softmax weights rounded to bf16.
//!
//! A rounded weight has 8 significant bits, so the exact one needs only a few more: a cubic polynomial with a relative
//! error of 2⁻¹³.

use std::ops::Range;

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use crate::rowwise;
#[cfg(target_arch = "aarch64")]
use crate::simd::Neon;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Scalar, Simd};

/// A vector whose lanes can be assembled from exponent and mantissa.
pub(crate) trait Weight: Simd {
    /// Per lane, on the bits: `((exponent << 7) + digits) << 16`.
    unsafe fn join(exponent: Self::V, digits: Self::V) -> Self::V;
}

impl Weight for Scalar {
    #[inline(always)]
    unsafe fn join(exponent: Self::V, digits: Self::V) -> Self::V {
        std::array::from_fn(|i| {
            f32::from_bits((exponent[i].to_bits() << 7).wrapping_add(digits[i].to_bits()) << 16)
        })
    }
}

#[cfg(target_arch = "aarch64")]
impl Weight for Neon {
    #[inline(always)]
    unsafe fn join(exponent: [float32x4_t; 2], digits: [float32x4_t; 2]) -> [float32x4_t; 2] {
        // SAFETY: the caller guarantees the instruction set.
        std::array::from_fn(|i| unsafe {
            let exponent = vshlq_n_u32::<7>(vreinterpretq_u32_f32(exponent[i]));
            let both = vaddq_u32(exponent, vreinterpretq_u32_f32(digits[i]));
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(both))
        })
    }
}

#[cfg(target_arch = "x86_64")]
impl Weight for Avx2 {
    #[inline(always)]
    unsafe fn join(exponent: __m256, digits: __m256) -> __m256 {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            let exponent = _mm256_slli_epi32::<7>(_mm256_castps_si256(exponent));
            let both = _mm256_add_epi32(exponent, _mm256_castps_si256(digits));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(both))
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Weight for Avx512 {
    #[inline(always)]
    unsafe fn join(exponent: __m512, digits: __m512) -> __m512 {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            let exponent = _mm512_slli_epi32::<7>(_mm512_castps_si512(exponent));
            let both = _mm512_add_epi32(exponent, _mm512_castps_si512(digits));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both))
        }
    }
}

/// log2 of the smallest weight: smaller ones are raised to it. See [`paired`](super::paired) for the reason.
const LEAST: f32 = -48.0;

/// `2ˣ` for `x <= 0`, rounded to bf16. The argument is `x - 1/2`.
#[inline(always)]
unsafe fn weight<S: Weight>(x: S::V) -> S::V {
    // Adding these rounds to an integer or to 128ths, in the lowest bits. WHOLE also adds the exponent bias, minus the
    // one that the mantissa's implicit bit contributes.
    const WHOLE: f32 = 12_582_912.0 + 126.0;
    const DIGITS: f32 = 98_304.0;
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        // In this operand order NaN becomes the minimum.
        let x = S::max(x, S::splat(LEAST - 0.5));
        let exponent = S::add(x, S::splat(WHOLE));
        let r = S::sub(x, S::sub(exponent, S::splat(WHOLE)));
        // 2^(r + 1/2), from 1 to 2. The constant term is a multiple of 1/128, so that it merges with DIGITS.
        let p = S::fma(S::splat(0.080_189_52), r, S::splat(0.343_745_62));
        let p = S::fma(p, r, S::splat(0.980_154_9));
        let digits = S::fma(p, r, S::splat(DIGITS + 181.0 / 128.0));
        S::join(exponent, digits)
    }
}

/// Lanes of the longest pair of vectors.
const SIDE: usize = 32;

/// Upper bounds that mask edge vectors of scores: +∞ (kept), then -∞ (masked), then +∞.
static BARS: [f32; 3 * SIDE] = {
    let mut bars = [f32::INFINITY; 3 * SIDE];
    let mut i = SIDE;
    while i < 2 * SIDE {
        bars[i] = f32::NEG_INFINITY;
        i += 1;
    }
    bars
};

/// The scores `seen`, extended to whole pairs of vectors.
#[inline(always)]
fn near<S: Simd>(seen: &Range<usize>) -> Range<usize> {
    let pair = 2 * S::LANES;
    match seen.is_empty() {
        true => 0..0,
        false => seen.start / pair * pair..seen.end.next_multiple_of(pair),
    }
}

/// Bounds for the first pair of vectors, whose front may be masked, and for the last, whose back may be.
#[inline(always)]
unsafe fn bars<S: Simd>(seen: &Range<usize>) -> [*const f32; 2] {
    let near = near::<S>(seen);
    // SAFETY: a pair of vectors is no longer than `SIDE`, so both reads stay within `BARS`.
    unsafe {
        let front = BARS.as_ptr().add(2 * SIDE - (seen.start - near.start));
        [front, BARS.as_ptr().add(SIDE - 2 * S::LANES + (near.end - seen.end))]
    }
}

/// Prepares base-2 scores for [`exp`]: applies the softcap and masks what is not seen with -∞. Returns the maximum.
#[inline(always)]
pub(super) unsafe fn largest<S: Weight>(s: &mut [f32], seen: Range<usize>, softcap: Option<f32>) -> f32 {
    let pair = 2 * S::LANES;
    debug_assert!(s.len().is_multiple_of(pair));
    if seen.is_empty() {
        return f32::NEG_INFINITY;
    }
    let s = &mut s[near::<S>(&seen)];
    // SAFETY: within the slice; the caller guarantees the instruction set.
    unsafe {
        if let Some(cap) = softcap {
            rowwise::softcap::<S>(s, cap * std::f32::consts::LOG2_E);
        }
        for (at, bars) in [0, s.len() - pair].into_iter().zip(bars::<S>(&seen)) {
            for i in (0..pair).step_by(S::LANES) {
                let p = s.as_mut_ptr().add(at + i);
                S::store(p, S::min(S::load(p), S::load(bars.add(i))));
            }
        }
        let mut top = [S::splat(f32::NEG_INFINITY); 2];
        for at in (0..s.len()).step_by(pair) {
            for i in 0..2 {
                top[i] = S::max(top[i], S::load(s.as_ptr().add(at + i * S::LANES)));
            }
        }
        S::largest(S::max(top[0], top[1]))
    }
}

/// Turns prepared scores into weights and passes them to `put` two vectors at a time, with their scores and the offset
/// of those. Weights outside `seen` are zero. Returns the sum of the weights.
#[inline(always)]
pub(super) unsafe fn exp<S: Weight>(
    s: &mut [f32],
    seen: Range<usize>,
    most: f32,
    mut put: impl FnMut(&mut [f32], usize, [S::V; 2]),
) -> f32 {
    let (pair, near) = (2 * S::LANES, near::<S>(&seen));
    // SAFETY: within the slice; the caller guarantees the instruction set.
    unsafe {
        let none = S::splat(0.0);
        for at in (0..near.start).chain(near.end..s.len()).step_by(pair) {
            put(&mut s[at..at + pair], at, [none; 2]);
        }
        if near.is_empty() {
            return 0.0;
        }
        let [front, back] = bars::<S>(&seen);
        let s = &mut s[near.clone()];
        let last = s.len() - pair;
        let (shift, mut sums) = (S::splat(-most - 0.5), [none; 2]);
        for at in (0..s.len()).step_by(pair) {
            let s = &mut s[at..at + pair];
            let mut w = [none; 2];
            for i in 0..2 {
                w[i] = weight::<S>(S::add(S::load(s.as_ptr().add(i * S::LANES)), shift));
            }
            for (edge, bars) in [(0, front), (last, back)] {
                if at == edge {
                    for i in 0..2 {
                        w[i] = S::min(w[i], S::max(S::load(bars.add(i * S::LANES)), none));
                    }
                }
            }
            for i in 0..2 {
                sums[i] = S::add(sums[i], w[i]);
            }
            put(s, near.start + at, w);
        }
        let sum = S::add(sums[0], sums[1]);
        S::sum(sum)
    }
}
