//! [`PackedLayout`] of each format: how the codes, scales and mins of its blocks go into chunks.

use tallow_quant::{
    BF16, Block, F8, F16, F32, Format, Gridded, IQ1M, IQ1S, IQ2S, IQ2XS, IQ2XXS, IQ3S, IQ3XXS, IQ4NL, IQ4XS,
    MXFP4, NVFP4, Q1_0, Q2_0, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Q8K, TQ1_0, TQ2_0,
    with_block,
};

use super::packed_kind::PackedKind;
use super::panel::{CHUNK, LINE, PAIR, PanelShape, ROWS};

/// Layout of the chunks that blocks of a format are packed into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedLayout {
    pub kind: PackedKind,
    pub shape: PanelShape,
    /// Values of the codes, where they index a table.
    pub table: [i8; 16],
    /// Subtracted from each code. 8-bit codes and table values are signed and have none.
    pub bias: u8,
}

impl PackedLayout {
    /// Codes with a bias.
    pub(crate) const fn new(kind: PackedKind, bias: u8) -> PackedLayout {
        PackedLayout { kind, shape: kind.shape(), table: [0; 16], bias }
    }

    /// Codes that index a table.
    pub(crate) const fn looked_up(kind: PackedKind, table: [i8; 16]) -> PackedLayout {
        PackedLayout { kind, shape: kind.shape(), table, bias: 0 }
    }
}

/// Bytes of a packed weight, without those that kernels read [past](PanelShape::tail_inputs) its end;
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
pub(crate) struct HeaderMut<'a> {
    pub bytes: &'a mut [u8],
    pub row: usize,
}

impl HeaderMut<'_> {
    fn put_f16(&mut self, i: usize, x: F16) {
        self.bytes[32 * i + 2 * self.row..][..2].copy_from_slice(&x.0);
    }

    /// Writes the chunk's f32 scale.
    fn put_f32(&mut self, x: f32) {
        self.bytes[4 * self.row..][..4].copy_from_slice(&x.to_le_bytes());
    }

    /// Writes byte `i` of those behind the chunk's own scales.
    fn put_byte(&mut self, i: usize, x: u8) {
        self.bytes[LINE + ROWS * i + self.row] = x;
    }
}

/// A quantization block that can be packed.
pub(crate) trait Packing: Block {
    const LAYOUT: PackedLayout;

    /// Writes the codes, one per byte, as [`PanelShape`] says. `out` is as long as the
    /// block.
    fn codes(&self, out: &mut [u8]);

    /// Writes scales and mins of the block, which is the `at`-th of its chunk.
    fn head(&self, at: usize, head: &mut HeaderMut<'_>);
}

/// Writes codes plus `bias`. `out` has `N` elements.
#[inline(always)]
fn unsigned<const N: usize>(codes: &[i8; N], bias: u8, out: &mut [u8]) {
    if let Some(out) = out.first_chunk_mut::<N>() {
        *out = codes.map(|c| c.wrapping_add_unsigned(bias) as u8);
    }
}

impl Packing for Q4_0 {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::FourF16, 8);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&Q4_0::codes(self), 8, out);
    }

    fn head(&self, at: usize, head: &mut HeaderMut<'_>) {
        head.put_f16(at, self.d);
    }
}

impl Packing for Q4_1 {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::FourAdd, 0);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q4_1::codes(self));
    }

    fn head(&self, at: usize, head: &mut HeaderMut<'_>) {
        head.put_f16(2 * at, self.d);
        head.put_f16(2 * at + 1, self.m);
    }
}

impl Packing for Q5_0 {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::FiveF16, 16);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&Q5_0::codes(self), 16, out);
    }

    fn head(&self, at: usize, head: &mut HeaderMut<'_>) {
        head.put_f16(at, self.d);
    }
}

impl Packing for Q5_1 {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::FiveAdd, 0);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q5_1::codes(self));
    }

    fn head(&self, at: usize, head: &mut HeaderMut<'_>) {
        head.put_f16(2 * at, self.d);
        head.put_f16(2 * at + 1, self.m);
    }
}

impl Packing for Q8_0 {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::EightF16, 0);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&self.qs, 0, out);
    }

    fn head(&self, at: usize, head: &mut HeaderMut<'_>) {
        head.put_f16(at, self.d);
    }
}

impl Packing for Q2K {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::TwoNibbles, 0);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q2K::codes(self));
    }

    fn head(&self, _: usize, head: &mut HeaderMut<'_>) {
        head.put_f16(0, self.d);
        head.put_f16(1, self.dmin);
        self.scales.iter().enumerate().for_each(|(i, s)| head.put_byte(i, *s));
    }
}

impl Packing for Q3K {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::ThreeBytes, 4);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&Q3K::codes(self), 4, out);
    }

    fn head(&self, _: usize, head: &mut HeaderMut<'_>) {
        head.put_f32(self.d.get());
        self.scales().iter().enumerate().for_each(|(i, s)| head.put_byte(i, *s as u8));
    }
}

impl Packing for Q4K {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::FourMin, 0);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q4K::codes(self));
    }

    fn head(&self, _: usize, head: &mut HeaderMut<'_>) {
        head.put_f16(0, self.d);
        head.put_f16(1, self.dmin);
        let (scales, mins) = self.scales.get();
        scales.iter().chain(&mins).enumerate().for_each(|(i, s)| head.put_byte(i, *s));
    }
}

impl Packing for Q5K {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::FiveMin, 0);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q5K::codes(self));
    }

    fn head(&self, _: usize, head: &mut HeaderMut<'_>) {
        head.put_f16(0, self.d);
        head.put_f16(1, self.dmin);
        let (scales, mins) = self.scales.get();
        scales.iter().chain(&mins).enumerate().for_each(|(i, s)| head.put_byte(i, *s));
    }
}

impl Packing for Q6K {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::SixBytes, 32);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&Q6K::codes(self), 32, out);
    }

    fn head(&self, _: usize, head: &mut HeaderMut<'_>) {
        head.put_f32(self.d.get());
        self.scales.iter().enumerate().for_each(|(i, s)| head.put_byte(i, *s as u8));
    }
}

impl Packing for Q8K {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::EightF32, 0);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&self.qs, 0, out);
    }

    fn head(&self, _: usize, head: &mut HeaderMut<'_>) {
        head.put_f32(self.d.get());
    }
}

/// Codes of a block of 32, low nibbles first and then high ones, as IQ4_NL and MXFP4 store them.
fn split_nibbles(qs: &[u8; 16], out: &mut [u8]) {
    let (low, high) = out.split_at_mut(16);
    for ((q, low), high) in qs.iter().zip(low).zip(high) {
        (*low, *high) = (q & 15, q >> 4);
    }
}

impl Packing for IQ4NL {
    const LAYOUT: PackedLayout = PackedLayout::looked_up(PackedKind::FourTableF16, IQ4NL::VALUES);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        split_nibbles(&self.qs, out);
    }

    fn head(&self, at: usize, head: &mut HeaderMut<'_>) {
        head.put_f16(at, self.d);
    }
}

impl Packing for IQ4XS {
    const LAYOUT: PackedLayout = PackedLayout::looked_up(PackedKind::FourTableBytes, IQ4NL::VALUES);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        self.qs.iter().zip(out.chunks_exact_mut(32)).for_each(|(qs, out)| split_nibbles(qs, out));
    }

    fn head(&self, _: usize, head: &mut HeaderMut<'_>) {
        head.put_f32(self.d.get());
        self.scales().iter().enumerate().for_each(|(i, s)| head.put_byte(i, *s as u8));
    }
}

impl Packing for MXFP4 {
    const LAYOUT: PackedLayout = PackedLayout::looked_up(PackedKind::FourTableExponents, MXFP4::VALUES);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        split_nibbles(&self.qs, out);
    }

    fn head(&self, at: usize, head: &mut HeaderMut<'_>) {
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

    fn head(&self, at: usize, head: &mut HeaderMut<'_>) {
        (0..4).for_each(|part| head.put_f16(4 * at + part, F16::nearest(self.scale(part))));
    }
}

/// Formats whose codes index a table, and whose scales are integer multiples of one f32 (IQ1, IQ2, IQ3).
macro_rules! gridded {
    ($($block:ident: $kind:ident),*) => {
        $(impl Packing for $block {
            const LAYOUT: PackedLayout = PackedLayout::looked_up(PackedKind::$kind, <$block as Gridded>::VALUES);

            #[inline(always)]
            fn codes(&self, out: &mut [u8]) {
                out.copy_from_slice(&Gridded::codes(self));
            }

            fn head(&self, _: usize, head: &mut HeaderMut<'_>) {
                head.put_f32(self.step());
                let every = $block::LAYOUT.shape.run / 16;
                self.factors().iter().step_by(every).enumerate().for_each(|(i, by)| head.put_byte(i, *by));
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

            fn head(&self, _: usize, head: &mut HeaderMut<'_>) {
                head.put_f16(0, self.d);
                head.put_f16(1, self.d);
                (0..CHUNK / 16).for_each(|run| head.put_byte(run, 0x11));
            }
        })*
    };
}

ternary!(TQ1_0, TQ2_0);

/// Formats with codes of one or two bits and one scale for several runs.
macro_rules! low_bit {
    ($($block:ident),*) => {
        $(impl Packing for $block {
            const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::TwoF16, 1);

            #[inline(always)]
            fn codes(&self, out: &mut [u8]) {
                out.copy_from_slice(&$block::codes(self));
            }

            fn head(&self, at: usize, head: &mut HeaderMut<'_>) {
                let runs = <$block as Block>::FORMAT.block_weights() / $block::LAYOUT.shape.run;
                (0..runs).for_each(|run| head.put_f16(runs * at + run, self.d));
            }
        })*
    };
}

low_bit!(Q1_0, Q2_0);

/// Float formats: no codes, no scales.
macro_rules! plain {
    ($($block:ident),*) => {
        $(impl Packing for $block {
            const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::$block, 0);

            fn codes(&self, _: &mut [u8]) {}

            fn head(&self, _: usize, _: &mut HeaderMut<'_>) {}
        })*
    };
}

plain!(F32, F16, BF16);

impl Packing for F8 {
    const LAYOUT: PackedLayout = PackedLayout::new(PackedKind::EightFloats, 0);

    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.qs);
    }

    fn head(&self, at: usize, head: &mut HeaderMut<'_>) {
        let scale = self.d.get() / F8::TOO_LARGE;
        head.bytes[4 * (ROWS * at + head.row)..][..4].copy_from_slice(&scale.to_le_bytes());
    }
}
