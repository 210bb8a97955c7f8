//! Geometry of a panel: its rows, chunks, sub-blocks and lines, and where scales and codes lie in a chunk
//! ([`PanelShape`]).

use tallow_quant::{Coding, Scales};

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
/// Bytes of the f16 scales of a panel's rows and of the zero points behind them.
pub(crate) const SCALE_AND_ZERO: usize = 3 * ROWS;
/// The zero point of codes once they are unpacked: none is larger. A power of two, so that sums of products divided by it
/// are exact.
pub(crate) const ZERO_POINT_BIAS: i32 = 16;

/// Layout of codes and scales in a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelShape {
    /// Bits of a code.
    pub bits: usize,
    /// Bits of the values that codes stand for: of an unsigned number, to which a bias was added; or 8, a signed byte. More than
    /// `bits` where codes index a table.
    pub value_bits: usize,
    /// Inputs that share a scale: 16, 32 or all of a chunk.
    pub run: usize,
    /// log2 of the runs that share a scale and a zero point. Known at run time only: 0 in the shape of a kind.
    pub shared: u32,
    /// Scales at the head of a chunk, 16 values each, one per row. What the format has once for 256 weights the chunk
    /// has once.
    pub scales: Scales,
}

impl PanelShape {
    /// True if blocks with this coding have this shape.
    pub(super) const fn is(&self, coding: &Coding) -> bool {
        let runs = match self.has_zero_points() {
            true => coding.run.is_multiple_of(self.run),
            false => coding.run == self.run,
        };
        let values = match &coding.table {
            Some(table) => self.is_looked_up() && bits_of_values(table) <= self.value_bits,
            None => !self.is_looked_up(),
        };
        runs && values && self.bits == coding.bits && self.scales as u8 == coding.scales as u8
    }

    /// This shape of a kind for blocks with this coding.
    pub(super) const fn of(self, coding: &Coding) -> PanelShape {
        let shared = coding.run / self.run;
        assert!(shared.is_power_of_two());
        PanelShape { shared: shared.trailing_zeros(), ..self }
    }

    /// True if weights are floats, without integer codes.
    pub(crate) const fn is_plain(&self) -> bool {
        matches!(self.scales, Scales::Plain | Scales::PlainF32)
    }

    /// True if codes index a table of values.
    pub(crate) const fn is_looked_up(&self) -> bool {
        self.value_bits > self.bits
    }

    /// True if codes are kept as signed bytes.
    pub(crate) const fn is_bytes(&self) -> bool {
        self.bits == 8 && !self.is_plain()
    }

    /// True if codes (after the table lookup, if any) are signed bytes.
    pub(crate) const fn is_wide(&self) -> bool {
        self.value_bits == 8
    }

    /// True if all products of a chunk are summed in integers: its runs have integer factors of one scale, or no
    /// factors.
    pub(crate) const fn has_int_scales(&self) -> bool {
        matches!(self.scales, Scales::Bytes | Scales::BytesMin | Scales::NibblesMin | Scales::F32)
    }

    /// True if all weights of a chunk share a scale, and the sums of their products have no factors.
    pub(crate) const fn is_one_run(&self) -> bool {
        self.run == CHUNK
    }

    /// True if the sum of products of 16 codes with `i8` inputs fits into 16 bits.
    pub(crate) const fn is_narrow(&self) -> bool {
        self.value_bits <= 4
    }

    /// Groups of four of so many inputs whose products with `i8` inputs, summed in pairs, fit into 16 bits: a power of two,
    /// and 1 for signed bytes.
    pub(crate) const fn groups_at_once(&self, inputs: usize) -> usize {
        let largest_pair = 2 * 128 * ((1 << self.value_bits) - 1);
        let most = match i16::MAX as usize / largest_pair {
            _ if self.is_wide() => 1,
            0 | 1 => 1,
            2 | 3 => 2,
            4..8 => 4,
            _ => 8,
        };
        if inputs / 4 < most { inputs / 4 } else { most }
    }

    /// True if values have four bits at most once they are unpacked; zero points move them ([`ZERO_POINT_BIAS`]).
    pub(crate) const fn is_nibbles(&self) -> bool {
        self.value_bits <= 4 && !self.has_zero_points()
    }

    /// Inputs whose products are summed before they are scaled.
    pub(crate) const fn step(&self) -> usize {
        if self.has_int_scales() && self.is_narrow() && !self.is_one_run() { 16 } else { self.run }
    }

    /// True if runs have a min, which is subtracted or added.
    pub(crate) const fn has_mins(&self) -> bool {
        matches!(self.scales, Scales::F16Add | Scales::BytesMin | Scales::NibblesMin)
    }

    /// True if runs have zero points, and several runs may share scale and zero point.
    pub(crate) const fn has_zero_points(&self) -> bool {
        matches!(self.scales, Scales::F16Zero)
    }

    /// Bytes of the header before the codes of a chunk.
    pub(crate) const fn head(&self, inputs: usize) -> usize {
        let runs = inputs.div_ceil(self.run);
        let bytes = match self.scales {
            Scales::Plain => 0,
            Scales::F16 => runs * 32,
            Scales::F16Add => runs * 64,
            Scales::F16Zero => (runs >> self.shared) * SCALE_AND_ZERO,
            Scales::Bytes | Scales::NibblesMin => 64 + runs * ROWS,
            Scales::BytesMin => 64 + 2 * runs * ROWS,
            Scales::F32 => 64,
            Scales::PlainF32 => runs * 64,
            Scales::Exponents => runs * ROWS,
        };
        bytes.next_multiple_of(LINE)
    }

    /// Inputs that kernels compute for `inputs`: whole sub-blocks, where there are codes.
    pub(crate) const fn int_inputs(&self, inputs: usize) -> usize {
        if self.is_plain() { inputs } else { inputs.next_multiple_of(SUBBLOCK) }
    }

    /// Bytes of a chunk of a panel. 8-bit codes are stored in lines of 4 inputs, without lines past the last input.
    pub(crate) const fn chunk(&self, inputs: usize) -> usize {
        match self.scales {
            Scales::Plain => (inputs * ROWS * self.bits / 8).next_multiple_of(LINE),
            _ if self.bits == 8 => self.head(inputs) + inputs.div_ceil(4) * LINE,
            _ => self.head(inputs) + inputs.div_ceil(SUBBLOCK) * LINE * self.bits,
        }
    }

    /// Bytes that kernels read past the end of a panel: codes of padding inputs, which are multiplied with zeros,
    /// whatever they are.
    pub(crate) const fn tail_inputs(&self, cols: usize) -> usize {
        self.panel(self.int_inputs(cols)) - self.panel(cols)
    }

    /// Bytes of a panel.
    pub(crate) const fn panel(&self, cols: usize) -> usize {
        let rest = cols % CHUNK;
        cols / CHUNK * self.chunk(CHUNK) + if rest == 0 { 0 } else { self.chunk(rest) }
    }
}

/// Smallest and largest value of a table.
pub(super) const fn limits(table: &[i8; 16]) -> (i32, i32) {
    let (mut least, mut most, mut i) = (table[0] as i32, table[0] as i32, 1);
    while i < table.len() {
        let value = table[i] as i32;
        least = if value < least { value } else { least };
        most = if value > most { value } else { most };
        i += 1;
    }
    (least, most)
}

/// Bits of the values of a table, as for [`PanelShape::value_bits`].
const fn bits_of_values(table: &[i8; 16]) -> usize {
    let (least, most) = limits(table);
    match most - least {
        all @ 0..128 => (i32::BITS - all.leading_zeros()) as usize,
        _ => 8,
    }
}
