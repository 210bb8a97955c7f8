//! A device: memory, and kernels that run in it.

use crate::fault::Error;
use crate::launch::{Launch, launch};
use crate::memory::Memory;
use crate::module::Kernel;

/// A device without a driver: what tests of single kernels need.
#[derive(Debug, Default)]
pub struct Device {
    memory: Memory,
}

impl Device {
    /// Allocates bytes that nobody has written.
    pub fn alloc(&mut self, bytes: usize) -> u64 {
        self.memory.alloc(bytes)
    }

    /// Frees an allocation. Returns whether there was one.
    pub fn free(&mut self, address: u64) -> bool {
        self.memory.free(address)
    }

    /// Copies from the host.
    pub fn write(&mut self, address: u64, data: &[u8]) -> Result<(), Error> {
        self.memory.upload(address, data).map_err(Error::Transfer)
    }

    /// Copies to the host.
    pub fn read(&mut self, address: u64, data: &mut [u8]) -> Result<(), Error> {
        self.memory.download(address, data).map_err(Error::Transfer)
    }

    /// The first byte of these that nobody has written.
    pub fn unwritten(&mut self, address: u64, bytes: usize) -> Option<usize> {
        self.memory.unwritten(address, bytes)
    }

    /// Copies within the device. What nobody wrote stays so.
    pub fn copy(&mut self, to: u64, from: u64, bytes: usize) -> Result<(), Error> {
        self.memory.copy(to, from, bytes).map_err(Error::Transfer)
    }

    /// Sets bytes.
    pub fn fill(&mut self, address: u64, value: u8, bytes: usize) -> Result<(), Error> {
        self.memory.upload(address, &vec![value; bytes]).map_err(Error::Transfer)
    }

    /// Runs a kernel to its end. Returns how many instructions its lanes executed.
    pub fn launch(&mut self, kernel: &Kernel, extent: &Launch<'_>) -> Result<u64, Error> {
        launch(&mut self.memory, kernel, extent)
    }
}
