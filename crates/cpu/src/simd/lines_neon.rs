use std::arch::aarch64::*;
use std::arch::asm;

use super::neon::widen;
use super::{F8, IntKind, IntTile, Lines, Neon, RunKind, Tile, Work, i8mm};

/// A line.
type I = [uint32x4_t; 4];
/// 16 floats.
type F = [float32x4_t; 4];

/// Applies an instruction to each of the four registers of its operands.
macro_rules! four {
    ($op:ident($($arg:ident),*)) => {
        [$op($($arg[0]),*), $op($($arg[1]),*), $op($($arg[2]),*), $op($($arg[3]),*)]
    };
}

impl<const MATRICES: bool> Lines for Neon<MATRICES> {
    type I = I;
    type F = F;

    const BIASED: bool = false;
    // A line takes four of 32 registers.
    const LINES: usize = 8;
    const GEMV_ROWS: usize = 4;
    const GEMM_ROWS: usize = if MATRICES { i8mm::ROWS } else { 2 };
    const GEMM_ROWS_F32: usize = 2;
    const SUMS_IN_16_BITS: bool = false;

    outlined!("neon,dotprod");

    ops! {
        fn load(p: *const u8) -> I {
            let quarter = |i: usize| vreinterpretq_u32_u8(vld1q_u8(p.add(16 * i)));
            [quarter(0), quarter(1), quarter(2), quarter(3)]
        }
        fn store(p: *mut u8, v: I) -> () {
            for (i, v) in v.into_iter().enumerate() {
                vst1q_u8(p.add(16 * i), vreinterpretq_u8_u32(v));
            }
        }
        fn prefetch(p: *const u8) -> () {
            asm!("prfm pldl2keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags))
        }
        fn prefetch_next(p: *const u8) -> () {
            asm!("prfm pldl1keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags))
        }
        // Not known to matter.
        fn touch(_p: *const u8) -> () { () }
        fn and(a: I, b: I) -> I { four!(vandq_u32(a, b)) }
        fn or(a: I, b: I) -> I { four!(vorrq_u32(a, b)) }
        fn xor(a: I, b: I) -> I { four!(veorq_u32(a, b)) }
        fn bytes(x: u8) -> I { [vreinterpretq_u32_u8(vdupq_n_u8(x)); 4] }
        fn words(x: i32) -> I { [vdupq_n_u32(x as u32); 4] }
        fn repeat(p: *const u8) -> I { [vdupq_n_u32(p.cast::<u32>().read_unaligned()); 4] }
        fn left<const N: u32>(a: I) -> I {
            let by = [vdupq_n_s32(N as i32); 4];
            four!(vshlq_u32(a, by))
        }
        fn right<const N: u32>(a: I) -> I {
            let by = [vdupq_n_s32(-(N as i32)); 4];
            four!(vshlq_u32(a, by))
        }
        fn right_signed<const N: u32>(a: I) -> I {
            let by = [vdupq_n_s32(-(N as i32)); 4];
            let a = four!(vreinterpretq_s32_u32(a));
            let a = four!(vshlq_s32(a, by));
            four!(vreinterpretq_u32_s32(a))
        }
        fn look_up(table: &[i8; 16], codes: I) -> I {
            let table = [vreinterpretq_u8_s8(vld1q_s8(table.as_ptr())); 4];
            four!(look_up(table, codes))
        }
        fn dot4<const WIDE: bool>(sum: I, w: I, a: I) -> I { four!(sdot(sum, w, a)) }
        fn dot2<const ONE: bool>(sum: I, a: I, b: I) -> I {
            let [s0, s1] = dot2::<ONE>([sum[0], sum[1]], [a[0], a[1]], [b[0], b[1]]);
            let [s2, s3] = dot2::<ONE>([sum[2], sum[3]], [a[2], a[3]], [b[2], b[3]]);
            [s0, s1, s2, s3]
        }
        fn add(a: I, b: I) -> I { four!(vaddq_u32(a, b)) }
        fn mul_add(a: I, b: I, c: I) -> I { four!(vmlaq_u32(c, a, b)) }
        fn to_f32(a: I) -> F { four!(to_f32(a)) }
        fn from_bits(a: I) -> F { four!(vreinterpretq_f32_u32(a)) }
        fn splat(x: f32) -> F { [vdupq_n_f32(x); 4] }
        fn load_f32(p: *const f32) -> F {
            [vld1q_f32(p), vld1q_f32(p.add(4)), vld1q_f32(p.add(8)), vld1q_f32(p.add(12))]
        }
        fn store_f32(p: *mut f32, v: F) -> () {
            for (i, v) in v.into_iter().enumerate() {
                vst1q_f32(p.add(4 * i), v);
            }
        }
        fn mul(a: F, b: F) -> F { four!(vmulq_f32(a, b)) }
        fn sub(a: F, b: F) -> F { four!(vsubq_f32(a, b)) }
        fn fma(a: F, b: F, c: F) -> F { four!(vfmaq_f32(c, a, b)) }
        fn widen_f16(p: *const u8) -> F {
            let (low, high) = (vld1q_u8(p), vld1q_u8(p.add(16)));
            let (low, high) = (vreinterpretq_u16_u8(low), vreinterpretq_u16_u8(high));
            let quarters = [vget_low_u16(low), vget_high_u16(low), vget_low_u16(high), vget_high_u16(high)];
            four!(widen(quarters))
        }
        fn widen_f8(p: *const u8) -> F {
            let bytes = vld1q_s8(p.cast());
            let words = [vshll_n_s8::<7>(vget_low_s8(bytes)), vshll_high_n_s8::<7>(bytes)];
            let [low, high] = words.map(|w| vandq_u16(vreinterpretq_u16_s16(w), vdupq_n_u16(F8::BITS)));
            let quarters = [vget_low_u16(low), vget_high_u16(low), vget_low_u16(high), vget_high_u16(high)];
            four!(widen(quarters))
        }
        fn widen_u8(p: *const u8) -> I {
            let bytes = vld1q_u8(p);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            let quarters = [vget_low_u16(low), vget_high_u16(low), vget_low_u16(high), vget_high_u16(high)];
            four!(vmovl_u16(quarters))
        }
        fn widen_i8(p: *const u8) -> I {
            let bytes = vld1q_s8(p.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            let quarters = [vget_low_s16(low), vget_high_s16(low), vget_low_s16(high), vget_high_s16(high)];
            four!(widen_i16(quarters))
        }
        fn pairs_i8(p: *const u8) -> I {
            let (low, high) = (vld1q_s8(p.cast()), vld1q_s8(p.add(16).cast()));
            let quarters = [
                vmovl_s8(vget_low_s8(low)),
                vmovl_high_s8(low),
                vmovl_s8(vget_low_s8(high)),
                vmovl_high_s8(high),
            ];
            four!(vreinterpretq_u32_s16(quarters))
        }
    }

    #[inline(always)]
    unsafe fn tile<K: RunKind, const T: usize>(t: &Tile<T>) {
        // SAFETY: the caller upholds this function's contract.
        unsafe { if const { MATRICES } { i8mm::tile::<K, T>(t) } else { t.add::<Self, K>() } }
    }

    #[inline(always)]
    unsafe fn int_tile<K: IntKind, const T: usize>(t: &IntTile<T>) {
        // SAFETY: the caller upholds this function's contract.
        unsafe { if const { MATRICES } { i8mm::int_tile::<K, T>(t) } else { t.add::<Self, K>() } }
    }
}

#[inline(always)]
unsafe fn look_up(table: uint8x16_t, codes: uint32x4_t) -> uint32x4_t {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { vreinterpretq_u32_u8(vqtbl1q_u8(table, vreinterpretq_u8_u32(codes))) }
}

#[inline(always)]
unsafe fn to_f32(a: uint32x4_t) -> float32x4_t {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { vcvtq_f32_s32(vreinterpretq_s32_u32(a)) }
}

#[inline(always)]
unsafe fn widen_i16(a: int16x4_t) -> uint32x4_t {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { vreinterpretq_u32_s32(vmovl_s16(a)) }
}

/// Adds the dot product of four signed bytes to each word (`sdot`). In assembly: stable Rust has no intrinsic for it
/// yet.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut sum: uint32x4_t, w: uint32x4_t, a: uint32x4_t) -> uint32x4_t {
    // SAFETY: the CPU has the instruction.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {w:v}.16b, {a:v}.16b",
            sum = inout(vreg) sum,
            w = in(vreg) w,
            a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// [`Lines::dot2`] of two registers: deinterleaves the lower and the upper halves of the words, for widening
/// multiplies.
#[inline(always)]
unsafe fn dot2<const ONE: bool>(
    sum: [uint32x4_t; 2],
    a: [uint32x4_t; 2],
    b: [uint32x4_t; 2],
) -> [uint32x4_t; 2] {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let (a, b) = (a.map(|a| vreinterpretq_s16_u32(a)), b.map(|b| vreinterpretq_s16_u32(b)));
        let mut sum = sum.map(|s| vreinterpretq_s32_u32(s));
        let halves = [
            (vuzp1q_s16(a[0], a[1]), vuzp1q_s16(b[0], b[1])),
            (vuzp2q_s16(a[0], a[1]), vuzp2q_s16(b[0], b[1])),
        ];
        for (a, b) in halves.into_iter().take(if ONE { 1 } else { 2 }) {
            sum[0] = vmlal_s16(sum[0], vget_low_s16(a), vget_low_s16(b));
            sum[1] = vmlal_high_s16(sum[1], a, b);
        }
        sum.map(|s| vreinterpretq_u32_s32(s))
    }
}
