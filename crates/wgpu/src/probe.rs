//! Measures the device's current peak memory bandwidth and arithmetic throughput: the roofline for speeds.

use std::time::{Duration, Instant};

use tallow_core::Result;

use crate::device::Wgpu;
use crate::gpu::Param::U;
use crate::gpu::{Access, Arg, Block, Kernel, Launch};

/// Floating-point operations per round and invocation.
const ROUND: f64 = 8.0 * 4.0 * 2.0;
/// Enough workgroups to occupy any device.
const GROUPS: u32 = 2048;

/// Device memory for the measurements.
#[derive(Debug)]
pub struct SpeedProbe {
    memory: Block,
    out: Block,
    bytes: u64,
}

impl SpeedProbe {
    /// Allocates about `bytes` bytes of device memory, at most one block, freed on drop.
    pub fn new(b: &Wgpu, bytes: usize) -> Result<SpeedProbe> {
        let bytes = (bytes as u64).min(b.gpu.most()) / 16 * 16;
        let (memory, out) = (b.gpu.alloc(bytes)?, b.gpu.alloc(4)?);
        b.gpu.clear(&memory);
        Ok(SpeedProbe { memory, out, bytes })
    }

    /// Memory read bandwidth of kernels, in bytes per second.
    pub fn read_speed(&self, b: &Wgpu) -> Result<f64> {
        let seconds = best(b, 4, || {
            let args = vec![
                Arg { name: "x", of: "vec4<u32>", access: Access::Read, block: &self.memory },
                Arg { name: "out", of: "u32", access: Access::Write, block: &self.out },
            ];
            let (params, grid) = (vec![U("count", (self.bytes / 16) as u32)], [GROUPS, 1, 1]);
            b.gpu.launch(&Launch { kernel: Kernel::new("probe_read"), args, params, grid, work: 0 })
        })?;
        Ok(4.0 * self.bytes as f64 / seconds)
    }

    /// Arithmetic throughput of kernels, in floating-point operations per second.
    pub fn multiply_speed(&self, b: &Wgpu) -> Result<f64> {
        let (groups, rounds) = if b.about().is_software { (64, 256) } else { (GROUPS, 1024) };
        let seconds = best(b, 4, || {
            let args = vec![Arg { name: "out", of: "u32", access: Access::Write, block: &self.out }];
            let (params, grid) = (vec![U("rounds", rounds)], [groups, 1, 1]);
            b.gpu.launch(&Launch { kernel: Kernel::new("probe_fma"), args, params, grid, work: 0 })
        })?;
        Ok(4.0 * ROUND * f64::from(rounds) * 256.0 * f64::from(groups) / seconds)
    }
}

/// A GPU that was idle needs some time to raise its clocks.
const WARM_UP: Duration = Duration::from_millis(200);

/// Shortest time of a few runs of `n` launches each, in seconds. The first run compiles the kernel and is not counted.
fn best(b: &Wgpu, n: usize, launch: impl Fn() -> Result<()>) -> Result<f64> {
    let mut least = f64::INFINITY;
    let (start, mut runs) = (Instant::now(), 0);
    while runs < 4 || start.elapsed() < WARM_UP {
        let begun = Instant::now();
        (0..n).try_for_each(|_| launch())?;
        b.gpu.submit()?;
        b.gpu.wait()?;
        if runs > 0 {
            least = least.min(begun.elapsed().as_secs_f64());
        }
        runs += 1;
    }
    Ok(least.max(1e-9))
}
