use std::arch::x86_64::*;

use super::{F8, Simd};

/// Eight lanes of AVX2 with FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Packed-weight lines with AVX-VNNI; everything else as AVX2.
#[derive(Clone, Copy)]
pub(crate) struct AvxVnni;

/// 16 lanes of AVX-512.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// Mask of the first `n` of eight lanes, as AVX2 masked loads expect it.
#[inline(always)]
unsafe fn first8(n: usize) -> __m256i {
    const ONES: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: eight elements from index 8 - n on lie within the sixteen.
    unsafe { _mm256_loadu_si256(ONES.as_ptr().add(8 - n.min(8)).cast()) }
}

impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const REGISTERS: usize = 16;

    ops! {
        fn splat(x: f32) -> __m256 { _mm256_set1_ps(x) }
        fn load(p: *const f32) -> __m256 { _mm256_loadu_ps(p) }
        fn load_some(p: *const f32, n: usize) -> __m256 { _mm256_maskload_ps(p, first8(n)) }
        fn load_f16(p: *const u16) -> __m256 { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
        fn load_bf16(p: *const u16) -> __m256 {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))))
        }
        fn load_f8(p: *const F8) -> __m256 {
            let words = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(_mm_loadl_epi64(p.cast())));
            _mm256_cvtph_ps(_mm_and_si128(words, _mm_set1_epi16(F8::BITS as i16)))
        }
        fn store(p: *mut f32, v: __m256) -> () { _mm256_storeu_ps(p, v) }
        fn store_some(p: *mut f32, n: usize, v: __m256) -> () { _mm256_maskstore_ps(p, first8(n), v) }
        fn add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        fn sub(a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
        fn mul(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        fn div(a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) }
        fn max(a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
        fn min(a: __m256, b: __m256) -> __m256 { _mm256_min_ps(a, b) }
        fn fma(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        fn round(a: __m256) -> __m256 { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
        fn pow2(n: __m256) -> __m256 {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
        }
        fn sum(a: __m256) -> f32 {
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
        }
        fn largest(a: __m256) -> f32 {
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)))
        }
    }
}

/// Mask of the first `n` of 16 lanes.
#[inline(always)]
fn first16(n: usize) -> __mmask16 {
    ((1u32 << n.min(16)) - 1) as __mmask16
}

impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    const REGISTERS: usize = 32;

    ops! {
        fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn load(p: *const f32) -> __m512 { _mm512_loadu_ps(p) }
        fn load_some(p: *const f32, n: usize) -> __m512 { _mm512_maskz_loadu_ps(first16(n), p) }
        fn load_f16(p: *const u16) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
        fn load_bf16(p: *const u16) -> __m512 {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))))
        }
        fn load_f8(p: *const F8) -> __m512 {
            let words = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast())));
            _mm512_cvtph_ps(_mm256_and_si256(words, _mm256_set1_epi16(F8::BITS as i16)))
        }
        fn store(p: *mut f32, v: __m512) -> () { _mm512_storeu_ps(p, v) }
        fn store_some(p: *mut f32, n: usize, v: __m512) -> () { _mm512_mask_storeu_ps(p, first16(n), v) }
        fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn min(a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn round(a: __m512) -> __m512 { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT }>(a) }
        fn pow2(n: __m512) -> __m512 {
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        }
        fn sum(a: __m512) -> f32 {
            let half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            Avx2::sum(half)
        }
        fn largest(a: __m512) -> f32 {
            let half = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            Avx2::largest(half)
        }
    }
}
