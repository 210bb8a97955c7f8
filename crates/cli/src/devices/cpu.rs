//! The CPU, which is always there.

use std::fmt;
use std::str::FromStr;

use tallow_core::{Arithmetic, Format};
use tallow_cpu::{Cpu, PackedFile, Placement, ReadProbe};
use tallow_models::Model;

use super::memory::Memory;
use super::packed::PackedWeights;
use super::{DeviceInfo, Hardware, MeasuredBackend, PROBE_BYTES, Speeds, Traits};
use crate::Failed;

pub(crate) use tallow_cpu::{Isa, cores};

/// Settings of the CPU; other devices have none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuOptions {
    pub isa: Isa,
    pub arithmetic: Arithmetic,
    pub threads: usize,
    pub numa: Numa,
    /// Maps weights that are packed on disk, and packs them there first (`--mmap`).
    pub mmap: bool,
}

impl CpuOptions {
    /// The best instruction set on all cores.
    pub(crate) fn best(arithmetic: Arithmetic) -> CpuOptions {
        CpuOptions { isa: Isa::best(), arithmetic, threads: cores(), numa: Numa::Auto, mmap: false }
    }
}

/// Whether threads stay on memory nodes (`--numa`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numa {
    /// Each thread stays on one, on machines that have several.
    Auto,
    Off,
}

impl FromStr for Numa {
    type Err = String;

    fn from_str(text: &str) -> Result<Numa, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            // The second is llama.cpp's word.
            "auto" | "distribute" => Ok(Numa::Auto),
            "off" => Ok(Numa::Off),
            _ => Err(format!(
                "{text:?}: auto or off; `numactl` and `taskset` choose processors, which auto keeps to"
            )),
        }
    }
}

impl fmt::Display for Numa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Numa::Auto { "auto" } else { "off" })
    }
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
        Traits {
            accelerator: false,
            compiles_kernels: false,
            captures: false,
            shares_memory: true,
            orders_experts: false,
        }
    }
}

impl Hardware for CpuDevice {
    type Backend = Cpu;

    fn open(&self, cpu: CpuOptions) -> Result<Cpu, Failed> {
        let placement = match cpu.numa {
            Numa::Auto => Placement::Nodes,
            Numa::Off => Placement::Anywhere,
        };
        Ok(Cpu::placed(cpu.isa, cpu.threads, placement)?.with(cpu.arithmetic))
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
