//! [`Form`]: what kernels are compiled for. Formats that are alike once they are packed share one.
//!
//! Kernels for each instruction set and each number of rows take long to compile. So they know of a format only what
//! changes their code: how wide codes are, whether they are looked up, how many inputs share a scale, and what scales are.
//! What codes stand for is a value that they are given ([`Layout`]).

use crate::packed::{CHUNK, LINE, PART, ROWS};

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
pub(crate) struct Shape {
    /// Bits of a code.
    pub bits: usize,
    /// Do codes number what they stand for in a table?
    pub looked_up: bool,
    /// Inputs that share a scale: 16 or 32.
    pub run: usize,
    pub scales: Scales,
}

impl Shape {
    /// Are the numbers plain, without codes and scales?
    pub(crate) const fn is_plain(&self) -> bool {
        matches!(self.scales, Scales::Plain | Scales::PlainSingles)
    }

    /// Are codes, looked up if they must be, signed bytes?
    pub(crate) const fn is_wide(&self) -> bool {
        self.bits == 8 || self.looked_up
    }

    /// Do all products of a chunk add up without rounding? They do where whole numbers multiply one scale, or none do.
    pub(crate) const fn is_whole(&self) -> bool {
        matches!(self.scales, Scales::Bytes | Scales::BytesLess | Scales::NibblesLess | Scales::Single)
    }

    /// Do the products of 16 codes with bytes add up to 16 bits?
    pub(crate) const fn is_narrow(&self) -> bool {
        !self.is_wide() && self.bits <= 4
    }

    /// Inputs whose products are added before anything scales them.
    pub(crate) const fn step(&self) -> usize {
        if self.is_whole() && self.is_narrow() { 16 } else { self.run }
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
    pub(crate) const fn seen(&self, inputs: usize) -> usize {
        if self.is_plain() { inputs } else { inputs.next_multiple_of(PART) }
    }

    /// Bytes of a chunk of a panel. Where lines are groups of inputs, it has none of those past the last.
    pub(crate) const fn chunk(&self, inputs: usize) -> usize {
        match self.scales {
            Scales::Plain => (inputs * ROWS * self.bits / 8).next_multiple_of(LINE),
            _ if self.bits == 8 => self.head(inputs) + inputs.div_ceil(4) * LINE,
            _ => self.head(inputs) + inputs.div_ceil(PART) * LINE * self.bits,
        }
    }

    /// Bytes that kernels read past the end of a panel: of codes for which there is no input, and which are therefore
    /// multiplied with zeros, whatever they are.
    pub(crate) const fn past(&self, cols: usize) -> usize {
        self.panel(self.seen(cols)) - self.panel(cols)
    }

    /// Bytes of a panel.
    pub(crate) const fn panel(&self, cols: usize) -> usize {
        let rest = cols % CHUNK;
        cols / CHUNK * self.chunk(CHUNK) + if rest == 0 { 0 } else { self.chunk(rest) }
    }
}

/// What kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
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

impl Form {
    /// How codes and scales lie.
    pub(crate) const fn shape(self) -> Shape {
        let (bits, looked_up, run, scales) = match self {
            Form::F32 => (32, false, 32, Scales::Plain),
            Form::F16 | Form::BF16 => (16, false, 32, Scales::Plain),
            Form::TwoHalves => (2, false, 32, Scales::Halves),
            Form::TwoNibbles => (2, false, 16, Scales::NibblesLess),
            Form::ThreeBytes => (3, false, 16, Scales::Bytes),
            Form::ThreeTableBytes => (3, true, 16, Scales::Bytes),
            Form::FourHalves => (4, false, 32, Scales::Halves),
            Form::FourAdd => (4, false, 32, Scales::HalvesAdd),
            Form::FourLess => (4, false, 32, Scales::BytesLess),
            Form::FourTableHalves => (4, true, 32, Scales::Halves),
            Form::FourTableShort => (4, true, 16, Scales::Halves),
            Form::FourTableBytes => (4, true, 32, Scales::Bytes),
            Form::FourTableExponents => (4, true, 32, Scales::Exponents),
            Form::FiveHalves => (5, false, 32, Scales::Halves),
            Form::FiveAdd => (5, false, 32, Scales::HalvesAdd),
            Form::FiveLess => (5, false, 32, Scales::BytesLess),
            Form::SixBytes => (6, false, 16, Scales::Bytes),
            Form::EightHalves => (8, false, 32, Scales::Halves),
            Form::EightSingle => (8, false, 32, Scales::Single),
            Form::EightFloats => (8, false, 32, Scales::PlainSingles),
        };
        Shape { bits, looked_up, run, scales }
    }
}

/// A form as a type, for what is compiled for each.
pub(crate) trait Formed: 'static {
    const FORM: Form;
    const SHAPE: Shape = Self::FORM.shape();
}

/// The types.
pub(crate) mod forms {
    macro_rules! forms {
        ($($name:ident)*) => {
            $(pub(crate) enum $name {}

            impl super::Formed for $name {
                const FORM: super::Form = super::Form::$name;
            })*
        };
    }

    forms!(F32 F16 BF16 TwoHalves TwoNibbles ThreeBytes ThreeTableBytes FourHalves FourAdd FourLess FourTableHalves
        FourTableShort FourTableBytes FourTableExponents FiveHalves FiveAdd FiveLess SixBytes EightHalves EightSingle EightFloats);
}

/// Runs an expression with `$F` standing for the type of a [`Form`] value.
macro_rules! with_form {
    ($form:expr, $F:ident => $body:expr) => {
        $crate::form::with_form!(@ $form, $F, $body,
            F32 F16 BF16 TwoHalves TwoNibbles ThreeBytes ThreeTableBytes FourHalves FourAdd FourLess FourTableHalves
            FourTableShort FourTableBytes FourTableExponents FiveHalves FiveAdd FiveLess SixBytes EightHalves EightSingle EightFloats)
    };
    (@ $form:expr, $F:ident, $body:expr, $($name:ident)*) => {
        match $form {
            $($crate::form::Form::$name => {
                type $F = $crate::form::forms::$name;
                $body
            })*
        }
    };
}

pub(crate) use with_form;

/// How a format's blocks become chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub form: Form,
    pub shape: Shape,
    /// What codes stand for, where they are looked up.
    pub table: [i8; 16],
    /// What is taken away from each code. Codes of 8 bits, and what tables hold, are signed and have none.
    pub bias: u8,
}

impl Layout {
    /// Codes from which `bias` is taken away.
    pub(crate) const fn new(form: Form, bias: u8) -> Layout {
        Layout { form, shape: form.shape(), table: [0; 16], bias }
    }

    /// Codes that are looked up.
    pub(crate) const fn looked_up(form: Form, table: [i8; 16]) -> Layout {
        Layout { form, shape: form.shape(), table, bias: 0 }
    }
}
