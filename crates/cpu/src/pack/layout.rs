//! [`PackedLayout`] of each format: how the codes and scales of its blocks go into chunks.

use tallow_quant::{Coded, F16, Format, ScaleSink, Scales, with_block};

use super::packed_kind::PackedKind;
use super::panel::{LINE, PAIR, PanelShape, ROWS};

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

/// A quantization block that can be packed: any whose [`PackedKind`] kernels are compiled for.
pub(crate) trait Packing: Coded {
    const LAYOUT: PackedLayout = {
        let kind = PackedKind::of(Self::FORMAT, &Self::CODING);
        let table = match Self::CODING.table {
            Some(table) => table,
            None => [0; 16],
        };
        PackedLayout { kind, shape: kind.shape(), table, bias: Self::CODING.bias }
    };
}

impl<B: Coded> Packing for B {}

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

/// Header of a chunk (scales and mins), for one row and one of the chunk's blocks.
pub(crate) struct HeaderMut<'a> {
    bytes: &'a mut [u8],
    row: usize,
    /// The block's first run in the chunk.
    run: usize,
    /// f16 values per run.
    halves: usize,
}

impl HeaderMut<'_> {
    /// The header for block `at` of a chunk.
    pub(crate) fn new<B: Packing>(bytes: &mut [u8], row: usize, at: usize) -> HeaderMut<'_> {
        let shape = &B::LAYOUT.shape;
        let halves = if shape.scales == Scales::F16Add { 2 } else { 1 };
        HeaderMut { bytes, row, run: at * B::FORMAT.block_weights() / shape.run, halves }
    }
}

impl ScaleSink for HeaderMut<'_> {
    fn f16(&mut self, i: usize, x: F16) {
        let at = self.run * self.halves + i;
        self.bytes[2 * (ROWS * at + self.row)..][..2].copy_from_slice(&x.0);
    }

    fn f32(&mut self, x: f32) {
        self.bytes[4 * (ROWS * self.run + self.row)..][..4].copy_from_slice(&x.to_le_bytes());
    }

    fn exponent(&mut self, x: u8) {
        self.bytes[ROWS * self.run + self.row] = x;
    }

    /// Factors lie behind the scales of their chunk, which is one block.
    fn factor(&mut self, i: usize, x: u8) {
        self.bytes[LINE + ROWS * i + self.row] = x;
    }
}
