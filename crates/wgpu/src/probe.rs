//! Measures the device's current peak memory bandwidth and arithmetic throughput: the roofline for speeds.

use std::time::Instant;

use tallow_core::Result;

use crate::backend::Wgpu;
use crate::gpu::Param::U;
use crate::gpu::{Access, Arg, Block, Kernel, Launch};

/// Reads all of `x`, four words per invocation at a time; the writes are negligible.
const READ: &str = "
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) g: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
  var sum = vec4<u32>(0u);
  for (var i = g.x; i < p.count; i += n.x * 256u) { sum += x[i]; }
  // Never so, but no compiler knows.
  if (sum.x == 0x12345678u && sum.y == 0x9abcdef0u) { out[0] = sum.z + sum.w; }
}
";

/// Fused multiply-adds in eight chains of `vec4`, so that independent chains hide latency.
const MULTIPLY: &str = "
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let by = vec4<f32>(f32(g.x & 7u) * 1e-7 + 1.0);
  var a = by; var b = by * 2.0; var c = by * 3.0; var d = by * 4.0;
  var e = by * 5.0; var f = by * 6.0; var h = by * 7.0; var k = by * 8.0;
  for (var i = 0u; i < p.rounds; i++) {
    a = fma(a, by, b); b = fma(b, by, c); c = fma(c, by, d); d = fma(d, by, e);
    e = fma(e, by, f); f = fma(f, by, h); h = fma(h, by, k); k = fma(k, by, by);
  }
  let sum = a + b + c + d + e + f + h + k;
  if (sum.x == 0.5) { out[0] = bitcast<u32>(sum.y); }
}
";

/// Floating-point operations per round and invocation.
const ROUND: f64 = 8.0 * 4.0 * 2.0;
/// Enough workgroups to occupy any device.
const GROUPS: u32 = 2048;

/// Device memory for the measurements.
#[derive(Debug)]
pub struct Yardstick {
    memory: Block,
    out: Block,
    bytes: u64,
}

impl Yardstick {
    /// Allocates about `bytes` bytes of device memory, at most one block, freed on drop.
    pub fn new(b: &Wgpu, bytes: usize) -> Result<Yardstick> {
        let bytes = (bytes as u64).min(b.gpu.most()) / 16 * 16;
        let (memory, out) = (b.gpu.alloc(bytes)?, b.gpu.alloc(4)?);
        b.gpu.clear(&memory);
        Ok(Yardstick { memory, out, bytes })
    }

    /// Memory read bandwidth of kernels, in bytes per second.
    pub fn read_speed(&self, b: &Wgpu) -> Result<f64> {
        let kernel = || Kernel { name: "probe_read", variant: Vec::new() };
        let seconds = best(b, 4, || {
            let args = vec![
                Arg { name: "x", of: "vec4<u32>", access: Access::Read, block: &self.memory },
                Arg { name: "out", of: "u32", access: Access::Write, block: &self.out },
            ];
            let (params, grid) = (vec![U("count", (self.bytes / 16) as u32)], [GROUPS, 1, 1]);
            b.gpu.launch(&Launch {
                kernel: kernel(),
                source: &|| READ.to_owned(),
                args,
                params,
                grid,
                work: 0,
            })
        })?;
        Ok(4.0 * self.bytes as f64 / seconds)
    }

    /// Arithmetic throughput of kernels, in floating-point operations per second.
    pub fn multiply_speed(&self, b: &Wgpu) -> Result<f64> {
        let (groups, rounds) = if b.about().is_software { (64, 256) } else { (GROUPS, 1024) };
        let kernel = || Kernel { name: "probe_multiply", variant: Vec::new() };
        let seconds = best(b, 4, || {
            let args = vec![Arg { name: "out", of: "u32", access: Access::Write, block: &self.out }];
            let (params, grid) = (vec![U("rounds", rounds)], [groups, 1, 1]);
            b.gpu.launch(&Launch {
                kernel: kernel(),
                source: &|| MULTIPLY.to_owned(),
                args,
                params,
                grid,
                work: 0,
            })
        })?;
        Ok(4.0 * ROUND * f64::from(rounds) * 256.0 * f64::from(groups) / seconds)
    }
}

/// Shortest time of a few runs of `n` launches each, in seconds. The first run compiles the kernel and is not counted.
fn best(b: &Wgpu, n: usize, launch: impl Fn() -> Result<()>) -> Result<f64> {
    let mut least = f64::INFINITY;
    for go in 0..4 {
        let begun = Instant::now();
        (0..n).try_for_each(|_| launch())?;
        b.gpu.submit()?;
        b.gpu.wait()?;
        if go > 0 {
            least = least.min(begun.elapsed().as_secs_f64());
        }
    }
    Ok(least.max(1e-9))
}
