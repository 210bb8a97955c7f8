//! What multiplies tiles of bf16: AMX, or dot products of pairs (AVX-512 BF16).
//!
//! # Safety
//!
//! As for [`kernels`](crate::kernels): call only on a CPU that has the instructions of the [`Unit`], in a process that may
//! use them (see [`Isa`](crate::Isa)).

use std::arch::asm;
use std::arch::x86_64::*;

#[cfg(target_os = "linux")]
use super::{AttendTask, Stage};
#[cfg(target_os = "linux")]
use crate::simd::amx::{TileShapes, configure};

/// Rows and columns of a tile.
pub(super) const SIDE: usize = 16;
/// Bytes of a tile: 16 rows or pairs, each a 64-byte line.
pub(super) const TILE: usize = 1024;

/// What multiplies tiles.
pub(crate) trait Unit {
    /// Prepares the thread.
    unsafe fn begin();

    /// Multiplies the first `rows` rows, and perhaps others.
    unsafe fn multiply(product: &Product, rows: usize);
}

/// AMX.
#[cfg(target_os = "linux")]
pub(crate) struct Amx;

/// Minimum rows for which a copy of a segment pays off with AMX.
#[cfg(target_os = "linux")]
const MANY: usize = 17;

#[cfg(target_os = "linux")]
impl Amx {
    /// True if tiles are the faster way: for many rows.
    pub(crate) fn takes(t: &AttendTask<'_>, stage: &Stage<'_>) -> bool {
        t.count() >= MANY && !matches!(stage, Stage::Merge(_))
    }
}

#[cfg(target_os = "linux")]
impl Unit for Amx {
    unsafe fn begin() {
        // SAFETY: the caller upholds the same contract.
        unsafe { configure(TileShapes::Full) };
    }

    #[inline(always)]
    unsafe fn multiply(product: &Product, _: usize) {
        // SAFETY: the caller upholds the same contract.
        unsafe { product.by_amx() };
    }
}

/// Dot products of pairs.
pub(crate) struct Pairs;

impl Unit for Pairs {
    unsafe fn begin() {}

    #[inline(always)]
    unsafe fn multiply(product: &Product, rows: usize) {
        for first in (0..rows).step_by(SOME) {
            // SAFETY: the caller upholds the same contract.
            unsafe { product.by_pairs(first) };
        }
    }
}

/// Rows whose products with two tiles are summed at a time by dot products of pairs.
const SOME: usize = 8;

/// Product of 32 rows and 32 columns, as 2 x 2 tiles.
pub(crate) struct Product {
    /// Tiles of the first 16 rows, contiguous, and those of the first 16 columns.
    pub left: *const u8,
    pub right: *const u8,
    /// Number of tiles of each.
    pub steps: usize,
    /// Bytes from there to the tiles of the other 16 rows, and of the other 16 columns.
    pub stride: usize,
    /// Output, and its row stride in bytes.
    pub out: *mut f32,
    pub width: usize,
}

impl Product {
    /// Rows `first` and [`SOME`] of them, each pair of elements after the one before.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn by_pairs(&self, first: usize) {
        // SAFETY: as in `by_amx`: rows are contiguous within a tile, of which `SOME` is a part.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); 2]; SOME];
            let left = self.left.add(first / SIDE * self.stride + first % SIDE * 64);
            for at in (0..self.steps * TILE).step_by(64) {
                // A line of the right tiles is a pair of elements, 4 bytes of each row of the left one.
                let x = left.add(at / TILE * TILE + at % TILE / 16);
                let w = _mm512_load_si512(self.right.add(at).cast());
                let v = _mm512_load_si512(self.right.add(self.stride + at).cast());
                macro_rules! rows {
                    ($($r:literal)*) => {$(
                        let _pair: __m512i;
                        // In assembly, so that a pair is loaded once, and no load earlier than it is needed.
                        asm!(
                            "vpbroadcastd {pair}, dword ptr [{x} + {at}]",
                            "vdpbf16ps {one}, {w}, {pair}",
                            "vdpbf16ps {two}, {v}, {pair}",
                            pair = out(zmm_reg) _pair,
                            x = in(reg) x,
                            at = const $r * 64,
                            one = inout(zmm_reg) sums[$r][0],
                            two = inout(zmm_reg) sums[$r][1],
                            w = in(zmm_reg) w,
                            v = in(zmm_reg) v,
                            options(readonly, nostack, preserves_flags),
                        );
                    )*};
                }
                rows!(0 1 2 3 4 5 6 7);
            }
            for (r, [one, two]) in sums.into_iter().enumerate() {
                let out = self.out.byte_add((first + r) * self.width);
                _mm512_storeu_ps(out, one);
                _mm512_storeu_ps(out.add(SIDE), two);
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[inline(always)]
    unsafe fn by_amx(&self) {
        // SAFETY: the pointers of the product are valid for its tiles (whoever built it guarantees that); the caller
        // guarantees the instruction set.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                options(nostack, preserves_flags, nomem)
            );
            for step in 0..self.steps {
                let (left, right) = (self.left.add(step * TILE), self.right.add(step * TILE));
                asm!(
                    "tileloadd tmm4, [{left} + {line}*1]",
                    "tileloadd tmm6, [{right} + {line}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{more_right} + {line}*1]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloadd tmm5, [{more_left} + {line}*1]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    left = in(reg) left, more_left = in(reg) left.add(self.stride),
                    right = in(reg) right, more_right = in(reg) right.add(self.stride),
                    line = in(reg) 64usize,
                    options(nostack, preserves_flags, readonly),
                );
            }
            asm!(
                "tilestored [{out} + {width}*1], tmm0",
                "tilestored [{out} + {width}*1 + 64], tmm1",
                "tilestored [{more} + {width}*1], tmm2",
                "tilestored [{more} + {width}*1 + 64], tmm3",
                out = in(reg) self.out, more = in(reg) self.out.byte_add(SIDE * self.width),
                width = in(reg) self.width,
                options(nostack, preserves_flags),
            );
        }
    }
}
