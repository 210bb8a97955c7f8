//! Metal and Vulkan as a backend, through wgpu.
//!
//! Every op is a WGSL kernel; weights stay packed as in their files, rearranged for side-by-side reading. wgpu itself is
//! known to one module, `gpu`. Numbers are computed in `f32`, in an order that does not depend on what else is in the
//! batch.

mod backend;
mod coded;
mod gpu;
mod kernels;
mod probe;
#[cfg(test)]
mod tests;
mod weights;

pub use backend::{Buf, Wgpu};
pub use gpu::{Api, Counts, Device, Found, devices};
pub use probe::Yardstick;
