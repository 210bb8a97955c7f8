//! Enumeration of the devices of this machine.

use std::fmt;

use tallow_core::{Error, Result};
use wgpu::{Backend, Backends, DeviceType};

/// Graphics API of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Api {
    /// Apple systems.
    Metal,
    /// All other systems.
    Vulkan,
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Api::Metal => "metal",
            Api::Vulkan => "vulkan",
        })
    }
}

/// Description of a device, known before it is opened.
#[derive(Clone, Debug)]
pub struct Device {
    /// Graphics API.
    pub api: Api,
    /// Index among the devices of the same API: the 1 of `vulkan:1`.
    pub index: usize,
    /// Vendor's name of the device.
    pub name: String,
    /// Driver and its version.
    pub driver: String,
    /// True if it is a software renderer on the CPU.
    pub is_software: bool,
    /// True if it shares the host's memory (integrated GPU).
    pub shares_memory: bool,
    /// Total and free bytes of device memory. `None` if the driver does not report them.
    pub memory: Option<(u64, u64)>,
    /// Identifies it, whatever interface it is reached through. `None` if the driver does not say.
    pub uuid: Option<[u8; 16]>,
    /// Its place on the bus, such as `0000:65:00.0`. `None` if the driver does not say.
    pub pci: Option<String>,
    /// Short descriptions of its capabilities.
    pub features: Vec<String>,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} {}", self.api, self.index, self.name)
    }
}

/// A device that can be opened.
#[derive(Clone, Debug)]
pub struct Found {
    about: Device,
    adapter: wgpu::Adapter,
}

/// Most storage buffers bound by one of our kernels.
const BINDINGS: u32 = 8;
/// Most invocations in one of our workgroups.
const INVOCATIONS: u32 = 256;
/// Most workgroup memory used by one of our kernels, in bytes.
const SHARED: u32 = 16 << 10;

impl Found {
    /// Description of the device.
    pub fn about(&self) -> &Device {
        &self.about
    }

    pub(super) fn adapter(&self) -> &wgpu::Adapter {
        &self.adapter
    }

    /// Limits to request: all that the adapter offers, so that only memory bounds the size of tensors.
    pub(super) fn limits(&self) -> wgpu::Limits {
        self.adapter.limits()
    }

    /// Checks that the device meets the requirements of our kernels; the error says what is missing.
    pub fn check(&self) -> Result<()> {
        let lacks = lacks(&self.limits());
        lacks.map_or(Ok(()), |why| Err(Error::Device { device: self.about.to_string(), why }))
    }
}

#[cfg(test)]
impl Found {
    /// wgpu's device without hardware: kernels are compiled to the point where a driver would take over, and nothing
    /// is computed.
    pub(crate) fn noop() -> Found {
        let mut descriptor = wgpu::InstanceDescriptor {
            backends: Backends::NOOP,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        };
        descriptor.backend_options.noop = wgpu::NoopBackendOptions::enabled();
        let instance = wgpu::Instance::new(descriptor);
        let adapter = super::now(instance.enumerate_adapters(Backends::NOOP)).remove(0);
        let about = Device {
            api: Api::Vulkan,
            index: 0,
            name: "noop".into(),
            driver: String::new(),
            is_software: true,
            shares_memory: true,
            memory: None,
            uuid: None,
            pci: None,
            features: Vec::new(),
        };
        Found { about, adapter }
    }
}

/// The first limit that is too low for our kernels, as a message.
fn lacks(limits: &wgpu::Limits) -> Option<String> {
    let needs = [
        ("storage buffers in a kernel", limits.max_storage_buffers_per_shader_stage, BINDINGS),
        ("invocations in a workgroup", limits.max_compute_invocations_per_workgroup, INVOCATIONS),
        ("invocations side by side", limits.max_compute_workgroup_size_x, INVOCATIONS),
        ("bytes that a workgroup shares", limits.max_compute_workgroup_storage_size, SHARED),
    ];
    let (what, has, needs) = needs.into_iter().find(|(_, has, needs)| has < needs)?;
    Some(format!("it offers {has} {what}, and {needs} are needed"))
}

/// All Metal and Vulkan devices, in the system's order. Empty if there is no driver.
pub fn devices() -> Vec<Found> {
    let descriptor = wgpu::InstanceDescriptor {
        backends: Backends::METAL | Backends::VULKAN,
        // No validation layers: they are slow, and meant for tests.
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    };
    if (wgpu::Instance::enabled_backend_features() & descriptor.backends).is_empty() {
        return Vec::new();
    }
    let adapters = super::now(wgpu::Instance::new(descriptor).enumerate_adapters(Backends::all()));
    let mut counts = [0, 0];
    let found = adapters.into_iter().filter_map(|adapter| {
        let info = adapter.get_info();
        let api = match info.backend {
            Backend::Metal => Api::Metal,
            Backend::Vulkan => Api::Vulkan,
            _ => return None,
        };
        let index = counts[api as usize];
        counts[api as usize] += 1;
        let driver = [info.driver.as_str(), info.driver_info.as_str()];
        let about = Device {
            api,
            index,
            name: info.name.clone(),
            driver: driver.into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(" "),
            is_software: info.device_type == DeviceType::Cpu,
            shares_memory: matches!(info.device_type, DeviceType::Cpu | DeviceType::IntegratedGpu),
            memory: memory(&adapter),
            uuid: uuid(&adapter),
            pci: Some(info.device_pci_bus_id.clone()).filter(|id| !id.is_empty()),
            features: features(&adapter, &info),
        };
        Some(Found { about, adapter })
    });
    found.collect()
}

fn features(adapter: &wgpu::Adapter, info: &wgpu::AdapterInfo) -> Vec<String> {
    let (has, limits) = (adapter.features(), adapter.limits());
    let mut words = vec![
        format!("subgroups of {} to {}", info.subgroup_min_size, info.subgroup_max_size),
        format!("{} MiB in a binding", limits.max_storage_buffer_binding_size >> 20),
        format!("{} KiB shared", limits.max_compute_workgroup_storage_size >> 10),
    ];
    words.extend(has.contains(wgpu::Features::SHADER_F16).then(|| "f16".to_owned()));
    words.extend(
        has.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX).then(|| "matrix units".to_owned()),
    );
    words
}

/// Total and free bytes of device memory.
#[cfg(not(target_vendor = "apple"))]
fn memory(adapter: &wgpu::Adapter) -> Option<(u64, u64)> {
    use ash::vk;
    // SAFETY: the raw handle is only queried, never destroyed, and does not outlive `adapter`: it is dropped in this
    // function.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = hal.shared_instance().raw_instance();
    let physical = hal.raw_physical_device();
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut all = vk::PhysicalDeviceMemoryProperties2::default();
    let says_budget = hal.physical_device_capabilities().supports_extension(ash::ext::memory_budget::NAME);
    if says_budget {
        all = all.push_next(&mut budget);
    }
    // SAFETY: `hal` keeps the instance and the physical device alive during the call. `all` is a valid structure, and
    // `budget`, chained only if supported, outlives the call. Assumes Vulkan 1.1 or newer, where the function is core.
    unsafe { instance.get_physical_device_memory_properties2(physical, &mut all) };
    let heaps = all.memory_properties;
    let (mut total, mut free) = (0, 0);
    for (i, heap) in heaps.memory_heaps_as_slice().iter().enumerate() {
        if heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL) {
            total += heap.size;
            free += if says_budget {
                budget.heap_budget[i].saturating_sub(budget.heap_usage[i])
            } else {
                heap.size
            };
        }
    }
    (total > 0).then_some((total, free))
}

/// The UUID that the driver gives a device, which other interfaces of the same vendor give it too.
#[cfg(not(target_vendor = "apple"))]
fn uuid(adapter: &wgpu::Adapter) -> Option<[u8; 16]> {
    use ash::vk;
    // SAFETY: the raw handle is only queried, never destroyed, and does not outlive `adapter`: it is dropped in this
    // function.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = hal.shared_instance().raw_instance();
    let mut id = vk::PhysicalDeviceIDProperties::default();
    let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut id);
    // SAFETY: `hal` keeps the instance and the physical device alive during the call. `all` is a valid structure, and `id`, which is
    // chained to it, outlives the call. Assumes Vulkan 1.1 or newer, where the function and the structure are core.
    unsafe { instance.get_physical_device_properties2(hal.raw_physical_device(), &mut all) };
    (id.device_uuid != [0; 16]).then_some(id.device_uuid)
}

/// The UUID of a device, which Metal does not give.
#[cfg(target_vendor = "apple")]
fn uuid(_: &wgpu::Adapter) -> Option<[u8; 16]> {
    None
}

/// Total and free bytes of device memory.
#[cfg(target_vendor = "apple")]
fn memory(adapter: &wgpu::Adapter) -> Option<(u64, u64)> {
    use objc2_metal::MTLDevice;
    // SAFETY: the raw handle is only queried, never destroyed, and does not outlive `adapter`: it is dropped in this
    // function.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
    let device = hal.raw_device();
    let (total, used) = (device.recommendedMaxWorkingSetSize(), device.currentAllocatedSize() as u64);
    (total > 0).then_some((total, total.saturating_sub(used)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_lacks_is_said() {
        // WebGPU's guaranteed minimum is enough.
        assert_eq!(lacks(&wgpu::Limits::default()), None);
        let few = wgpu::Limits { max_storage_buffers_per_shader_stage: 4, ..wgpu::Limits::default() };
        assert_eq!(lacks(&few).unwrap(), "it offers 4 storage buffers in a kernel, and 8 are needed");
        let small = wgpu::Limits { max_compute_workgroup_storage_size: 1 << 12, ..wgpu::Limits::default() };
        assert!(lacks(&small).unwrap().contains("4096 bytes"));
    }
}
