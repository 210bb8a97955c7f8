//! The devices of this machine.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use tallow_core::{Error, Result};

use super::primary::Primary;
use crate::driver::{Driver, Failure, attribute, no_device, unusable};

/// Description of a device, known before it is opened.
#[derive(Clone, Debug)]
pub struct Device {
    /// Index among the driver's devices: the 1 of `cuda:1`.
    pub index: usize,
    /// NVIDIA's name of the device.
    pub name: String,
    /// Its compute capability.
    pub capability: (u32, u32),
    /// The newest version of CUDA that the driver knows.
    pub driver: (u32, u32),
    /// Bytes of device memory.
    pub memory: u64,
    /// True if it shares the host's memory (integrated GPU).
    pub shares_memory: bool,
    /// Identifies it, whatever interface it is reached through. `None` if the driver does not say.
    pub uuid: Option<[u8; 16]>,
    /// Its place on the bus, such as `0000:65:00.0`. `None` if the driver does not say.
    pub pci: Option<String>,
    /// Short descriptions of its capabilities.
    pub features: Vec<String>,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{} {}", self.index, self.name)
    }
}

/// The least compute capability that our kernels are compiled for.
const LEAST: (u32, u32) = (8, 0);

/// A device that can be opened.
#[derive(Clone, Debug)]
pub struct Found {
    about: Device,
    driver: Arc<Driver>,
    /// The driver's handle.
    device: c_int,
}

impl Found {
    /// Description of the device.
    pub fn about(&self) -> &Device {
        &self.about
    }

    /// Retains its primary context.
    pub(super) fn retain(&self) -> Result<Primary> {
        Primary::retain(&self.driver, self.device, &self.about.to_string())
    }

    /// Checks that the device can run our kernels; the error says what is missing.
    pub fn check(&self) -> Result<()> {
        let (has, needs) = (self.about.capability, LEAST);
        if has >= needs {
            return Ok(());
        }
        let why = format!(
            "it has compute capability {}.{}, and {}.{} is needed; take another device, or reach it through another interface",
            has.0, has.1, needs.0, needs.1
        );
        Err(Error::Device { device: self.about.to_string(), why })
    }

    /// Bytes of device memory that are free now. Asking takes a moment, and some memory for as long, where nobody has the device
    /// open.
    pub fn free_memory(&self) -> Result<u64> {
        let primary = self.retain()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the places are valid during the call, and the context is this thread's.
        let asked = unsafe { self.driver.memory_info(&mut free, &mut total) };
        drop(primary);
        asked.map(|()| free as u64).map_err(|failure| self.failed(failure))
    }

    pub(super) fn failed(&self, failure: Failure) -> Error {
        Error::Device { device: self.about.to_string(), why: self.driver.describe(failure) }
    }
}

/// All devices of NVIDIA's driver, in its order. If there are none, why, and what to do about it. `visible` is what the variable
/// `CUDA_VISIBLE_DEVICES` is set to, by which the driver hides devices.
pub fn devices(visible: Option<&str>) -> Result<Vec<Found>> {
    all(Driver::open()?, visible)
}

/// The same, with functions of one's own in place of the driver's: by their names, as its library has them.
///
/// # Safety
/// What `lookup` finds must be the driver's function of that name, or one that has its type and does what it is documented to do.
pub unsafe fn devices_through(lookup: &dyn Fn(&CStr) -> Option<NonNull<c_void>>) -> Result<Vec<Found>> {
    // SAFETY: the caller vouches for `lookup`.
    all(unsafe { Driver::new(lookup) }?, None)
}

fn all(driver: Driver, visible: Option<&str>) -> Result<Vec<Found>> {
    driver.start(visible)?;
    let driver = Arc::new(driver);
    let failed = |failure| unusable(driver.describe(failure));
    let mut count = 0;
    // SAFETY: the place is valid during the call.
    unsafe { driver.device_count(&mut count) }.map_err(failed)?;
    if count == 0 {
        return Err(no_device("", visible));
    }
    (0..count).map(|index| one(&driver, index).map_err(failed)).collect()
}

fn one(driver: &Arc<Driver>, index: c_int) -> std::result::Result<Found, Failure> {
    let (mut device, mut memory) = (0, 0);
    let (mut name, mut pci) = ([0; 256], [0; 32]);
    // SAFETY: the places are valid during the calls, the texts' with the room that is given; the driver's texts end with a zero.
    unsafe {
        driver.device_get(&mut device, index)?;
        driver.device_memory(&mut memory, device)?;
        driver.device_name(name.as_mut_ptr(), name.len() as c_int - 1, device)?;
    }
    // SAFETY: as above.
    let pci_known = unsafe { driver.device_pci(pci.as_mut_ptr(), pci.len() as c_int - 1, device) };
    let (mut uuid, mut uuid_v1) = ([0; 16], [0; 16]);
    // SAFETY: the places are valid during the calls.
    let known =
        unsafe { [driver.device_uuid(&mut uuid, device), driver.device_uuid_v1(&mut uuid_v1, device)] };
    let uuid = match known.map(|known| known.is_ok()) {
        [true, _] => Some(uuid),
        [_, true] => Some(uuid_v1),
        _ => None,
    };
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: the place is valid during the call.
        unsafe { driver.device_attribute(&mut value, which, device) }.map(|()| value.unsigned_abs())
    };
    let multiprocessors = attribute(attribute::MULTIPROCESSORS)?;
    let about = Device {
        index: index as usize,
        name: text(&name),
        capability: (attribute(attribute::MAJOR)?, attribute(attribute::MINOR)?),
        driver: driver.version().map(|(major, minor)| (major.unsigned_abs(), minor.unsigned_abs()))?,
        memory: memory as u64,
        shares_memory: attribute(attribute::INTEGRATED)? != 0,
        uuid,
        pci: pci_known.is_ok().then(|| text(&pci)),
        features: vec![
            format!("{multiprocessors} multiprocessors"),
            format!("{} KiB shared", attribute(attribute::SHARED_MEMORY)? >> 10),
        ],
    };
    Ok(Found { about, driver: driver.clone(), device })
}

/// A text of the driver, up to the zero that it ends with.
fn text(room: &[c_char]) -> String {
    let bytes: Vec<u8> = room.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
