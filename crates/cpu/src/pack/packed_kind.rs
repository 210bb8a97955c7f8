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
    TwoF16,
    TwoNibbles,
    ThreeBytes,
    ThreeTableBytes,
    FourF16,
    FourAdd,
    FourMin,
    FourTableF16,
    FourTableShort,
    FourTableBytes,
    FourTableExponents,
    FiveF16,
    FiveAdd,
    FiveMin,
    SixBytes,
    EightF16,
    EightF32,
    EightFloats,
}

impl PackedKind {
    /// Layout of codes and scales.
    pub(crate) const fn shape(self) -> PanelShape {
        let (bits, looked_up, run, scales) = match self {
            PackedKind::F32 => (32, false, 32, Scales::Plain),
            PackedKind::F16 | PackedKind::BF16 => (16, false, 32, Scales::Plain),
            PackedKind::TwoF16 => (2, false, 32, Scales::F16),
            PackedKind::TwoNibbles => (2, false, 16, Scales::NibblesMin),
            PackedKind::ThreeBytes => (3, false, 16, Scales::Bytes),
            PackedKind::ThreeTableBytes => (3, true, 16, Scales::Bytes),
            PackedKind::FourF16 => (4, false, 32, Scales::F16),
            PackedKind::FourAdd => (4, false, 32, Scales::F16Add),
            PackedKind::FourMin => (4, false, 32, Scales::BytesMin),
            PackedKind::FourTableF16 => (4, true, 32, Scales::F16),
            PackedKind::FourTableShort => (4, true, 16, Scales::F16),
            PackedKind::FourTableBytes => (4, true, 32, Scales::Bytes),
            PackedKind::FourTableExponents => (4, true, 32, Scales::Exponents),
            PackedKind::FiveF16 => (5, false, 32, Scales::F16),
            PackedKind::FiveAdd => (5, false, 32, Scales::F16Add),
            PackedKind::FiveMin => (5, false, 32, Scales::BytesMin),
            PackedKind::SixBytes => (6, false, 16, Scales::Bytes),
            PackedKind::EightF16 => (8, false, 32, Scales::F16),
            PackedKind::EightF32 => (8, false, 32, Scales::F32),
            PackedKind::EightFloats => (8, false, 32, Scales::PlainF32),
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

    kinds!(F32 F16 BF16 TwoF16 TwoNibbles ThreeBytes ThreeTableBytes FourF16 FourAdd FourMin FourTableF16
        FourTableShort FourTableBytes FourTableExponents FiveF16 FiveAdd FiveMin SixBytes EightF16 EightF32 EightFloats);
}

/// Runs an expression with `$F` standing for the type of a [`PackedKind`] value.
macro_rules! with_packed_kind {
    ($kind:expr, $F:ident => $body:expr) => {
        $crate::pack::with_packed_kind!(@ $kind, $F, $body,
            F32 F16 BF16 TwoF16 TwoNibbles ThreeBytes ThreeTableBytes FourF16 FourAdd FourMin FourTableF16
            FourTableShort FourTableBytes FourTableExponents FiveF16 FiveAdd FiveMin SixBytes EightF16 EightF32 EightFloats)
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
