//! GEMM of packed weights by AMX, whose tiles multiply 16 rows of input with 16 rows of weights.
//!
//! A line of codes is a tile row as it is. Integer sums are exact, and what follows them is done as in the vector
//! kernels ([`gemm`](super::gemm)): so results are bit-identical, and a row may be computed either way.
//!
//! # Safety
//!
//! As for [`kernels`](super): call only on a CPU with AMX, in a process that may use it (see [`Isa`](crate::Isa)).

mod runs;
mod whole;

use std::arch::asm;
use std::cell::Cell;

use super::gemm::GemmTask;
use crate::packed::{CHUNK, LINE, SUBBLOCK};
use crate::quantize::{MANY, TILE};

/// [`gemm`](super::gemm::gemm), with tiles where that is faster: not for a partial chunk, nor for short runs with float
/// scales.
pub(super) fn gemm(t: &mut GemmTask<'_>) {
    let shape = t.layout.shape;
    let short = !shape.has_int_scales() && shape.run < SUBBLOCK;
    if t.sums.len() < MANY || t.inputs.len() < CHUNK || short {
        return (super::avx512::TABLE.gemm)(t);
    }
    // SAFETY: this function is in a kernel table that is handed out only where the CPU and the OS allow AMX.
    unsafe {
        match shape.has_int_scales() {
            true => whole::tiles(t),
            false => runs::tiles(t),
        }
    }
}

/// Shapes of a thread's eight tile registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// 0 to 3 are sums, 4 and 5 a run of input, 6 and 7 a run of weights.
    Runs,
    /// All are 16 rows of 64 bytes.
    Whole,
}

/// Tile configuration, as `ldtilecfg` reads it.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes per row.
    widths: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    const fn new(shape: Shape) -> Config {
        let (mut widths, mut rows) = ([0; 16], [0; 16]);
        let full = (TILE, LINE);
        let (input, weights) = match shape {
            Shape::Runs => ((TILE, SUBBLOCK), (SUBBLOCK / 4, LINE)),
            Shape::Whole => (full, full),
        };
        let shapes = [full, full, full, full, input, input, weights, weights];
        let mut i = 0;
        while i < shapes.len() {
            (rows[i], widths[i]) = (shapes[i].0 as u8, shapes[i].1 as u16);
            i += 1;
        }
        Config { palette: 1, start_row: 0, reserved: [0; 14], widths, rows }
    }
}

/// Configures this thread's tile registers.
///
/// That takes as long as several products, so the configuration is kept. All users of tiles in this process must
/// configure them here.
#[inline(always)]
pub(super) unsafe fn shape(shape: Shape) {
    thread_local! {
        static SHAPE: Cell<Option<Shape>> = const { Cell::new(None) };
    }
    if SHAPE.get() != Some(shape) {
        let config = match shape {
            Shape::Runs => const { &Config::new(Shape::Runs) },
            Shape::Whole => const { &Config::new(Shape::Whole) },
        };
        // SAFETY: the configuration is 64 bytes in the format that the instruction reads; the caller guarantees that
        // the CPU has it.
        unsafe { asm!("ldtilecfg [{0}]", in(reg) config, options(readonly, nostack, preserves_flags)) };
        SHAPE.set(Some(shape));
    }
}
