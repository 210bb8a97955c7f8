//! [`Format`]: the closed list of block formats, and the facts of each.

use std::fmt;

/// Passes the list of all formats to a macro, after the arguments `$with`.
///
/// Per file: each block's name and, of its format, the usual name, the type's number in GGUF files if it has one,
/// weights per block and bytes per block.
#[doc(hidden)]
#[macro_export]
macro_rules! formats {
    ([$($then:tt)*] $with:tt) => {
        $($then)*! { @ $with
            plain { F32["F32", Some(0), 1, 4] F16["F16", Some(1), 1, 2] BF16["BF16", Some(30), 1, 2] }
            q4_0 { Q4_0["Q4_0", Some(2), 32, 18] }
            q4_1 { Q4_1["Q4_1", Some(3), 32, 20] }
            q5_0 { Q5_0["Q5_0", Some(6), 32, 22] }
            q5_1 { Q5_1["Q5_1", Some(7), 32, 24] }
            q8_0 { Q8_0["Q8_0", Some(8), 32, 34] }
            q2_k { Q2K["Q2_K", Some(10), 256, 84] }
            q3_k { Q3K["Q3_K", Some(11), 256, 110] }
            q4_k { Q4K["Q4_K", Some(12), 256, 144] }
            q5_k { Q5K["Q5_K", Some(13), 256, 176] }
            q6_k { Q6K["Q6_K", Some(14), 256, 210] }
            q8_k { Q8K["Q8_K", Some(15), 256, 292] }
            iq1_s { IQ1S["IQ1_S", Some(19), 256, 50] }
            iq1_m { IQ1M["IQ1_M", Some(29), 256, 56] }
            iq2_xxs { IQ2XXS["IQ2_XXS", Some(16), 256, 66] }
            iq2_xs { IQ2XS["IQ2_XS", Some(17), 256, 74] }
            iq2_s { IQ2S["IQ2_S", Some(22), 256, 82] }
            iq3_xxs { IQ3XXS["IQ3_XXS", Some(18), 256, 98] }
            iq3_s { IQ3S["IQ3_S", Some(21), 256, 110] }
            iq4_nl { IQ4NL["IQ4_NL", Some(20), 32, 18] }
            iq4_xs { IQ4XS["IQ4_XS", Some(23), 256, 136] }
            tq1_0 { TQ1_0["TQ1_0", Some(34), 256, 54] }
            tq2_0 { TQ2_0["TQ2_0", Some(35), 256, 66] }
            mxfp4 { MXFP4["MXFP4", Some(39), 32, 17] }
            nvfp4 { NVFP4["NVFP4", Some(40), 64, 36] }
            q1_0 { Q1_0["Q1_0", Some(41), 128, 18] }
            q2_0 { Q2_0["Q2_0", Some(42), 64, 18] }
            f8 { F8["F8_E4M3", None, 32, 36] }
            u4 {
                U4G32["U4_G32", None, 32, 20]
                U4G64["U4_G64", None, 64, 36]
                U4G128["U4_G128", None, 128, 68]
            }
        }
    };
}

macro_rules! define {
    (@ () $($file:ident { $($block:ident[$name:literal, $gguf:expr, $weights:literal, $bytes:literal])* })*) => {
        /// Storage format of a row of weights.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the names are the formats' own")]
        pub enum Format {
            $($($block,)*)*
        }

        const COUNT: usize = [$($(Format::$block,)*)*].len();

        impl Format {
            /// Every format, in the order of the enum.
            pub const ALL: [Format; COUNT] = [$($(Format::$block,)*)*];

            const fn facts(self) -> Facts {
                let (name, gguf, weights, bytes) = match self {
                    $($(Format::$block => ($name, $gguf, $weights, $bytes),)*)*
                };
                Facts { name, gguf, weights, bytes }
            }
        }
    };
}

crate::formats! { [define] () }

/// Facts of a [`Format`]: name, GGUF type number if it has one, weights per block, bytes per block.
struct Facts {
    name: &'static str,
    gguf: Option<u32>,
    weights: usize,
    bytes: usize,
}

impl Format {
    /// The usual name, as in GGUF files: `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// The type's number in GGUF files, if it has one.
    pub const fn gguf_id(self) -> Option<u32> {
        self.facts().gguf
    }

    /// The format with the GGUF type number `id`, if it is known.
    pub fn from_gguf_id(id: u32) -> Option<Format> {
        Format::ALL.into_iter().find(|f| f.gguf_id() == Some(id))
    }

    /// Weights per block.
    pub const fn block_weights(self) -> usize {
        self.facts().weights
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        self.facts().bytes
    }

    /// Bytes of a row of `cols` weights, or `None` when `cols` is not a whole number of blocks (or overflows).
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_weights()) {
            return None;
        }
        (cols / self.block_weights()).checked_mul(self.block_bytes())
    }

    /// True if a block is one plain float.
    pub const fn is_plain(self) -> bool {
        self.block_weights() == 1
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
