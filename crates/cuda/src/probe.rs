//! Measures the device's current peak memory bandwidth and arithmetic throughput: the roofline for speeds.

use std::time::{Duration, Instant};

use tallow_core::Result;

use crate::args::Args;
use crate::device::Cuda;
use crate::gpu::{Block, Launch};
use crate::kernels::Kernel;

/// Threads of a CTA.
const THREADS: u32 = 256;
/// Floating-point operations per round and thread.
const ROUND: f64 = 64.0 * 2.0;
/// Rounds of a launch.
const ROUNDS: u32 = 1024;
/// Enough CTAs to occupy any device.
const CTAS: u32 = 2048;
/// Bytes that a thread reads at a time.
const PART: u64 = 16;

/// Device memory for the measurements.
#[derive(Debug)]
pub struct SpeedProbe {
    memory: Block,
    out: Block,
    bytes: u64,
}

impl SpeedProbe {
    /// Allocates about `bytes` bytes of device memory, freed on drop.
    pub fn new(b: &Cuda, bytes: usize) -> Result<SpeedProbe> {
        let bytes = bytes as u64 / PART * PART;
        let (memory, out) = (b.gpu.alloc(bytes)?, b.gpu.alloc(4)?);
        b.gpu.clear(memory.address(), bytes as usize)?;
        Ok(SpeedProbe { memory, out, bytes })
    }

    /// Memory read bandwidth of kernels, in bytes per second.
    pub fn read_speed(&self, b: &Cuda) -> Result<f64> {
        let seconds = best(b, 4, || self.read(b, CTAS))?;
        Ok(4.0 * self.bytes as f64 / seconds)
    }

    /// Arithmetic throughput of kernels in `f32`, in floating-point operations per second.
    pub fn multiply_speed(&self, b: &Cuda) -> Result<f64> {
        let seconds = best(b, 4, || self.multiply(b, CTAS, ROUNDS))?;
        Ok(4.0 * ROUND * f64::from(ROUNDS) * f64::from(THREADS) * f64::from(CTAS) / seconds)
    }

    fn read(&self, b: &Cuda, ctas: u32) -> Result<()> {
        let args = Args::new().wide(self.memory.address()).wide(self.bytes / PART).wide(self.out.address());
        launch(b, "probe_read", ctas, args)
    }

    fn multiply(&self, b: &Cuda, ctas: u32, rounds: u32) -> Result<()> {
        launch(b, "probe_fma", ctas, Args::new().word(rounds as usize).wide(self.out.address()))
    }
}

fn launch(b: &Cuda, name: &'static str, ctas: u32, args: Args) -> Result<()> {
    let kernel = Kernel { module: "probe", name };
    b.gpu.launch(&Launch { kernel, grid: [ctas, 1, 1], block: THREADS, shared: 0, args })
}

/// A GPU that was idle needs some time to raise its clocks.
const WARM_UP: Duration = Duration::from_millis(200);

/// Shortest time of a few runs of `n` launches each, in seconds. The first run compiles the kernel and is not counted.
fn best(b: &Cuda, n: usize, launch: impl Fn() -> Result<()>) -> Result<f64> {
    let mut least = f64::INFINITY;
    let (start, mut runs) = (Instant::now(), 0);
    while runs < 4 || start.elapsed() < WARM_UP {
        let begun = Instant::now();
        (0..n).try_for_each(|_| launch())?;
        b.gpu.wait()?;
        if runs > 0 {
            least = least.min(begun.elapsed().as_secs_f64());
        }
        runs += 1;
    }
    Ok(least.max(1e-9))
}

#[cfg(test)]
mod tests {
    use tallow_ptx::mock::{self, Machine};

    use super::*;
    use crate::devices_through;

    /// Every byte is read, and nothing past the end: a few CTAs take several parts each, many have some without any.
    #[test]
    fn its_kernels_read_what_there_is() {
        mock::set(Machine::default());
        // SAFETY: its functions have the types of NVIDIA's, and do the same.
        let found = unsafe { devices_through(&mock::symbol) }.unwrap();
        let b = Cuda::open(&found[0]).unwrap();
        b.gpu.stop_reuse();
        let probe = SpeedProbe::new(&b, 100_007).unwrap();
        for ctas in [1, 3, 30] {
            probe.read(&b, ctas).unwrap();
        }
        for rounds in [0, 1, 5] {
            probe.multiply(&b, 1, rounds).unwrap();
        }
        b.gpu.wait().unwrap();
    }
}
