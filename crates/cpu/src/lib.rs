//! The CPU as a backend.
//!
//! Kernels are written once, over a vector of lanes (`simd`), and compiled for each instruction set; which set is
//! used is decided once, when the device is made. Work is split over a pool of threads that stay awake between ops.
//! Every number is computed in the same order whatever else is in the batch, so that a request's answer never depends
//! on its company.

#[cfg(all(test, target_arch = "aarch64"))]
mod alike;
mod arithmetic;
mod backend;
mod cache;
mod experts;
mod form;
mod isa;
mod kernels;
mod lora;
mod mat;
mod memory;
mod packed;
mod phases;
mod pool;
mod probe;
mod quantize;
mod recurrent;
mod simd;

pub use arithmetic::Arithmetic;
pub use backend::Cpu;
pub use isa::Isa;
