//! Device errors. wgpu reports them through callbacks at any later time; they are kept here until the next check.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tallow_core::{Error, Result};
use wgpu::{BufferUsages, ErrorFilter};

#[derive(Debug, Default)]
struct Seen {
    /// First error since the last check.
    error: Option<String>,
    /// Why the device was lost; never cleared.
    lost: Option<String>,
}

/// Errors of one device.
#[derive(Clone, Debug)]
pub(super) struct Faults {
    device: String,
    seen: Arc<Mutex<Seen>>,
}

impl Faults {
    /// Installs the error callbacks. Without them wgpu aborts the process at the first error.
    pub(super) fn watch(device: &wgpu::Device, name: String) -> Faults {
        let faults = Faults { device: name, seen: Arc::default() };
        let of = faults.clone();
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            of.seen().error.get_or_insert_with(|| describe(&e));
        }));
        let of = faults.clone();
        device.set_device_lost_callback(move |reason, why| {
            let why = if why.is_empty() { format!("{reason:?}") } else { why };
            of.seen().lost.get_or_insert(why);
        });
        faults
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the first error since the last check, if any.
    pub(super) fn check(&self) -> Result<()> {
        let mut seen = self.seen();
        let device = || self.device.clone();
        if let Some(why) = seen.lost.clone() {
            return Err(Error::Lost { device: device(), why });
        }
        seen.error.take().map_or(Ok(()), |why| Err(Error::Device { device: device(), why }))
    }

    /// Creates a buffer, or returns `OutOfMemory`.
    pub(super) fn buffer(
        &self,
        device: &wgpu::Device,
        size: u64,
        usage: BufferUsages,
    ) -> Result<wgpu::Buffer> {
        let asked = usize::try_from(size).unwrap_or(usize::MAX);
        let full = || Error::OutOfMemory { device: self.device.clone(), asked };
        if size > device.limits().max_buffer_size {
            return Err(full());
        }
        let memory = device.push_error_scope(ErrorFilter::OutOfMemory);
        let internal = device.push_error_scope(ErrorFilter::Internal);
        let buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage,
            mapped_at_creation: false,
        });
        let (internal, memory) = (super::now(internal.pop()), super::now(memory.pop()));
        match internal.or(memory) {
            Some(_) => Err(full()),
            None => Ok(buffer),
        }
    }
}

/// An error with its sources, in one line.
pub(super) fn describe(e: &wgpu::Error) -> String {
    let mut text = e.to_string();
    let mut source = std::error::Error::source(e);
    while let Some(e) = source {
        let more = e.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = e.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
