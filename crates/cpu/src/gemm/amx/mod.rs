//! GEMM of packed weights by AMX, whose tiles multiply 16 rows of input with 16 rows of weights.
//!
//! A line of codes is a tile row as it is. Integer sums are exact, and what follows them is done as in the vector
//! kernels ([`tiles`](super::tiles)): so results are bit-identical, and a row may be computed either way.
//!
//! # Safety
//!
//! As for [`kernels`](crate::kernels): call only on a CPU with AMX, in a process that may use it (see
//! [`Isa`](crate::Isa)).

pub(crate) mod bf16;
mod int_scales;
mod runs;

use super::tiles::GemmTask;
use crate::pack::{CHUNK, SUBBLOCK};
use crate::quantize::MANY;

/// True if tiles are the faster way: not for few rows, a partial chunk, or short runs with float scales.
pub(crate) fn takes(t: &GemmTask<'_>) -> bool {
    let shape = t.layout.shape;
    let short = !shape.has_int_scales() && shape.run < SUBBLOCK;
    t.sums.len() >= MANY && t.inputs.len() == CHUNK && !short
}

/// [`gemm`](super::gemm) of what it [`takes`].
pub(crate) unsafe fn gemm(t: &mut GemmTask<'_>) {
    // SAFETY: the caller upholds the same contract.
    unsafe {
        match t.layout.shape.has_int_scales() {
            true => int_scales::tiles(t),
            false => runs::tiles(t),
        }
    }
}
