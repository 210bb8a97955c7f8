//! CPU implementation of `Backend`.
//!
//! Kernels are written once, generic over SIMD vectors (`simd`), and compiled for each instruction set; which one is
//! used is decided once, when the device is created. Work is split over a pool of threads that stay awake between
//! ops. Every value is computed in the same order whatever else is in the batch, so a request's output does not
//! depend on the other requests (batch invariance).

#![cfg_attr(fuzzing, allow(dead_code, reason = "kernels that fuzz targets lack: see `Kernels::of_vectors`"))]
#![cfg_attr(test, allow(clippy::duplicate_mod, reason = "`pool_checked` is the pool in a model checker"))]

#[cfg(all(test, target_arch = "aarch64"))]
mod alike;
mod attention;
mod backend;
mod choices;
mod ffn;
mod gemm;
mod isa;
mod kernels;
mod linear;
mod mat;
mod memory;
mod moe;
mod pack;
mod packed_file;
#[cfg(test)]
#[cfg(unix)]
mod packed_file_tests;
mod pool;
#[cfg(test)]
mod pool_checked;
#[cfg(test)]
mod pool_tests;
mod quantize;
mod recurrent;
mod roofline;
mod rowwise;
mod simd;
mod sync;
mod topology;
mod trial;
#[cfg(test)]
mod zero_points;

pub use backend::{Cpu, ReadProbe};
pub use isa::Isa;
pub use packed_file::{MappedFile, PackedFile, PackedFileWriter};
pub use topology::{Placement, cores};
