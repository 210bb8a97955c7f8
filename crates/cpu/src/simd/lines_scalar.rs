use half::f16;

use super::{F8, Lines, Scalar, Work};

/// 16 lanes of plain arithmetic.
const N: usize = 16;

/// A loop over the lanes: `std::array::from_fn` would write out each of them, which is slower and takes longer to compile.
#[inline(always)]
fn each<T: Copy + Default>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut all = [T::default(); N];
    all.iter_mut().enumerate().for_each(|(i, x)| *x = f(i));
    all
}

// Methods that take pointers rely on the trait's contract: the caller guarantees the bytes that each names.
impl Lines for Scalar {
    type I = [u32; N];
    type F = [f32; N];

    const BIASED: bool = false;
    const LINES: usize = 0;
    const GEMV_ROWS: usize = 2;
    const GEMM_ROWS: usize = 1;
    const GEMM_ROWS_F32: usize = 2;
    const SUMS_IN_16_BITS: bool = false;

    #[inline(always)]
    unsafe fn outlined(work: impl Work<Self>) {
        #[inline(never)]
        unsafe fn run(work: impl Work<Scalar>) {
            // SAFETY: the caller upholds this function's contract.
            unsafe { work.run() }
        }
        // SAFETY: the caller upholds this function's contract.
        unsafe { run(work) }
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> [u32; N] {
        // SAFETY: by the trait's contract, 64 bytes are valid.
        unsafe { p.cast::<[u32; N]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(p: *mut u8, v: [u32; N]) {
        // SAFETY: by the trait's contract, 64 bytes are valid.
        unsafe { p.cast::<[u32; N]>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}

    #[inline(always)]
    unsafe fn prefetch_next(_: *const u8) {}

    #[inline(always)]
    unsafe fn touch(_: *const u8) {}

    #[inline(always)]
    unsafe fn and(a: [u32; N], b: [u32; N]) -> [u32; N] {
        each(|i| a[i] & b[i])
    }

    #[inline(always)]
    unsafe fn or(a: [u32; N], b: [u32; N]) -> [u32; N] {
        each(|i| a[i] | b[i])
    }

    #[inline(always)]
    unsafe fn xor(a: [u32; N], b: [u32; N]) -> [u32; N] {
        each(|i| a[i] ^ b[i])
    }

    #[inline(always)]
    unsafe fn bytes(x: u8) -> [u32; N] {
        [u32::from_ne_bytes([x; 4]); N]
    }

    #[inline(always)]
    unsafe fn words(x: i32) -> [u32; N] {
        [x as u32; N]
    }

    #[inline(always)]
    unsafe fn repeat(p: *const u8) -> [u32; N] {
        // SAFETY: by the trait's contract, four bytes are valid.
        [unsafe { p.cast::<u32>().read_unaligned() }; N]
    }

    #[inline(always)]
    unsafe fn left<const K: u32>(a: [u32; N]) -> [u32; N] {
        each(|i| a[i] << K)
    }

    #[inline(always)]
    unsafe fn right<const K: u32>(a: [u32; N]) -> [u32; N] {
        each(|i| a[i] >> K)
    }

    #[inline(always)]
    unsafe fn right_signed<const K: u32>(a: [u32; N]) -> [u32; N] {
        each(|i| (a[i] as i32 >> K) as u32)
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], codes: [u32; N]) -> [u32; N] {
        each(|i| u32::from_ne_bytes(codes[i].to_ne_bytes().map(|c| table[usize::from(c & 15)] as u8)))
    }

    #[inline(always)]
    unsafe fn dot4<const WIDE: bool>(sum: [u32; N], w: [u32; N], a: [u32; N]) -> [u32; N] {
        each(|i| {
            let (w, a) = (w[i].to_ne_bytes(), a[i].to_ne_bytes());
            let product = |j: usize| i32::from(w[j] as i8) * i32::from(a[j] as i8);
            let dot = product(0) + product(1) + product(2) + product(3);
            sum[i].wrapping_add(dot as u32)
        })
    }

    #[inline(always)]
    unsafe fn dot2<const ONE: bool>(sum: [u32; N], a: [u32; N], b: [u32; N]) -> [u32; N] {
        let low = |x: u32| i32::from(x as i16);
        let high = |x: u32| x as i32 >> 16;
        each(|i| {
            let dot = (low(a[i]) * low(b[i])).wrapping_add(high(a[i]) * high(b[i]));
            sum[i].wrapping_add(dot as u32)
        })
    }

    #[inline(always)]
    unsafe fn add(a: [u32; N], b: [u32; N]) -> [u32; N] {
        each(|i| a[i].wrapping_add(b[i]))
    }

    #[inline(always)]
    unsafe fn mul_add(a: [u32; N], b: [u32; N], c: [u32; N]) -> [u32; N] {
        each(|i| a[i].wrapping_mul(b[i]).wrapping_add(c[i]))
    }

    #[inline(always)]
    unsafe fn to_f32(a: [u32; N]) -> [f32; N] {
        each(|i| a[i] as i32 as f32)
    }

    #[inline(always)]
    unsafe fn from_bits(a: [u32; N]) -> [f32; N] {
        each(|i| f32::from_bits(a[i]))
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; N] {
        [x; N]
    }

    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> [f32; N] {
        // SAFETY: by the trait's contract, 16 floats are valid.
        unsafe { p.cast::<[f32; N]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_f32(p: *mut f32, v: [f32; N]) {
        // SAFETY: by the trait's contract, 16 floats are valid.
        unsafe { p.cast::<[f32; N]>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn mul(a: [f32; N], b: [f32; N]) -> [f32; N] {
        each(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn sub(a: [f32; N], b: [f32; N]) -> [f32; N] {
        each(|i| a[i] - b[i])
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
    unsafe fn widen_f16(p: *const u8) -> [f32; N] {
        // SAFETY: by the trait's contract, 16 f16 values are valid.
        let halves = unsafe { p.cast::<[u16; N]>().read_unaligned() };
        // As a loop this is slower by a sixth.
        std::array::from_fn(|i| f16::from_bits(halves[i]).to_f32_const())
    }

    #[inline(always)]
    unsafe fn widen_f8(p: *const u8) -> [f32; N] {
        // SAFETY: by the trait's contract, 16 codes are valid.
        let codes = unsafe { p.cast::<[F8; N]>().read_unaligned() };
        std::array::from_fn(|i| codes[i].half().to_f32_const())
    }

    #[inline(always)]
    unsafe fn widen_u8(p: *const u8) -> [u32; N] {
        // SAFETY: by the trait's contract, 16 bytes are valid.
        let bytes = unsafe { p.cast::<[u8; N]>().read_unaligned() };
        each(|i| u32::from(bytes[i]))
    }

    #[inline(always)]
    unsafe fn widen_i8(p: *const u8) -> [u32; N] {
        // SAFETY: by the trait's contract, 16 bytes are valid.
        let bytes = unsafe { p.cast::<[i8; N]>().read_unaligned() };
        each(|i| i32::from(bytes[i]) as u32)
    }

    #[inline(always)]
    unsafe fn pairs_i8(p: *const u8) -> [u32; N] {
        // SAFETY: by the trait's contract, 32 bytes are valid.
        let bytes = unsafe { p.cast::<[i8; 2 * N]>().read_unaligned() };
        let half = |x: i8| u32::from(i16::from(x) as u16);
        each(|i| half(bytes[2 * i]) | half(bytes[2 * i + 1]) << 16)
    }
}
