//! Choice of the device that a model runs on; the only module that knows all of them.

use std::fmt;
use std::str::FromStr;

use tallow_core::Backend;
use tallow_core::conformance::{self, Suite};
use tallow_cpu::Cpu;
#[cfg(feature = "wgpu")]
use tallow_wgpu::{Found, Wgpu};

use crate::Failed;
use crate::memory::{Memory, size};
use crate::settings::cores;

/// A device as the user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// The best device with room.
    Auto,
    Cpu,
    /// `vulkan:1`: graphics API, and index among its devices.
    Gpu(Api, usize),
}

/// Graphics API through which a GPU is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Vulkan,
    Metal,
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Api::Vulkan => "vulkan",
            Api::Metal => "metal",
        })
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Gpu(api, n) => write!(f, "{api}:{n}"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(s: &str) -> Result<DeviceChoice, String> {
        let wrong = || format!("{s:?} is no device; there are auto, cpu, vulkan, vulkan:1, metal, …");
        let (name, index) = s.split_once(':').map_or((s, None), |(name, n)| (name, Some(n)));
        let index = index.map(|n| n.parse::<usize>().map_err(|_| wrong())).transpose()?;
        match (name.to_ascii_lowercase().as_str(), index) {
            ("auto", None) => Ok(DeviceChoice::Auto),
            ("cpu", None) => Ok(DeviceChoice::Cpu),
            ("vulkan", n) => Ok(DeviceChoice::Gpu(Api::Vulkan, n.unwrap_or(0))),
            ("metal", n) => Ok(DeviceChoice::Gpu(Api::Metal, n.unwrap_or(0))),
            _ => Err(wrong()),
        }
    }
}

/// A device of this machine.
#[derive(Clone, Debug)]
pub(crate) enum Device {
    Cpu,
    #[cfg(feature = "wgpu")]
    Gpu(Found),
}

impl Device {
    /// Memory of the device; `None` if unknown.
    pub(crate) fn memory(&self) -> Option<Memory> {
        match self {
            Device::Cpu => Memory::now(),
            #[cfg(feature = "wgpu")]
            Device::Gpu(found) => {
                let about = found.about();
                let own = about.memory.map(|(total, free)| Memory { total, free });
                // Memory shared with the machine may be in use by others there: the smaller figure counts.
                match Memory::now().filter(|_| about.shares_memory) {
                    Some(machine) => Some(own.map_or(machine, |own| own.least(machine))),
                    None => own,
                }
            }
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            #[cfg(feature = "wgpu")]
            Device::Gpu(found) => write!(f, "{}", found.about()),
        }
    }
}

/// Result of each op's conformance test.
type Outcomes = Vec<(&'static str, Result<(), String>)>;

impl Device {
    /// Whether it is hardware other than the CPU (and no software renderer).
    pub(crate) fn is_hardware_of_its_own(&self) -> bool {
        match self {
            Device::Cpu => false,
            #[cfg(feature = "wgpu")]
            Device::Gpu(found) => !found.about().is_software,
        }
    }

    /// Properties for display.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        let memory = self.memory();
        let memory = memory.map(|m| ("memory", format!("{} of {} free", size(m.free), size(m.total))));
        let own: Vec<(&str, String)> = match self {
            Device::Cpu => vec![("driver", format!("none needed; {} is used", tallow_cpu::Isa::best()))],
            #[cfg(feature = "wgpu")]
            Device::Gpu(found) => {
                let about = found.about();
                let what = match (about.is_software, about.shares_memory) {
                    (true, _) => "a program on the CPU: taken only when it is asked for",
                    (false, true) => "a GPU that shares the machine's memory",
                    (false, false) => "a GPU with memory of its own",
                };
                vec![
                    ("is", what.to_owned()),
                    ("driver", about.driver.clone()),
                    ("features", about.features.join(", ")),
                ]
            }
        };
        own.into_iter().chain(memory).collect()
    }

    /// Runs the conformance suite. Before each op `told` is called with the number of ops done, their total, and the
    /// op's name.
    pub(crate) fn test(
        &self,
        suite: Suite,
        told: &mut dyn FnMut(usize, usize, &'static str),
    ) -> Result<Outcomes, Failed> {
        Ok(match self {
            Device::Cpu => {
                let b = Cpu::new(tallow_cpu::Isa::best(), cores())?.with(tallow_cpu::Arithmetic::Exact);
                conformance::run_with_progress(&b, suite, told)
            }
            #[cfg(feature = "wgpu")]
            Device::Gpu(found) => conformance::run_with_progress(&Wgpu::open(found)?, suite, told),
        })
    }
}

/// All devices of this machine, the CPU first.
pub(crate) fn all() -> Vec<Device> {
    #[cfg(feature = "wgpu")]
    let gpus = tallow_wgpu::devices().into_iter().map(Device::Gpu);
    #[cfg(not(feature = "wgpu"))]
    let gpus = std::iter::empty();
    std::iter::once(Device::Cpu).chain(gpus).collect()
}

/// Why no GPU comes before the CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoGpu {
    pub why: String,
    /// Whether there is a GPU, which cannot be used.
    pub surprising: bool,
}

impl NoGpu {
    fn new(why: impl std::fmt::Display, surprising: bool) -> NoGpu {
        NoGpu { why: format!("using the CPU: {why}"), surprising }
    }
}

/// Candidate devices, best first, and why no GPU precedes the CPU.
pub(crate) fn candidates(asked: DeviceChoice) -> Result<(Vec<Device>, Option<NoGpu>), Failed> {
    match asked {
        DeviceChoice::Cpu => Ok((vec![Device::Cpu], None)),
        DeviceChoice::Auto => {
            let (mut devices, why) = real_gpus();
            devices.push(Device::Cpu);
            Ok((devices, why))
        }
        DeviceChoice::Gpu(api, index) => Ok((vec![gpu(api, index)?], None)),
    }
}

#[cfg(feature = "wgpu")]
fn is(found: &Found, api: Api) -> bool {
    matches!(
        (found.about().api, api),
        (tallow_wgpu::Api::Vulkan, Api::Vulkan) | (tallow_wgpu::Api::Metal, Api::Metal)
    )
}

/// Usable GPUs: those with memory of their own before others, then by most free memory. If there is none, why.
#[cfg(feature = "wgpu")]
fn real_gpus() -> (Vec<Device>, Option<NoGpu>) {
    let found = tallow_wgpu::devices();
    let (mut software, mut unfit) = (Vec::new(), Vec::new());
    let mut real: Vec<Found> = Vec::new();
    for found in found {
        let name = found.about().to_string();
        match found.check() {
            _ if found.about().is_software => software.push(format!("{name} is a software renderer")),
            Err(why) => unfit.push(why.to_string()),
            Ok(()) => real.push(found),
        }
    }
    let free = |f: &Found| f.about().memory.map_or(0, |(_, free)| free);
    real.sort_by_key(|f| (f.about().shares_memory, std::cmp::Reverse(free(f))));
    let why = match (software.as_slice(), unfit.as_slice()) {
        _ if !real.is_empty() => None,
        ([], []) => Some(NoGpu::new("no driver here offers a GPU through Vulkan or Metal", false)),
        (software, []) => Some(NoGpu::new(software.join("; "), false)),
        (_, unfit) => Some(NoGpu::new(unfit.join("; "), true)),
    };
    (real.into_iter().map(Device::Gpu).collect(), why)
}

#[cfg(not(feature = "wgpu"))]
fn real_gpus() -> (Vec<Device>, Option<NoGpu>) {
    (Vec::new(), Some(NoGpu::new("this program was built without support for GPUs", false)))
}

/// The requested GPU.
#[cfg(feature = "wgpu")]
fn gpu(api: Api, index: usize) -> Result<Device, Failed> {
    let found = tallow_wgpu::devices();
    let names: Vec<String> = found.iter().map(|f| f.about().to_string()).collect();
    if let Some(found) = found.into_iter().find(|f| is(f, api) && f.about().index == index) {
        return Ok(Device::Gpu(found));
    }
    let here = match names.as_slice() {
        [] => "no driver here offers any through Vulkan or Metal".to_owned(),
        names => format!("there are: {}", names.join(", ")),
    };
    let missing = match api {
        Api::Metal if !cfg!(target_vendor = "apple") => "; Metal is on Apple's systems only",
        Api::Vulkan if cfg!(target_vendor = "apple") => "; GPUs of Apple's systems are reached by metal",
        _ => "",
    };
    let instead = "Take --device auto or --device cpu";
    Err(Failed::new(format!("there is no device {api}:{index}: {here}{missing}. {instead}")))
}

#[cfg(not(feature = "wgpu"))]
fn gpu(api: Api, index: usize) -> Result<Device, Failed> {
    Err(Failed::new(format!(
        "there is no device {api}:{index}: this program was built without support for GPUs. Take --device cpu"
    )))
}

/// Peak read bandwidth and compute rate of a device, as measured now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Speeds {
    /// Bytes per second.
    pub read: f64,
    /// Floating-point operations per second.
    pub flops: f64,
}

impl Speeds {
    /// The better of two measurements in each field: the other was disturbed.
    pub(crate) fn best(self, other: Speeds) -> Speeds {
        Speeds { read: self.read.max(other.read), flops: self.flops.max(other.flops) }
    }
}

/// A backend whose speed can be measured.
pub(crate) trait Measured: Backend {
    /// Buffers for measuring, reused between measurements.
    type Yardstick;
    fn yardstick(&self) -> Result<Self::Yardstick, Failed>;
    /// `blocks`: whether the model's weights are in quantized blocks.
    fn speeds(&self, by: &Self::Yardstick, blocks: bool) -> Result<Speeds, Failed>;
    /// Counters of what steps cost; empty if the backend has none.
    fn costs(&self) -> Vec<(&'static str, usize)> {
        Vec::new()
    }
}

/// Bytes that are read to measure memory bandwidth: far more than caches hold.
const PROBED: usize = 256 << 20;

impl Measured for Cpu {
    type Yardstick = Vec<f32>;

    fn yardstick(&self) -> Result<Vec<f32>, Failed> {
        Ok(vec![1.0; PROBED / size_of::<f32>()])
    }

    fn speeds(&self, by: &Vec<f32>, blocks: bool) -> Result<Speeds, Failed> {
        Ok(Speeds { read: self.read_speed(by), flops: self.multiply_speed(blocks) })
    }
}

#[cfg(feature = "wgpu")]
impl Measured for Wgpu {
    type Yardstick = tallow_wgpu::Yardstick;

    fn yardstick(&self) -> Result<Self::Yardstick, Failed> {
        // A software renderer only has the CPU's caches.
        let bytes = if self.about().is_software { PROBED / 4 } else { PROBED };
        Ok(tallow_wgpu::Yardstick::new(self, bytes)?)
    }

    fn speeds(&self, by: &Self::Yardstick, _: bool) -> Result<Speeds, Failed> {
        Ok(Speeds { read: by.read_speed(self)?, flops: by.multiply_speed(self)? })
    }

    fn costs(&self) -> Vec<(&'static str, usize)> {
        let counts = self.counts();
        vec![("dispatches", counts.dispatches), ("submissions", counts.submits), ("read-backs", counts.reads)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        let parsed = |s: &str| s.parse::<DeviceChoice>();
        assert_eq!(parsed("auto"), Ok(DeviceChoice::Auto));
        assert_eq!(parsed("CPU"), Ok(DeviceChoice::Cpu));
        assert_eq!(parsed("vulkan"), Ok(DeviceChoice::Gpu(Api::Vulkan, 0)));
        assert_eq!(parsed("metal:2"), Ok(DeviceChoice::Gpu(Api::Metal, 2)));
        for wrong in ["", "gpu", "cpu:1", "vulkan:", "vulkan:-1", "vulkan:x", "cuda"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        for name in ["auto", "cpu", "vulkan:0", "metal:3"] {
            assert_eq!(parsed(name).map(|a| a.to_string()), Ok(name.to_owned()));
        }
    }
}
