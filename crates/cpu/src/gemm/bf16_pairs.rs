//! Products of packed BF16 weights with rows of bf16, on CPUs with dot products of pairs (AVX-512 BF16). A line of a panel has a
//! pair of inputs of each of 16 rows, and is multiplied as it is: nothing is unpacked.
//!
//! Within a chunk, pairs of inputs are summed in two strands, of even and of odd lines, which are then added to the sum of
//! the chunks before. So it is for any number of rows, and a row's result does not depend on the others (batch invariance).
//! With one row, two panels and two strands are four chains of dot products, each of which waits for the one before. From memory a
//! panel alone is faster where the hardware prefetches: two chains keep up with it.

#![allow(clippy::needless_range_loop, reason = "loops over register tiles are clearest by index")]

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::rows::{RowKernel, in_tiles};
use super::{Bf16Task, prefetch_strided};
use crate::choices::Prefetch;
use crate::pack::{CHUNK, LINE, ROWS};
use crate::simd::{Avx512, Lines};

/// Lines that are prefetched together.
const SOME: usize = 4;
/// Lines between one that is multiplied and one that is prefetched into the nearest cache.
const AHEAD: usize = 12;

/// Multiplies the pair with all rows.
///
/// # Safety
///
/// The CPU has AVX-512 with BF16.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) unsafe fn multiply(t: &mut Bf16Task<'_>) {
    for start in (0..t.w.cols).step_by(CHUNK) {
        let rows = t.sums.len();
        // The hardware's prefetchers follow a single panel twice as fast as two.
        let one_by_one = t.prefetch == Prefetch::None;
        // SAFETY: the caller has the instruction set.
        unsafe {
            match t.w.panels {
                2 if !one_by_one => {
                    in_tiles::<Bf16Tile<2>, _>(&mut Bf16Chunk { task: t, start, first: 0 }, rows)
                }
                panels => {
                    for first in 0..panels {
                        in_tiles::<Bf16Tile<1>, _>(&mut Bf16Chunk { task: t, start, first }, rows);
                    }
                }
            }
        }
    }
}

/// The chunk of a pair that begins with input `start`, from its panel `first` on.
struct Bf16Chunk<'t, 'a> {
    task: &'t mut Bf16Task<'a>,
    start: usize,
    first: usize,
}

/// Products of a chunk of `P` panels.
struct Bf16Tile<const P: usize>(PhantomData<[(); P]>);

impl<const P: usize> RowKernel<Bf16Chunk<'_, '_>> for Bf16Tile<P> {
    const MAX_ROWS: usize = 6;

    #[inline(always)]
    unsafe fn tile<const T: usize>(chunk: &mut Bf16Chunk<'_, '_>, row: usize) {
        let Bf16Chunk { task: t, start, first: panel } = chunk;
        let (w, inputs) = {
            let of = |p: usize| t.w.chunk(2 * t.pair + *panel + p, *start / CHUNK);
            (std::array::from_fn::<_, P, _>(|p| of(p).0.as_ptr()), of(0).1)
        };
        let first = t.rows.start + row;
        let tile = Tile {
            w,
            x: std::array::from_fn::<_, T, _>(|i| t.x.row(first + i)[*start..].as_ptr().cast()),
            lines: inputs.div_ceil(2),
            sums: t.sums[row..][..T].as_mut_ptr().cast::<f32>().wrapping_add(*panel * ROWS),
            // Later rows find the weights in the cache.
            prefetches: row == 0 && t.prefetch == Prefetch::Strided,
        };
        // SAFETY: the chunks have these lines, rows of x as many pairs, and there are T sums from `row` on; the caller has
        // the instruction set.
        unsafe { tile.add() }
    }
}

/// `T` rows times a chunk of `P` panels: pointers to the start of the chunk.
struct Tile<const T: usize, const P: usize> {
    w: [*const u8; P],
    x: [*const u8; T],
    /// Lines of each panel.
    lines: usize,
    /// Per row, 16 sums with each of two panels.
    sums: *mut f32,
    prefetches: bool,
}

impl<const T: usize, const P: usize> Tile<T, P> {
    /// Adds the products to the sums.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn add(&self) {
        // SAFETY: by the contract of the tile, all pointers are valid for what is read; the caller has the instruction set.
        unsafe {
            let mut strands = [[[_mm512_setzero_ps(); T]; P]; 2];
            // The chunk of the other panel comes next in memory, and is read meanwhile.
            let other = self.w[P - 1].addr() - self.w[0].addr();
            for some in (0..self.lines).step_by(SOME) {
                if self.prefetches {
                    for w in self.w {
                        let from = w.wrapping_add(some * LINE + other);
                        prefetch_strided::<Avx512>(from, from.wrapping_add(SOME * LINE));
                        for line in 0..SOME {
                            Avx512::prefetch_next(w.wrapping_add((some + AHEAD + line) * LINE));
                        }
                    }
                }
                let end = self.lines.min(some + SOME);
                for line in (some..end).step_by(2) {
                    self.line(line, &mut strands[0]);
                    if line + 1 < end {
                        self.line(line + 1, &mut strands[1]);
                    }
                }
            }
            for p in 0..P {
                for i in 0..T {
                    let sum = self.sums.add((2 * i + p) * ROWS);
                    let both = _mm512_add_ps(strands[0][p][i], strands[1][p][i]);
                    _mm512_storeu_ps(sum, _mm512_add_ps(_mm512_loadu_ps(sum), both));
                }
            }
        }
    }

    /// Adds the products of a line of each panel to a strand. In assembly: the compiler would hoist more loads than it has
    /// registers for, and spill sums.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn line(&self, line: usize, strand: &mut [[__m512; T]; P]) {
        // SAFETY: as for `add`.
        unsafe {
            let mut w = [_mm512_setzero_si512(); P];
            for p in 0..P {
                w[p] = _mm512_loadu_si512(self.w[p].add(line * LINE).cast());
            }
            for i in 0..T {
                let x = self.x[i];
                if const { P == 2 } {
                    let _pair: __m512i;
                    asm!(
                        "vpbroadcastd {pair}, dword ptr [{x} + 4*{line}]",
                        "vdpbf16ps {first}, {w}, {pair}",
                        "vdpbf16ps {second}, {v}, {pair}",
                        pair = out(zmm_reg) _pair,
                        x = in(reg) x,
                        line = in(reg) line,
                        first = inout(zmm_reg) strand[0][i],
                        second = inout(zmm_reg) strand[P - 1][i],
                        w = in(zmm_reg) w[0],
                        v = in(zmm_reg) w[P - 1],
                        options(readonly, nostack, preserves_flags),
                    );
                } else {
                    asm!(
                        "vdpbf16ps {sum}, {w}, dword ptr [{x} + 4*{line}]{{1to16}}",
                        x = in(reg) x,
                        line = in(reg) line,
                        sum = inout(zmm_reg) strand[0][i],
                        w = in(zmm_reg) w[0],
                        options(readonly, nostack, preserves_flags),
                    );
                }
            }
        }
    }
}
