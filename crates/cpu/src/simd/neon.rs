use std::arch::aarch64::*;
use std::arch::asm;

use super::{F8, Simd};

/// Eight lanes of NEON in two registers; packed-weight lines with byte dot products (`sdot`).
///
/// Lane count and summation order are those of [`Scalar`](super::Scalar), so both are bit-identical. With `MATRICES`, GEMM is by
/// matrix products of bytes, and its lines of codes are paired ([`pair_lines`](super::i8mm::pair_lines)).
#[derive(Clone, Copy)]
pub(crate) struct Neon<const MATRICES: bool = false>;

/// Widens four f16 to `f32`. In assembly: Rust has the f16 intrinsics only since 1.94.
#[inline(always)]
pub(super) unsafe fn widen(halves: uint16x4_t) -> float32x4_t {
    let out;
    // SAFETY: every CPU with NEON has the instruction.
    unsafe {
        asm!(
            "fcvtl {out:v}.4s, {halves:v}.4h",
            out = out(vreg) out,
            halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}

/// Lane-wise maximum; a lane of `b` if either is NaN.
#[inline(always)]
unsafe fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

/// Lane-wise minimum; a lane of `b` if either is NaN.
#[inline(always)]
unsafe fn smaller(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
}

/// `2ⁿ`
#[inline(always)]
unsafe fn pow2(n: float32x4_t) -> float32x4_t {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)))) }
}

impl Simd for Neon {
    type V = [float32x4_t; 2];
    const LANES: usize = 8;
    const REGISTERS: usize = 16;

    ops! {
        fn splat(x: f32) -> [float32x4_t; 2] { [vdupq_n_f32(x); 2] }
        fn load(p: *const f32) -> [float32x4_t; 2] { [vld1q_f32(p), vld1q_f32(p.add(4))] }
        fn load_some(p: *const f32, n: usize) -> [float32x4_t; 2] {
            let mut all = [0.0; 8];
            std::ptr::copy_nonoverlapping(p, all.as_mut_ptr(), n.min(8));
            Self::load(all.as_ptr())
        }
        fn load_f16(p: *const u16) -> [float32x4_t; 2] {
            let halves = vld1q_u16(p);
            [widen(vget_low_u16(halves)), widen(vget_high_u16(halves))]
        }
        fn load_bf16(p: *const u16) -> [float32x4_t; 2] {
            let upper = vld1q_u16(p);
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(upper))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(upper)),
            ]
        }
        fn load_f8(p: *const F8) -> [float32x4_t; 2] {
            let words = vreinterpretq_u16_s16(vshll_n_s8::<7>(vld1_s8(p.cast())));
            let halves = vandq_u16(words, vdupq_n_u16(F8::BITS));
            [widen(vget_low_u16(halves)), widen(vget_high_u16(halves))]
        }
        fn store(p: *mut f32, v: [float32x4_t; 2]) -> () {
            vst1q_f32(p, v[0]);
            vst1q_f32(p.add(4), v[1])
        }
        fn store_some(p: *mut f32, n: usize, v: [float32x4_t; 2]) -> () {
            let mut all = [0.0; 8];
            Self::store(all.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(all.as_ptr(), p, n.min(8))
        }
        fn add(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
            [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])]
        }
        fn sub(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
            [vsubq_f32(a[0], b[0]), vsubq_f32(a[1], b[1])]
        }
        fn mul(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
            [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])]
        }
        fn div(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
            [vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1])]
        }
        fn max(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
            [larger(a[0], b[0]), larger(a[1], b[1])]
        }
        fn min(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
            [smaller(a[0], b[0]), smaller(a[1], b[1])]
        }
        fn fma(a: [float32x4_t; 2], b: [float32x4_t; 2], c: [float32x4_t; 2]) -> [float32x4_t; 2] {
            [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])]
        }
        fn round(a: [float32x4_t; 2]) -> [float32x4_t; 2] { [vrndnq_f32(a[0]), vrndnq_f32(a[1])] }
        fn pow2(n: [float32x4_t; 2]) -> [float32x4_t; 2] { [pow2(n[0]), pow2(n[1])] }
        fn sum(a: [float32x4_t; 2]) -> f32 {
            let four = vaddq_f32(a[0], a[1]);
            vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
        }
        fn largest(a: [float32x4_t; 2]) -> f32 {
            let four = vmaxnmq_f32(vmaxnmq_f32(a[0], a[1]), vdupq_n_f32(f32::NEG_INFINITY));
            vmaxnmvq_f32(four)
        }
    }
}
