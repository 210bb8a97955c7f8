//! Chunks with a float scale per run: integer sums are scaled and added up as [`Tile`](crate::simd::Tile) does.
//!
//! The product of one run has three stages: a tile multiplies it, its sums are stored to memory, and from memory they
//! are scaled. Tile registers are not renamed, and each stage has a latency of some 50 cycles: a product is started six
//! products before it is scaled, and stored four products after its start, when its tile register is needed again.
//!
//! # Safety
//!
//! As for [`amx`](super).

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use crate::gemm::Sums;
use crate::gemm::tiles::GemmTask;
use crate::gemm::unpack::Chunk;
use crate::pack::{CHUNK, LINE, PackedLayout, ROWS, SUBBLOCK};
use crate::quantize::TILE;
use crate::simd::amx::{TileShapes, configure};

/// Integer sums of a tile: a line per row of input.
#[repr(C, align(64))]
struct IntSums([[i32; ROWS]; TILE]);

/// Sums of four products, one after another.
type Four = [IntSums; 4];

/// Runs per chunk.
const RUNS: usize = CHUNK / SUBBLOCK;

/// Subtracts the bias of the codes: tiles multiply signed codes.
#[target_feature(enable = "avx512f,avx512bw")]
fn sign(chunks: &mut [Chunk; 2], layout: &PackedLayout) {
    let more = if layout.shape.is_wide() { 128 } else { layout.bias };
    for chunk in chunks {
        chunk.codes.as_flattened_mut().iter_mut().for_each(|code| *code = code.wrapping_sub(more));
    }
}

/// Multiplies all rows with both panels.
pub(super) unsafe fn tiles(t: &mut GemmTask<'_>) {
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        match t.layout.shape.has_mins() {
            true => all::<true>(t),
            false => {
                sign(t.chunks, t.layout);
                all::<false>(t);
            }
        }
    }
}

/// Start of four products: the next runs of a tile of rows with one of the panels.
#[derive(Clone, Copy, Default)]
struct Place {
    tile: usize,
    panel: usize,
    run: usize,
}

impl Place {
    /// The place after this one. After the last of `tiles` tiles it wraps to the first, whose products are then
    /// discarded.
    #[inline(always)]
    fn next(self, tiles: usize, panels: usize) -> Place {
        let Place { tile, panel, run } = self;
        match (run + 4 < RUNS, panel + 1 < panels, tile + 1 < tiles) {
            (true, _, _) => Place { run: run + 4, ..self },
            (_, true, _) => Place { panel: panel + 1, run: 0, ..self },
            (.., true) => Place { tile: tile + 1, panel: 0, run: 0 },
            _ => Place::default(),
        }
    }
}

/// Operands of four products: pointers to rows and weights.
type Begin = (*const u8, *const u8);

/// Expands an expression for each row of a tile, with the row index a constant.
macro_rules! each_row {
    (|$i:ident| $body:expr) => { each_row!(@ $i $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
    (@ $i:ident $body:expr, $($n:literal)*) => { [$({ const $i: usize = $n; $body }),*] };
}

/// Assembly that stores the sums of tile `$sums` at `$out` and starts the product that uses it next: run `$run` of
/// those at `$x` and `$w`.
macro_rules! store_and_start {
    ($sums:literal, $input:literal, $weights:literal, $out:literal, $x:literal, $w:literal, $run:literal) => {
        concat!(
            "tilestored [{",
            $out,
            "} + {line}*1 + 1024*",
            $run,
            "], tmm",
            $sums,
            "\n",
            "tileloadd tmm",
            $input,
            ", [{",
            $x,
            "} + {width}*1 + 32*",
            $run,
            "]\n",
            "tileloadd tmm",
            $weights,
            ", [{",
            $w,
            "} + {line}*1 + 16*32*",
            $run,
            "]\n",
            "tilezero tmm",
            $sums,
            "\n",
            "tdpbssd tmm",
            $sums,
            ", tmm",
            $input,
            ", tmm",
            $weights,
            "\n",
        )
    };
}

/// Assembly that scales the integer sums of a run and adds them to the others.
macro_rules! scale {
    (false, $run:literal) => {
        concat!("vmovaps zmm16, [{scales} + 64*", $run, "]\n", scale!(@rows false, $run))
    };
    (true, $run:literal) => {
        concat!(
            "vmovaps zmm16, [{scales} + 64*", $run, "]\n",
            "vmovaps zmm19, [{mins} + 64*", $run, "]\n",
            scale!(@rows true, $run),
        )
    };
    (@rows $mins:tt, $run:literal) => {
        scale!(@ $mins, $run, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $mins:tt, $run:literal, $($i:literal)*) => {
        concat!($(scale!(@@ $mins, $run, $i)),*)
    };
    (@@ false, $run:literal, $i:literal) => {
        concat!(
            "vcvtdq2ps zmm17, [{here} + 1024*", $run, " + 64*", $i, "]\n",
            "vfmadd231ps zmm", $i, ", zmm17, zmm16\n",
        )
    };
    (@@ true, $run:literal, $i:literal) => {
        concat!(
            "vcvtdq2ps zmm17, [{here} + 1024*", $run, " + 64*", $i, "]\n",
            "vfmadd231ps zmm", $i, ", zmm17, zmm16\n",
            "vfmadd231ps zmm", $i, ", zmm19, dword ptr [{row_sums} + 32*", $i, " + 4*", $run, "]{{1to16}}\n",
        )
    };
}

/// Starts the first six products and stores the first two.
#[inline(always)]
unsafe fn begin(first: Begin, next: Begin, here: *mut IntSums) {
    // SAFETY: the caller guarantees rows and weights of eight products, and four `Whole` at `here`.
    unsafe {
        asm!(
            concat!(
                // The first four stores write garbage, which is overwritten.
                store_and_start!(0, 4, 6, "here", "x", "w", 0), store_and_start!(1, 5, 7, "here", "x", "w", 1),
                store_and_start!(2, 4, 6, "here", "x", "w", 2), store_and_start!(3, 5, 7, "here", "x", "w", 3),
                store_and_start!(0, 4, 6, "here", "y", "v", 0), store_and_start!(1, 5, 7, "here", "y", "v", 1),
            ),
            x = in(reg) first.0, w = in(reg) first.1, y = in(reg) next.0, v = in(reg) next.1,
            here = in(reg) here, line = in(reg) LINE, width = in(reg) CHUNK,
            options(nostack, preserves_flags),
        );
    }
}

/// Multiplies all rows with both panels.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn all<const MINS: bool>(t: &mut GemmTask<'_>) {
    let tiles = t.sums.len().div_ceil(TILE);
    let (codes, scales, row_sums) = t.x.chunk(t.first..t.first + tiles * TILE, &t.inputs);
    let place = |p: Place| {
        let (x, w) = (codes[p.tile * TILE * CHUNK..].as_ptr(), t.chunks[p.panel].codes.as_ptr());
        // SAFETY: a chunk has that many runs.
        unsafe { (x.add(p.run * SUBBLOCK), w.cast::<u8>().add(p.run * SUBBLOCK * ROWS)) }
    };
    let mut ring = MaybeUninit::<[Four; 2]>::uninit();
    let ring = ring.as_mut_ptr().cast::<IntSums>();
    // SAFETY: quantized rows are allocated in whole tiles, chunks are whole, and the ring has eight products; the
    // caller guarantees the instruction set.
    unsafe {
        configure(TileShapes::Runs);
        let (mut here, mut there) = (ring, ring.add(4));
        let first = place(Place::default());
        let next = Place::default().next(tiles, t.panels);
        begin(first, place(next), here);
        let mut after = next;
        let mut spare = [Sums([[0.0; ROWS]; 2]); TILE];
        for tile in 0..tiles {
            let live = (t.sums.len() - tile * TILE).min(TILE);
            let sums = &mut t.sums[tile * TILE..][..live];
            let to = if live == TILE {
                sums.as_mut_ptr()
            } else {
                spare[..live].copy_from_slice(sums);
                spare.as_mut_ptr()
            };
            for panel in 0..t.panels {
                let chunk = &t.chunks[panel];
                let mut scale = Scale {
                    sums: to.cast::<f32>().add(panel * ROWS),
                    scales: chunk.scales.as_ptr().cast(),
                    mins: chunk.mins.as_ptr().cast(),
                    row_scales: scales[tile * TILE..].as_ptr(),
                    row_sums: row_sums[tile * TILE * RUNS..].as_ptr(),
                };
                let mut f = [_mm512_setzero_ps(); TILE];
                for run in (0..RUNS).step_by(4) {
                    let from = place(after);
                    after = after.next(tiles, t.panels);
                    scale.add::<MINS>(&mut f, run, [from, place(after)], [here, there]);
                    (here, there) = (there, here);
                }
                scale.store(&f);
            }
            if live < TILE {
                sums.copy_from_slice(&spare[..live]);
            }
        }
    }
}

/// Scaling of the integer sums of a tile of rows with a panel: pointers to the first run of the first row.
struct Scale {
    /// Running sums; the row stride is two lines.
    sums: *mut f32,
    scales: *const f32,
    mins: *const f32,
    row_scales: *const f32,
    row_sums: *const u32,
}

impl Scale {
    /// Adds the sums of a chunk, times the row scales, to the running sums.
    #[inline(always)]
    unsafe fn store(&mut self, f: &[__m512; TILE]) {
        // SAFETY: there are sums and a scale for each of 16 rows; the caller guarantees the instruction set.
        unsafe {
            each_row!(|I| {
                let (sum, by) = (self.sums.add(I * 2 * ROWS), _mm512_set1_ps(*self.row_scales.add(I)));
                _mm512_store_ps(sum, _mm512_fmadd_ps(f[I], by, _mm512_load_ps(sum)));
            })
        };
    }

    /// Scales four products and adds them up, storing and starting later ones.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn add<const MINS: bool>(
        &self,
        f: &mut [__m512; TILE],
        run: usize,
        [next, after]: [Begin; 2],
        [here, there]: [*mut IntSums; 2],
    ) {
        macro_rules! four {
            ($mins:tt) => {
                asm!(
                    concat!(
                        store_and_start!(2, 4, 6, "here", "x", "w", 2), scale!($mins, 0),
                        store_and_start!(3, 5, 7, "here", "x", "w", 3), scale!($mins, 1),
                        store_and_start!(0, 4, 6, "there", "y", "v", 0), scale!($mins, 2),
                        store_and_start!(1, 5, 7, "there", "y", "v", 1), scale!($mins, 3),
                        // These operands are used only with minimums.
                        "/* {mins} {row_sums} */",
                    ),
                    x = in(reg) next.0, w = in(reg) next.1, y = in(reg) after.0, v = in(reg) after.1,
                    here = in(reg) here, there = in(reg) there,
                    scales = in(reg) self.scales.add(run * ROWS),
                    mins = in(reg) self.mins.add(run * ROWS),
                    row_sums = in(reg) self.row_sums.add(run),
                    line = in(reg) LINE, width = in(reg) CHUNK,
                    inout("zmm0") f[0], inout("zmm1") f[1], inout("zmm2") f[2], inout("zmm3") f[3],
                    inout("zmm4") f[4], inout("zmm5") f[5], inout("zmm6") f[6], inout("zmm7") f[7],
                    inout("zmm8") f[8], inout("zmm9") f[9], inout("zmm10") f[10], inout("zmm11") f[11],
                    inout("zmm12") f[12], inout("zmm13") f[13], inout("zmm14") f[14], inout("zmm15") f[15],
                    out("zmm16") _, out("zmm17") _, out("zmm19") _,
                    options(nostack, preserves_flags),
                )
            };
        }
        // SAFETY: quantized rows have codes, scales and row sums for a whole tile, chunks have codes, scales and minimums
        // for each run, the ring has eight products; the caller guarantees the instruction set.
        unsafe {
            match MINS {
                true => four!(true),
                false => four!(false),
            }
        }
    }
}
