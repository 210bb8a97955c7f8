//! GPU backend for NVIDIA's devices, through the driver's own interface.
//!
//! Every op is a kernel of CUDA C++ (`kernels`), which a developer compiles to PTX (`ptx`) and the driver to its device's
//! instructions. The driver is loaded when the program runs, by a table of our own (`driver`); only the module `gpu` calls it.
//! Arithmetic is `f32`, in a summation order that does not depend on what else is in the batch (batch-invariant); quantized weights are
//! multiplied with input of 8 bits by tensor cores, in whole numbers, unless [`Arithmetic::Exact`](tallow_core::Arithmetic) is asked for.

mod args;
mod backend;
mod device;
mod driver;
mod gpu;
mod kernels;
mod ops;
mod probe;
#[cfg(test)]
mod tests;
mod weights;

pub use device::{Buf, Cuda, Pending};
pub use driver::is_expected;
pub use gpu::{Counts, Device, Found, devices, devices_through};
pub use probe::SpeedProbe;
