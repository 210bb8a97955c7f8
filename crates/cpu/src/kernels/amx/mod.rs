//! Products of packed weights with many rows by AMX, whose tiles multiply 16 rows of input with 16 of weights.
//!
//! A line of codes is a row of a tile as it is. Whole sums are exact, and what follows is done as
//! [vectors](super::dot) do it: so results are the same to the last bit, and a row may be computed either way.
//!
//! # Safety
//!
//! As for [`kernels`](super): only on a CPU that has AMX, in a process that may use it (see [`Isa`](crate::Isa)).

mod runs;
mod whole;

use std::arch::asm;
use std::cell::Cell;

use super::gemm::GemmTask;
use crate::packed::{CHUNK, LINE, SUBBLOCK};
use crate::quantize::{MANY, TILE};

/// [`dot`](super::gemm::dot), by tiles where that is faster: not for a part of a chunk, nor where short runs are scaled.
pub(super) fn dot(t: &mut GemmTask<'_>) {
    let shape = t.layout.shape;
    let short = !shape.has_int_scales() && shape.run < SUBBLOCK;
    if t.sums.len() < MANY || t.inputs.len() < CHUNK || short {
        return (super::avx512::TABLE.gemm)(t);
    }
    // SAFETY: this is in the kernel table that is handed out only where the CPU and the system allow it.
    unsafe {
        match shape.has_int_scales() {
            true => whole::tiles(t),
            false => runs::tiles(t),
        }
    }
}

/// What the eight tiles of a thread are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// 0 to 3 are sums, 4 and 5 are a run of input, 6 and 7 are one of weights.
    Runs,
    /// All are 16 rows of 64 bytes.
    Whole,
}

/// Shapes as the processor wants them.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row.
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

/// Gives this thread's tiles their shapes.
///
/// That takes as long as several products, so they keep them. Whoever uses tiles in this process has them shaped here.
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
        // SAFETY: the configuration is 64 bytes of the form that the instruction reads; the CPU has it.
        unsafe { asm!("ldtilecfg [{0}]", in(reg) config, options(readonly, nostack, preserves_flags)) };
        SHAPE.set(Some(shape));
    }
}
