//! [`Block`]: what each format's file implements, and the dispatch from a [`Format`] value to that code.

use bytemuck::Pod;

use crate::{Format, SizeError};

/// One block of a format, laid out exactly as in a file.
///
/// A block is plain bytes with an alignment of 1, so the bytes of a row *are* its blocks, at any address.
pub trait Block: Pod {
    /// Weights of one block: `[f32; N]`.
    type Weights: Pod;

    /// The format of this block.
    const FORMAT: Format;

    /// Dequantizes this block.
    ///
    /// Always inlined and without branches: inside a function with `#[target_feature]` it uses those features.
    fn unpack(&self, weights: &mut Self::Weights);

    /// Quantizes these weights as closely as the format allows.
    ///
    /// A plain format takes the nearest value, ties to even, and keeps NaN and infinities. All others treat NaN as zero
    /// and an infinity as the largest float, and clamp what a block cannot reach to the farthest value that it can: all
    /// its weights are finite. A block of zeros stays one.
    ///
    /// `care` weights the squared error of each weight; plain formats ignore it.
    fn pack(weights: &Self::Weights, care: &Self::Weights) -> Self;
}

/// Evaluates an expression with `$B` as the block type of a [`Format`] value.
///
/// This is the only place that maps a format's value to its type.
#[macro_export]
macro_rules! with_block {
    (@ ($format:expr, $B:ident, $body:expr) $($file:ident { $($block:ident $facts:tt)* })*) => {
        match $format {
            $($($crate::Format::$block => {
                type $B = $crate::$block;
                $body
            })*)*
        }
    };
    ($format:expr, $B:ident => $body:expr) => {
        $crate::formats!([$crate::with_block] ($format, $B, $body))
    };
}

/// Casts bytes to blocks, if they are the blocks of that many weights.
#[inline(always)]
fn blocks<B: Block>(bytes: &[u8], weights: usize) -> Result<&[B], SizeError> {
    let fits = B::FORMAT.row_bytes(weights) == Some(bytes.len());
    let blocks = bytemuck::try_cast_slice(bytes).ok().filter(|_| fits);
    blocks.ok_or(SizeError { format: B::FORMAT, bytes: bytes.len(), weights })
}

/// [`unpack`](crate::unpack) for a format known at compile time. Always inlined, as [`Block::unpack`] is.
#[inline(always)]
pub fn unpack_as<B: Block>(bytes: &[u8], out: &mut [f32]) -> Result<(), SizeError> {
    let blocks = blocks::<B>(bytes, out.len())?;
    let size = SizeError { format: B::FORMAT, bytes: bytes.len(), weights: out.len() };
    let out: &mut [B::Weights] = bytemuck::try_cast_slice_mut(out).map_err(|_| size)?;
    for (block, weights) in blocks.iter().zip(out) {
        block.unpack(weights);
    }
    Ok(())
}

/// [`pack`](crate::pack) for a format known at compile time.
#[inline(always)]
pub fn pack_as<B: Block>(weights: &[f32], care: &[f32], out: &mut [u8]) -> Result<(), SizeError> {
    let size = SizeError { format: B::FORMAT, bytes: out.len(), weights: weights.len().max(care.len()) };
    if weights.len() != care.len() {
        return Err(size);
    }
    blocks::<B>(out, weights.len())?;
    let weights: &[B::Weights] = bytemuck::try_cast_slice(weights).map_err(|_| size)?;
    let care: &[B::Weights] = bytemuck::try_cast_slice(care).map_err(|_| size)?;
    let out: &mut [B] = bytemuck::try_cast_slice_mut(out).map_err(|_| size)?;
    for ((weights, care), block) in weights.iter().zip(care).zip(out) {
        *block = B::pack(weights, care);
    }
    Ok(())
}

/// Fails the build if a block's type and the facts in [`Format`] disagree.
const fn check_layout<B: Block>(format: Format) {
    assert!(B::FORMAT as u32 == format as u32, "the block type is another format's");
    assert!(size_of::<B>() == format.block_bytes(), "the block has another size than in a file");
    assert!(align_of::<B>() == 1, "blocks lie anywhere in a file");
    assert!(
        size_of::<B::Weights>() == format.block_weights() * size_of::<f32>(),
        "another number of weights"
    );
}

const _: () = {
    let mut at = 0;
    while at < Format::ALL.len() {
        with_block!(Format::ALL[at], B => check_layout::<B>(Format::ALL[at]));
        at += 1;
    }
};
