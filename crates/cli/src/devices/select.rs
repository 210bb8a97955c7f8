//! The choice of a device: the one that the user names, or all that may be taken, best first.

use std::fmt;
use std::str::FromStr;

use super::{Device, NAMES, NO_ACCELERATORS, USABLE, Unusable, accelerator};
use crate::Failed;

/// A device as the user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// The best device with room.
    Auto,
    Cpu,
    /// `vulkan:1`: name and index among the devices of that name.
    Accelerator(&'static str, usize),
}

impl DeviceChoice {
    /// True if the CPU may be the device.
    pub(crate) fn may_be_cpu(self) -> bool {
        matches!(self, DeviceChoice::Auto | DeviceChoice::Cpu)
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Accelerator(name, index) => write!(f, "{name}:{index}"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(s: &str) -> Result<DeviceChoice, String> {
        let wrong = || format!("{s:?} is no device; there are auto, cpu, vulkan, vulkan:1, metal, cuda, …");
        let (name, index) = s.split_once(':').map_or((s, None), |(name, n)| (name, Some(n)));
        let index = index.map(|n| n.parse::<usize>().map_err(|_| wrong())).transpose()?;
        match (name.to_ascii_lowercase().as_str(), index) {
            ("auto", None) => Ok(DeviceChoice::Auto),
            ("cpu", None) => Ok(DeviceChoice::Cpu),
            (name, index) => {
                let known = NAMES.iter().find(|known| **known == name).ok_or_else(wrong)?;
                Ok(DeviceChoice::Accelerator(known, index.unwrap_or(0)))
            }
        }
    }
}

/// Candidate devices, best first, and why no accelerator precedes the CPU.
pub(crate) fn candidates(choice: DeviceChoice) -> Result<(Vec<Device>, Option<Unusable>), Failed> {
    match choice {
        DeviceChoice::Cpu => Ok((vec![Device::cpu()], None)),
        DeviceChoice::Accelerator(name, index) => Ok((vec![accelerator(name, index)?], None)),
        DeviceChoice::Auto => {
            let (mut devices, mut reasons) = (Vec::new(), Vec::new());
            for usable in USABLE {
                match usable() {
                    Ok(found) => {
                        devices.extend(found);
                        // Kinds behind it reach the same hardware, and some take a second to look for theirs.
                        break;
                    }
                    Err(why) => reasons.push(why),
                }
            }
            let why = devices.is_empty().then(|| why_cpu(&reasons));
            devices.push(Device::cpu());
            Ok((devices, why))
        }
    }
}

/// Why the CPU is used, from why each kind of accelerator cannot be.
fn why_cpu(reasons: &[Unusable]) -> Unusable {
    let why: Vec<&str> = reasons.iter().map(|reason| reason.why.as_str()).collect();
    let why = if why.is_empty() { NO_ACCELERATORS.to_owned() } else { why.join("; ") };
    let surprising = reasons.iter().any(|reason| reason.surprising);
    Unusable { why: format!("using the CPU: {why}"), surprising }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        let parsed = |s: &str| s.parse::<DeviceChoice>();
        assert_eq!(parsed("auto"), Ok(DeviceChoice::Auto));
        assert_eq!(parsed("CPU"), Ok(DeviceChoice::Cpu));
        assert_eq!(parsed("vulkan"), Ok(DeviceChoice::Accelerator("vulkan", 0)));
        assert_eq!(parsed("metal:2"), Ok(DeviceChoice::Accelerator("metal", 2)));
        for wrong in ["", "gpu", "cpu:1", "vulkan:", "vulkan:-1", "vulkan:x", "npu"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        for name in ["auto", "cpu", "vulkan:0", "metal:3", "cuda:1"] {
            assert_eq!(parsed(name).map(|a| a.to_string()), Ok(name.to_owned()));
        }
    }
}
