//! The devices of this machine.

use std::fmt;

use tallow_core::{Error, Result};
use wgpu::{Backend, Backends, DeviceType};

/// How a device is talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Api {
    /// On Apple's systems.
    Metal,
    /// Everywhere else.
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

/// What is known of a device before it is opened.
#[derive(Clone, Debug)]
pub struct Device {
    /// How it is talked to.
    pub api: Api,
    /// Its place among the devices of that kind: `vulkan:1`.
    pub index: usize,
    /// Its maker's name for it.
    pub name: String,
    /// Its driver, with its version.
    pub driver: String,
    /// Is it a program on the CPU that behaves like a GPU?
    pub is_software: bool,
    /// Is its memory that of the machine?
    pub shares_memory: bool,
    /// Bytes of memory: all, and what is free. `None` where the driver does not say.
    pub memory: Option<(u64, u64)>,
    /// What it can do, in a few words.
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

/// The storage buffers that a kernel of ours binds at most.
const BINDINGS: u32 = 8;
/// The invocations of a workgroup of ours.
const INVOCATIONS: u32 = 256;
/// The bytes that a workgroup of ours shares at most.
const SHARED: u32 = 16 << 10;

impl Found {
    /// What is known of it.
    pub fn about(&self) -> &Device {
        &self.about
    }

    pub(super) fn adapter(&self) -> &wgpu::Adapter {
        &self.adapter
    }

    /// What is asked of the device: all that it offers, for sizes that it can hold are decided by its memory.
    pub(super) fn limits(&self) -> wgpu::Limits {
        self.adapter.limits()
    }

    /// Has it what our kernels need? If not, what is missing.
    pub fn check(&self) -> Result<()> {
        let lacks = lacks(&self.limits());
        lacks.map_or(Ok(()), |why| Err(Error::Device { device: self.about.to_string(), why }))
    }
}

/// What a device with these limits has too little of for our kernels.
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

/// Every device that is reached by Metal or Vulkan, in the order of the system. None where there is no driver.
pub fn devices() -> Vec<Found> {
    let descriptor = wgpu::InstanceDescriptor {
        backends: Backends::METAL | Backends::VULKAN,
        // No layers that look for our mistakes: they are for tests, and are slow.
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

/// Bytes of memory that a device has, and how many of them are free for us.
#[cfg(not(target_vendor = "apple"))]
fn memory(adapter: &wgpu::Adapter) -> Option<(u64, u64)> {
    use ash::vk;
    // SAFETY: the handle is only looked at, and not kept past this function.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = hal.shared_instance().raw_instance();
    let physical = hal.raw_physical_device();
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut all = vk::PhysicalDeviceMemoryProperties2::default();
    let says_budget = hal.physical_device_capabilities().supports_extension(ash::ext::memory_budget::NAME);
    if says_budget {
        all = all.push_next(&mut budget);
    }
    // SAFETY: the instance and the device live as long as `hal`; wgpu runs on Vulkan 1.1 or newer, which has the call.
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

/// Bytes of memory that a device has, and how many of them are free for us.
#[cfg(target_vendor = "apple")]
fn memory(adapter: &wgpu::Adapter) -> Option<(u64, u64)> {
    use objc2_metal::MTLDevice;
    // SAFETY: the handle is only looked at, and not kept past this function.
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
        // The least that WebGPU promises is enough.
        assert_eq!(lacks(&wgpu::Limits::default()), None);
        let few = wgpu::Limits { max_storage_buffers_per_shader_stage: 4, ..wgpu::Limits::default() };
        assert_eq!(lacks(&few).unwrap(), "it offers 4 storage buffers in a kernel, and 8 are needed");
        let small = wgpu::Limits { max_compute_workgroup_storage_size: 1 << 12, ..wgpu::Limits::default() };
        assert!(lacks(&small).unwrap().contains("4096 bytes"));
    }
}
