//! [`PackedKind`]: the packed weight types kernels are compiled for. Formats that are alike once packed share one.
//!
//! Kernels for every instruction set and row count take long to compile. So they are generic only over what changes
//! their code: the width of codes and of the values of a table that they index, how many inputs share a scale, and the kind
//! of scales.
//! The values that codes stand for are run-time data ([`PackedLayout`](super::PackedLayout)).

use tallow_quant::{Coding, Format, Scales};

use super::panel::PanelShape;

/// Passes the list of all kinds to a macro, after the arguments `$with`: for each its bits of a code, bits of the code's value
/// (more where codes index a table), inputs per scale, and [`Scales`]. A kind that is enough for a format comes before those with
/// more bits.
macro_rules! packed_kinds {
    ([$($then:tt)*] $with:tt) => {
        $($then)*! { @ $with
            F32(32, 32, 32, Plain)
            F16(16, 16, 32, Plain)
            BF16(16, 16, 32, Plain)
            TwoF16(2, 2, 32, F16)
            TwoF32(2, 2, 256, F32)
            TwoNibbles(2, 2, 16, NibblesMin)
            ThreeBytes(3, 3, 16, Bytes)
            ThreeTableBytes(3, 7, 16, Bytes)
            FourF16(4, 4, 32, F16)
            FourAdd(4, 4, 32, F16Add)
            FourZero(4, 4, 32, F16Zero)
            FourMin(4, 4, 32, BytesMin)
            FourTableF16(4, 8, 32, F16)
            FourTableShort(4, 5, 16, F16)
            FourSmallTableBytes(4, 7, 32, Bytes)
            FourTableBytes(4, 8, 32, Bytes)
            FourTableExponents(4, 5, 32, Exponents)
            FiveF16(5, 5, 32, F16)
            FiveAdd(5, 5, 32, F16Add)
            FiveMin(5, 5, 32, BytesMin)
            SixBytes(6, 6, 16, Bytes)
            EightF16(8, 8, 32, F16)
            EightF32(8, 8, 256, F32)
            EightFloats(8, 8, 32, PlainF32)
        }
    };
}

macro_rules! define {
    (@ () $($name:ident($bits:literal, $value_bits:literal, $run:literal, $scales:ident))*) => {
        /// Packed weight type: bits of a code and kind of [`Scales`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum PackedKind {
            $($name,)*
        }

        impl PackedKind {
            const ALL: &[PackedKind] = &[$(PackedKind::$name),*];

            /// Layout of codes and scales.
            pub(crate) const fn shape(self) -> PanelShape {
                let (bits, value_bits, run, scales) = match self {
                    $(PackedKind::$name => ($bits, $value_bits, $run, Scales::$scales),)*
                };
                PanelShape { bits, value_bits, run, shared: 0, scales }
            }
        }

        /// One type per [`PackedKind`].
        pub(crate) mod kinds {
            $(pub(crate) enum $name {}

            impl super::HasPackedKind for $name {
                const KIND: super::PackedKind = super::PackedKind::$name;
            })*
        }
    };
}

packed_kinds! { [define] () }

/// GEMM sums pairs of products over 16 inputs in 16 bits where runs have float scales (`NarrowRuns`).
const _: () = {
    let mut i = 0;
    while i < PackedKind::ALL.len() {
        let shape = PackedKind::ALL[i].shape();
        let others = shape.is_plain() || shape.is_wide() || shape.has_int_scales();
        assert!(
            others || shape.value_bits <= 5,
            "sums of pairs would overflow: it needs a kind of runs with fewer groups"
        );
        i += 1;
    }
};

impl PackedKind {
    /// The kind of a format's packed weights. Fails the build if kernels are compiled for none.
    pub(crate) const fn of(format: Format, coding: &Coding) -> PackedKind {
        // Not the shape tells bf16 from f16, but what the bits mean.
        if matches!(format, Format::BF16) {
            return PackedKind::BF16;
        }
        let mut i = 0;
        while !PackedKind::ALL[i].shape().is(coding) {
            i += 1;
            assert!(i < PackedKind::ALL.len(), "no kernels for such codes and scales: it needs a PackedKind");
        }
        PackedKind::ALL[i]
    }
}

/// A [`PackedKind`] as a type, for kernels generic over it.
pub(crate) trait HasPackedKind: 'static {
    const KIND: PackedKind;
    const SHAPE: PanelShape = Self::KIND.shape();
}

/// Runs an expression with `$F` standing for the type of a [`PackedKind`] value.
macro_rules! with_packed_kind {
    (@ ($kind:expr, $F:ident, $body:expr) $($name:ident $shape:tt)*) => {
        match $kind {
            $($crate::pack::PackedKind::$name => {
                type $F = $crate::pack::kinds::$name;
                $body
            })*
        }
    };
    ($kind:expr, $F:ident => $body:expr) => {
        $crate::pack::packed_kinds!([$crate::pack::with_packed_kind] ($kind, $F, $body))
    };
}

pub(crate) use {packed_kinds, with_packed_kind};
