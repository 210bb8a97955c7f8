//! Packed weights: their layout on the device, and the WGSL that unpacks them.
//!
//! Rows are stored in groups of 32 (`LANES`), one row per invocation. A row is a sequence of *units*: the fewest blocks
//! of the format that fill whole 32-bit words. Within a unit the layout is [words, 32 rows], so that a group of
//! invocations reads contiguous memory. Weights stay quantized and take the size they have in the file, apart from
//! padding of odd sizes. Only formats whose decoding needs lookup tables or division are recoded to codes of two, three
//! or four bits ([`coded`](crate::coded)).

use tallow_core::{DType, Format};
use tallow_quant::{Gridded, IQ1M, IQ1S, IQ2S, IQ2XS, IQ2XXS, IQ3S, IQ3XXS};

use crate::coded;
use crate::gpu::Kernel;
use crate::preprocess::Value;

/// Rows per group, read side by side.
pub(crate) const LANES: usize = 32;
/// Weights unpacked by one call.
pub(crate) const EIGHT: usize = 8;
/// Weights of a row between two points where split-K may cut the sum.
pub(crate) const SEGMENT: usize = 32;

/// Recodes a block into words, which are zeroed before.
type WordsOf = fn(&[u8], &mut [u32]);

/// Device layout of one format.
pub(crate) struct Layout {
    /// Weights per unit.
    pub weights: usize,
    /// Words per unit.
    pub words: usize,
    /// File blocks per unit.
    pub blocks: usize,
    /// Bytes that are moved from the front of each block to the front of the unit: usually the f16 scale, which leaves
    /// the rest of the block unaligned to words.
    lead: usize,
    /// Bytes at the end of a block that are dropped.
    unused: usize,
    /// Recodes a block into the unit's words, for formats that are not stored as in the file.
    words_of: Option<WordsOf>,
    /// Codebook, where the WGSL takes it as `VALUES_N`.
    values: Option<[i8; 16]>,
    /// File in `shaders/formats` that unpacks eight weights: `unpack_N(at, j)` returns weights `8 * j` to `8 * j + 7` of
    /// the unit at word `at`.
    wgsl: &'static str,
}

/// One file block per unit, unchanged.
const fn whole(weights: usize, words: usize, wgsl: &'static str) -> Layout {
    Layout { weights, words, blocks: 1, lead: 0, unused: 0, words_of: None, values: None, wgsl }
}

fn three_bits<B: Gridded>() -> Layout {
    let words_of = Some(coded::gridded::<B, 3> as WordsOf);
    Layout { words_of, values: Some(B::VALUES), ..whole(256, 29, "three_bits") }
}

fn four_bits<B: Gridded>() -> Layout {
    let words_of = Some(coded::gridded::<B, 4> as WordsOf);
    Layout { words_of, values: Some(B::VALUES), ..whole(256, 37, "four_bits") }
}

fn ternary(words_of: WordsOf) -> Layout {
    Layout { words_of: Some(words_of), ..whole(256, 17, "ternary") }
}

/// Device layout of a format.
pub(crate) fn layout(format: Format) -> Layout {
    match format {
        Format::IQ1S => three_bits::<IQ1S>(),
        Format::IQ1M => three_bits::<IQ1M>(),
        Format::IQ2XXS => three_bits::<IQ2XXS>(),
        Format::IQ2XS => three_bits::<IQ2XS>(),
        Format::IQ2S => three_bits::<IQ2S>(),
        Format::IQ3XXS => four_bits::<IQ3XXS>(),
        Format::IQ3S => four_bits::<IQ3S>(),
        Format::TQ1_0 => ternary(coded::tq1_0),
        Format::TQ2_0 => ternary(coded::tq2_0),
        // The block sums at the end (`bsums`) are only used by integer dot products.
        Format::Q8K => Layout { unused: 32, ..whole(256, 65, "q8_k") },
        _ => as_in_file(format),
    }
}

/// The fewest blocks that fill whole words and have at least eight weights. A large block is a unit of its own, padded
/// to words.
const fn as_in_file(format: Format) -> Layout {
    let (weights, bytes) = (format.block_weights(), format.block_bytes());
    let blocks = match weights {
        1 => EIGHT,
        256.. => 1,
        _ => [1, 4, 2, 4][bytes % 4],
    };
    let unit = whole(blocks * weights, (blocks * bytes).div_ceil(4), shader(format));
    Layout { blocks, lead: if blocks == 1 { 0 } else { bytes % 4 }, ..unit }
}

macro_rules! shader {
    (@ () plain $plain:tt $($file:ident { $($block:ident $facts:tt)* })*) => {
        /// The shader file of a format, named as its file in `tallow-quant`.
        const fn shader(format: Format) -> &'static str {
            match format {
                Format::F32 => "f32",
                Format::F16 => "f16",
                Format::BF16 => "bf16",
                $($(Format::$block => stringify!($file),)*)*
            }
        }
    };
}

tallow_quant::formats! { [shader] () }

impl Layout {
    /// Units of a row of `cols` weights, padded to whole segments.
    pub(crate) fn units(&self, cols: usize) -> usize {
        cols.next_multiple_of(SEGMENT).div_ceil(self.weights)
    }

    /// The codebook as the table argument of `looked_up`.
    fn table(&self) -> Option<Value> {
        let word = |four: &[i8]| u32::from_le_bytes([four[0], four[1], four[2], four[3]].map(|v| v as u8));
        let [x, y, z, w] = self.values.as_ref()?.as_chunks::<4>().0 else { return None };
        Some(Value::Words([x, y, z, w].map(|four| word(four))))
    }

    /// Words per group of rows.
    pub(crate) fn group_words(&self, cols: usize) -> usize {
        self.units(cols) * self.words * LANES
    }

    /// Arranges a unit's blocks (fewer at the end of a row) as words.
    fn arrange(&self, block_bytes: usize, blocks: &[u8], words: &mut [u32]) {
        words.fill(0);
        if let Some(words_of) = self.words_of {
            return blocks.chunks_exact(block_bytes).for_each(|block| words_of(block, words));
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
        let len = self.lead;
        let mut to = (len * self.blocks).next_multiple_of(4);
        for (i, block) in blocks.chunks_exact(block_bytes).enumerate() {
            bytes[i * len..][..len].copy_from_slice(&block[..len]);
            let rest = block.len() - len - self.unused;
            bytes[to..to + rest].copy_from_slice(&block[len..][..rest]);
            to += rest;
        }
    }

    /// Packs a group of rows (the last group may have fewer than 32). `rows` are whole rows of the file.
    pub(crate) fn pack(&self, format: Format, cols: usize, rows: &[u8], out: &mut [u32]) {
        let block_bytes = format.block_bytes();
        let row_bytes = cols.div_ceil(format.block_weights()) * block_bytes;
        let unit_bytes = self.blocks * block_bytes;
        let mut words = vec![0; self.words];
        out.fill(0);
        for (lane, row) in rows.chunks_exact(row_bytes.max(1)).enumerate() {
            for (unit, blocks) in row.chunks(unit_bytes).enumerate() {
                self.arrange(block_bytes, blocks, &mut words);
                for (i, word) in words.iter().enumerate() {
                    out[(unit * self.words + i) * LANES + lane] = *word;
                }
            }
        }
    }
}

/// Storage of the weights that a kernel reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Packed in groups of rows, as described at the top of this module.
    Packed(Format),
    /// Row-major, as a tensor.
    Rows(DType),
}

impl Stored {
    /// Adds what `weights.wgsl` needs to read a part from the binding `wN`, where N is `part`.
    pub(crate) fn define(self, part: usize, kernel: Kernel) -> Kernel {
        let [format, packed, words, eights, values] = DEFINES[part];
        match self {
            Stored::Packed(of) => {
                let layout = layout(of);
                let kernel = kernel.with(format, layout.wgsl).with(packed, true);
                let kernel = kernel.with(words, layout.words).with(eights, layout.weights / EIGHT);
                match layout.table() {
                    Some(table) => kernel.with(values, table),
                    None => kernel,
                }
            }
            Stored::Rows(dtype) => kernel.with(format, dtype.name()).with(packed, false),
        }
    }
}

/// Most parts of a weight that a kernel reads.
pub(crate) const PARTS: usize = 3;

/// Names of a part's defines.
const DEFINES: [[&str; 5]; PARTS] = [
    ["FORMAT_0", "PACKED_0", "UNIT_WORDS_0", "UNIT_EIGHTS_0", "VALUES_0"],
    ["FORMAT_1", "PACKED_1", "UNIT_WORDS_1", "UNIT_EIGHTS_1", "VALUES_1"],
    ["FORMAT_2", "PACKED_2", "UNIT_WORDS_2", "UNIT_EIGHTS_2", "VALUES_2"],
];
