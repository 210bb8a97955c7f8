//! [`Simd`]: a vector of `f32` lanes, as wide as the instruction set allows.
//!
//! Kernels are generic over it and `#[inline(always)]`; a kernel table instantiates them inside functions that have the
//! instruction set enabled, where these methods become single instructions.
//!
//! # Safety
//!
//! Unsafe functions here may run only on a CPU that has the instruction set, and their pointers must be valid for the
//! elements that each names.

/// Defines methods whose bodies are unsafe only because they use the instruction set (and, if they take a pointer,
/// because the caller guarantees that it is valid).
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! ops {
    ($(fn $name:ident $(<const $N:ident: $n:ty>)? ($($arg:ident: $t:ty),*) -> $out:ty $body:block)*) => {
        $(
            #[inline(always)]
            unsafe fn $name $(<const $N: $n>)? ($($arg: $t),*) -> $out {
                // SAFETY: by the trait's contract the CPU has the instructions and pointers are valid.
                unsafe { $body }
            }
        )*
    };
}

/// Implements [`Lines::outlined`] with target features.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! outlined {
    ($features:literal) => {
        #[inline(always)]
        unsafe fn outlined(work: impl Work<Self>) {
            #[inline(never)]
            #[target_feature(enable = $features)]
            unsafe fn run<L>(work: impl Work<L>) {
                // SAFETY: the caller upholds this function's contract.
                unsafe { work.run() }
            }
            // SAFETY: the caller upholds this function's contract and guarantees the instruction set.
            unsafe { run::<Self>(work) }
        }
    };
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod amx;
mod codes;
#[cfg(target_arch = "aarch64")]
pub(crate) mod i8mm;
mod lines;
#[cfg(target_arch = "aarch64")]
mod lines_neon;
mod lines_scalar;
#[cfg(target_arch = "x86_64")]
mod lines_x86;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

use half::{bf16, f16};

pub(crate) use codes::{CodeSums, Codes};
pub(crate) use lines::{IntKind, IntTile, Lines, OfRun, RunKind, StepKind, Tile, Work, dot4, scale_int};
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use scalar::Scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512, AvxVnni};

/// A vector of `f32` lanes.
///
/// # Safety
///
/// An implementation's methods may use its instruction set: they must run only on a CPU that has it. Pointers passed to
/// `load*` and `store*` must be valid for the elements that the method names.
pub(crate) trait Simd: Copy + 'static {
    /// Vector type.
    type V: Copy;
    /// Number of lanes.
    const LANES: usize;
    /// Vectors that fit the registers.
    const REGISTERS: usize;

    /// Broadcasts `x` to all lanes.
    unsafe fn splat(x: f32) -> Self::V;
    /// `LANES` elements.
    unsafe fn load(p: *const f32) -> Self::V;
    /// The first `n < LANES` elements; the other lanes are zero.
    unsafe fn load_some(p: *const f32, n: usize) -> Self::V;
    /// `LANES` elements of f16.
    unsafe fn load_f16(p: *const u16) -> Self::V;
    /// `LANES` elements of bf16.
    unsafe fn load_bf16(p: *const u16) -> Self::V;
    /// `LANES` elements of f8, each divided by [`F8::OF_HALF`].
    unsafe fn load_f8(p: *const F8) -> Self::V;
    /// `LANES` elements.
    unsafe fn store(p: *mut f32, v: Self::V);
    /// The first `n < LANES` elements.
    unsafe fn store_some(p: *mut f32, n: usize, v: Self::V);

    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Rounds to the nearest integer, ties to even.
    unsafe fn round(a: Self::V) -> Self::V;
    /// `2ⁿ` for integers from -126 to 127.
    unsafe fn pow2(n: Self::V) -> Self::V;
    /// Sum of all lanes, always in the same order.
    unsafe fn sum(a: Self::V) -> f32;
    /// Largest lane.
    unsafe fn largest(a: Self::V) -> f32;
}

/// Element type that vectors are loaded from, widened to `f32`.
pub(crate) trait Element: bytemuck::Pod {
    /// `LANES` elements.
    unsafe fn load<S: Simd>(p: *const Self) -> S::V;

    /// The first `n < LANES` elements; the other lanes are zero.
    #[inline(always)]
    unsafe fn load_some<S: Simd>(p: *const Self, n: usize) -> S::V {
        let mut all = [Self::zeroed(); MOST_LANES];
        // SAFETY: by the contract `n` elements are valid, and `all` has a whole vector.
        unsafe {
            let mut done = 0;
            // In constant sizes: otherwise it would be a memcpy call, around which all live registers are spilled.
            for size in [8, 4, 2, 1] {
                if n & size != 0 {
                    std::ptr::copy_nonoverlapping(p.add(done), all.as_mut_ptr().add(done), size);
                    done += size;
                }
            }
            Self::load::<S>(all.as_ptr())
        }
    }
}

/// Lanes of the longest vector.
const MOST_LANES: usize = 16;

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f32) -> S::V {
        // SAFETY: the caller upholds this function's contract.
        unsafe { S::load(p) }
    }

    #[inline(always)]
    unsafe fn load_some<S: Simd>(p: *const f32, n: usize) -> S::V {
        // SAFETY: the caller upholds this function's contract.
        unsafe { S::load_some(p, n) }
    }
}

impl Element for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f16) -> S::V {
        // SAFETY: the caller upholds this function's contract.
        unsafe { S::load_f16(p.cast()) }
    }
}

impl Element for bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const bf16) -> S::V {
        // SAFETY: the caller upholds this function's contract.
        unsafe { S::load_bf16(p.cast()) }
    }
}

/// 8-bit float: sign, 4 exponent bits, 3 mantissa bits (e4m3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub(crate) struct F8(pub u8);

impl F8 {
    /// Codes are read as f16 with exponent and mantissa bits aligned. The f16 exponent bias is larger by 8, so the
    /// result must be multiplied by this. Subnormals come out right too.
    pub(crate) const OF_HALF: f32 = tallow_quant::F8::OF_HALF;

    /// The code's bits as an f16, too small by [`F8::OF_HALF`].
    #[inline(always)]
    pub(crate) fn half(self) -> f16 {
        // Sign extension leaves the sign in two bits; the mask keeps one.
        f16::from_bits((i16::from(self.0 as i8) << 7) as u16 & F8::BITS)
    }

    /// Mask of the bits kept.
    const BITS: u16 = 0xbf80;
}

impl Element for F8 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const F8) -> S::V {
        // SAFETY: the caller upholds this function's contract.
        unsafe { S::load_f8(p) }
    }
}

/// Vectors of each of `rows` sums that fit the registers at a time, together with their operands: 1, 2, 4 or 8.
pub(crate) const fn at_once<S: Simd>(rows: usize) -> usize {
    let mut n = 8;
    while n > 1 && 4 * n * rows > 3 * S::REGISTERS {
        n /= 2;
    }
    n
}

/// Prefetches the cache line of `p`, which need not be valid.
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has the instruction, and it never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: every AArch64 CPU has the instruction, and it never faults.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}

/// Prefetches the cache line of `p`, which need not be valid, into the L2 cache: for what is read later than the nearest cache
/// would keep it. Some processors follow few lines at a time into the nearest cache, and read half as fast.
#[inline(always)]
pub(crate) fn prefetch_l2<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has the instruction, and it never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: every AArch64 CPU has the instruction, and it never faults.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}

/// Prefetches all cache lines of a slice.
#[inline(always)]
pub(crate) fn prefetch_slice<T>(x: &[T]) {
    for line in x.chunks(64 / size_of::<T>()) {
        prefetch(line.as_ptr());
    }
}

/// `eˣ`, to about 2 ulp; arguments are clamped to the range of normal `f32` results.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let x = S::min(S::max(x, S::splat(-87.0)), S::splat(88.0));
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        // ln 2 in two parts, the first short enough that n times it is exact.
        let r = S::fma(n, S::splat(-0.693_359_4), x);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        let mut p = S::splat(1.0 / 5040.0);
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = S::fma(p, r, S::splat(c));
        }
        S::mul(p, S::pow2(n))
    }
}

/// `tanh x`
#[inline(always)]
pub(crate) unsafe fn tanh<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        // Above 9 it is 1 to the last bit.
        let x = S::min(S::max(x, S::splat(-9.0)), S::splat(9.0));
        let e = exp::<S>(S::add(x, x));
        let one = S::splat(1.0);
        S::div(S::sub(e, one), S::add(e, one))
    }
}

/// `1 / (1 + e⁻ˣ)`
#[inline(always)]
pub(crate) unsafe fn sigmoid<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let one = S::splat(1.0);
        S::div(one, S::add(one, exp::<S>(S::sub(S::splat(0.0), x))))
    }
}

/// Widens elements to `f32`.
#[inline(always)]
pub(crate) unsafe fn widen<S: Simd, E: Element>(x: &[E], out: &mut [f32]) {
    let (n, full) = (out.len(), out.len() / S::LANES * S::LANES);
    let (x, out) = (x[..n].as_ptr(), out.as_mut_ptr());
    // SAFETY: both slices have `n` elements; the caller guarantees the instruction set.
    unsafe {
        for i in (0..full).step_by(S::LANES) {
            S::store(out.add(i), E::load::<S>(x.add(i)));
        }
        if full < n {
            S::store_some(out.add(full), n - full, E::load_some::<S>(x.add(full), n - full));
        }
    }
}
