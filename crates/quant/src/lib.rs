//! How weights are stored: every block format, its layout, and the exact way from bytes to numbers and back.
//!
//! A *format* stores a row of numbers as a row of blocks, each block being a fixed number of weights in a fixed
//! number of bytes. Plain `f32`, `f16` and `bf16` are formats whose block is one weight. This crate knows no
//! device and does no I/O; one file holds one format.

mod format;

pub use format::Format;
