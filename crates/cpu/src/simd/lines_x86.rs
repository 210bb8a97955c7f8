use std::arch::asm;
use std::arch::x86_64::*;

use super::{Avx2, Avx512, AvxVnni, F8, IntKind, IntTile, Lines, OfRun, RunKind, StepKind, Tile, Work};

/// [`Lines::touch`]
#[inline(always)]
unsafe fn touch(p: *const u8) {
    // SAFETY: the caller guarantees that the byte is there. Not `pure`, so that the order stays.
    unsafe { asm!("test byte ptr [{}], 1", in(reg) p, options(readonly, nostack)) };
}

impl Lines for Avx512 {
    type I = __m512i;
    type F = __m512;

    const BIASED: bool = true;
    const LINES: usize = 32;
    const GEMV_ROWS: usize = 12;
    const GEMV_MAX_ROWS: usize = 64;
    const GEMM_ROWS: usize = 6;
    const GEMM_ROWS_F32: usize = 12;
    const SUMS_IN_16_BITS: bool = false;

    ops! {
        fn load(p: *const u8) -> __m512i { _mm512_loadu_si512(p.cast()) }
        fn store(p: *mut u8, v: __m512i) -> () { _mm512_storeu_si512(p.cast(), v) }
        fn prefetch(p: *const u8) -> () { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
        fn prefetch_next(p: *const u8) -> () { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        fn touch(p: *const u8) -> () { touch(p) }
        fn and(a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
        fn or(a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn xor(a: __m512i, b: __m512i) -> __m512i { _mm512_xor_si512(a, b) }
        fn bytes(x: u8) -> __m512i { _mm512_set1_epi8(x as i8) }
        fn words(x: i32) -> __m512i { _mm512_set1_epi32(x) }
        fn repeat(p: *const u8) -> __m512i { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
        fn left<const N: u32>(a: __m512i) -> __m512i { _mm512_slli_epi32::<N>(a) }
        fn right<const N: u32>(a: __m512i) -> __m512i { _mm512_srli_epi32::<N>(a) }
        fn right_signed<const N: u32>(a: __m512i) -> __m512i { _mm512_srai_epi32::<N>(a) }
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
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn widen_f16(p: *const u8) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
        fn widen_f8(p: *const u8) -> __m512 { _mm512_cvtph_ps(halves(p)) }
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

/// The bits of 16 FP8 codes as those of f16 numbers, as [`F8::half`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn halves(p: *const u8) -> __m256i {
    // SAFETY: the caller guarantees 16 codes.
    let words = unsafe { _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast()))) };
    _mm256_and_si256(words, _mm256_set1_epi16(F8::BITS as i16))
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

/// As `Tile::add`. A function of its own, as all here: with others in one, sums do not stay in registers.
#[inline(never)]
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
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn int_tile<K: IntKind, const T: usize>(t: &IntTile<T>) {
    // SAFETY: the pointers of the tile are valid for every step; the caller guarantees the instruction set.
    unsafe {
        // The two steps of a run have one factor, and with minimums no initial values.
        let are_joined = const { K::NARROW && K::MINS > 0 && K::RUN == 2 * K::STEP };
        let mut all = [[_mm512_setzero_si512(); T]; 2];
        for step in (0..IntTile::<T>::steps::<K>()).step_by(if are_joined { 2 } else { 1 }) {
            let (mut int_sums, codes, rows) = t.begin::<Avx512, K>(step);
            for some in (0..K::STEP / 4).step_by(8) {
                let (codes, rows) = (codes.map(|c| c.add(64 * some)), rows.map(|r| r.add(4 * some)));
                add_groups!(int_sums, codes, rows, 0 1 2 3);
                if K::STEP >= 32 || are_joined {
                    add_groups!(int_sums, codes, rows, 4 5 6 7);
                }
            }
            if are_joined {
                // Sums of 32 inputs do not fit 16 bits.
                t.multiply_words::<Avx512>(step, &int_sums, &mut all);
            } else {
                t.multiply::<Avx512, K>(step, &int_sums, &mut all);
            }
        }
        t.scale::<Avx512, K>(&all);
    }
}

/// Implements [`Lines`] with a line in two 32-byte registers. A GEMM tile has `$gemm_rows` rows. `$dot` multiplies one register.
/// `$more` are methods for which the default is not the best.
macro_rules! two_registers {
    ($simd:ty, $features:literal, $biased:expr, $gemm_rows:literal, $dot:ident $(, $more:item)*) => {
        impl Lines for $simd {
            type I = [__m256i; 2];
            type F = [__m256; 2];

            const BIASED: bool = $biased;
            const LINES: usize = 8;
            const GEMV_ROWS: usize = 4;
            const GEMV_MAX_ROWS: usize = if $biased { Self::GEMV_ROWS } else { 8 };
            const GEMM_ROWS: usize = $gemm_rows;
            const GEMM_ROWS_OF_SHORT_SUMS: usize = if $gemm_rows > 2 { 2 } else { $gemm_rows };
            // A pair would leave no register for the weights.
            const GEMM_PANELS_F32: usize = 1;
            const GEMM_ROWS_F32: usize = 6;
            const SUMS_IN_16_BITS: bool = !$biased;

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
                fn touch(p: *const u8) -> () { touch(p) }
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
                fn right_signed<const N: u32>(a: [__m256i; 2]) -> [__m256i; 2] {
                    let n = _mm_cvtsi32_si128(N as i32);
                    [_mm256_sra_epi32(a[0], n), _mm256_sra_epi32(a[1], n)]
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
                fn widen_f8(p: *const u8) -> [__m256; 2] {
                    let halves = halves(p);
                    [
                        _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                        _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)),
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
    4,
    dot_avx2,
    #[inline(always)]
    unsafe fn products(w: [__m256i; 2], a: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { [_mm256_maddubs_epi16(w[0], a[0]), _mm256_maddubs_epi16(w[1], a[1])] }
    },
    #[inline(always)]
    unsafe fn add_products(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { [_mm256_add_epi16(a[0], b[0]), _mm256_add_epi16(a[1], b[1])] }
    },
    #[inline(always)]
    unsafe fn tile<K: RunKind, const T: usize>(t: &Tile<T>) {
        // SAFETY: the caller upholds this function's contract.
        unsafe { tile_avx2::<K, T>(t) }
    },
    #[inline(always)]
    unsafe fn int_tile<K: IntKind, const T: usize>(t: &IntTile<T>) {
        // SAFETY: the caller upholds this function's contract.
        unsafe { int_tile_avx2::<K, T>(t) }
    }
);
two_registers!(AvxVnni, "avx2,fma,f16c,avxvnni", true, 1, dot_vnni);

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

/// Sums of `T` rows with one panel.
type PanelSums<const T: usize> = [[__m256i; 2]; T];

/// Sums of products with groups of four inputs in pairs of 16 bits: lines of codes times four bytes of each row. In assembly, as
/// the compiler would load rows early and spill sums.
macro_rules! sum_pairs {
    ($codes:ident, $rows:ident, $first:literal $($g:literal)*) => {{
        let mut pairs = [[_mm256_setzero_si256(); 2]; T];
        let w = [0, 32].map(|at| _mm256_load_si256($codes.add(64 * $first + at).cast()));
        for i in 0..T {
            asm!(
                "vpbroadcastd {second}, dword ptr [{row} + {at}]",
                "vpmaddubsw {first}, {w}, {second}",
                "vpmaddubsw {second}, {x}, {second}",
                row = in(reg) $rows[i],
                at = const 4 * $first,
                first = out(ymm_reg) pairs[i][0],
                second = out(ymm_reg) pairs[i][1],
                w = in(ymm_reg) w[0],
                x = in(ymm_reg) w[1],
                options(readonly, nostack, preserves_flags),
            );
        }
        $(
            let w = [0, 32].map(|at| _mm256_load_si256($codes.add(64 * $g + at).cast()));
            for i in 0..T {
                asm!(
                    "vpbroadcastd {a}, dword ptr [{row} + {at}]",
                    "vpmaddubsw {product}, {w}, {a}",
                    "vpmaddubsw {a}, {x}, {a}",
                    "vpaddw {first}, {first}, {product}",
                    "vpaddw {second}, {second}, {a}",
                    a = out(ymm_reg) _,
                    product = out(ymm_reg) _,
                    row = in(reg) $rows[i],
                    at = const 4 * $g,
                    first = inout(ymm_reg) pairs[i][0],
                    second = inout(ymm_reg) pairs[i][1],
                    w = in(ymm_reg) w[0],
                    x = in(ymm_reg) w[1],
                    options(readonly, nostack, preserves_flags),
                );
            }
        )*
        pairs
    }};
}

/// Adds products of signed bytes to sums of words: as [`dot_avx2`], the absolute values taken once for all rows.
macro_rules! add_wide {
    ($int_sums:ident, $codes:ident, $rows:ident, $ones:ident, $($g:literal)*) => {
        $(
            let w = [0, 32].map(|at| _mm256_load_si256($codes.add(64 * $g + at).cast()));
            let size = w.map(|w| _mm256_abs_epi8(w));
            for i in 0..T {
                asm!(
                    "vpbroadcastd {a}, dword ptr [{row} + {at}]",
                    "vpsignb {product}, {a}, {w}",
                    "vpsignb {a}, {a}, {x}",
                    "vpmaddubsw {product}, {size_of_w}, {product}",
                    "vpmaddubsw {a}, {size_of_x}, {a}",
                    "vpmaddwd {product}, {product}, {ones}",
                    "vpmaddwd {a}, {a}, {ones}",
                    "vpaddd {first}, {first}, {product}",
                    "vpaddd {second}, {second}, {a}",
                    a = out(ymm_reg) _,
                    product = out(ymm_reg) _,
                    row = in(reg) $rows[i],
                    at = const 4 * $g,
                    first = inout(ymm_reg) $int_sums[i][0],
                    second = inout(ymm_reg) $int_sums[i][1],
                    w = in(ymm_reg) w[0],
                    x = in(ymm_reg) w[1],
                    size_of_w = in(ymm_reg) size[0],
                    size_of_x = in(ymm_reg) size[1],
                    ones = in(ymm_reg) $ones,
                    options(readonly, nostack, preserves_flags),
                );
            }
        )*
    };
}

/// Products of `K::GROUPS` groups of four inputs with small codes, summed in pairs in 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn pairs_of_groups<K: StepKind, const T: usize>(
    codes: *const u8,
    rows: [*const u8; T],
) -> PanelSums<T> {
    // SAFETY: the caller guarantees the lines and the bytes.
    unsafe {
        match K::GROUPS {
            1 => sum_pairs!(codes, rows, 0),
            2 => sum_pairs!(codes, rows, 0 1),
            4 => sum_pairs!(codes, rows, 0 1 2 3),
            _ => sum_pairs!(codes, rows, 0 1 2 3 4 5 6 7),
        }
    }
}

/// Adds the products of a step to integer sums: the lines of a panel at `codes` times rows with bytes at `rows`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn add_step<K: StepKind, const T: usize>(
    int_sums: &mut PanelSums<T>,
    codes: *const u8,
    rows: [*const u8; T],
) {
    let ones = _mm256_set1_epi16(1);
    // SAFETY: the caller guarantees the lines and the bytes.
    unsafe {
        if const { K::WIDE } {
            for some in (0..K::STEP / 4).step_by(8) {
                let (codes, rows) = (codes.add(64 * some), rows.map(|r| r.add(4 * some)));
                add_wide!(int_sums, codes, rows, ones, 0 1 2 3);
                if const { K::STEP >= 32 } {
                    add_wide!(int_sums, codes, rows, ones, 4 5 6 7);
                }
            }
            return;
        }
        for first in (0..K::STEP / 4).step_by(K::GROUPS) {
            let pairs = pairs_of_groups::<K, T>(codes.add(64 * first), rows.map(|p| p.add(4 * first)));
            for i in 0..T {
                for half in 0..2 {
                    let sums = _mm256_madd_epi16(pairs[i][half], ones);
                    int_sums[i][half] = _mm256_add_epi32(int_sums[i][half], sums);
                }
            }
        }
    }
}

/// As `Tile::add`, one panel after the other: the sums of four rows and the weights fit into registers, and a line of weights is
/// loaded once for four rows.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile_avx2<K: RunKind, const T: usize>(t: &Tile<T>) {
    // SAFETY: there are lines, bytes, scales and sums for each run; the caller guarantees the instruction set.
    unsafe {
        for p in 0..2 {
            let mut sums = [Avx2::splat(0.0); T];
            for run in 0..t.runs {
                let mut int_sums: PanelSums<T> = std::array::from_fn(|i| match K::MINS {
                    true => Avx2::words(0),
                    false => Avx2::repeat(t.row_sums[i].add(run).cast()),
                });
                let (codes, rows) =
                    (t.codes[p].add(run * K::STEP * 16), t.rows.map(|r| r.add(run * K::STEP)));
                add_step::<K, T>(&mut int_sums, codes, rows);
                t.scale_panel::<Avx2, K>(p, run, &int_sums, &mut sums);
            }
            t.store_panel::<Avx2>(p, &sums);
        }
    }
}

/// As `IntTile::add`, one panel after the other. With minimums, pairs in 16 bits are multiplied by the factor of their run.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn int_tile_avx2<K: IntKind, const T: usize>(t: &IntTile<T>) {
    // SAFETY: the pointers of the tile are valid for every step; the caller guarantees the instruction set.
    unsafe {
        for p in 0..2 {
            let mut all = [Avx2::words(0); T];
            if const { K::MINS > 0 } {
                for run in 0..IntTile::<T>::steps::<K>() * K::STEP / K::RUN {
                    let by = Avx2::load(t.by[p].add(run * (K::RUN / K::STEP) * 16).cast());
                    // The factor in both halves of each word.
                    let by = Avx2::or(by, Avx2::left::<16>(by));
                    for first in (run * K::RUN / 4..(run + 1) * K::RUN / 4).step_by(K::RUN_GROUPS) {
                        let (codes, rows) = (t.codes[p].add(64 * first), t.rows.map(|r| r.add(4 * first)));
                        let pairs = pairs_of_groups::<OfRun<K>, T>(codes, rows);
                        for i in 0..T {
                            all[i] = Avx2::dot2::<false>(all[i], pairs[i], by);
                        }
                    }
                }
            } else {
                for step in 0..IntTile::<T>::steps::<K>() {
                    let mut int_sums: PanelSums<T> =
                        std::array::from_fn(|i| Avx2::repeat(t.row_sums[i].add(step).cast()));
                    let first = step * K::STEP / 4;
                    let (codes, rows) = (t.codes[p].add(64 * first), t.rows.map(|r| r.add(4 * first)));
                    add_step::<K, T>(&mut int_sums, codes, rows);
                    t.multiply_panel::<Avx2, K>(p, step, &int_sums, &mut all);
                }
            }
            t.scale_panel::<Avx2, K>(p, &all);
        }
    }
}
