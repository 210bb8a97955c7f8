use half::{bf16, f16};

use super::{F8, Simd};

/// Eight lanes of plain arithmetic, which the compiler maps to the architecture's baseline instructions.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

const N: usize = 8;

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> [f32; N] {
    std::array::from_fn(f)
}

// Methods that take pointers rely on the trait's contract: the caller guarantees the elements that each names.
impl Simd for Scalar {
    type V = [f32; N];
    const LANES: usize = N;
    // A vector takes two registers on most architectures, which have at least 16.
    const REGISTERS: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; N] {
        [x; N]
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; N] {
        // SAFETY: by the trait's contract, N elements are valid.
        each(|i| unsafe { *p.add(i) })
    }

    #[inline(always)]
    unsafe fn load_some(p: *const f32, n: usize) -> [f32; N] {
        // SAFETY: by the trait's contract, n elements are valid, and no other is read.
        each(|i| if i < n { unsafe { *p.add(i) } } else { 0.0 })
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> [f32; N] {
        // SAFETY: by the trait's contract, N elements are valid.
        each(|i| f16::from_bits(unsafe { *p.add(i) }).to_f32_const())
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> [f32; N] {
        // SAFETY: by the trait's contract, N elements are valid.
        each(|i| bf16::from_bits(unsafe { *p.add(i) }).to_f32_const())
    }

    #[inline(always)]
    unsafe fn load_f8(p: *const F8) -> [f32; N] {
        // SAFETY: by the trait's contract, N elements are valid.
        each(|i| unsafe { *p.add(i) }.half().to_f32_const())
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [f32; N]) {
        // SAFETY: by the trait's contract, N elements are valid.
        (0..N).for_each(|i| unsafe { *p.add(i) = v[i] });
    }

    #[inline(always)]
    unsafe fn store_some(p: *mut f32, n: usize, v: [f32; N]) {
        // SAFETY: by the trait's contract, n elements are valid.
        (0..n.min(N)).for_each(|i| unsafe { *p.add(i) = v[i] });
    }

    #[inline(always)]
    unsafe fn add(a: [f32; N], b: [f32; N]) -> [f32; N] {
        each(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn sub(a: [f32; N], b: [f32; N]) -> [f32; N] {
        each(|i| a[i] - b[i])
    }

    #[inline(always)]
    unsafe fn mul(a: [f32; N], b: [f32; N]) -> [f32; N] {
        each(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn div(a: [f32; N], b: [f32; N]) -> [f32; N] {
        each(|i| a[i] / b[i])
    }

    #[inline(always)]
    unsafe fn max(a: [f32; N], b: [f32; N]) -> [f32; N] {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn min(a: [f32; N], b: [f32; N]) -> [f32; N] {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn fma(a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        // FMA is used where the architecture always has it; elsewhere it would be a library call.
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
            each(|i| a[i].mul_add(b[i], c[i]))
        } else {
            each(|i| a[i] * b[i] + c[i])
        }
    }

    #[inline(always)]
    unsafe fn round(a: [f32; N]) -> [f32; N] {
        // Adding and subtracting 1.5 * 2^23 removes the fraction of values well below that.
        const BIG: f32 = 12_582_912.0;
        each(|i| (a[i] + BIG) - BIG)
    }

    #[inline(always)]
    unsafe fn pow2(n: [f32; N]) -> [f32; N] {
        each(|i| f32::from_bits(((n[i] as i32 + 127) << 23) as u32))
    }

    #[inline(always)]
    unsafe fn sum(a: [f32; N]) -> f32 {
        ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    }

    #[inline(always)]
    unsafe fn largest(a: [f32; N]) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}
