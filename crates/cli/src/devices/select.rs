//! The choice of a device: as the user names it, or the best one with room.

use std::fmt;
use std::str::FromStr;

use super::{Device, NAMES, NO_ACCELERATORS, Unusable, accelerator, usable};
use crate::Failed;
use crate::load::Notice;
use crate::memory::Plan;

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
    /// Whether the CPU may be the device.
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
        let wrong = || format!("{s:?} is no device; there are auto, cpu, vulkan, vulkan:1, metal, …");
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
            for found in usable() {
                match found {
                    Ok(found) => devices.extend(found),
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

/// Calls `put` on the first device that has room for its plan; if that fails, on the next.
pub(crate) fn on_some_device<T>(
    asked: DeviceChoice,
    plan: impl Fn(&Device) -> Plan,
    say: &dyn Fn(&Notice),
    put: impl FnMut(&Device, &Plan) -> Result<T, Failed>,
) -> Result<T, Failed> {
    let (devices, why) = candidates(asked)?;
    on_one_of(&devices, why, plan, say, put)
}

/// As [`on_some_device`], for known devices. `why`: why no accelerator precedes the last one, the CPU.
pub(crate) fn on_one_of<T>(
    devices: &[Device],
    why: Option<Unusable>,
    plan: impl Fn(&Device) -> Plan,
    say: &dyn Fn(&Notice),
    mut put: impl FnMut(&Device, &Plan) -> Result<T, Failed>,
) -> Result<T, Failed> {
    for (device, next) in devices.iter().zip(&devices[1..]) {
        let plan = plan(device);
        let put = match plan.check() {
            Ok(()) if !plan.is_roomy() => {
                let tokens = plan.context.value;
                Err(Failed::new(format!("{device} has room for a context of {tokens} tokens only")))
            }
            Ok(()) => {
                say(&Notice::Taken(plan.to_string()));
                put(device, &plan)
            }
            Err(e) => Err(e),
        };
        match put {
            Ok(done) => return Ok(done),
            Err(e) => say(&Notice::PassedOver(format!("not on {device}: {e}\ntrying {next} instead"))),
        }
    }
    let Some(last) = devices.last() else { return Err(Failed::new("there is no device")) };
    let plan = plan(last);
    plan.check()?;
    match why {
        Some(Unusable { why, surprising: true }) => say(&Notice::PassedOver(why)),
        Some(Unusable { why, surprising: false }) => say(&Notice::OnCpu(why)),
        None => {}
    }
    say(&Notice::Taken(plan.to_string()));
    put(last, &plan)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::load::{DEMO, OpenOptions, open};
    use crate::settings::{Defaults, Flags, Sources, resolve};

    /// Tries two devices; `put` returns `first()` on the first of them.
    fn through(context: usize, first: impl Fn() -> Result<(), Failed>) -> (Result<usize, Failed>, String) {
        let mut flags = Flags::default();
        flags.engine.context = Some(context);
        let sources = Sources::read(None).unwrap();
        let opened = open(DEMO, OpenOptions::new(&sources, true, None).unwrap()).unwrap();
        let config = resolve(&sources, &flags, &opened.generation, Defaults::CHAT).unwrap();
        let said = RefCell::new(String::new());
        let say = |note: &Notice| {
            *said.borrow_mut() += &match note {
                Notice::Taken(text) => format!("taken: {}\n", text.split(':').next().unwrap()),
                Notice::Slow(text) | Notice::Quantized(text) => format!("slow: {text}\n"),
                Notice::PassedOver(text) => format!("passed over: {text}\n"),
                Notice::OnCpu(text) => format!("on the CPU: {text}\n"),
            };
        };
        let mut tried = 0;
        let devices = [Device::cpu(), Device::cpu()];
        let plan = |device: &Device| Plan::new(&opened.model, &config, device);
        let done = on_one_of(&devices, None, plan, &say, |_, _| {
            tried += 1;
            if tried == 1 { first().map(|()| 1) } else { Ok(tried) }
        });
        (done, said.into_inner())
    }

    #[test]
    fn a_device_that_cannot_is_passed_over_with_its_words() {
        let (done, said) = through(1024, || Ok(()));
        assert_eq!((done.unwrap(), said.as_str()), (1, "taken: cpu\n"));
        let (done, said) = through(1024, || Err(Failed::new("a kernel does not compile")));
        assert_eq!(done.unwrap(), 2);
        assert_eq!(
            said,
            "taken: cpu\npassed over: not on cpu: a kernel does not compile\ntrying cpu instead\ntaken: cpu\n"
        );
        // What fits nowhere is refused by the last device.
        let (done, said) = through(4096, || Ok(()));
        assert!(done.unwrap_err().to_string().contains("a context of 4096 tokens is asked for"));
        assert!(said.starts_with("passed over: not on cpu: a context of 4096"), "{said}");
    }

    #[test]
    fn names_of_devices() {
        let parsed = |s: &str| s.parse::<DeviceChoice>();
        assert_eq!(parsed("auto"), Ok(DeviceChoice::Auto));
        assert_eq!(parsed("CPU"), Ok(DeviceChoice::Cpu));
        assert_eq!(parsed("vulkan"), Ok(DeviceChoice::Accelerator("vulkan", 0)));
        assert_eq!(parsed("metal:2"), Ok(DeviceChoice::Accelerator("metal", 2)));
        for wrong in ["", "gpu", "cpu:1", "vulkan:", "vulkan:-1", "vulkan:x", "cuda"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        for name in ["auto", "cpu", "vulkan:0", "metal:3"] {
            assert_eq!(parsed(name).map(|a| a.to_string()), Ok(name.to_owned()));
        }
    }
}
