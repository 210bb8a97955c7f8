//! What the machine can do at most: reading memory, and multiplying.

use crate::simd::Simd;

/// Enough independent sums to keep every unit busy: more than latency times units, fewer than registers.
const CHAINS: usize = 12;

/// The sum of all elements, as fast as they come.
#[inline(always)]
pub(super) unsafe fn read<S: Simd>(x: &[f32], sum: &mut f32) {
    // SAFETY: the loop stays within the slice; the caller has the instruction set.
    unsafe {
        let mut sums = [S::splat(0.0); CHAINS];
        let step = CHAINS * S::LANES;
        for chunk in x.chunks_exact(step) {
            for (i, s) in sums.iter_mut().enumerate() {
                *s = S::add(*s, S::load(chunk.as_ptr().add(i * S::LANES)));
            }
        }
        *sum = sums.into_iter().map(|s| S::sum(s)).sum();
    }
}

/// Multiplies and adds `rounds` times in each chain; `count` becomes how many operations that was.
#[inline(always)]
pub(super) unsafe fn multiply<S: Simd>(rounds: usize, count: &mut u64) {
    // SAFETY: the caller has the instruction set.
    unsafe {
        let (scale, shift) = (S::splat(std::hint::black_box(0.999)), S::splat(std::hint::black_box(0.001)));
        let mut chains = [S::splat(1.0); CHAINS];
        for _ in 0..rounds {
            for c in &mut chains {
                *c = S::fma(*c, scale, shift);
            }
        }
        // The result must be used, or there is nothing to measure.
        std::hint::black_box(chains.into_iter().map(|c| S::sum(c)).sum::<f32>());
    }
    *count = (2 * rounds * CHAINS * S::LANES) as u64;
}
