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
//! Panels come in pairs, whose chunks alternate: a kernel works on both and reads memory front to back. A weight of
//! at most 16 rows is one single panel.

use tallow_quant::{
    BF16, Block, F8, F16, F32, Format, Gridded, IQ1M, IQ1S, IQ2S, IQ2XS, IQ2XXS, IQ3S, IQ3XXS, IQ4NL, IQ4XS,
    MXFP4, NVFP4, Q1_0, Q2_0, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Q8K, TQ1_0, TQ2_0,
    with_block,
};

use crate::form::{PackedKind, PackedLayout, Scales};

/// Rows of a panel.
pub(crate) const ROWS: usize = 16;
/// Rows of a pair of panels.
pub(crate) const PAIR: usize = 2 * ROWS;
/// Inputs of a chunk.
pub(crate) const CHUNK: usize = 256;
/// Inputs of a sub-block, whose code planes lie together.
pub(crate) const SUBBLOCK: usize = 32;
/// Bytes of a line.
pub(crate) const LINE: usize = 64;

/// Bytes of a packed weight, without those that kernels read [past](crate::form::PanelShape::tail_inputs) its end;
/// `None` on overflow.
pub(crate) fn packed_bytes(format: Format, rows: usize, cols: usize) -> Option<usize> {
    let panels = if rows <= ROWS { 1 } else { rows.div_ceil(PAIR).checked_mul(2)? };
    // No overflow here: a panel is hardly larger than its rows in the file, which fit into memory.
    layout(format).shape.panel(cols).checked_mul(panels)
}

/// Packed layout of a format.
pub(crate) fn layout(format: Format) -> &'static PackedLayout {
    with_block!(format, B => &B::LAYOUT)
}

/// Header of a chunk (scales and mins), for one row.
pub(crate) struct Head<'a> {
    bytes: &'a mut [u8],
    row: usize,
}

impl Head<'_> {
    fn half(&mut self, i: usize, x: F16) {
        self.bytes[32 * i + 2 * self.row..][..2].copy_from_slice(&x.0);
    }

    /// Writes the chunk's f32 scale.
    fn single(&mut self, x: f32) {
        self.bytes[4 * self.row..][..4].copy_from_slice(&x.to_le_bytes());
    }

    /// Writes byte `i` of those behind the chunk's own scales.
    fn byte(&mut self, i: usize, x: u8) {
        self.bytes[LINE + ROWS * i + self.row] = x;
    }
}

/// A quantization block that can be packed.
pub(crate) trait Packing: Block {
    const LAYOUT: PackedLayout;

    /// Writes the codes, one per byte, as [`PanelShape`](crate::form::PanelShape) says. `out` is as long as the
    /// block.
    fn codes(&self, out: &mut [u8]);

    /// Writes scales and mins of the block, which is the `at`-th of its chunk.
    fn head(&self, at: usize, head: &mut Head<'_>);
}

/// Writes codes plus `bias`. `out` has `N` elements.
#[inline(always)]
fn unsigned<const N: usize>(codes: &[i8; N], bias: u8, out: &mut [u8]) {
    if let Some(out) = out.first_chunk_mut::<N>() {
        *out = codes.map(|c| c.wrapping_add_unsigned(bias) as u8);
    }
}

impl Packing for Q4_0 {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::FourHalves, 8);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&Q4_0::codes(self), 8, out);
    }

    fn head(&self, at: usize, head: &mut Head<'_>) {
        head.half(at, self.d);
    }
}

impl Packing for Q4_1 {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::FourAdd, 0);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q4_1::codes(self));
    }

    fn head(&self, at: usize, head: &mut Head<'_>) {
        head.half(2 * at, self.d);
        head.half(2 * at + 1, self.m);
    }
}

impl Packing for Q5_0 {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::FiveHalves, 16);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&Q5_0::codes(self), 16, out);
    }

    fn head(&self, at: usize, head: &mut Head<'_>) {
        head.half(at, self.d);
    }
}

impl Packing for Q5_1 {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::FiveAdd, 0);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q5_1::codes(self));
    }

    fn head(&self, at: usize, head: &mut Head<'_>) {
        head.half(2 * at, self.d);
        head.half(2 * at + 1, self.m);
    }
}

impl Packing for Q8_0 {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::EightHalves, 0);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&self.qs, 0, out);
    }

    fn head(&self, at: usize, head: &mut Head<'_>) {
        head.half(at, self.d);
    }
}

impl Packing for Q2K {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::TwoNibbles, 0);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q2K::codes(self));
    }

    fn head(&self, _: usize, head: &mut Head<'_>) {
        head.half(0, self.d);
        head.half(1, self.dmin);
        self.scales.iter().enumerate().for_each(|(i, s)| head.byte(i, *s));
    }
}

impl Packing for Q3K {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::ThreeBytes, 4);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&Q3K::codes(self), 4, out);
    }

    fn head(&self, _: usize, head: &mut Head<'_>) {
        head.single(self.d.get());
        self.scales().iter().enumerate().for_each(|(i, s)| head.byte(i, *s as u8));
    }
}

impl Packing for Q4K {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::FourLess, 0);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q4K::codes(self));
    }

    fn head(&self, _: usize, head: &mut Head<'_>) {
        head.half(0, self.d);
        head.half(1, self.dmin);
        let (scales, mins) = self.scales.get();
        scales.iter().chain(&mins).enumerate().for_each(|(i, s)| head.byte(i, *s));
    }
}

impl Packing for Q5K {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::FiveLess, 0);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q5K::codes(self));
    }

    fn head(&self, _: usize, head: &mut Head<'_>) {
        head.half(0, self.d);
        head.half(1, self.dmin);
        let (scales, mins) = self.scales.get();
        scales.iter().chain(&mins).enumerate().for_each(|(i, s)| head.byte(i, *s));
    }
}

impl Packing for Q6K {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::SixBytes, 32);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&Q6K::codes(self), 32, out);
    }

    fn head(&self, _: usize, head: &mut Head<'_>) {
        head.single(self.d.get());
        self.scales.iter().enumerate().for_each(|(i, s)| head.byte(i, *s as u8));
    }
}

impl Packing for Q8K {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::EightSingle, 0);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&self.qs, 0, out);
    }

    fn head(&self, _: usize, head: &mut Head<'_>) {
        head.single(self.d.get());
    }
}

/// Codes of a block of 32, low nibbles first and then high ones, as IQ4_NL and MXFP4 store them.
fn split_halves(qs: &[u8; 16], out: &mut [u8]) {
    let (low, high) = out.split_at_mut(16);
    for ((q, low), high) in qs.iter().zip(low).zip(high) {
        (*low, *high) = (q & 15, q >> 4);
    }
}

impl Packing for IQ4NL {
    const LAYOUT: PackedLayout = PackedLayout::looked_up(PackedKind::FourTableHalves, IQ4NL::VALUES);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        split_halves(&self.qs, out);
    }

    fn head(&self, at: usize, head: &mut Head<'_>) {
        head.half(at, self.d);
    }
}

impl Packing for IQ4XS {
    const LAYOUT: PackedLayout = PackedLayout::looked_up(PackedKind::FourTableBytes, IQ4NL::VALUES);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        self.qs.iter().zip(out.chunks_exact_mut(32)).for_each(|(qs, out)| split_halves(qs, out));
    }

    fn head(&self, _: usize, head: &mut Head<'_>) {
        head.single(self.d.get());
        self.scales().iter().enumerate().for_each(|(i, s)| head.byte(i, *s as u8));
    }
}

impl Packing for MXFP4 {
    const LAYOUT: PackedLayout = PackedLayout::looked_up(PackedKind::FourTableExponents, MXFP4::VALUES);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        split_halves(&self.qs, out);
    }

    fn head(&self, at: usize, head: &mut Head<'_>) {
        head.bytes[ROWS * at + head.row] = self.e;
    }
}

impl Packing for NVFP4 {
    const LAYOUT: PackedLayout = PackedLayout::looked_up(PackedKind::FourTableShort, NVFP4::VALUES);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        for (qs, out) in self.qs.iter().zip(out.chunks_exact_mut(16)) {
            let (low, high) = out.split_at_mut(8);
            for ((q, low), high) in qs.iter().zip(low).zip(high) {
                (*low, *high) = (q & 15, q >> 4);
            }
        }
    }

    fn head(&self, at: usize, head: &mut Head<'_>) {
        (0..4).for_each(|part| head.half(4 * at + part, F16::nearest(self.scale(part))));
    }
}

/// Formats whose codes index a table, and whose scales are integer multiples of one f32 (IQ1, IQ2, IQ3).
macro_rules! gridded {
    ($($block:ident: $form:ident),*) => {
        $(impl Packing for $block {
            const LAYOUT: PackedLayout = PackedLayout::looked_up(PackedKind::$form, <$block as Gridded>::VALUES);

            #[inline(always)]
            fn codes(&self, out: &mut [u8]) {
                out.copy_from_slice(&Gridded::codes(self));
            }

            fn head(&self, _: usize, head: &mut Head<'_>) {
                head.single(self.step());
                let every = $block::LAYOUT.shape.run / 16;
                self.factors().iter().step_by(every).enumerate().for_each(|(i, by)| head.byte(i, *by));
            }
        })*
    };
}

gridded!(IQ1S: ThreeTableBytes, IQ1M: ThreeTableBytes);
gridded!(IQ2XXS: ThreeTableBytes, IQ2XS: ThreeTableBytes, IQ2S: ThreeTableBytes);
gridded!(IQ3XXS: FourTableBytes, IQ3S: FourTableBytes);

/// Ternary formats: -1, 0 and 1 times one scale d, packed as d * code - d * 1: the factors 1 and 1 of a run in the
/// nibbles of a byte.
macro_rules! ternary {
    ($($block:ident),*) => {
        $(impl Packing for $block {
            const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::TwoNibbles, 0);

            #[inline(always)]
            fn codes(&self, out: &mut [u8]) {
                out.copy_from_slice(&$block::codes(self));
            }

            fn head(&self, _: usize, head: &mut Head<'_>) {
                head.half(0, self.d);
                head.half(1, self.d);
                (0..CHUNK / 16).for_each(|run| head.byte(run, 0x11));
            }
        })*
    };
}

ternary!(TQ1_0, TQ2_0);

/// Formats with codes of one or two bits and one scale for several runs.
macro_rules! few {
    ($($block:ident),*) => {
        $(impl Packing for $block {
            const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::TwoHalves, 1);

            #[inline(always)]
            fn codes(&self, out: &mut [u8]) {
                out.copy_from_slice(&$block::codes(self));
            }

            fn head(&self, at: usize, head: &mut Head<'_>) {
                let runs = <$block as Block>::FORMAT.block_weights() / $block::LAYOUT.shape.run;
                (0..runs).for_each(|run| head.half(runs * at + run, self.d));
            }
        })*
    };
}

few!(Q1_0, Q2_0);

/// Float formats: no codes, no scales.
macro_rules! plain {
    ($($block:ident),*) => {
        $(impl Packing for $block {
            const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::$block, 0);

            fn codes(&self, _: &mut [u8]) {}

            fn head(&self, _: usize, _: &mut Head<'_>) {}
        })*
    };
}

plain!(F32, F16, BF16);

impl Packing for F8 {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::EightFloats, 0);

    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.qs);
    }

    fn head(&self, at: usize, head: &mut Head<'_>) {
        let scale = self.d.get() / F8::TOO_LARGE;
        head.bytes[4 * (ROWS * at + head.row)..][..4].copy_from_slice(&scale.to_le_bytes());
    }
}

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
                    Scales::PlainSingles => floats_row(bytemuck::cast_slice::<u8, B>(from), inputs, row, out),
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
    let mut head = Head { bytes: head, row };
    let mut codes = codes[row..].iter_mut().step_by(ROWS);
    let mut some = [0; SUBBLOCK];
    for (i, block) in blocks.iter().enumerate() {
        block.codes(&mut some);
        block.head(i, &mut head);
        some.iter().zip(&mut codes).for_each(|(from, to)| *to = *from);
    }
}

fn blocks_row<B: Packing>(blocks: &[B], inputs: usize, row: usize, out: &mut [u8]) {
    let (head, planes) = out.split_at_mut(B::LAYOUT.shape.head(inputs));
    let mut head = Head { bytes: head, row };
    let mut codes = [0u32; CHUNK / 4];
    let bytes = bytemuck::bytes_of_mut(&mut codes);
    for (i, (block, out)) in blocks.iter().zip(bytes.chunks_exact_mut(B::FORMAT.block_weights())).enumerate()
    {
        block.codes(out);
        block.head(i, &mut head);
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
