//! The driver over the interpreter of PTX as a library: its functions have the names of NVIDIA's, so that a program which finds it as
//! `libcuda.so.1` runs its kernels on a machine without a GPU.

pub use tallow_ptx::mock;
