//! The devices that models run on: one file a device, and the one place where a command meets them ([`Device::run`]).

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod identity;
mod memory;
mod packed;
mod select;
#[cfg(feature = "wgpu")]
mod wgpu;

use std::fmt;

use tallow_core::{Backend, Format};
use tallow_models::Model;

use crate::Failed;

pub(crate) use cpu::{CpuOptions, CpuSpeeds, Isa, Numa, cores, cpu_name};
pub(crate) use identity::Identity;
pub(crate) use memory::Memory;
pub(crate) use packed::{PackedWeights, WeightsIn};
pub(crate) use select::{DeviceChoice, candidates};
pub(crate) use tallow_core::Arithmetic;

/// A device of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Device(Kind);

/// Declares the devices other than the CPU: each by its type in a module of this folder, and its names for `--device`.
macro_rules! accelerators {
    ($($(#[$cfg:meta])* $kind:ident($module:ident::$hardware:ident): $($name:literal)|+;)*) => {
        #[derive(Clone, Debug)]
        enum Kind {
            Cpu(cpu::CpuDevice),
            $($(#[$cfg])* $kind($module::$hardware),)*
        }

        /// Names of accelerators for `--device`, also of those that this program was built without.
        const NAMES: &[&str] = &[$($($name),+),*];

        /// Crates of the backends.
        pub(crate) const CRATES: &[&str] = &["tallow_cpu", $(concat!("tallow_", stringify!($module))),*];

        impl Device {
            /// Properties of the device, known before it is opened.
            pub(crate) fn info(&self) -> &dyn DeviceInfo {
                match &self.0 {
                    Kind::Cpu(device) => device,
                    $($(#[$cfg])* Kind::$kind(device) => device,)*
                }
            }

            /// Runs a task on the device.
            pub(crate) fn run<T: Task>(&self, task: T) -> Result<T::Output, Failed> {
                match self.0.clone() {
                    Kind::Cpu(device) => task.run(device),
                    $($(#[$cfg])* Kind::$kind(device) => task.run(device),)*
                }
            }
        }

        /// The accelerators of this machine, for each kind that this program was built with, or why there are none.
        fn accelerators() -> Vec<(&'static str, Result<Vec<Device>, Unusable>)> {
            Vec::from([$($(#[$cfg])* (
                stringify!($module),
                $module::all().map(|all| all.into_iter().map(|device| Device(Kind::$kind(device))).collect()),
            ),)*])
        }

        /// For each kind of accelerators that this program was built with: those to take without being asked for one, best
        /// first, or why there are none.
        const USABLE: &[fn() -> Result<Vec<Device>, Unusable>] = &[
            $($(#[$cfg])* || $module::usable()
                .map(|found| found.into_iter().map(|device| Device(Kind::$kind(device))).collect()),)*
        ];

        /// The accelerator of that name, such as `vulkan`, and index.
        fn accelerator(name: &str, index: usize) -> Result<Device, Failed> {
            match name {
                $($(#[$cfg])* $($name)|+ => Ok(Device(Kind::$kind($module::named(name, index)?))),)*
                _ => Err(Failed::new(format!(
                    "there is no device {name}:{index}: this program was built without support for it. Take --device auto or \
                     --device cpu"
                ))),
            }
        }
    };
}

accelerators! {
    #[cfg(feature = "wgpu")]
    Wgpu(wgpu::Gpu): "vulkan" | "metal";
    // Behind Vulkan, which reaches the same GPUs: a kind becomes the one that is taken unasked when its speed on hardware is on
    // record.
    #[cfg(feature = "cuda")]
    Cuda(cuda::Gpu): "cuda";
}

const NO_ACCELERATORS: &str = "this program was built without support for GPUs";

impl Device {
    pub(crate) fn cpu() -> Device {
        Device(Kind::Cpu(cpu::CpuDevice))
    }

    /// The device's place for a model's weights.
    pub(crate) fn weights_in(&self, model: &Model, cpu: CpuOptions) -> WeightsIn {
        match PackedWeights::of(model) {
            Ok(_) if !self.is_cpu() => WeightsIn::Memory,
            Ok(weights) if cpu.mmap && cfg!(unix) || weights.open().is_some() => WeightsIn::Disk,
            Ok(_) if cfg!(unix) => WeightsIn::MemoryOrDisk,
            _ => WeightsIn::Memory,
        }
    }

    pub(crate) fn is_cpu(&self) -> bool {
        matches!(self.0, Kind::Cpu(_))
    }

    /// All devices of this machine, the CPU first; and the kinds of which there should be some that cannot be used, with the reason.
    pub(crate) fn all() -> (Vec<Device>, Vec<(&'static str, String)>) {
        let (mut devices, mut refused) = (vec![Device::cpu()], Vec::new());
        for (kind, found) in accelerators() {
            match found {
                Ok(found) => devices.extend(found),
                Err(none) if none.surprising => refused.push((kind, none.why)),
                Err(_) => {}
            }
        }
        (devices, refused)
    }

    /// Those of `devices` that are this one, reached through another interface.
    pub(crate) fn others_of<'a>(&self, devices: &'a [Device]) -> impl Iterator<Item = &'a Device> {
        let (name, identity) = (self.to_string(), self.info().identity());
        let is_same = move |device: &Device| identity.is(&device.info().identity());
        devices.iter().filter(move |device| is_same(device) && device.to_string() != name)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info().fmt(f)
    }
}

/// Why accelerators, of one kind or of any, cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unusable {
    pub why: String,
    /// True if there is hardware, so that users would expect it to be used.
    pub surprising: bool,
}

/// Properties of a device that are known before it is opened. Its `Display` is its name in messages.
pub(crate) trait DeviceInfo: fmt::Display {
    /// Memory of the device; `None` if unknown.
    fn memory(&self) -> Option<Memory>;

    /// Properties for display.
    fn facts(&self) -> Vec<(&'static str, String)>;

    /// Its identity.
    fn identity(&self) -> Identity {
        Identity::default()
    }

    /// Properties that matter to how models run on it.
    fn traits(&self) -> Traits;
}

/// Properties of a device that matter to how models run on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    /// Hardware other than the CPU, and no software renderer.
    pub accelerator: bool,
    /// Compiles kernels on first use. A loaded model is then run once before the first request (warm-up), so that a
    /// driver that cannot compile them, or a device that cannot run them, fails while another can still be taken.
    pub compiles_kernels: bool,
    /// Captures decode steps, which have memory of their own.
    pub captures: bool,
    /// Its memory is that of the host.
    pub shares_memory: bool,
    /// Of experts with act-order it computes those that a token is routed to, and not all.
    pub orders_experts: bool,
}

/// A device of one kind, not yet open.
pub(crate) trait Hardware: DeviceInfo + Clone + Send + 'static {
    type Backend: MeasuredBackend;

    /// Opens the device. A backend belongs to one thread: it is opened where it is used.
    fn open(&self, cpu: CpuOptions) -> Result<Self::Backend, Failed>;

    /// Opens the device for some models: a CPU maps those of their weights that are packed on disk.
    fn open_for(&self, _models: &[&Model], cpu: CpuOptions) -> Result<Self::Backend, Failed> {
        self.open(cpu)
    }
}

/// Work to do on a device of any kind: see [`Device::run`].
pub(crate) trait Task {
    type Output;
    fn run<H: Hardware>(self, device: H) -> Result<Self::Output, Failed>;
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
pub(crate) trait MeasuredBackend: Backend {
    /// Buffers for measuring, reused between measurements.
    type Probe;

    fn probe(&self) -> Result<Self::Probe, Failed>;

    /// `weights`: the format of the model's weights.
    fn speeds(&self, probe: &Self::Probe, weights: Format) -> Result<Speeds, Failed>;

    /// Why it is slower than it should be, as far as shows once a model is loaded.
    fn slowed(&self) -> Option<String> {
        None
    }

    /// Counters of what steps cost; empty if the backend has none.
    fn costs(&self) -> Vec<(&'static str, usize)> {
        Vec::new()
    }
}

/// Bytes that are read to measure memory bandwidth: far more than caches hold.
pub(crate) const PROBE_BYTES: usize = 256 << 20;
