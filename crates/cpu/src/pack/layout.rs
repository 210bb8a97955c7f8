//! [`PackedLayout`] of each format: how the codes and scales of its blocks go into chunks.

use tallow_quant::{Coded, F16, Format, ScaleSink, Scales, with_block};

use super::packed_kind::{HasPackedKind, PackedKind};
use super::panel::{LINE, PAIR, PanelShape, ROWS, SCALE_AND_ZERO, ZERO_POINT_BIAS, limits};
use crate::simd::Lines;

/// Layout of the chunks that blocks of a format are packed into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedLayout {
    pub kind: PackedKind,
    pub shape: PanelShape,
    /// Values of the codes, where they index a table; the second table is for kernels that add 128 to signed bytes.
    pub tables: [[i8; 16]; 2],
    /// Subtracted from each value once it is unpacked. Signed bytes have none.
    pub bias: u8,
}

impl PackedLayout {
    /// The shape of a layout of kind `F`, known when kernels are compiled except for [`PanelShape::shared`].
    #[inline(always)]
    pub(crate) fn shape_of<F: HasPackedKind>(&self) -> PanelShape {
        let shared = if F::SHAPE.has_zero_points() { self.shape.shared } else { 0 };
        PanelShape { shared, ..F::SHAPE }
    }

    /// Values of the codes for the kernels of an instruction set.
    #[inline(always)]
    pub(crate) fn table<L: Lines>(&self) -> &[i8; 16] {
        &self.tables[usize::from(L::BIASED)]
    }
}

/// A quantization block that can be packed: any whose [`PackedKind`] kernels are compiled for.
pub(crate) trait Packing: Coded {
    const LAYOUT: PackedLayout = {
        let kind = PackedKind::of(Self::FORMAT, &Self::CODING);
        let shape = kind.shape().of(&Self::CODING);
        let (tables, bias) = match &Self::CODING.table {
            Some(table) if shape.is_wide() => ([*table, raised(table, 128)], 0),
            Some(table) => {
                let bias = -limits(table).0;
                ([raised(table, bias); 2], bias as u8)
            }
            None if shape.has_zero_points() => ([[0; 16]; 2], ZERO_POINT_BIAS as u8),
            None => ([[0; 16]; 2], Self::CODING.bias),
        };
        PackedLayout { kind, shape, tables, bias }
    };
}

impl<B: Coded> Packing for B {}

/// A table with `by` added to each value, as a byte.
const fn raised(table: &[i8; 16], by: i32) -> [i8; 16] {
    let (mut to, mut i) = (*table, 0);
    while i < to.len() {
        to[i] = (table[i] as i32 + by) as i8;
        i += 1;
    }
    to
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

/// Header of a chunk (scales and mins), for one row and one of the chunk's blocks.
pub(crate) struct HeaderMut<'a> {
    bytes: &'a mut [u8],
    row: usize,
    /// The block's first run in the chunk, of those that share no scale.
    run: usize,
    /// Bytes per run, where scales are f16.
    each: usize,
}

impl HeaderMut<'_> {
    /// The header for block `at` of a chunk.
    pub(crate) fn new<B: Packing>(bytes: &mut [u8], row: usize, at: usize) -> HeaderMut<'_> {
        let shape = &B::LAYOUT.shape;
        let each = match shape.scales {
            Scales::F16Add => 4 * ROWS,
            Scales::F16Zero => SCALE_AND_ZERO,
            _ => 2 * ROWS,
        };
        HeaderMut { bytes, row, run: at * B::FORMAT.block_weights() / B::CODING.run, each }
    }
}

impl ScaleSink for HeaderMut<'_> {
    fn f16(&mut self, i: usize, x: F16) {
        self.bytes[self.run * self.each + 2 * (ROWS * i + self.row)..][..2].copy_from_slice(&x.0);
    }

    fn f32(&mut self, x: f32) {
        self.bytes[4 * (ROWS * self.run + self.row)..][..4].copy_from_slice(&x.to_le_bytes());
    }

    fn exponent(&mut self, x: u8) {
        self.bytes[ROWS * self.run + self.row] = x;
    }

    fn zero_point(&mut self, x: u8) {
        self.bytes[self.run * self.each + 2 * ROWS + self.row] = x;
    }

    /// Factors lie behind the scales of their chunk, which is one block.
    fn factor(&mut self, i: usize, x: u8) {
        self.bytes[LINE + ROWS * i + self.row] = x;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a matrix whose rows end with a partial chunk.
    #[test]
    fn scales_and_zero_points_are_stored_once_per_group() {
        let bits = |format, cols| {
            let bytes = packed_bytes(format, 64, cols).unwrap();
            (8 * bytes) as f64 / (64 * cols) as f64
        };
        for (format, want) in [(Format::U4G32, 4.75), (Format::U4G64, 4.375), (Format::U4G128, 4.25)] {
            assert_eq!(bits(format, 1024), want, "{format}");
            assert!(bits(format, 1024 + 128) <= want + 0.05, "{format}");
        }
        assert_eq!(bits(Format::Q5_0, 1024), 5.5);
    }
}
