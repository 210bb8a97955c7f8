//! The devices on which the models of this suite are run.

use tallow_core::Arithmetic;
use tallow_cpu::{Cpu, Isa};
use tallow_cuda::{Cuda, devices_through};
use tallow_ptx::mock;
use tallow_support::needed;
use tallow_wgpu::{Wgpu, devices};

pub(crate) fn cpu() -> Cpu {
    cpu_with(Isa::best())
}

pub(crate) fn cpu_with(isa: Isa) -> Cpu {
    Cpu::new(isa, 2).unwrap().with(Arithmetic::Exact)
}

/// The GPU that tests run on, possibly a software implementation.
pub(crate) fn gpu() -> Option<Wgpu> {
    Some(Wgpu::open(needed("Vulkan or Metal device", devices().first())?).unwrap())
}

/// A GPU whose driver is an interpreter of the kernels.
pub(crate) fn cuda() -> Cuda {
    // Reads of memory that nobody wrote are faults there.
    cuda_of(mock::Machine::default())
}

/// The same of some machine.
pub(crate) fn cuda_of(machine: mock::Machine) -> Cuda {
    mock::set(machine);
    // SAFETY: its functions have the types of the driver's, and do the same.
    let found = unsafe { devices_through(&mock::symbol) }.unwrap();
    Cuda::open(&found[0]).unwrap().with(Arithmetic::Exact)
}
