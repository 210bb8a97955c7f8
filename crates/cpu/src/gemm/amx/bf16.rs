//! BF16 weights: 16 lines of a panel, of 32 inputs, are a tile as they are, and are multiplied from where they lie.
//!
//! A tile adds the products of its even inputs and those of its odd inputs, each in order, and then both to the sum, with
//! denormals taken for zero. No vector instruction does that, so tiles serve any number of rows: those of one row, too, multiply
//! more bytes of weights in a cycle than a core reads.
//!
//! # Safety
//!
//! As for [`amx`](super).

use std::arch::asm;

use crate::choices::Prefetch;
use crate::gemm::{Bf16Task, Sums, prefetch_strided};
use crate::pack::{CHUNK, LINE, ROWS, SUBBLOCK};
use crate::quantize::TILE;
use crate::simd::amx::{TileShapes, configure};
use crate::simd::{Avx512, Lines};

/// Bytes of a tile: 16 lines.
const TILE_BYTES: usize = TILE * LINE;
/// Inputs of a tile of weights.
const STEP: usize = SUBBLOCK;

/// Weights of less than a tile, with zeros for the rest.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Rest([u8; TILE_BYTES]);

/// Multiplies the pair with all rows.
pub(crate) unsafe fn multiply(t: &mut Bf16Task<'_>) {
    let few = u8::try_from(t.sums.len()).ok().filter(|rows| usize::from(*rows) <= TILE);
    // SAFETY: the caller upholds this function's contract.
    unsafe { configure(few.map_or(TileShapes::Full, TileShapes::Rows)) };
    let mut spare = [Sums::ZERO; 2 * TILE];
    // Only the last chunk has a rest.
    let mut last = [Rest([0; TILE_BYTES]); 2];
    for start in (0..t.w.cols).step_by(CHUNK) {
        // Without a second panel its sums, which nobody uses, are those of the first.
        let chunks = [0, 1].map(|p| t.w.chunk(2 * t.pair + p.min(t.w.panels - 1), start / CHUNK));
        let inputs = chunks[0].1;
        let (whole, rest) = (inputs / STEP, inputs % STEP);
        if rest > 0 {
            for (to, (from, _)) in last.iter_mut().zip(chunks) {
                let lines = &from[whole * TILE_BYTES..][..rest.div_ceil(2) * LINE];
                to.0[..lines.len()].copy_from_slice(lines);
            }
        }
        for (i, sums) in t.sums.chunks_mut(2 * TILE).enumerate() {
            let first = t.rows.start + 2 * TILE * i;
            let tiles = sums.len().div_ceil(TILE);
            let is_whole = sums.len() == tiles * TILE || few.is_some();
            if !is_whole {
                spare[..sums.len()].copy_from_slice(sums);
            }
            let to = if is_whole { sums.as_mut_ptr() } else { spare.as_mut_ptr() };
            let x = t.x.row(first)[start..].as_ptr().cast::<u8>();
            let width = t.x.stride() * 2;
            // Later rows find the weights in the cache.
            let product =
                Product { x, width, sums: to.cast(), prefetches: i == 0 && t.prefetch == Prefetch::Strided };
            // SAFETY: chunks have as many whole tiles; rows of x have zeros up to a whole tile, and tiles may read some rows past the
            // last; there are sums for whole tiles of rows; the caller guarantees the instruction set.
            unsafe {
                let weights = chunks.map(|(from, _)| from.as_ptr());
                let rest = (rest > 0).then(|| last.each_ref().map(|w| w.0.as_ptr()));
                match tiles {
                    1 => product.one(weights, whole, rest),
                    _ => product.two(weights, whole, rest),
                }
            }
            if !is_whole {
                let live = sums.len();
                sums.copy_from_slice(&spare[..live]);
            }
        }
    }
}

/// Products of up to 16, or of 32, rows with a chunk of two panels, which are added to their sums.
struct Product {
    /// The chunk's inputs of the first row, and the bytes from one row to the next.
    x: *const u8,
    width: usize,
    /// Two lines for each row.
    sums: *mut u8,
    prefetches: bool,
}

/// Bytes from the sums of one row to those of the next.
const SUMS: usize = size_of::<Sums>();
const _: () = assert!(SUMS == 2 * 4 * ROWS);

impl Product {
    /// Prefetches what comes after a tile of each panel. The chunk of the other panel comes next in memory, and is read meanwhile.
    #[inline(always)]
    unsafe fn prefetch(&self, [w, v]: [*const u8; 2]) {
        if self.prefetches {
            let other = v.addr() - w.addr();
            for w in [w, v] {
                let from = w.wrapping_add(other);
                // SAFETY: a prefetch may be of any address; the caller guarantees the instruction set.
                unsafe {
                    prefetch_strided::<Avx512>(from, from.wrapping_add(TILE_BYTES));
                    for line in 0..TILE {
                        Avx512::prefetch_next(w.wrapping_add(TILE_BYTES + line * LINE));
                    }
                }
            }
        }
    }

    /// A tile of rows.
    #[inline(always)]
    unsafe fn one(&self, weights: [*const u8; 2], whole: usize, rest: Option<[*const u8; 2]>) {
        // SAFETY: the caller upholds this function's contract.
        unsafe {
            asm!(
                "tileloadd tmm0, [{sums} + {stride}*1]",
                "tileloadd tmm1, [{sums} + {stride}*1 + 64]",
                sums = in(reg) self.sums, stride = in(reg) SUMS,
                options(nostack, preserves_flags, readonly),
            );
            let step = |step: usize, [w, v]: [*const u8; 2]| {
                asm!(
                    "tileloadd tmm4, [{x} + {width}*1]",
                    "tileloadd tmm6, [{w} + {line}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{v} + {line}*1]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    x = in(reg) self.x.add(step * 2 * STEP), width = in(reg) self.width,
                    w = in(reg) w, v = in(reg) v, line = in(reg) LINE,
                    options(nostack, preserves_flags, readonly),
                );
            };
            for i in 0..whole {
                let weights = weights.map(|w| w.add(i * TILE_BYTES));
                self.prefetch(weights);
                step(i, weights);
            }
            if let Some(rest) = rest {
                step(whole, rest);
            }
            asm!(
                "tilestored [{sums} + {stride}*1], tmm0",
                "tilestored [{sums} + {stride}*1 + 64], tmm1",
                sums = in(reg) self.sums, stride = in(reg) SUMS,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Two tiles of 16 rows.
    #[inline(always)]
    unsafe fn two(&self, weights: [*const u8; 2], whole: usize, rest: Option<[*const u8; 2]>) {
        // SAFETY: the caller upholds this function's contract.
        unsafe {
            let more = self.sums.add(TILE * SUMS);
            asm!(
                "tileloadd tmm0, [{sums} + {stride}*1]",
                "tileloadd tmm1, [{sums} + {stride}*1 + 64]",
                "tileloadd tmm2, [{more} + {stride}*1]",
                "tileloadd tmm3, [{more} + {stride}*1 + 64]",
                sums = in(reg) self.sums, more = in(reg) more, stride = in(reg) SUMS,
                options(nostack, preserves_flags, readonly),
            );
            let step = |step: usize, [w, v]: [*const u8; 2]| {
                let x = self.x.add(step * 2 * STEP);
                asm!(
                    "tileloadd tmm4, [{x} + {width}*1]",
                    "tileloadd tmm6, [{w} + {line}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{v} + {line}*1]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloadd tmm5, [{y} + {width}*1]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    x = in(reg) x, y = in(reg) x.add(TILE * self.width), width = in(reg) self.width,
                    w = in(reg) w, v = in(reg) v, line = in(reg) LINE,
                    options(nostack, preserves_flags, readonly),
                );
            };
            for i in 0..whole {
                let weights = weights.map(|w| w.add(i * TILE_BYTES));
                self.prefetch(weights);
                step(i, weights);
            }
            if let Some(rest) = rest {
                step(whole, rest);
            }
            asm!(
                "tilestored [{sums} + {stride}*1], tmm0",
                "tilestored [{sums} + {stride}*1 + 64], tmm1",
                "tilestored [{more} + {stride}*1], tmm2",
                "tilestored [{more} + {stride}*1 + 64], tmm3",
                sums = in(reg) self.sums, more = in(reg) more, stride = in(reg) SUMS,
                options(nostack, preserves_flags),
            );
        }
    }
}
