//! Configuration of AMX's tile registers, for GEMM and for attention.

use std::arch::asm;
use std::cell::Cell;

/// Rows of a tile.
const ROWS: u8 = 16;
/// Bytes per row of a tile.
const LINE: u16 = 64;

/// Shapes of a thread's eight tile registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TileShapes {
    /// 0 to 3 are sums, 4 and 5 a run of 32 inputs, 6 and 7 a run of weights.
    Runs,
    /// All are 16 rows of 64 bytes.
    Full,
    /// 0 to 3 are sums of so many rows, 1 to 16, 4 and 5 their inputs, 6 and 7 weights. Fewer rows take less time.
    Rows(u8),
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
    const fn new(shapes: TileShapes) -> Config {
        let (mut widths, mut rows) = ([0; 16], [0; 16]);
        let full = (ROWS, LINE);
        let (sums, input, weights) = match shapes {
            TileShapes::Runs => (full, (ROWS, LINE / 2), (ROWS / 2, LINE)),
            TileShapes::Full => (full, full, full),
            TileShapes::Rows(rows) => ((rows, LINE), (rows, LINE), full),
        };
        let shapes = [sums, sums, sums, sums, input, input, weights, weights];
        let mut i = 0;
        while i < shapes.len() {
            (rows[i], widths[i]) = shapes[i];
            i += 1;
        }
        Config { palette: 1, start_row: 0, reserved: [0; 14], widths, rows }
    }

    /// [`TileShapes::Rows`] of each number of rows; of none, for which there is no configuration, those of one.
    const OF_ROWS: [Config; ROWS as usize + 1] = {
        let mut all = [const { Config::new(TileShapes::Rows(1)) }; ROWS as usize + 1];
        let mut rows = 1;
        while rows <= ROWS {
            all[rows as usize] = Config::new(TileShapes::Rows(rows));
            rows += 1;
        }
        all
    };
}

/// Configures this thread's tile registers.
///
/// That takes as long as several products, so the configuration is kept. All users of tiles in this process must
/// configure them here.
///
/// # Safety
///
/// The CPU has AMX, and this process may use it (see [`Isa`](crate::Isa)).
#[inline(always)]
pub(crate) unsafe fn configure(shapes: TileShapes) {
    thread_local! {
        static SHAPES: Cell<Option<TileShapes>> = const { Cell::new(None) };
    }
    if SHAPES.get() != Some(shapes) {
        let config = match shapes {
            TileShapes::Runs => const { &Config::new(TileShapes::Runs) },
            TileShapes::Full => const { &Config::new(TileShapes::Full) },
            TileShapes::Rows(rows) => &(const { &Config::OF_ROWS })[usize::from(rows)],
        };
        // SAFETY: the configuration is 64 bytes in the format that the instruction reads; the caller guarantees that
        // the CPU has it.
        unsafe { asm!("ldtilecfg [{0}]", in(reg) config, options(readonly, nostack, preserves_flags)) };
        SHAPES.set(Some(shapes));
    }
}
