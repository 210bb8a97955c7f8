//! Chunks with integer scales, whose products add up exactly: weights are multiplied by their integer scales first, and
//! tiles sum a whole chunk.
//!
//! A weight times its integer scale takes up to 13 bits. It is split into an unsigned low byte and a signed high byte,
//! which are multiplied separately. The result equals the sum over runs of [`IntTile`](crate::simd::IntTile).
//!
//! # Safety
//!
//! As for [`amx`](super).

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use crate::gemm::Sums;
use crate::gemm::tiles::GemmTask;
use crate::gemm::unpack::{Chunk, IntScales};
use crate::pack::{CHUNK, LINE, PackedLayout, ROWS};
use crate::quantize::TILE;
use crate::simd::amx::{TileShapes, configure};

/// Weights of a chunk: low bytes and high bytes, in the line layout of the codes.
#[repr(C, align(64))]
struct Bytes([[[u8; LINE]; CHUNK / 4]; 2]);

/// Sums of a tile of rows: per panel, with low bytes and with high bytes.
#[repr(C, align(64))]
struct Products([[[i32; ROWS]; TILE]; 4]);

/// Multiplies codes by their integer scales and splits the products into bytes.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn split(chunk: &Chunk, layout: &PackedLayout, to: *mut Bytes) {
    let more = _mm512_set1_epi8(if layout.shape.is_wide() { i8::MIN } else { layout.bias as i8 });
    let odd = 0xaaaa_aaaa_aaaa_aaaa;
    let (low, high) = (to.cast::<u8>(), to.cast::<u8>().wrapping_add(LINE * CHUNK / 4));
    for (i, line) in chunk.codes.iter().enumerate() {
        // SAFETY: `to` has a line for each of the chunk's, and there is a scale for each step; the caller guarantees
        // the instruction set.
        unsafe {
            let by = _mm512_load_si512(chunk.int.by[4 * i / layout.shape.step()].as_ptr().cast());
            let by =
                _mm512_or_si512(_mm512_and_si512(by, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32::<16>(by));
            let codes = _mm512_sub_epi8(_mm512_load_si512(line.as_ptr().cast()), more);
            let first = _mm512_mullo_epi16(_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(codes)), by);
            let second = _mm512_mullo_epi16(_mm512_srai_epi16::<8>(codes), by);
            let lows = _mm512_mask_blend_epi8(odd, first, _mm512_slli_epi16::<8>(second));
            let highs = _mm512_mask_blend_epi8(odd, _mm512_srli_epi16::<8>(first), second);
            _mm512_store_si512(low.add(i * LINE).cast(), lows);
            _mm512_store_si512(high.add(i * LINE).cast(), highs);
        }
    }
}

/// Assembly that scales the products of row `$i` with a panel and adds them to the sums. The first parameter is the
/// number of pairs of runs with minimums, whose factors are in the first registers.
macro_rules! scale {
    (0, $i:tt, 0) => { scale!(@ $i, 0, "vmulps zmm16, zmm16, zmm20\n") };
    (0, $i:tt, 1) => { scale!(@ $i, 1, "vmulps zmm16, zmm16, zmm21\n") };
    (4, $i:tt, 0) => { scale!(@ $i, 0, scale!(mins 16, $i, 20, 22, 0 0, 1 4, 2 8, 3 12)) };
    (4, $i:tt, 1) => { scale!(@ $i, 1, scale!(mins 16, $i, 21, 23, 4 0, 5 4, 6 8, 7 12)) };
    (8, $i:tt, 0) => {
        scale!(@ $i, 0, scale!(mins 32, $i, 20, 22, 0 0, 1 4, 2 8, 3 12, 4 16, 5 20, 6 24, 7 28))
    };
    (8, $i:tt, 1) => {
        scale!(@ $i, 1, scale!(mins 32, $i, 21, 23, 8 0, 9 4, 10 8, 11 12, 12 16, 13 20, 14 24, 15 28))
    };
    (mins $row:tt, $i:tt, $d:tt, $dmin:tt, $($factor:tt $at:tt),*) => {
        concat!(
            "vpxord zmm17, zmm17, zmm17\n",
            $("vpdpwssd zmm17, zmm", $factor, ", dword ptr [{row_sums} + ", $row, "*", $i, " + ", $at, "]{{1to16}}\n",)*
            "vcvtdq2ps zmm17, zmm17\n",
            "vmulps zmm17, zmm17, zmm", $dmin, "\n",
            "vfmadd132ps zmm16, zmm17, zmm", $d, "\n",
        )
    };
    (@ $i:tt, $p:tt, $($chunk:tt)*) => {
        concat!(
            "vmovdqa32 zmm16, [{here} + 2048*", $p, " + 1024 + 64*", $i, "]\n",
            "vpslld zmm16, zmm16, 8\n",
            "vpaddd zmm16, zmm16, [{here} + 2048*", $p, " + 64*", $i, "]\n",
            "vcvtdq2ps zmm16, zmm16\n",
            $($chunk)*,
            "vmovaps zmm18, [{sums} + 128*", $i, " + 64*", $p, "]\n",
            "vfmadd231ps zmm18, zmm16, dword ptr [{row_scales} + 4*", $i, "]{{1to16}}\n",
            "vmovaps [{sums} + 128*", $i, " + 64*", $p, "], zmm18\n",
        )
    };
}

/// Assembly that scales a row with both panels, if any is to be scaled.
macro_rules! row {
    (none, $i:tt) => {
        ""
    };
    ($mins:tt, $i:tt) => {
        concat!(scale!($mins, $i, 0), scale!($mins, $i, 1))
    };
}

/// Assembly that loads the scaling factors of both panels.
macro_rules! factors {
    (none) => { "" };
    (0) => { "vmovaps zmm20, [{first} + 1536]\nvmovaps zmm21, [{second} + 1536]\n" };
    (4) => { factors!(mins 0 0 4, 1 64 5, 2 128 6, 3 192 7) };
    (8) => {
        factors!(mins 0 0 8, 1 64 9, 2 128 10, 3 192 11, 4 256 12, 5 320 13, 6 384 14, 7 448 15)
    };
    (mins $($one:tt $at:tt $two:tt),*) => {
        concat!(
            factors!(0),
            "vmovaps zmm22, [{first} + 1600]\nvmovaps zmm23, [{second} + 1600]\n",
            $("vmovaps zmm", $one, ", [{first} + 1024 + ", $at, "]\n",)*
            $("vmovaps zmm", $two, ", [{second} + 1024 + ", $at, "]\n",)*
        )
    };
}

/// Assembly that multiplies 64 inputs of a tile of rows with the four tiles of weights, and meanwhile scales some rows
/// of the previous tile.
macro_rules! step {
    ($mins:tt, $k:tt, $input:tt, $a:tt $b:tt $c:tt $d:tt) => {
        concat!(
            "tileloadd tmm", $input, ", [{x} + {width}*1 + 64*", $k, "]\n",
            step!(@ "tdpbsud", 0, 6, 0, $k, $input), row!($mins, $a),
            step!(@ "tdpbssd", 1, 7, 4096, $k, $input), row!($mins, $b),
            step!(@ "tdpbsud", 2, 6, 8192, $k, $input), row!($mins, $c),
            step!(@ "tdpbssd", 3, 7, 12288, $k, $input), row!($mins, $d),
        )
    };
    (@ $dot:tt, $sums:tt, $weights:tt, $at:tt, $k:tt, $input:tt) => {
        concat!(
            "tileloadd tmm", $weights, ", [{w} + {line}*1 + ", $at, " + 1024*", $k, "]\n",
            $dot, " tmm", $sums, ", tmm", $input, ", tmm", $weights, "\n",
        )
    };
}

/// Assembly that multiplies a tile of rows and scales the previous one.
macro_rules! tile {
    ($mins:tt) => {
        concat!(
            factors!($mins),
            "tilezero tmm0\n", "tilezero tmm1\n", "tilezero tmm2\n", "tilezero tmm3\n",
            step!($mins, 0, 4, 0 1 2 3), step!($mins, 1, 5, 4 5 6 7),
            step!($mins, 2, 4, 8 9 10 11), step!($mins, 3, 5, 12 13 14 15),
            "tilestored [{there} + {line}*1], tmm0\n",
            "tilestored [{there} + {line}*1 + 1024], tmm1\n",
            "tilestored [{there} + {line}*1 + 2048], tmm2\n",
            "tilestored [{there} + {line}*1 + 3072], tmm3\n",
        )
    };
}

/// Assembly that scales a tile of rows.
macro_rules! last {
    ($mins:tt) => { last!(@ $mins, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
    (@ $mins:tt, $($i:tt)*) => { concat!(factors!($mins), $(row!($mins, $i)),*) };
}

/// A tile of rows to multiply.
struct Multiply {
    x: *const u8,
    w: *const Bytes,
    there: *mut Products,
}

/// A tile of rows to scale.
struct Scale {
    int: [*const IntScales; 2],
    row_scales: *const f32,
    row_sums: *const u32,
    sums: *mut Sums,
    here: *const Products,
}

/// Multiplies a tile, scales another, or both. `MINS` is the number of pairs of runs with minimums.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn multiply_and_scale<const MINS: usize>(multiply: Option<Multiply>, scale: Option<Scale>) {
    /// Assembly with the operands and clobbers that the text expects.
    macro_rules! go {
        ($text:expr, $($operand:tt)*) => {
            asm!(
                $text, $($operand)*
                out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
                out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
                out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _, out("zmm16") _, out("zmm17") _,
                out("zmm18") _, out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                options(nostack, preserves_flags),
            )
        };
    }
    macro_rules! both {
        ($mins:tt, $m:ident, $s:ident) => {
            go!(
                concat!(tile!($mins), "/* {row_sums} */"),
                x = in(reg) $m.x, w = in(reg) $m.w, there = in(reg) $m.there, line = in(reg) LINE,
                width = in(reg) CHUNK, first = in(reg) $s.int[0], second = in(reg) $s.int[1],
                row_scales = in(reg) $s.row_scales, row_sums = in(reg) $s.row_sums, sums = in(reg) $s.sums,
                here = in(reg) $s.here,
            )
        };
    }
    macro_rules! one {
        ($mins:tt, $s:ident) => {
            go!(
                concat!(last!($mins), "/* {row_sums} */"),
                first = in(reg) $s.int[0], second = in(reg) $s.int[1], row_scales = in(reg) $s.row_scales,
                row_sums = in(reg) $s.row_sums, sums = in(reg) $s.sums, here = in(reg) $s.here,
            )
        };
    }
    // SAFETY: the caller guarantees the pointers of both tiles and the instruction set.
    unsafe {
        match (multiply, scale) {
            (Some(m), Some(s)) => match MINS {
                0 => both!(0, m, s),
                4 => both!(4, m, s),
                _ => both!(8, m, s),
            },
            (Some(m), None) => go!(
                tile!(none),
                x = in(reg) m.x, w = in(reg) m.w, there = in(reg) m.there, line = in(reg) LINE,
                width = in(reg) CHUNK,
            ),
            (None, Some(s)) => match MINS {
                0 => one!(0, s),
                4 => one!(4, s),
                _ => one!(8, s),
            },
            (None, None) => {}
        }
    }
}

/// Multiplies all rows with both panels.
pub(super) unsafe fn tiles(t: &mut GemmTask<'_>) {
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        match (t.layout.shape.has_mins(), t.layout.shape.run) {
            (false, _) => all::<0>(t),
            (true, 32) => all::<4>(t),
            _ => all::<8>(t),
        }
    }
}

/// Multiplies each tile while the previous one is scaled.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn all<const MINS: usize>(t: &mut GemmTask<'_>) {
    let tiles = t.sums.len().div_ceil(TILE);
    let (codes, scales, row_sums) = t.x.chunk(t.first..t.first + tiles * TILE, &t.inputs);
    let words = row_sums.len() / (tiles * TILE);
    let (mut weights, mut ring) =
        (MaybeUninit::<[Bytes; 2]>::uninit(), MaybeUninit::<[Products; 2]>::uninit());
    let (weights, ring) = (weights.as_mut_ptr().cast::<Bytes>(), ring.as_mut_ptr().cast::<Products>());
    let mut spare = [Sums([[0.0; ROWS]; 2]); TILE];
    // SAFETY: quantized rows are allocated in whole tiles, chunks are whole, there are bytes for both panels and
    // products of two tiles; the caller guarantees the instruction set.
    unsafe {
        configure(TileShapes::Full);
        for (panel, chunk) in t.chunks.iter().enumerate() {
            split(chunk, t.layout, weights.add(panel));
        }
        for tile in 0..=tiles {
            let multiply = (tile < tiles).then(|| Multiply {
                x: codes[tile * TILE * CHUNK..].as_ptr(),
                w: weights,
                there: ring.add(tile % 2),
            });
            let Some(before) = tile.checked_sub(1) else {
                multiply_and_scale::<MINS>(multiply, None);
                continue;
            };
            let live = (t.sums.len() - before * TILE).min(TILE);
            let sums = &mut t.sums[before * TILE..][..live];
            let to = if live == TILE {
                sums.as_mut_ptr()
            } else {
                spare[..live].copy_from_slice(sums);
                spare.as_mut_ptr()
            };
            let scale = Scale {
                int: [&t.chunks[0].int, &t.chunks[1].int],
                row_scales: scales[before * TILE..].as_ptr(),
                row_sums: row_sums[before * TILE * words..].as_ptr(),
                sums: to,
                here: ring.add(before % 2),
            };
            multiply_and_scale::<MINS>(multiply, Some(scale));
            if live < TILE {
                sums.copy_from_slice(&spare[..live]);
            }
        }
    }
}
