//! Roofline of this machine, measured now: memory bandwidth and arithmetic throughput, which speeds are compared
//! with.

use std::time::Instant;

use tallow_core::Arithmetic;

use super::device::Cpu;

/// Pieces of the memory that is read: several per thread, for load balance at the end.
const PIECES: usize = 64;

impl Cpu {
    /// Memory bandwidth of all threads together, in bytes per second. `memory` should be far larger than the caches.
    pub fn read_speed(&self, memory: &[f32]) -> f64 {
        let piece = memory.len().div_ceil(PIECES).max(1);
        let pass = || {
            let begun = Instant::now();
            self.share(memory.len().div_ceil(piece), usize::MAX, |_, i| {
                let mut bits = 0;
                let end = memory.len().min((i + 1) * piece);
                (self.kernels.read)(&memory[i * piece..end], &mut bits);
                std::hint::black_box(bits);
            });
            size_of_val(memory) as f64 / begun.elapsed().as_secs_f64().max(1e-9)
        };
        best(3, pass)
    }

    /// Operations per second of all threads together: on `f32`, or on 8-bit integers where weights are in blocks and
    /// arithmetic is fast.
    pub fn multiply_speed(&self, blocks: bool) -> f64 {
        let int8 = blocks && self.arithmetic == Arithmetic::Fast;
        let multiply = if int8 { self.kernels.multiply_int8 } else { self.kernels.multiply };
        const ROUNDS: usize = 1 << 16;
        let pieces = 16 * self.threads();
        let pass = || {
            let begun = Instant::now();
            let done = std::sync::atomic::AtomicU64::new(0);
            self.share(pieces, usize::MAX, |_, _| {
                let mut count = 0;
                multiply(ROUNDS, &mut count);
                done.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
            });
            done.into_inner() as f64 / begun.elapsed().as_secs_f64().max(1e-9)
        };
        best(3, pass)
    }
}

/// The fastest of `runs` runs: the others were disturbed.
fn best(runs: usize, run: impl Fn() -> f64) -> f64 {
    (0..runs).map(|_| run()).fold(0.0, f64::max)
}
