//! [`PackedKind`]: the packed weight types kernels are compiled for. Formats that are alike once packed share one.
//!
//! Kernels for every instruction set and row count take long to compile. So they are generic only over what changes
//! their code: the width of codes, whether they index a table, how many inputs share a scale, and the kind of scales.
//! The values that codes stand for are run-time data ([`PackedLayout`](super::PackedLayout)).

use super::panel::{PanelShape, Scales};

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
pub(crate) mod kinds {
    macro_rules! kinds {
        ($($name:ident)*) => {
            $(pub(crate) enum $name {}

            impl super::HasPackedKind for $name {
                const KIND: super::PackedKind = super::PackedKind::$name;
            })*
        };
    }

    kinds!(F32 F16 BF16 TwoHalves TwoNibbles ThreeBytes ThreeTableBytes FourHalves FourAdd FourLess FourTableHalves
        FourTableShort FourTableBytes FourTableExponents FiveHalves FiveAdd FiveLess SixBytes EightHalves EightSingle EightFloats);
}

/// Runs an expression with `$F` standing for the type of a [`PackedKind`] value.
macro_rules! with_packed_kind {
    ($kind:expr, $F:ident => $body:expr) => {
        $crate::pack::with_packed_kind!(@ $kind, $F, $body,
            F32 F16 BF16 TwoHalves TwoNibbles ThreeBytes ThreeTableBytes FourHalves FourAdd FourLess FourTableHalves
            FourTableShort FourTableBytes FourTableExponents FiveHalves FiveAdd FiveLess SixBytes EightHalves EightSingle EightFloats)
    };
    (@ $kind:expr, $F:ident, $body:expr, $($name:ident)*) => {
        match $kind {
            $($crate::pack::PackedKind::$name => {
                type $F = $crate::pack::kinds::$name;
                $body
            })*
        }
    };
}

pub(crate) use with_packed_kind;
