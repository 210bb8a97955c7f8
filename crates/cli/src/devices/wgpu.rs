//! GPUs through Vulkan and Metal.

use std::cmp::Reverse;
use std::fmt;

use tallow_core::Format;
use tallow_wgpu::{Found, SpeedProbe, Wgpu};

use super::memory::Memory;
use super::{
    CpuOptions, DeviceInfo, Hardware, Identity, MeasuredBackend, PROBE_BYTES, Speeds, Traits, Unusable,
};
use crate::Failed;

#[derive(Clone, Debug)]
pub(super) struct Gpu(Found);

/// All GPUs of this machine, software renderers among them. There may be none.
pub(super) fn all() -> Result<Vec<Gpu>, Unusable> {
    Ok(tallow_wgpu::devices().into_iter().map(Gpu).collect())
}

/// Usable GPUs: those with memory of their own before others, then by most free memory. If there is none, why.
pub(super) fn usable() -> Result<Vec<Gpu>, Unusable> {
    let (mut software, mut unfit) = (Vec::new(), Vec::new());
    let mut real: Vec<Found> = Vec::new();
    for found in tallow_wgpu::devices() {
        let name = found.about().to_string();
        match found.check() {
            _ if found.about().is_software => software.push(format!("{name} is a software renderer")),
            Err(why) => unfit.push(why.to_string()),
            Ok(()) => real.push(found),
        }
    }
    let unusable = |why: String, surprising| Err(Unusable { why, surprising });
    match (software.as_slice(), unfit.as_slice()) {
        _ if !real.is_empty() => {
            let free = |f: &Found| f.about().memory.map_or(0, |(_, free)| free);
            real.sort_by_key(|f| (f.about().shares_memory, Reverse(free(f))));
            Ok(real.into_iter().map(Gpu).collect())
        }
        ([], []) => unusable("no driver here offers a GPU through Vulkan or Metal".to_owned(), false),
        (software, []) => unusable(software.join("; "), false),
        (_, unfit) => unusable(unfit.join("; "), true),
    }
}

/// The requested GPU: by the name of its graphics API, and its index among that API's devices.
pub(super) fn named(api: &str, index: usize) -> Result<Gpu, Failed> {
    let found = tallow_wgpu::devices();
    let names: Vec<String> = found.iter().map(|f| f.about().to_string()).collect();
    let is = |f: &Found| f.about().api.to_string() == api && f.about().index == index;
    if let Some(found) = found.into_iter().find(is) {
        return Ok(Gpu(found));
    }
    let here = match names.as_slice() {
        [] => "no driver here offers any through Vulkan or Metal".to_owned(),
        names => format!("there are: {}", names.join(", ")),
    };
    let missing = match api {
        "metal" if !cfg!(target_vendor = "apple") => "; Metal is on Apple's systems only",
        "vulkan" if cfg!(target_vendor = "apple") => "; GPUs of Apple's systems are reached by metal",
        _ => "",
    };
    let instead = "Take --device auto or --device cpu";
    Err(Failed::new(format!("there is no device {api}:{index}: {here}{missing}. {instead}")))
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.about().fmt(f)
    }
}

impl DeviceInfo for Gpu {
    fn memory(&self) -> Option<Memory> {
        let about = self.0.about();
        let own = about.memory.map(|(total, free)| Memory { total, free });
        // Memory shared with the machine may be in use by others there: the smaller figure counts.
        match Memory::now().filter(|_| about.shares_memory) {
            Some(machine) => Some(own.map_or(machine, |own| own.least(machine))),
            None => own,
        }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let about = self.0.about();
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

    fn identity(&self) -> Identity {
        let about = self.0.about();
        Identity { uuid: about.uuid, pci: about.pci.clone() }
    }

    fn traits(&self) -> Traits {
        let about = self.0.about();
        Traits {
            accelerator: !about.is_software,
            compiles_kernels: true,
            captures: true,
            shares_memory: about.shares_memory,
            orders_experts: false,
        }
    }
}

impl Hardware for Gpu {
    type Backend = Wgpu;

    fn open(&self, _: CpuOptions) -> Result<Wgpu, Failed> {
        Ok(Wgpu::open(&self.0)?)
    }
}

impl MeasuredBackend for Wgpu {
    type Probe = SpeedProbe;

    fn probe(&self) -> Result<SpeedProbe, Failed> {
        // A software renderer only has the CPU's caches.
        let bytes = if self.about().is_software { PROBE_BYTES / 4 } else { PROBE_BYTES };
        Ok(SpeedProbe::new(self, bytes)?)
    }

    fn speeds(&self, probe: &SpeedProbe, _: Format) -> Result<Speeds, Failed> {
        Ok(Speeds { read: probe.read_speed(self)?, flops: probe.multiply_speed(self)? })
    }

    fn costs(&self) -> Vec<(&'static str, usize)> {
        let counts = self.counts();
        vec![("dispatches", counts.dispatches), ("submissions", counts.submits), ("read-backs", counts.reads)]
    }
}
