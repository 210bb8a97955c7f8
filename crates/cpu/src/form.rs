//! [`PackedKind`]: the packed weight types kernels are compiled for. Formats that are alike once packed share one.
//!
//! Kernels for every instruction set and row count take long to compile. So they are generic only over what changes
//! their code: the width of codes, whether they index a table, how many inputs share a scale, and the kind of scales.
//! The values that codes stand for are run-time data ([`PackedLayout`]).

use crate::packed::{CHUNK, LINE, ROWS, SUBBLOCK};

/// Scales at the head of a chunk, 16 values each, one per row.
///
/// Where the chunk's f16 or f32 scales are multiplied by integers of its runs, all products of the chunk are summed
/// in integers, without rounding ([`PanelShape::has_int_scales`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    /// None: the weights are floats.
    Plain,
    /// One f32 for each run of FP8 codes.
    PlainSingles,
    /// One f16 scale per run.
    Halves,
    /// Two f16 per run: scale and min, which is added.
    HalvesAdd,
    /// One f32 for the chunk, and an `i8` factor per run.
    Bytes,
    /// Two f16 for the chunk, d and dmin. Per run, a byte that multiplies d (the scale), and a byte that multiplies
    /// dmin (the min, which is subtracted).
    BytesLess,
    /// The same with both factors in the nibbles of one byte.
    NibblesLess,
    /// One f32 for the chunk.
    Single,
    /// One power-of-two exponent (E8M0) per run.
    Exponents,
}

/// How codes and scales lie in a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelShape {
    /// Bits of a code.
    pub bits: usize,
    /// Whether codes index a table of values.
    pub looked_up: bool,
    /// Inputs that share a scale: 16 or 32.
    pub run: usize,
    pub scales: Scales,
}

impl PanelShape {
    /// Whether weights are floats, without integer codes.
    pub(crate) const fn is_plain(&self) -> bool {
        matches!(self.scales, Scales::Plain | Scales::PlainSingles)
    }

    /// Whether codes (after the table lookup, if any) are signed bytes.
    pub(crate) const fn is_wide(&self) -> bool {
        self.bits == 8 || self.looked_up
    }

    /// Whether all products of a chunk are summed in integers: its runs have integer factors of one scale, or no
    /// factors.
    pub(crate) const fn has_int_scales(&self) -> bool {
        matches!(self.scales, Scales::Bytes | Scales::BytesLess | Scales::NibblesLess | Scales::Single)
    }

    /// Whether the sum of products of 16 codes with `i8` inputs fits into 16 bits.
    pub(crate) const fn is_narrow(&self) -> bool {
        !self.is_wide() && self.bits <= 4
    }

    /// Inputs whose products are summed before they are scaled.
    pub(crate) const fn step(&self) -> usize {
        if self.has_int_scales() && self.is_narrow() { 16 } else { self.run }
    }

    /// Whether runs have a min, which is subtracted or added.
    pub(crate) const fn has_mins(&self) -> bool {
        matches!(self.scales, Scales::HalvesAdd | Scales::BytesLess | Scales::NibblesLess)
    }

    /// Bytes of the header before the codes of a chunk.
    pub(crate) const fn head(&self, inputs: usize) -> usize {
        let runs = inputs.div_ceil(self.run);
        let bytes = match self.scales {
            Scales::Plain => 0,
            Scales::Halves => runs * 32,
            Scales::HalvesAdd => runs * 64,
            Scales::Bytes | Scales::NibblesLess => 64 + runs * ROWS,
            Scales::BytesLess => 64 + 2 * runs * ROWS,
            Scales::Single => 64,
            Scales::PlainSingles => runs * 64,
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

/// Packed weight type: bits of a code and kind of [`Scales`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PackedKind {
    F32,
    F16,
    BF16,
    TwoHalves,
    TwoNibbles,
    ThreeBytes,
    ThreeTableBytes,
    FourHalves,
    FourAdd,
    FourLess,
    FourTableHalves,
    FourTableShort,
    FourTableBytes,
    FourTableExponents,
    FiveHalves,
    FiveAdd,
    FiveLess,
    SixBytes,
    EightHalves,
    EightSingle,
    EightFloats,
}

impl PackedKind {
    /// How codes and scales lie.
    pub(crate) const fn shape(self) -> PanelShape {
        let (bits, looked_up, run, scales) = match self {
            PackedKind::F32 => (32, false, 32, Scales::Plain),
            PackedKind::F16 | PackedKind::BF16 => (16, false, 32, Scales::Plain),
            PackedKind::TwoHalves => (2, false, 32, Scales::Halves),
            PackedKind::TwoNibbles => (2, false, 16, Scales::NibblesLess),
            PackedKind::ThreeBytes => (3, false, 16, Scales::Bytes),
            PackedKind::ThreeTableBytes => (3, true, 16, Scales::Bytes),
            PackedKind::FourHalves => (4, false, 32, Scales::Halves),
            PackedKind::FourAdd => (4, false, 32, Scales::HalvesAdd),
            PackedKind::FourLess => (4, false, 32, Scales::BytesLess),
            PackedKind::FourTableHalves => (4, true, 32, Scales::Halves),
            PackedKind::FourTableShort => (4, true, 16, Scales::Halves),
            PackedKind::FourTableBytes => (4, true, 32, Scales::Bytes),
            PackedKind::FourTableExponents => (4, true, 32, Scales::Exponents),
            PackedKind::FiveHalves => (5, false, 32, Scales::Halves),
            PackedKind::FiveAdd => (5, false, 32, Scales::HalvesAdd),
            PackedKind::FiveLess => (5, false, 32, Scales::BytesLess),
            PackedKind::SixBytes => (6, false, 16, Scales::Bytes),
            PackedKind::EightHalves => (8, false, 32, Scales::Halves),
            PackedKind::EightSingle => (8, false, 32, Scales::Single),
            PackedKind::EightFloats => (8, false, 32, Scales::PlainSingles),
        };
        PanelShape { bits, looked_up, run, scales }
    }
}

/// A [`PackedKind`] as a type, for kernels generic over it.
pub(crate) trait HasPackedKind: 'static {
    const KIND: PackedKind;
    const SHAPE: PanelShape = Self::KIND.shape();
}

/// One type per [`PackedKind`].
pub(crate) mod forms {
    macro_rules! forms {
        ($($name:ident)*) => {
            $(pub(crate) enum $name {}

            impl super::HasPackedKind for $name {
                const KIND: super::PackedKind = super::PackedKind::$name;
            })*
        };
    }

    forms!(F32 F16 BF16 TwoHalves TwoNibbles ThreeBytes ThreeTableBytes FourHalves FourAdd FourLess FourTableHalves
        FourTableShort FourTableBytes FourTableExponents FiveHalves FiveAdd FiveLess SixBytes EightHalves EightSingle EightFloats);
}

/// Runs an expression with `$F` standing for the type of a [`PackedKind`] value.
macro_rules! with_form {
    ($form:expr, $F:ident => $body:expr) => {
        $crate::form::with_form!(@ $form, $F, $body,
            F32 F16 BF16 TwoHalves TwoNibbles ThreeBytes ThreeTableBytes FourHalves FourAdd FourLess FourTableHalves
            FourTableShort FourTableBytes FourTableExponents FiveHalves FiveAdd FiveLess SixBytes EightHalves EightSingle EightFloats)
    };
    (@ $form:expr, $F:ident, $body:expr, $($name:ident)*) => {
        match $form {
            $($crate::form::PackedKind::$name => {
                type $F = $crate::form::forms::$name;
                $body
            })*
        }
    };
}

pub(crate) use with_form;

/// How blocks of a format are packed into chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedLayout {
    pub form: PackedKind,
    pub shape: PanelShape,
    /// Values of the codes, where they index a table.
    pub table: [i8; 16],
    /// Subtracted from each code. 8-bit codes and table values are signed and have none.
    pub bias: u8,
}

impl PackedLayout {
    /// Codes with a bias.
    pub(crate) const fn new(form: PackedKind, bias: u8) -> PackedLayout {
        PackedLayout { form, shape: form.shape(), table: [0; 16], bias }
    }

    /// Codes that index a table.
    pub(crate) const fn looked_up(form: PackedKind, table: [i8; 16]) -> PackedLayout {
        PackedLayout { form, shape: form.shape(), table, bias: 0 }
    }
}
