//! GPU backend for Metal and Vulkan, through wgpu.
//!
//! Every op is a WGSL kernel: a file in `shaders`, put together by a preprocessor (`preprocess`). Weights stay quantized as in their files, with 32 rows interleaved so that neighbouring
//! invocations read neighbouring words. Only the module `gpu` uses wgpu. All arithmetic is `f32`, in a summation order
//! that does not depend on what else is in the batch (batch-invariant).

mod backend;
mod coded;
mod device;
mod gpu;
mod kernels;
mod preprocess;
mod probe;
mod shaders;
#[cfg(test)]
mod tests;
mod weights;

pub use device::{Buf, Pending, Wgpu};
pub use gpu::{Api, Counts, Device, Found, devices};
pub use probe::SpeedProbe;
