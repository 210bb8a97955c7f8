//! GEMM of quantized weights by matrix products of bytes: the tiles of [`simd::i8mm`](crate::simd::i8mm).

use super::tiles::GemmTask;
use crate::simd::Neon;
use crate::simd::i8mm::pair_lines;

/// [`gemm`](super::gemm) of a chunk whose lines are paired first, for all rows.
///
/// # Safety
///
/// The CPU has NEON with I8MM.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(crate) unsafe fn gemm(t: &mut GemmTask<'_>) {
    for chunk in &mut t.chunks[..t.panels] {
        pair_lines(&mut chunk.codes[..t.inputs.len() / 4]);
        if t.layout.shape.has_int_scales() {
            // The upper halves are zeros where the others have only the lower multiplied. Sums here are multiplied as words.
            chunk.int.by.as_flattened_mut().iter_mut().for_each(|by| *by = i32::from(*by as i16));
        }
    }
    // SAFETY: the caller has the instruction set.
    unsafe { super::gemm::<Neon<true>>(t) }
}
