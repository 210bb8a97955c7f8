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
//! 1. In `format.rs`, a line of `formats!`: the file, the block, and the facts.
//! 2. A file named like the format. It holds
//!    - the block: a `#[repr(C)]` struct of bytes and of other blocks ([`F16`] for a scale), in the order of the file.
//!      Its doc says what each byte means, and the file's first line how a weight comes out of it;
//!    - `codes()` and, where they are packed, `scales()`: the integers in the order of the weights. Kernels that
//!      repack weights read these;
//!    - `impl Block`: `unpack` by `codes::scaled` or `codes::scaled_less`, and `pack` by one of the fits in `fit.rs`.
//!
//!    Where weights choose patterns of a table together, [`Gridded`] takes the place of `codes()` and `scales()`, and
//!    `fit_books` that of the fits.
//!
//!    The build stops where the struct and the facts do not agree.
//! 3. In `tests/formats`, its `tolerance` and `reach`. Reference blocks in `tests/goldens` are found by the format's
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
mod fit;
mod format;
mod gridded;
mod size;

pub use block::{Block, pack_as, unpack_as};
pub use format::Format;
pub use gridded::Gridded;
pub use q4_k::SixBits;
pub use size::SizeError;

/// Makes a module of each format's file.
macro_rules! modules {
    (@ () $($file:ident { $($block:ident $facts:tt)* })*) => {
        $(
            mod $file;
            pub use $file::{$($block),*};
        )*
    };
}

formats! { [modules] () }

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
