//! The CPU, which is always there.

use std::fmt;

use tallow_core::{Arithmetic, Format};
use tallow_cpu::{Cpu, PackedFile, ReadProbe};
use tallow_models::Model;

use super::memory::Memory;
use super::packed::PackedWeights;
use super::{DeviceInfo, Hardware, MeasuredBackend, PROBE_BYTES, Speeds, Traits};
use crate::Failed;

pub(crate) use tallow_cpu::Isa;

/// Settings of the CPU; other devices have none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuOptions {
    pub isa: Isa,
    pub arithmetic: Arithmetic,
    pub threads: usize,
    /// Maps weights that are packed on disk, and packs them there first (`--mmap`).
    pub mmap: bool,
}

impl CpuOptions {
    /// The best instruction set on all cores.
    pub(crate) fn best(arithmetic: Arithmetic) -> CpuOptions {
        CpuOptions { isa: Isa::best(), arithmetic, threads: cores(), mmap: false }
    }
}

/// Default number of threads.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[derive(Clone, Debug)]
pub(super) struct CpuDevice;

impl fmt::Display for CpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cpu")
    }
}

impl DeviceInfo for CpuDevice {
    fn memory(&self) -> Option<Memory> {
        Memory::now()
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("driver", format!("none needed; {} is used", Isa::best()))]
    }

    fn traits(&self) -> Traits {
        Traits { accelerator: false, compiles_kernels: false, captures: false, shares_memory: true }
    }
}

impl Hardware for CpuDevice {
    type Backend = Cpu;

    fn open(&self, cpu: CpuOptions) -> Result<Cpu, Failed> {
        Ok(Cpu::new(cpu.isa, cpu.threads)?.with(cpu.arithmetic))
    }

    fn open_for(&self, models: &[&Model], cpu: CpuOptions) -> Result<Cpu, Failed> {
        let mut packed = Vec::new();
        for model in models {
            packed.extend(PackedWeights::for_use(model, cpu.mmap, cpu.threads)?);
        }
        let bytes: usize = packed.iter().map(PackedFile::bytes).sum();
        let beyond_memory = Memory::now().is_some_and(|memory| bytes as u64 > memory.free);
        Ok(self.open(cpu)?.with_packed(packed, beyond_memory))
    }
}

impl MeasuredBackend for Cpu {
    type Probe = ReadProbe;

    fn probe(&self) -> Result<ReadProbe, Failed> {
        Ok(self.read_probe(PROBE_BYTES)?)
    }

    fn speeds(&self, probe: &ReadProbe, weights: Format) -> Result<Speeds, Failed> {
        Ok(Speeds { read: self.read_speed(probe), flops: self.multiply_speed(weights) })
    }
}

/// Speeds of the CPU with f32 weights, and with weights in blocks.
pub(crate) struct CpuSpeeds {
    pub f32: Speeds,
    /// Operations on bytes per second.
    pub int8: f64,
}

impl CpuSpeeds {
    pub(crate) fn measure() -> Result<CpuSpeeds, Failed> {
        let b = CpuDevice.open(CpuOptions::best(Arithmetic::Fast))?;
        Ok(CpuSpeeds { f32: b.speeds(&b.probe()?, Format::F32)?, int8: b.multiply_speed(Format::Q8_0) })
    }
}

/// The CPU's model name.
pub(crate) fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or(std::env::consts::ARCH.into(), |(_, name)| name.trim().to_owned())
}
