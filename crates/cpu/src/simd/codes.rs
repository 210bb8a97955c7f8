//! [`Codes`]: what quantizing activations takes, in each instruction set.
//!
//! One token's activations are quantized on one thread, while the others wait. So sums of codes stay in registers: scalar stores that
//! are read as a vector at once would wait until they have left the store buffer, longer than all else takes.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "aarch64")]
use super::Neon;
#[cfg(target_arch = "x86_64")]
use super::{Avx2, Avx512};
use super::{Scalar, Simd};

/// Inputs that are rounded at a time.
pub(crate) const UNIT: usize = 32;
/// Most inputs of a call.
const MOST: usize = 256;

/// Sums of each 16 codes.
pub(crate) type CodeSums = [i32; MOST / 16];

/// Rounds numbers to 8-bit codes.
///
/// # Safety
///
/// Methods may run only on a CPU that has the instruction set.
pub(crate) trait Codes: Simd {
    /// The largest of all |x|; NaN if one is. `x` has a multiple of [`UNIT`] elements.
    unsafe fn magnitude(x: &[f32]) -> f32;

    /// Rounds each `x * by` to the nearest integer from -127 to 127, ties to even, and returns the sums of each 16. Codes of what
    /// is not finite are any. `x` has a multiple of [`UNIT`] elements, 256 at most, and `codes` is as long.
    unsafe fn round_codes(x: &[f32], by: f32, codes: &mut [u8]) -> CodeSums;
}

/// Bits of |x|. As integers they order like the numbers, and NaN is above infinity.
const MAGNITUDE: u32 = 0x7fff_ffff;

impl Codes for Scalar {
    #[inline(always)]
    unsafe fn magnitude(x: &[f32]) -> f32 {
        f32::from_bits(x.iter().fold(0, |most, x| most.max(x.to_bits() & MAGNITUDE)))
    }

    #[inline(always)]
    unsafe fn round_codes(x: &[f32], by: f32, codes: &mut [u8]) -> CodeSums {
        let mut sums = [0; _];
        for ((x, codes), sum) in x.chunks(16).zip(codes.chunks_mut(16)).zip(&mut sums) {
            for (x, code) in x.iter().zip(codes) {
                // Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, which then is in the lowest bits.
                *code = (x * by + 12_582_912.0).to_bits() as u8;
                *sum += i32::from(*code as i8);
            }
        }
        sums
    }
}

/// Rounding of a [`UNIT`] of inputs.
#[cfg(target_arch = "x86_64")]
trait Round: Copy {
    unsafe fn round(self, x: *const f32) -> __m256i;
}

/// Rounds 256 inputs at most. Returns the sums of each 16 of the first and second half.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn round_units(x: &[f32], codes: &mut [u8], how: impl Round) -> [__m256i; 2] {
    // SAFETY: the caller has AVX2, and sees to it that `x` and `codes` are whole units of the same number.
    unsafe {
        let (ones, ones_16) = (_mm256_set1_epi8(1), _mm256_set1_epi16(1));
        let mut halves = [_mm256_setzero_si256(); 2];
        for (half, sums) in halves.iter_mut().enumerate() {
            let mut fours = [_mm256_setzero_si256(); 4];
            for (i, fours) in fours.iter_mut().enumerate() {
                let at = half * MOST / 2 + i * UNIT;
                if at < x.len() {
                    let of_unit = how.round(x.as_ptr().add(at));
                    _mm256_storeu_si256(codes.as_mut_ptr().add(at).cast(), of_unit);
                    *fours = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, of_unit), ones_16);
                }
            }
            let eights = [_mm256_hadd_epi32(fours[0], fours[1]), _mm256_hadd_epi32(fours[2], fours[3])];
            // The first 16 of each unit, then the second 16 of each.
            let by_place = _mm256_hadd_epi32(eights[0], eights[1]);
            *sums = _mm256_permutevar8x32_epi32(by_place, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        }
        halves
    }
}

/// The largest of eight, as unsigned integers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn largest(x: __m256i) -> f32 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let x = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
        let x = _mm_max_epu32(x, _mm_shuffle_epi32::<0b1110>(x));
        let x = _mm_max_epu32(x, _mm_shuffle_epi32::<0b01>(x));
        f32::from_bits(_mm_cvtsi128_si32(x) as u32)
    }
}

/// Rounds products with a number.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct By256(__m256);

#[cfg(target_arch = "x86_64")]
impl By256 {
    /// Eight inputs.
    #[inline(always)]
    unsafe fn eight(self, x: *const f32) -> __m256i {
        // SAFETY: the caller has AVX2 and passes eight numbers.
        unsafe { _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), self.0)) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Round for By256 {
    #[inline(always)]
    unsafe fn round(self, x: *const f32) -> __m256i {
        // SAFETY: the caller has AVX2 and passes a unit.
        unsafe {
            let first = _mm256_packs_epi32(self.eight(x), self.eight(x.add(8)));
            let second = _mm256_packs_epi32(self.eight(x.add(16)), self.eight(x.add(24)));
            // Packing goes by 128-bit halves: groups of four are in the order 0 2 4 6 1 3 5 7.
            let bytes = _mm256_packs_epi16(first, second);
            _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Codes for Avx2 {
    #[inline(always)]
    unsafe fn magnitude(x: &[f32]) -> f32 {
        // SAFETY: all units lie within `x`; the caller has the instruction set.
        unsafe {
            let (mask, mut most) = (_mm256_set1_epi32(MAGNITUDE as i32), _mm256_setzero_si256());
            for at in (0..x.len()).step_by(8) {
                let x = _mm256_loadu_si256(x.as_ptr().add(at).cast());
                most = _mm256_max_epu32(most, _mm256_and_si256(x, mask));
            }
            largest(most)
        }
    }

    #[inline(always)]
    unsafe fn round_codes(x: &[f32], by: f32, codes: &mut [u8]) -> CodeSums {
        // SAFETY: `round_units` passes a unit's inputs; the caller has the instruction set.
        unsafe {
            let halves = round_units(x, codes, By256(_mm256_set1_ps(by)));
            std::mem::transmute::<[__m256i; 2], CodeSums>(halves)
        }
    }
}

/// Rounds products with a number, 16 at a time.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct By512(__m512);

#[cfg(target_arch = "x86_64")]
impl Round for By512 {
    #[inline(always)]
    unsafe fn round(self, x: *const f32) -> __m256i {
        // SAFETY: the caller has AVX-512 and passes a unit.
        unsafe {
            let first = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), self.0));
            let second = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x.add(16)), self.0));
            _mm256_set_m128i(_mm512_cvtepi32_epi8(second), _mm512_cvtepi32_epi8(first))
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Codes for Avx512 {
    #[inline(always)]
    unsafe fn magnitude(x: &[f32]) -> f32 {
        // SAFETY: all units lie within `x`; the caller has the instruction set.
        unsafe {
            let (mask, mut most) = (_mm512_set1_epi32(MAGNITUDE as i32), _mm512_setzero_si512());
            for at in (0..x.len()).step_by(16) {
                let x = _mm512_loadu_si512(x.as_ptr().add(at).cast());
                most = _mm512_max_epu32(most, _mm512_and_si512(x, mask));
            }
            largest(_mm256_max_epu32(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64::<1>(most)))
        }
    }

    #[inline(always)]
    unsafe fn round_codes(x: &[f32], by: f32, codes: &mut [u8]) -> CodeSums {
        // SAFETY: `round_units` passes a unit's inputs; the caller has the instruction set.
        unsafe {
            let [low, high] = round_units(x, codes, By512(_mm512_set1_ps(by)));
            // In one vector, since it is read as one.
            let sums = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            std::mem::transmute::<__m512i, CodeSums>(sums)
        }
    }
}

/// Rounds four products.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn four(x: *const f32, by: float32x4_t) -> int16x4_t {
    // SAFETY: the caller has NEON and passes four numbers.
    unsafe { vmovn_s32(vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x), by))) }
}

#[cfg(target_arch = "aarch64")]
impl Codes for Neon {
    #[inline(always)]
    unsafe fn magnitude(x: &[f32]) -> f32 {
        // SAFETY: all units lie within `x`; the caller has the instruction set.
        unsafe {
            let (mask, mut most) = (vdupq_n_u32(MAGNITUDE), vdupq_n_u32(0));
            for at in (0..x.len()).step_by(4) {
                let x = vreinterpretq_u32_f32(vld1q_f32(x.as_ptr().add(at)));
                most = vmaxq_u32(most, vandq_u32(x, mask));
            }
            f32::from_bits(vmaxvq_u32(most))
        }
    }

    #[inline(always)]
    unsafe fn round_codes(x: &[f32], by: f32, codes: &mut [u8]) -> CodeSums {
        let mut sums = [0; _];
        // SAFETY: each 16 elements lie within `x` and `codes`; the caller has the instruction set.
        unsafe {
            let by = vdupq_n_f32(by);
            for (i, sum) in sums.iter_mut().enumerate().take(x.len() / 16) {
                let x = x.as_ptr().add(16 * i);
                let low = vcombine_s16(four(x, by), four(x.add(4), by));
                let high = vcombine_s16(four(x.add(8), by), four(x.add(12), by));
                let bytes = vcombine_s8(vmovn_s16(low), vmovn_s16(high));
                vst1q_s8(codes.as_mut_ptr().add(16 * i).cast(), bytes);
                *sum = i32::from(vaddlvq_s8(bytes));
            }
        }
        sums
    }
}
