//! Packed weights (repacking, as llama.cpp's `Q4_0_8x8`): panels of 16 interleaved rows, built once when a model is
//! loaded.
//!
//! A *panel* is 16 rows of a weight. It is cut into *chunks* of [`CHUNK`] inputs (the last may be shorter). A chunk
//! holds its scales, then the codes, in lines of 64 bytes: 16 rows times 4 inputs. One instruction multiplies such a
//! line with four inputs and accumulates for all 16 rows, so nothing is ever summed across lanes, and one layout
//! serves GEMV and GEMM on every instruction set.
//!
//! Codes of fewer than 8 bits are split into planes of 4, 2 and 1 bits. The planes of a *sub-block* of 32 inputs lie
//! together:
//!
//! - four bits: line `j` has group `j` (of 4 inputs) in the low nibbles of its bytes and group `j + 4` in the high
//!   nibbles;
//! - two bits: line `h` has group `4 h + j` in bits `2 j` and `2 j + 1` of its bytes;
//! - one bit: bit `g` of the line's bytes is group `g`'s.
//!
//! Scales are stored once per run, which for every kind but one is known when its kernels are compiled. Zero points
//! come with runs of 32, 64 or 128 inputs: to one set of kernels all are runs of 32, of which several read the same
//! scale ([`PanelShape::shared`](panel::PanelShape::shared)).
//!
//! Panels come in pairs, whose chunks alternate: a kernel works on both and reads memory front to back. A weight of
//! at most 16 rows is one single panel.

mod layout;
mod packed_kind;
mod panel;
mod weights;

use tallow_quant::{Format, Scales, with_block};

pub(crate) use layout::{PackedLayout, layout, packed_bytes};
pub(crate) use packed_kind::{HasPackedKind, PackedKind, kinds, packed_kinds, with_packed_kind};
pub(crate) use panel::{CHUNK, LINE, PAIR, ROWS, SCALE_AND_ZERO, SUBBLOCK, ZERO_POINT_BIAS};
pub(crate) use weights::PackedWeights;

use layout::{HeaderMut, Packing};

/// Packs a pair of panels (or a single one) from rows as in the file, `width` bytes each. `rows` has at most as many
/// as `out` has room for; the rest is zeros.
pub(crate) fn pack_pair(format: Format, rows: &[u8], width: usize, cols: usize, out: &mut [u8]) {
    with_block!(format, B => pack_pair_as::<B>(rows, width, cols, out));
}

fn pack_pair_as<B: Packing>(rows: &[u8], width: usize, cols: usize, out: &mut [u8]) {
    if rows.len() < PAIR * width {
        out.fill(0);
    }
    let (mut at, panels) = (0, out.len() / B::LAYOUT.shape.panel(cols).max(1));
    for first in (0..cols).step_by(CHUNK) {
        let inputs = CHUNK.min(cols - first);
        let bytes = B::LAYOUT.shape.chunk(inputs);
        for (panel, rows) in rows.chunks(ROWS * width).enumerate() {
            let out = &mut out[at + panel * bytes..][..bytes];
            for (row, from) in rows.chunks_exact(width).enumerate() {
                let weights = B::FORMAT.block_weights();
                let from =
                    &from[first / weights * size_of::<B>()..][..inputs.div_ceil(weights) * size_of::<B>()];
                match B::LAYOUT.shape.scales {
                    Scales::Plain => plain_row(from, size_of::<B>(), B::FORMAT == Format::BF16, row, out),
                    Scales::PlainF32 => floats_row(bytemuck::cast_slice::<u8, B>(from), inputs, row, out),
                    _ => blocks_row(bytemuck::cast_slice::<u8, B>(from), inputs, row, out),
                }
            }
        }
        at += panels * bytes;
    }
}

/// Floats of one row: input by input, or pairs of inputs where there are dot-product instructions for pairs (BF16).
fn plain_row(from: &[u8], size: usize, in_pairs: bool, row: usize, out: &mut [u8]) {
    let (lines, step) = if in_pairs { (2, 2 * size) } else { (1, size) };
    for (line, x) in from.chunks(step).enumerate() {
        out[line * lines * ROWS * size + row * step..][..x.len()].copy_from_slice(x);
        if x.len() < step {
            out[line * lines * ROWS * size + row * step + x.len()..][..step - x.len()].fill(0);
        }
    }
}

/// FP8 of one row: codes input by input, after the scales.
fn floats_row<B: Packing>(blocks: &[B], inputs: usize, row: usize, out: &mut [u8]) {
    let (head, codes) = out.split_at_mut(B::LAYOUT.shape.head(inputs));
    let mut codes = codes[row..].iter_mut().step_by(ROWS);
    let mut some = [0; SUBBLOCK];
    for (i, block) in blocks.iter().enumerate() {
        block.unsigned_codes(&mut some);
        block.write_scales(&mut HeaderMut::new::<B>(head, row, i));
        some.iter().zip(&mut codes).for_each(|(from, to)| *to = *from);
    }
}

fn blocks_row<B: Packing>(blocks: &[B], inputs: usize, row: usize, out: &mut [u8]) {
    let (head, planes) = out.split_at_mut(B::LAYOUT.shape.head(inputs));
    let mut codes = [0u32; CHUNK / 4];
    let bytes = bytemuck::bytes_of_mut(&mut codes);
    for (i, (block, out)) in blocks.iter().zip(bytes.chunks_exact_mut(B::FORMAT.block_weights())).enumerate()
    {
        block.unsigned_codes(out);
        block.write_scales(&mut HeaderMut::new::<B>(head, row, i));
    }
    // Kernels see bytes. Shifts and masks below act within bytes, so endianness does not matter.
    let planes: &mut [u32] = bytemuck::cast_slice_mut(planes);
    for (part, w) in codes[..B::LAYOUT.shape.int_inputs(inputs) / 4].chunks_exact(SUBBLOCK / 4).enumerate() {
        let lines = &mut planes[part * B::LAYOUT.shape.bits * ROWS..];
        let groups = (lines.len() / ROWS).min(SUBBLOCK / 4);
        let mut put = |line: usize, x: u32| lines[line * ROWS + row] = x;
        let two = |shift: u32, h: usize| {
            (0..4).map(|j| (w[4 * h + j] >> shift & 0x0303_0303) << (2 * j)).sum::<u32>()
        };
        let one = |shift: u32| (0..8).map(|g| (w[g] >> shift & 0x0101_0101) << g).sum::<u32>();
        match B::LAYOUT.shape.bits {
            8 => (0..groups).for_each(|g| put(g, w[g])),
            2 => (0..2).for_each(|h| put(h, two(0, h))),
            3 => {
                (0..2).for_each(|h| put(h, two(0, h)));
                put(2, one(2));
            }
            bits => {
                (0..4).for_each(|j| put(j, w[j] & 0x0f0f_0f0f | (w[j + 4] & 0x0f0f_0f0f) << 4));
                match bits {
                    5 => put(4, one(4)),
                    6 => (0..2).for_each(|h| put(4 + h, two(4, h))),
                    _ => {}
                }
            }
        }
    }
}
