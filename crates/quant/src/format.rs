//! [`Format`]: the closed list of block formats, and what is common to all of them.

use std::fmt;

/// How a row of weights is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are the formats' own")]
pub enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Q8K,
    IQ1S,
    IQ1M,
    IQ2XXS,
    IQ2XS,
    IQ2S,
    IQ3XXS,
    IQ3S,
    IQ4NL,
    IQ4XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
    F8,
}

/// What [`Format`] knows of itself: name, GGUF type number if it has one, weights in a block, bytes in a block.
struct Facts {
    name: &'static str,
    gguf: Option<u32>,
    weights: usize,
    bytes: usize,
}

impl Format {
    /// Every format, in the order of the enum.
    pub const ALL: [Format; 30] = [
        Format::F32,
        Format::F16,
        Format::BF16,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q8_0,
        Format::Q2K,
        Format::Q3K,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
        Format::Q8K,
        Format::IQ1S,
        Format::IQ1M,
        Format::IQ2XXS,
        Format::IQ2XS,
        Format::IQ2S,
        Format::IQ3XXS,
        Format::IQ3S,
        Format::IQ4NL,
        Format::IQ4XS,
        Format::TQ1_0,
        Format::TQ2_0,
        Format::MXFP4,
        Format::NVFP4,
        Format::Q1_0,
        Format::Q2_0,
        Format::F8,
    ];

    const fn facts(self) -> Facts {
        let (name, gguf, weights, bytes) = match self {
            Format::F32 => ("F32", Some(0), 1, 4),
            Format::F16 => ("F16", Some(1), 1, 2),
            Format::BF16 => ("BF16", Some(30), 1, 2),
            Format::Q4_0 => ("Q4_0", Some(2), 32, 18),
            Format::Q4_1 => ("Q4_1", Some(3), 32, 20),
            Format::Q5_0 => ("Q5_0", Some(6), 32, 22),
            Format::Q5_1 => ("Q5_1", Some(7), 32, 24),
            Format::Q8_0 => ("Q8_0", Some(8), 32, 34),
            Format::Q2K => ("Q2_K", Some(10), 256, 84),
            Format::Q3K => ("Q3_K", Some(11), 256, 110),
            Format::Q4K => ("Q4_K", Some(12), 256, 144),
            Format::Q5K => ("Q5_K", Some(13), 256, 176),
            Format::Q6K => ("Q6_K", Some(14), 256, 210),
            Format::Q8K => ("Q8_K", Some(15), 256, 292),
            Format::IQ1S => ("IQ1_S", Some(19), 256, 50),
            Format::IQ1M => ("IQ1_M", Some(29), 256, 56),
            Format::IQ2XXS => ("IQ2_XXS", Some(16), 256, 66),
            Format::IQ2XS => ("IQ2_XS", Some(17), 256, 74),
            Format::IQ2S => ("IQ2_S", Some(22), 256, 82),
            Format::IQ3XXS => ("IQ3_XXS", Some(18), 256, 98),
            Format::IQ3S => ("IQ3_S", Some(21), 256, 110),
            Format::IQ4NL => ("IQ4_NL", Some(20), 32, 18),
            Format::IQ4XS => ("IQ4_XS", Some(23), 256, 136),
            Format::TQ1_0 => ("TQ1_0", Some(34), 256, 54),
            Format::TQ2_0 => ("TQ2_0", Some(35), 256, 66),
            Format::MXFP4 => ("MXFP4", Some(39), 32, 17),
            Format::NVFP4 => ("NVFP4", Some(40), 64, 36),
            Format::Q1_0 => ("Q1_0", Some(41), 128, 18),
            Format::Q2_0 => ("Q2_0", Some(42), 64, 18),
            Format::F8 => ("F8_E4M3", None, 32, 36),
        };
        Facts { name, gguf, weights, bytes }
    }

    /// The usual name, as GGUF files and people write it: `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// The number that stands for this format in a GGUF file, if any does.
    pub const fn gguf_id(self) -> Option<u32> {
        self.facts().gguf
    }

    /// The format that a GGUF file means by `id`, if we know it.
    pub fn from_gguf_id(id: u32) -> Option<Format> {
        Format::ALL.into_iter().find(|f| f.gguf_id() == Some(id))
    }

    /// Weights in one block.
    pub const fn block_weights(self) -> usize {
        self.facts().weights
    }

    /// Bytes of one block.
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

    /// Is one block one plain number?
    pub const fn is_plain(self) -> bool {
        self.block_weights() == 1
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
