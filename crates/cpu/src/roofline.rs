//! Peak rates of the machine (roofline): memory reads, and multiply-adds.
//!
//! # Safety
//!
//! As for [`kernels`](crate::kernels): call only on a CPU that has the instruction set of `S` or `L`, with exclusive
//! access to the output that is passed.

use crate::choices::Prefetch;
use crate::gemm::prefetch_strided;
use crate::pack::LINE;
use crate::simd::{Lines, Simd};

/// Independent accumulators that keep every unit busy: more than latency times units, fewer than registers.
const CHAINS: usize = 12;

/// XOR of the bits of all elements, read as fast as possible: prefetched like weights, or by the hardware alone.
#[inline(always)]
pub(crate) unsafe fn read<L: Lines>(x: &[f32], prefetch: Prefetch, bits: &mut u32) {
    const LINES: usize = 8;
    // SAFETY: the loop stays within the slice; the caller guarantees the instruction set.
    unsafe {
        let mut all = [L::bytes(0); LINES];
        for chunk in x.as_chunks::<{ LINES * LINE / 4 }>().0 {
            let p = chunk.as_ptr().cast::<u8>();
            if prefetch == Prefetch::Strided {
                prefetch_strided::<L>(p, p.add(LINES * LINE));
            }
            for (i, all) in all.iter_mut().enumerate() {
                *all = L::xor(*all, L::load(p.add(i * LINE)));
            }
        }
        let mut words = [0; LINE / 4];
        for line in all {
            let mut these = [0u32; LINE / 4];
            L::store(these.as_mut_ptr().cast(), line);
            words.iter_mut().zip(these).for_each(|(w, t)| *w ^= t);
        }
        *bits = words.iter().fold(0, |all, w| all ^ w);
    }
}

/// Multiply-adds of bytes, `rounds` times per chain; `count` becomes the number of operations.
#[inline(always)]
pub(crate) unsafe fn multiply_int8<L: Lines>(rounds: usize, count: &mut u64) {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let (w, a) = (L::bytes(std::hint::black_box(3)), L::bytes(std::hint::black_box(2)));
        let mut chains = [L::words(0); CHAINS];
        for _ in 0..rounds {
            for c in &mut chains {
                *c = L::dot4::<false>(*c, w, a);
            }
        }
        let mut words = [0u32; LINE / 4];
        for c in chains {
            L::store(words.as_mut_ptr().cast(), c);
            // The result must be used, or the compiler removes the loop.
            std::hint::black_box(&words);
        }
    }
    *count = (2 * rounds * CHAINS * LINE) as u64;
}

/// [`multiply`] with AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) unsafe fn multiply_avx512(rounds: usize, count: &mut u64) {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { multiply::<crate::simd::Avx512>(rounds, count) }
}

/// Dot products of pairs of bf16, `rounds` times per chain; `count` becomes the number of operations.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn multiply_bf16_pairs(rounds: usize, count: &mut u64) {
    use std::arch::asm;
    use std::arch::x86_64::{_mm512_reduce_add_ps, _mm512_set1_epi16, _mm512_setzero_ps};

    let (a, b) = (_mm512_set1_epi16(0x3f80), _mm512_set1_epi16(0x3f00));
    let mut chains = [_mm512_setzero_ps(); CHAINS];
    for _ in 0..rounds {
        for c in &mut chains {
            // SAFETY: the caller guarantees the instruction.
            unsafe {
                asm!(
                    "vdpbf16ps {c}, {a}, {b}",
                    c = inout(zmm_reg) *c, a = in(zmm_reg) a, b = in(zmm_reg) b,
                    options(nomem, nostack, preserves_flags),
                );
            }
        }
    }
    std::hint::black_box(chains.into_iter().map(|c| _mm512_reduce_add_ps(c)).sum::<f32>());
    *count = (2 * rounds * CHAINS * LINE / 2) as u64;
}

/// Matrix products with elements of `BYTES` bytes (2: bf16, 1: int8), `rounds` times per chain; `count` becomes the number of operations.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,i8mm,bf16")]
pub(crate) unsafe fn multiply_matrices<const BYTES: usize>(rounds: usize, count: &mut u64) {
    use std::arch::aarch64::{vdupq_n_u8, vdupq_n_u32};

    use crate::simd::i8mm::{bfmmla, smmla};

    let (a, b) = (vdupq_n_u8(std::hint::black_box(3)), vdupq_n_u8(std::hint::black_box(2)));
    let mut chains = [vdupq_n_u32(0); CHAINS];
    for _ in 0..rounds {
        for c in &mut chains {
            *c = if const { BYTES == 2 } { bfmmla(*c, a, b) } else { smmla(*c, a, b) };
        }
    }
    // The result must be used, or the compiler removes the loop.
    std::hint::black_box(&chains);
    // Two rows with two columns.
    *count = (2 * rounds * CHAINS * 2 * 2 * 8 / BYTES) as u64;
}

/// Products of tiles with elements of `BYTES` bytes (2: bf16, 1: int8), `rounds` times for each of four tiles of sums; `count` becomes
/// the number of operations.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) unsafe fn multiply_tiles<const BYTES: usize>(rounds: usize, count: &mut u64) {
    use std::arch::asm;

    use crate::simd::amx::{TileShapes, configure};

    macro_rules! products {
        ($dot:literal) => {
            asm!(
                concat!($dot, " tmm0, tmm4, tmm6"),
                concat!($dot, " tmm1, tmm4, tmm7"),
                concat!($dot, " tmm2, tmm5, tmm6"),
                concat!($dot, " tmm3, tmm5, tmm7"),
                options(nomem, nostack, preserves_flags),
            )
        };
    }
    // SAFETY: the caller guarantees AMX.
    unsafe {
        configure(TileShapes::Full);
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "tilezero tmm4",
            "tilezero tmm5",
            "tilezero tmm6",
            "tilezero tmm7",
            options(nomem, nostack, preserves_flags),
        );
        for _ in 0..rounds {
            if const { BYTES == 2 } { products!("tdpbf16ps") } else { products!("tdpbssd") }
        }
    }
    *count = (2 * rounds * 4 * 16 * 16 * LINE / BYTES) as u64;
}

/// FMAs of `f32`, `rounds` times per chain; `count` becomes the number of operations.
#[inline(always)]
pub(crate) unsafe fn multiply<S: Simd>(rounds: usize, count: &mut u64) {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let (scale, shift) = (S::splat(std::hint::black_box(0.999)), S::splat(std::hint::black_box(0.001)));
        let mut chains = [S::splat(1.0); CHAINS];
        for _ in 0..rounds {
            for c in &mut chains {
                *c = S::fma(*c, scale, shift);
            }
        }
        // The result must be used, or the compiler removes the loop.
        std::hint::black_box(chains.into_iter().map(|c| S::sum(c)).sum::<f32>());
    }
    *count = (2 * rounds * CHAINS * S::LANES) as u64;
}
