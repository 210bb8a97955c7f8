//! An interpreter of PTX: the kernels that the CUDA backend ships are run by tests on machines without a GPU.
//!
//! It knows exactly the instructions that we ship; any other is an error. It executes a warp at a time, lanes that diverge by
//! turns, CTAs and warps in an order that a seed decides. And it finds what a GPU would leave undefined: accesses out of
//! bounds or not aligned, reads of what nobody wrote (global and shared memory, registers), races between warps of a CTA
//! that no barrier orders, races between CTAs that no fence and atomic order, shuffles and barriers that lanes do not reach
//! together, and kernels that do not end.
//!
//! It does not model timing, coalescing, or the driver's compiler.

mod code;
mod device;
mod fault;
mod isa;
mod lanes;
mod launch;
mod lower;
mod matrices;
mod memory;
pub mod mock;
mod module;
mod parse;
mod regalloc;
mod registers;
mod warp;

pub use device::Device;
pub use fault::{Error, Fault, Trouble};
pub use launch::Launch;
pub use module::{Kernel, Module};
