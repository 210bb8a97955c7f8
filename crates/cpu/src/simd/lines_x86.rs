use std::arch::asm;
use std::arch::x86_64::*;

use super::{Avx2, Avx512, AvxVnni, IntKind, IntTile, Lines, RunKind, Tile, Work};

impl Lines for Avx512 {
    type I = __m512i;
    type F = __m512;

    const BIASED: bool = true;
    const GEMV_MAX_ROWS: usize = 12;
    const GEMM_ROWS: usize = 6;
    const GEMM_ROWS_F32: usize = 12;
    const SUMS_IN_16_BITS: bool = false;

    ops! {
        fn load(p: *const u8) -> __m512i { _mm512_loadu_si512(p.cast()) }
        fn store(p: *mut u8, v: __m512i) -> () { _mm512_storeu_si512(p.cast(), v) }
        fn prefetch(p: *const u8) -> () { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
        fn prefetch_next(p: *const u8) -> () { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        fn and(a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
        fn or(a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn xor(a: __m512i, b: __m512i) -> __m512i { _mm512_xor_si512(a, b) }
        fn bytes(x: u8) -> __m512i { _mm512_set1_epi8(x as i8) }
        fn words(x: i32) -> __m512i { _mm512_set1_epi32(x) }
        fn repeat(p: *const u8) -> __m512i { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
        fn left<const N: u32>(a: __m512i) -> __m512i { _mm512_slli_epi32::<N>(a) }
        fn right<const N: u32>(a: __m512i) -> __m512i { _mm512_srli_epi32::<N>(a) }
        fn look_up(table: &[i8; 16], codes: __m512i) -> __m512i {
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), codes)
        }
        fn dot4<const WIDE: bool>(sum: __m512i, w: __m512i, a: __m512i) -> __m512i {
            _mm512_dpbusd_epi32(sum, w, a)
        }
        fn dot2<const ONE: bool>(sum: __m512i, a: __m512i, b: __m512i) -> __m512i { dot2(sum, a, b) }
        fn add(a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
        fn mul_add(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
            _mm512_add_epi32(_mm512_mullo_epi32(a, b), c)
        }
        fn to_f32(a: __m512i) -> __m512 { _mm512_cvtepi32_ps(a) }
        fn from_bits(a: __m512i) -> __m512 { _mm512_castsi512_ps(a) }
        fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn load_f32(p: *const f32) -> __m512 { _mm512_loadu_ps(p) }
        fn store_f32(p: *mut f32, v: __m512) -> () { _mm512_storeu_ps(p, v) }
        fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn min(a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn widen_f16(p: *const u8) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
        fn widen_u8(p: *const u8) -> __m512i { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())) }
        fn widen_i8(p: *const u8) -> __m512i { _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())) }
        fn pairs_i8(p: *const u8) -> __m512i { _mm512_cvtepi8_epi16(_mm256_loadu_si256(p.cast())) }
    }

    outlined!("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni");

    #[inline(always)]
    unsafe fn tile<K: RunKind, const T: usize>(t: &Tile<T>) {
        // SAFETY: the caller upholds this function's contract.
        unsafe { tile::<K, T>(t) }
    }

    #[inline(always)]
    unsafe fn int_tile<K: IntKind, const T: usize>(t: &IntTile<T>) {
        // SAFETY: the caller upholds this function's contract.
        unsafe { int_tile::<K, T>(t) }
    }
}

/// `vpdpwssd` in assembly: the compiler would split it into two instructions to shorten the dependency chain.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dot2(mut sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the CPU has the instruction.
    unsafe {
        asm!(
            "vpdpwssd {sum}, {a}, {b}",
            sum = inout(zmm_reg) sum,
            a = in(zmm_reg) a,
            b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Adds the products of groups of four inputs: a line of codes of both panels times four bytes of each row. In
/// assembly: the compiler would hoist more loads than it has registers for and spill sums.
macro_rules! add_groups {
    ($int_sums:ident, $codes:ident, $rows:ident, $($g:literal)*) => {
        $(
            let w = $codes.map(|c| _mm512_load_si512(c.add(64 * $g).cast()));
            for i in 0..T {
                let _spread: __m512i;
                asm!(
                    "vpbroadcastd {a}, dword ptr [{row} + {at}]",
                    "vpdpbusd {first}, {w}, {a}",
                    "vpdpbusd {second}, {x}, {a}",
                    a = out(zmm_reg) _spread,
                    row = in(reg) $rows[i],
                    at = const 4 * $g,
                    first = inout(zmm_reg) $int_sums[0][i],
                    second = inout(zmm_reg) $int_sums[1][i],
                    w = in(zmm_reg) w[0],
                    x = in(zmm_reg) w[1],
                    options(readonly, nostack, preserves_flags),
                );
            }
        )*
    };
}

/// As `Tile::add`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn tile<K: RunKind, const T: usize>(t: &Tile<T>) {
    // SAFETY: there are lines and bytes for each run; the caller guarantees the instruction set.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); T]; 2];
        for run in 0..t.runs {
            let (mut int_sums, codes, rows) = t.begin::<Avx512, K>(run);
            add_groups!(int_sums, codes, rows, 0 1 2 3);
            if K::STEP == 32 {
                add_groups!(int_sums, codes, rows, 4 5 6 7);
            }
            t.scale::<Avx512, K>(run, &int_sums, &mut sums);
        }
        t.store::<Avx512>(&sums);
    }
}

/// As `IntTile::add`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn int_tile<K: IntKind, const T: usize>(t: &IntTile<T>) {
    // SAFETY: the pointers of the tile are valid for every step; the caller guarantees the instruction set.
    unsafe {
        let mut all = [[_mm512_setzero_si512(); T]; 2];
        for step in 0..IntTile::<T>::steps::<K>() {
            let (mut int_sums, codes, rows) = t.begin::<Avx512, K>(step);
            add_groups!(int_sums, codes, rows, 0 1 2 3);
            if K::STEP == 32 {
                add_groups!(int_sums, codes, rows, 4 5 6 7);
            }
            t.multiply::<Avx512, K>(step, &int_sums, &mut all);
        }
        t.scale::<Avx512, K>(&all);
    }
}

/// Implements [`Lines`] with a line in two 32-byte registers. `$dot` multiplies one of them. `$more` are methods for which the
/// default is not the best.
macro_rules! two_registers {
    ($simd:ty, $features:literal, $biased:expr, $dot:ident $(, $more:item)*) => {
        impl Lines for $simd {
            type I = [__m256i; 2];
            type F = [__m256; 2];

            const BIASED: bool = $biased;
            const GEMV_MAX_ROWS: usize = 4;
            const GEMM_ROWS: usize = 1;
            // A pair would leave no register for the weights.
            const GEMM_PANELS_F32: usize = 1;
            const GEMM_ROWS_F32: usize = 6;
            const SUMS_IN_16_BITS: bool = !$biased;
            // Without a bias their absolute values are multiplied, which GEMV takes once for several rows. With more rows no
            // gain shows.
            const GEMV_MAX_ROWS_OF_BYTES: usize = if $biased { Self::GEMV_MAX_ROWS } else { 64 };

            outlined!($features);

            $($more)*

            ops! {
                fn load(p: *const u8) -> [__m256i; 2] {
                    [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())]
                }
                fn store(p: *mut u8, v: [__m256i; 2]) -> () {
                    _mm256_storeu_si256(p.cast(), v[0]);
                    _mm256_storeu_si256(p.add(32).cast(), v[1])
                }
                fn prefetch(p: *const u8) -> () { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
                fn prefetch_next(p: *const u8) -> () { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
                fn and(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
                    [_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])]
                }
                fn or(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
                    [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])]
                }
                fn xor(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
                    [_mm256_xor_si256(a[0], b[0]), _mm256_xor_si256(a[1], b[1])]
                }
                fn bytes(x: u8) -> [__m256i; 2] { [_mm256_set1_epi8(x as i8); 2] }
                fn words(x: i32) -> [__m256i; 2] { [_mm256_set1_epi32(x); 2] }
                fn repeat(p: *const u8) -> [__m256i; 2] {
                    [_mm256_set1_epi32(p.cast::<i32>().read_unaligned()); 2]
                }
                fn left<const N: u32>(a: [__m256i; 2]) -> [__m256i; 2] {
                    let n = _mm_cvtsi32_si128(N as i32);
                    [_mm256_sll_epi32(a[0], n), _mm256_sll_epi32(a[1], n)]
                }
                fn right<const N: u32>(a: [__m256i; 2]) -> [__m256i; 2] {
                    let n = _mm_cvtsi32_si128(N as i32);
                    [_mm256_srl_epi32(a[0], n), _mm256_srl_epi32(a[1], n)]
                }
                fn look_up(table: &[i8; 16], codes: [__m256i; 2]) -> [__m256i; 2] {
                    let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
                    [_mm256_shuffle_epi8(table, codes[0]), _mm256_shuffle_epi8(table, codes[1])]
                }
                fn dot4<const WIDE: bool>(
                    sum: [__m256i; 2],
                    w: [__m256i; 2],
                    a: [__m256i; 2]
                ) -> [__m256i; 2] {
                    [$dot::<WIDE>(sum[0], w[0], a[0]), $dot::<WIDE>(sum[1], w[1], a[1])]
                }
                fn dot2<const ONE: bool>(
                    sum: [__m256i; 2],
                    a: [__m256i; 2],
                    b: [__m256i; 2]
                ) -> [__m256i; 2] {
                    [
                        _mm256_add_epi32(sum[0], _mm256_madd_epi16(a[0], b[0])),
                        _mm256_add_epi32(sum[1], _mm256_madd_epi16(a[1], b[1])),
                    ]
                }
                fn add(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
                    [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])]
                }
                fn mul_add(a: [__m256i; 2], b: [__m256i; 2], c: [__m256i; 2]) -> [__m256i; 2] {
                    [
                        _mm256_add_epi32(_mm256_mullo_epi32(a[0], b[0]), c[0]),
                        _mm256_add_epi32(_mm256_mullo_epi32(a[1], b[1]), c[1]),
                    ]
                }
                fn to_f32(a: [__m256i; 2]) -> [__m256; 2] {
                    [_mm256_cvtepi32_ps(a[0]), _mm256_cvtepi32_ps(a[1])]
                }
                fn from_bits(a: [__m256i; 2]) -> [__m256; 2] {
                    [_mm256_castsi256_ps(a[0]), _mm256_castsi256_ps(a[1])]
                }
                fn splat(x: f32) -> [__m256; 2] { [_mm256_set1_ps(x); 2] }
                fn load_f32(p: *const f32) -> [__m256; 2] {
                    [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))]
                }
                fn store_f32(p: *mut f32, v: [__m256; 2]) -> () {
                    _mm256_storeu_ps(p, v[0]);
                    _mm256_storeu_ps(p.add(8), v[1])
                }
                fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
                    [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
                }
                fn min(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
                    [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])]
                }
                fn sub(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
                    [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])]
                }
                fn fma(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
                    [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
                }
                fn widen_f16(p: *const u8) -> [__m256; 2] {
                    [
                        _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                        _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast())),
                    ]
                }
                fn widen_u8(p: *const u8) -> [__m256i; 2] {
                    [
                        _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())),
                        _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast())),
                    ]
                }
                fn widen_i8(p: *const u8) -> [__m256i; 2] {
                    [
                        _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())),
                        _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8).cast())),
                    ]
                }
                fn pairs_i8(p: *const u8) -> [__m256i; 2] {
                    [
                        _mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast())),
                        _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(16).cast())),
                    ]
                }
            }
        }
    };
}

two_registers!(
    Avx2,
    "avx2,fma,f16c",
    false,
    dot_avx2,
    #[inline(always)]
    unsafe fn dot_groups<const N: usize>(
        sum: [__m256i; 2],
        w: [[__m256i; 2]; N],
        a: [[__m256i; 2]; N],
    ) -> [__m256i; 2] {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            [
                groups_avx2(sum[0], w.map(|w| w[0]), a.map(|a| a[0])),
                groups_avx2(sum[1], w.map(|w| w[1]), a.map(|a| a[1])),
            ]
        }
    }
);
two_registers!(AvxVnni, "avx2,fma,f16c,avxvnni", true, dot_vnni);

/// Dot products of bytes through i16 pairs, which cannot overflow: codes below 128 times signed bytes, or magnitudes up
/// to 128 times signed bytes above -128.
#[inline(always)]
unsafe fn dot_avx2<const WIDE: bool>(sum: __m256i, w: __m256i, a: __m256i) -> __m256i {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let pairs = if WIDE {
            _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w))
        } else {
            _mm256_maddubs_epi16(w, a)
        };
        _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}

#[inline(always)]
unsafe fn dot_vnni<const WIDE: bool>(sum: __m256i, w: __m256i, a: __m256i) -> __m256i {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { _mm256_dpbusd_avx_epi32(sum, w, a) }
}

/// Sums of pairs of products of all groups in i16, then of these pairs.
#[inline(always)]
unsafe fn groups_avx2<const N: usize>(sum: __m256i, w: [__m256i; N], a: [__m256i; N]) -> __m256i {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let mut pairs = _mm256_maddubs_epi16(w[0], a[0]);
        for n in 1..N {
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[n], a[n]));
        }
        _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}
