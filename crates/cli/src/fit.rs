//! The device that a model fits: the first with room for its memory plan.

use crate::Failed;
use crate::devices::{Device, DeviceChoice, Memory, Unusable, candidates};
use crate::memory::Plan;
use crate::notice::Notice;

/// Whoever a model is loaded for: is told how it goes, and knows what else is on the devices.
pub(crate) trait Host {
    /// Told of the choice of a device and its reasons.
    fn say(&self, notice: &Notice);

    /// Bytes of a device that the model may take, of those that are free.
    fn available(&self, _device: &Device, free: u64) -> u64 {
        free
    }

    /// Makes room on a device, where so many bytes are missing. Returns false if there is no more to be had.
    fn make_room(&self, _device: &Device, _missing: u64) -> bool {
        false
    }

    /// Told where the model is put, and what it takes there.
    fn taken(&self, _device: &Device, _plan: &Plan) {}
}

impl<F: Fn(&Notice)> Host for F {
    fn say(&self, notice: &Notice) {
        self(notice);
    }
}

/// Calls `put` on the first device that has room for its plan; if that fails, on the next.
pub(crate) fn on_some_device<T>(
    asked: DeviceChoice,
    plan: impl Fn(&Device) -> Plan,
    host: &dyn Host,
    put: impl FnMut(&Device, &Plan) -> Result<T, Failed>,
) -> Result<T, Failed> {
    let (devices, why) = candidates(asked)?;
    on_one_of(&devices, why, plan, host, put)
}

/// As [`on_some_device`], for known devices. `why`: why no accelerator precedes the last one, the CPU.
pub(crate) fn on_one_of<T>(
    devices: &[Device],
    why: Option<Unusable>,
    plan: impl Fn(&Device) -> Plan,
    host: &dyn Host,
    mut put: impl FnMut(&Device, &Plan) -> Result<T, Failed>,
) -> Result<T, Failed> {
    let plan = |device: &Device| loop {
        let mut plan = plan(device);
        plan.memory = plan.memory.map(|m| Memory { free: host.available(device, m.free), ..m });
        if plan.fits() || !host.make_room(device, plan.missing()) {
            return plan;
        }
    };
    for (device, next) in devices.iter().zip(&devices[1..]) {
        let plan = plan(device);
        let put = match plan.check() {
            Ok(()) if !plan.is_roomy() => {
                let tokens = plan.context.value;
                Err(Failed::new(format!("{device} has room for a context of {tokens} tokens only")))
            }
            Ok(()) => {
                host.say(&Notice::Taken(plan.to_string()));
                host.taken(device, &plan);
                put(device, &plan)
            }
            Err(e) => Err(e),
        };
        match put {
            Ok(done) => return Ok(done),
            Err(e) => host.say(&Notice::PassedOver(format!("not on {device}: {e}\ntrying {next} instead"))),
        }
    }
    let Some(last) = devices.last() else { return Err(Failed::new("there is no device")) };
    let plan = plan(last);
    plan.check()?;
    match why {
        Some(Unusable { why, surprising: true }) => host.say(&Notice::PassedOver(why)),
        Some(Unusable { why, surprising: false }) => host.say(&Notice::OnCpu(why)),
        None => {}
    }
    host.say(&Notice::Taken(plan.to_string()));
    host.taken(last, &plan);
    put(last, &plan)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::load::{OpenOptions, open};
    use crate::model_name::DEMO;
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
        let plan = |device: &Device| Plan::new(&opened.model, None, &config, device);
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
}
