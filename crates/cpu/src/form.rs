//! [`PackedKind`]: what kernels are compiled for. Formats that are alike once they are packed share one.
//!
//! Kernels for each instruction set and each number of rows take long to compile. So they know of a format only what
//! changes their code: how wide codes are, whether they are looked up, how many inputs share a scale, and what scales are.
//! What codes stand for is a value that they are given ([`PackedLayout`]).

use crate::packed::{CHUNK, LINE, ROWS, SUBBLOCK};

/// What a chunk begins with: 16 numbers each, one for every row.
///
/// Where numbers of the chunk are multiplied by whole ones of its runs, all products of the chunk add up without rounding
/// ([`Shape::is_whole`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    /// Nothing: the numbers are plain.
    Plain,
    /// The same, with a single for each run, which scales it.
    PlainSingles,
    /// A half for each run, which scales it.
    Halves,
    /// Two halves for each run: its scale, and what is added.
    HalvesAdd,
    /// A single for the chunk, and a signed byte that multiplies it for each run.
    Bytes,
    /// Two halves for the chunk. For each run, a byte that multiplies the first and scales; and a byte that multiplies
    /// the second and is taken away.
    BytesLess,
    /// The same, the two bytes being the halves of one.
    NibblesLess,
    /// A single for the chunk.
    Single,
    /// An exponent of two for each run.
    Exponents,
}

/// How codes and scales lie in a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelShape {
    /// Bits of a code.
    pub bits: usize,
    /// Do codes number what they stand for in a table?
    pub looked_up: bool,
    /// Inputs that share a scale: 16 or 32.
    pub run: usize,
    pub scales: Scales,
}

impl PanelShape {
    /// Are the numbers plain, without codes and scales?
    pub(crate) const fn is_plain(&self) -> bool {
        matches!(self.scales, Scales::Plain | Scales::PlainSingles)
    }

    /// Are codes, looked up if they must be, signed bytes?
    pub(crate) const fn is_wide(&self) -> bool {
        self.bits == 8 || self.looked_up
    }

    /// Do all products of a chunk add up without rounding? They do where whole numbers multiply one scale, or none do.
    pub(crate) const fn has_int_scales(&self) -> bool {
        matches!(self.scales, Scales::Bytes | Scales::BytesLess | Scales::NibblesLess | Scales::Single)
    }

    /// Do the products of 16 codes with bytes add up to 16 bits?
    pub(crate) const fn is_narrow(&self) -> bool {
        !self.is_wide() && self.bits <= 4
    }

    /// Inputs whose products are added before anything scales them.
    pub(crate) const fn step(&self) -> usize {
        if self.has_int_scales() && self.is_narrow() { 16 } else { self.run }
    }

    /// Is something taken away from (or added to) each run?
    pub(crate) const fn has_mins(&self) -> bool {
        matches!(self.scales, Scales::HalvesAdd | Scales::BytesLess | Scales::NibblesLess)
    }

    /// Bytes before the codes of a chunk.
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

    /// Inputs that kernels see of so many: whole parts, where there are codes.
    pub(crate) const fn int_inputs(&self, inputs: usize) -> usize {
        if self.is_plain() { inputs } else { inputs.next_multiple_of(SUBBLOCK) }
    }

    /// Bytes of a chunk of a panel. Where lines are groups of inputs, it has none of those past the last.
    pub(crate) const fn chunk(&self, inputs: usize) -> usize {
        match self.scales {
            Scales::Plain => (inputs * ROWS * self.bits / 8).next_multiple_of(LINE),
            _ if self.bits == 8 => self.head(inputs) + inputs.div_ceil(4) * LINE,
            _ => self.head(inputs) + inputs.div_ceil(SUBBLOCK) * LINE * self.bits,
        }
    }

    /// Bytes that kernels read past the end of a panel: of codes for which there is no input, and which are therefore
    /// multiplied with zeros, whatever they are.
    pub(crate) const fn tail_inputs(&self, cols: usize) -> usize {
        self.panel(self.int_inputs(cols)) - self.panel(cols)
    }

    /// Bytes of a panel.
    pub(crate) const fn panel(&self, cols: usize) -> usize {
        let rest = cols % CHUNK;
        cols / CHUNK * self.chunk(CHUNK) + if rest == 0 { 0 } else { self.chunk(rest) }
    }
}

/// What kernels are compiled for.
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

/// A form as a type, for what is compiled for each.
pub(crate) trait HasPackedKind: 'static {
    const KIND: PackedKind;
    const SHAPE: PanelShape = Self::KIND.shape();
}

/// The types.
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

/// How a format's blocks become chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedLayout {
    pub form: PackedKind,
    pub shape: PanelShape,
    /// What codes stand for, where they are looked up.
    pub table: [i8; 16],
    /// What is taken away from each code. Codes of 8 bits, and what tables hold, are signed and have none.
    pub bias: u8,
}

impl PackedLayout {
    /// Codes from which `bias` is taken away.
    pub(crate) const fn new(form: PackedKind, bias: u8) -> PackedLayout {
        PackedLayout { form, shape: form.shape(), table: [0; 16], bias }
    }

    /// Codes that are looked up.
    pub(crate) const fn looked_up(form: PackedKind, table: [i8; 16]) -> PackedLayout {
        PackedLayout { form, shape: form.shape(), table, bias: 0 }
    }
}
