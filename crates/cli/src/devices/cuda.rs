//! NVIDIA's GPUs through their own driver.

use std::cmp::Reverse;
use std::fmt;

use tallow_core::{Backend, Error, Format};
use tallow_cuda::{Cuda, Found, SpeedProbe};

use super::memory::Memory;
use super::{
    CpuOptions, DeviceInfo, Hardware, Identity, MeasuredBackend, PROBE_BYTES, Speeds, Traits, Unusable,
};
use crate::{Failed, env};

#[derive(Clone, Debug)]
pub(super) struct Gpu(Found);

/// The variable that chooses which GPUs the driver shows to a program; an empty value hides all.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// GPUs of NVIDIA's driver, of those that it shows. If there are none, why.
fn found() -> Result<Vec<Found>, Unusable> {
    let visible = env::get_as_set(VISIBLE);
    tallow_cuda::devices(visible.as_deref()).map_err(|e| {
        let why = match e {
            Error::Device { why, .. } => why,
            other => other.to_string(),
        };
        Unusable { why, surprising: tallow_cuda::is_expected() }
    })
}

/// All GPUs of NVIDIA's driver, or why it has none.
pub(super) fn all() -> Result<Vec<Gpu>, Unusable> {
    Ok(found()?.into_iter().map(Gpu).collect())
}

/// GPUs that can run our kernels: those with memory of their own before others, then by most memory. If there is none, why.
pub(super) fn usable() -> Result<Vec<Gpu>, Unusable> {
    let found = found().map_err(|none| match none.surprising {
        true => none,
        false => Unusable { why: "NVIDIA's driver is not here, or offers none".to_owned(), ..none },
    });
    let (mut usable, mut unfit) = (Vec::new(), Vec::new());
    for found in found? {
        match found.check() {
            Ok(()) => usable.push(Gpu(found)),
            Err(why) => unfit.push(why.to_string()),
        }
    }
    if usable.is_empty() {
        return Err(Unusable { why: unfit.join("; "), surprising: true });
    }
    usable.sort_by_key(|gpu| (gpu.0.about().shares_memory, Reverse(gpu.0.about().memory)));
    Ok(usable)
}

/// The requested GPU, by its index among the driver's.
pub(super) fn named(name: &str, index: usize) -> Result<Gpu, Failed> {
    let (found, here) = match found() {
        Ok(found) => {
            let names: Vec<String> = found.iter().map(|f| f.about().to_string()).collect();
            let hidden = env::get_as_set(VISIBLE).map_or(String::new(), |visible| {
                format!("; {VISIBLE} is set to {visible:?}, and hides others")
            });
            (found, format!("there are: {}{hidden}", names.join(", ")))
        }
        Err(none) => (Vec::new(), none.why),
    };
    let found = found.into_iter().find(|f| f.about().index == index);
    let instead = "Take --device auto or --device cpu";
    found.map(Gpu).ok_or_else(|| Failed::new(format!("there is no device {name}:{index}: {here}. {instead}")))
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.about().fmt(f)
    }
}

impl DeviceInfo for Gpu {
    fn memory(&self) -> Option<Memory> {
        let about = self.0.about();
        let free = self.0.free_memory().unwrap_or_else(|why| {
            tracing::warn!("all memory of {about} is taken to be free: {why}");
            about.memory
        });
        let own = Memory { total: about.memory, free };
        // Memory shared with the machine may be in use by others there: the smaller figure counts.
        let machine = Memory::now().filter(|_| about.shares_memory);
        Some(machine.map_or(own, |machine| own.least(machine)))
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let about = self.0.about();
        let what = match about.shares_memory {
            true => "a GPU that shares the machine's memory",
            false => "a GPU with memory of its own",
        };
        let ((major, minor), cuda) = (about.capability, about.driver);
        let mut facts = vec![
            ("is", what.to_owned()),
            ("driver", format!("NVIDIA's, for CUDA {}.{}", cuda.0, cuda.1)),
            ("features", format!("compute capability {major}.{minor}, {}", about.features.join(", "))),
        ];
        facts.extend(about.pci.as_ref().map(|at| ("bus", at.clone())));
        facts
    }

    fn identity(&self) -> Identity {
        let about = self.0.about();
        Identity { uuid: about.uuid, pci: about.pci.clone() }
    }

    fn traits(&self) -> Traits {
        Traits {
            accelerator: true,
            compiles_kernels: true,
            captures: true,
            shares_memory: self.0.about().shares_memory,
            orders_experts: true,
        }
    }
}

impl Hardware for Gpu {
    type Backend = Cuda;

    fn open(&self, cpu: CpuOptions) -> Result<Cuda, Failed> {
        Ok(Cuda::open(&self.0)?.with(cpu.arithmetic))
    }
}

impl MeasuredBackend for Cuda {
    type Probe = SpeedProbe;

    fn probe(&self) -> Result<SpeedProbe, Failed> {
        Ok(SpeedProbe::new(self, PROBE_BYTES)?)
    }

    fn speeds(&self, probe: &SpeedProbe, _: Format) -> Result<Speeds, Failed> {
        Ok(Speeds { read: probe.read_speed(self)?, flops: probe.multiply_speed(self)? })
    }

    fn costs(&self) -> Vec<(&'static str, usize)> {
        let counts = self.counts();
        vec![("launches", counts.launches), ("read-backs", counts.reads)]
    }

    fn slowed(&self) -> Option<String> {
        (self.counts().pageable > 0).then(|| {
            format!("the system refuses to pin memory (`ulimit -l` shows its limit): copies to and from {} are slower", self.label())
        })
    }
}
