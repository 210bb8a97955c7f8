//! [`Coded`]: a block as small unsigned codes and scales, for devices that repack weights.
//!
//! A device that lays out codes and scales by their [`Coding`] alone needs no line for a format whose coding it knows.

use crate::{Block, F16};

/// Kind of the scales that the codes of a weight are multiplied with. A *run* is as many weights as share a scale.
///
/// Where the f16 or f32 scales of 256 weights are multiplied by integers of their runs, products of codes may be summed
/// in integers, without rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// None: the weights are floats.
    Plain,
    /// One f32 for each run of FP8 codes, multiplied by [`F8::OF_HALF`](crate::F8::OF_HALF).
    PlainF32,
    /// One f16 scale per run.
    F16,
    /// Two f16 per run: scale and min, which is added.
    F16Add,
    /// One f16 scale per run, and one zero point: a byte, which is subtracted from the run's codes.
    F16Zero,
    /// One f32 for 256 weights, and an `i8` factor per run.
    Bytes,
    /// Two f16 for 256 weights, d and dmin. Per run, a byte that multiplies d (the scale), and a byte that multiplies
    /// dmin (the min, which is subtracted).
    BytesMin,
    /// The same with both factors in the nibbles of one byte.
    NibblesMin,
    /// One f32 for 256 weights.
    F32,
    /// One power-of-two exponent (E8M0) per run.
    Exponents,
}

/// Structure of a format: how its weights follow from codes and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coding {
    /// Bits of a code.
    pub bits: usize,
    /// Values of the codes, where they index a table.
    pub table: Option<[i8; 16]>,
    /// Number subtracted from each code. 8-bit codes and values of a table are signed and have none.
    pub bias: u8,
    /// Weights that share a scale: 16, 32 or 256, or a multiple of 32 where they share a zero point too.
    pub run: usize,
    /// Kind of the scales.
    pub scales: Scales,
}

/// Receives the scales of a block, in any order.
pub trait ScaleSink {
    /// An f16 of the block: the `i`-th, run by run; of two per run the scale first.
    fn f16(&mut self, i: usize, x: F16);
    /// The f32 of the block.
    fn f32(&mut self, x: f32);
    /// The exponent of the block.
    fn exponent(&mut self, x: u8);
    /// The zero point of the block.
    fn zero_point(&mut self, x: u8);
    /// Factor `i` of the block's f16 or f32 scales: those of all runs, then the mins of all runs.
    fn factor(&mut self, i: usize, x: u8);
}

/// A block as codes and scales.
pub trait Coded: Block {
    /// Meaning of the codes and scales.
    const CODING: Coding;

    /// Writes the codes, one per byte in the order of the weights, before the bias is subtracted or the table looked
    /// up. `out` is as long as the block; floats write nothing.
    fn unsigned_codes(&self, out: &mut [u8]);

    /// Writes the scales.
    fn write_scales(&self, to: &mut impl ScaleSink);
}
