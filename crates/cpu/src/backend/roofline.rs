//! Roofline of this machine, measured now: memory bandwidth and arithmetic throughput, which speeds are compared
//! with.

use std::time::Instant;

use tallow_core::{Arithmetic, DType, Error, Format, Result, Tensor};

use super::device::Cpu;
use crate::choices::Prefetch;
use crate::mat::{Mat, MatMut};
use crate::trial::Way;

/// Pieces of the memory that is read: several per thread, for load balance at the end.
const PIECES: usize = 64;

/// Memory to measure the bandwidth with, where weights would be.
pub struct ReadProbe(Tensor<Cpu>);

impl Cpu {
    /// Memory for [`read_speed`](Cpu::read_speed). It should be far larger than the caches.
    pub fn read_probe(&self, bytes: usize) -> Result<ReadProbe> {
        let out_of_memory = || Error::OutOfMemory { device: "cpu".into(), asked: bytes };
        let buf = self.arena.alloc_weights(bytes).ok_or_else(out_of_memory)?;
        let probe = Tensor::whole(buf, DType::F32, 1, bytes / size_of::<f32>());
        // SAFETY: nobody else has the tensor.
        unsafe { MatMut::<f32>::new(&probe).row(0) }.fill(1.0);
        Ok(ReadProbe(probe))
    }

    /// Memory bandwidth of all threads together, in bytes per second.
    pub fn read_speed(&self, probe: &ReadProbe) -> f64 {
        let memory = Mat::<f32>::new(&probe.0).row(0);
        let piece = memory.len().div_ceil(PIECES).max(1);
        let pass = |prefetch| {
            let begun = Instant::now();
            self.share(memory.len().div_ceil(piece), usize::MAX, |_, i| {
                let mut bits = 0;
                let end = memory.len().min((i + 1) * piece);
                (self.kernels.read)(&memory[i * piece..end], prefetch, &mut bits);
                std::hint::black_box(bits);
            });
            size_of_val(memory) as f64 / begun.elapsed().as_secs_f64().max(1e-9)
        };
        Prefetch::WAYS.into_iter().map(|prefetch| best(3, || pass(prefetch))).fold(0.0, f64::max)
    }

    /// Operations per second of all threads together, on what weights of a format are multiplied with: `f32`, bf16 or 8-bit
    /// integers.
    pub fn multiply_speed(&self, weights: Format) -> f64 {
        let multiply = match weights {
            _ if self.arithmetic == Arithmetic::Exact => self.kernels.multiply,
            Format::BF16 => self.kernels.multiply_bf16.unwrap_or(self.kernels.multiply),
            format if format.is_plain() || format == Format::F8 => self.kernels.multiply,
            _ => self.kernels.multiply_int8,
        };
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
