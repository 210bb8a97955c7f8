//! How weights are stored: every block format, its layout, and the exact way from bytes to numbers and back.
//!
//! A *format* stores a row of numbers as a row of blocks, each block being a fixed number of weights in a fixed
//! number of bytes. Plain `f32`, `f16` and `bf16` are formats whose block is one weight. This crate knows no
//! device and does no I/O; one file holds one format.
//!
//! [`Format`] is the value that a file's header gives. [`unpack`] and [`pack`] take it. Code that is compiled per
//! format goes from the value to the block's type by [`with_block!`]; a kernel that wants other instructions than the
//! build's does so inside a function with `#[target_feature]`:
//!
//! ```
//! # #[cfg(target_arch = "x86_64")] {
//! use tallow_quant::{Format, SizeError, unpack_as, with_block};
//!
//! #[target_feature(enable = "avx2,fma,f16c")]
//! fn unpack_with_avx2(format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), SizeError> {
//!     with_block!(format, B => unpack_as::<B>(bytes, out))
//! }
//! # }
//! ```
//!
//! # Adding a format
//!
//! 1. In `format.rs`, a variant of [`Format`], its place in `Format::ALL`, and its line of facts.
//! 2. A file named like the format. It holds
//!    - the block: a `#[repr(C)]` struct of bytes and of other blocks ([`F16`] for a scale), in the order of the file.
//!      Its doc says what each byte means, and the file's first line how a weight comes out of it;
//!    - `codes()` and, where they are packed, `scales()`: the integers in the order of the weights. Kernels that
//!      repack weights read these;
//!    - `impl Block`: `unpack` by `codes::scaled` or `codes::scaled_less`, and `pack` by one of the fits in `fit.rs`.
//!
//!    Where weights choose patterns of a table together, [`Gridded`] takes the place of `codes()` and `scales()`, and
//!    `fit_books` that of the fits.
//! 3. Here, a `mod` and a `pub use`; in `block.rs`, the name in [`with_block!`]. The build stops where the struct and
//!    the facts do not agree.
//! 4. In `tests/formats`, its `tolerance` and `reach`. Reference blocks in `tests/goldens` are found by the format's
//!    name; a format that has none needs an oracle in `oracles.rs`.
//!
//! Then `cargo run --release -p tallow-quant --example unpack_speed` shows whether the format became vector code. A
//! plain loop over a fixed number of bytes does, with shifts by constants and selections. A table of values does not,
//! nor does a shift that differs between bytes. Subnormal operands are as bad: each costs a hundred cycles.
//!
//! # What is exact
//!
//! [`unpack`] gives the numbers of a format's definition to the last bit, infinities and signs of zeros included. Where
//! the definition's result is NaN, so is ours; its payload is the processor's choice, except that [`BF16`] and [`F32`]
//! keep theirs. [`pack`] is free to choose among the codes; [`Block::pack`] says what it promises.

mod block;
mod codes;
mod f8;
mod fit;
mod format;
mod gridded;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod nvfp4;
mod plain;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod q8_k;
mod size;
mod tq1_0;
mod tq2_0;

pub use block::{Block, pack_as, unpack_as};
pub use f8::F8;
pub use format::Format;
pub use gridded::Gridded;
pub use iq1_m::IQ1M;
pub use iq1_s::IQ1S;
pub use iq2_s::IQ2S;
pub use iq2_xs::IQ2XS;
pub use iq2_xxs::IQ2XXS;
pub use iq3_s::IQ3S;
pub use iq3_xxs::IQ3XXS;
pub use iq4_nl::IQ4NL;
pub use iq4_xs::IQ4XS;
pub use mxfp4::MXFP4;
pub use nvfp4::NVFP4;
pub use plain::{BF16, F16, F32};
pub use q1_0::Q1_0;
pub use q2_0::Q2_0;
pub use q2_k::Q2K;
pub use q3_k::Q3K;
pub use q4_0::Q4_0;
pub use q4_1::Q4_1;
pub use q4_k::{Q4K, SixBits};
pub use q5_0::Q5_0;
pub use q5_1::Q5_1;
pub use q5_k::Q5K;
pub use q6_k::Q6K;
pub use q8_0::Q8_0;
pub use q8_k::Q8K;
pub use size::SizeError;
pub use tq1_0::TQ1_0;
pub use tq2_0::TQ2_0;

/// Writes to `out` the weights that `bytes` hold. Both must be the same whole number of blocks.
///
/// Any bytes are valid blocks.
pub fn unpack(format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), SizeError> {
    with_block!(format, B => unpack_as::<B>(bytes, out))
}

/// Writes to `out` the blocks that stand for `weights` most closely. Both must be the same whole number of blocks.
///
/// [`Block::pack`] says what becomes of numbers that the format cannot hold.
pub fn pack(format: Format, weights: &[f32], out: &mut [u8]) -> Result<(), SizeError> {
    pack_with(format, weights, &vec![1.0; weights.len()], out)
}

/// The same, where the error of each weight counts as much as `care` says.
pub fn pack_with(format: Format, weights: &[f32], care: &[f32], out: &mut [u8]) -> Result<(), SizeError> {
    with_block!(format, B => pack_as::<B>(weights, care, out))
}
