//! Storage formats of weights: every block format (ggml type), its layout, and the exact conversion from bytes to
//! floats and back.
//!
//! A *format* stores a row of weights as a row of blocks, each block being a fixed number of weights in a fixed number
//! of bytes. Plain `f32`, `f16` and `bf16` are formats whose block is one weight. This crate is independent of devices
//! and does no I/O; each format has its own file.
//!
//! [`Format`] is the type in a file's header, and the argument of [`unpack`] and [`pack`]. Code that is compiled per
//! format gets from that value to the block's type by [`with_block!`]; a kernel that needs instructions beyond the
//! build's target does so inside a function with `#[target_feature]`:
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
//! 1. In `format.rs`, a line of `formats!`: the file, the block, and the facts.
//! 2. A file named like the format. It holds
//!    - the block: a `#[repr(C)]` struct of bytes and of other blocks ([`F16`] for a scale), in the order of the file.
//!      Its doc says what each byte means, and the file's first line has the formula of a weight;
//!    - `codes()` and, where they are packed, `scales()`: the integers in the order of the weights;
//!    - `impl Coded`: the [`Coding`], the codes and the scales, from which devices repack the block;
//!    - `impl Block`: `unpack` by `codes::scaled` or `codes::scaled_less`, and `pack` by one of the fits in `fit.rs`.
//!
//!    Where several weights share an index into a codebook, [`Gridded`] replaces `codes()`, `scales()` and
//!    `impl Coded`, and `fit_books` the other fits.
//!
//!    The build fails if the struct and the facts disagree.
//! 3. In `tests/formats`, its `tolerance` and `reach`. Reference blocks in `tests/goldens` are found by the format's
//!    name; a format that has none needs an oracle in `oracles.rs`.
//!
//! Then `cargo run --release -p tallow-quant --example unpack_speed` shows whether the format vectorizes. A plain loop
//! over a fixed number of bytes does, with shifts by constants and selections. A table of values does not, nor does a
//! shift that differs between bytes. Subnormal operands are as bad: each costs a hundred cycles.
//!
//! # What is exact
//!
//! [`unpack`] returns the values of a format's definition bit for bit, including infinities and signs of zeros. Where
//! the definition's result is NaN, so is ours; its payload is the processor's choice, except that [`BF16`] and [`F32`]
//! keep theirs. [`pack`] is free to choose among the codes; [`Block::pack`] says what it guarantees.

mod block;
mod coded;
mod codes;
mod fit;
mod format;
mod gridded;
mod size;

pub use block::{Block, pack_as, unpack_as};
pub use coded::{Coded, Coding, ScaleSink, Scales};
pub use format::Format;
pub use gridded::Gridded;
pub use q4_k::SixBits;
pub use size::SizeError;

/// Declares a module for each format's file.
macro_rules! modules {
    (@ () $($file:ident { $($block:ident $facts:tt)* })*) => {
        $(
            mod $file;
            pub use $file::{$($block),*};
        )*
    };
}

formats! { [modules] () }

/// Dequantizes `bytes` to `out`. Both must be the same whole number of blocks.
///
/// Any bytes are valid blocks.
pub fn unpack(format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), SizeError> {
    with_block!(format, B => unpack_as::<B>(bytes, out))
}

/// Quantizes `weights` to `out` with a small squared error. Both must be the same whole number of blocks.
///
/// [`Block::pack`] says what becomes of values that the format cannot hold.
pub fn pack(format: Format, weights: &[f32], out: &mut [u8]) -> Result<(), SizeError> {
    pack_with(format, weights, &vec![1.0; weights.len()], out)
}

/// Like [`pack`], with the squared error of each weight weighted by `care` (from an imatrix).
pub fn pack_with(format: Format, weights: &[f32], care: &[f32], out: &mut [u8]) -> Result<(), SizeError> {
    with_block!(format, B => pack_as::<B>(weights, care, out))
}

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
