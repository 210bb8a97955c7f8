//! How weights lie on the device, and the WGSL that reads them.
//!
//! Rows are taken in groups of 32, the invocations that read them side by side. A row is a row of *units*: as many
//! blocks of the format as make whole 32-bit words. Of each unit, word after word, the 32 rows' words lie next to each
//! other, so that a group of invocations reads whole lines of memory. Nothing is unpacked on the way: a weight takes
//! what it takes in the file, but for the padding of odd sizes. Only what takes tables or division to read is made codes of
//! two, three or four bits ([`coded`](crate::coded)).

use tallow_core::{DType, Format};
use tallow_quant::{Gridded, IQ1M, IQ1S, IQ2S, IQ2XS, IQ2XXS, IQ3S, IQ3XXS};

use crate::coded;

/// Rows that are read side by side.
pub(crate) const LANES: usize = 32;
/// Weights that are unpacked at a time.
pub(crate) const EIGHT: usize = 8;
/// Weights of a row between two places where a sum may be cut.
pub(crate) const SEGMENT: usize = 32;

/// Makes words of a block; they are zero before.
type WordsOf = fn(&[u8], &mut [u32]);

/// How one format lies on the device.
pub(crate) struct Layout {
    /// Weights of a unit.
    pub weights: usize,
    /// Words of a unit.
    pub words: usize,
    /// Blocks of the file that make a unit.
    pub blocks: usize,
    /// Where the 16 bits (or so) stand in a block that are put in front, and how many bytes they are. Most formats
    /// begin with a scale of two bytes, which leaves the rest of the block at odd places.
    lead: Option<(usize, usize)>,
    /// Bytes at the end of a block that are left out.
    unused: usize,
    /// What makes a unit's words of a block, where they are others than those of the file.
    words_of: Option<WordsOf>,
    /// What stands for `VALUES` in the WGSL.
    values: [i8; 16],
    /// WGSL that gives eight weights: `unpack_N(at, j)` gives those from `8 * j` on of the unit at word `at`.
    wgsl: &'static str,
}

/// Blocks as they are in a file, one a unit.
const fn whole(weights: usize, words: usize, wgsl: &'static str) -> Layout {
    Layout { weights, words, blocks: 1, lead: None, unused: 0, words_of: None, values: [0; 16], wgsl }
}

fn three_bits<B: Gridded>() -> Layout {
    let words_of = Some(coded::gridded::<B, 3> as WordsOf);
    Layout { words_of, values: B::VALUES, ..whole(256, 29, include_str!("shaders/formats/three_bits.wgsl")) }
}

fn four_bits<B: Gridded>() -> Layout {
    let words_of = Some(coded::gridded::<B, 4> as WordsOf);
    Layout { words_of, values: B::VALUES, ..whole(256, 37, include_str!("shaders/formats/four_bits.wgsl")) }
}

fn ternary(words_of: WordsOf) -> Layout {
    Layout { words_of: Some(words_of), ..whole(256, 17, include_str!("shaders/formats/ternary.wgsl")) }
}

/// The layout of a format.
pub(crate) fn layout(format: Format) -> Layout {
    let plain = |words, wgsl| Layout { blocks: EIGHT, ..whole(EIGHT, words, wgsl) };
    let pairs = |words, wgsl| Layout { blocks: 2, lead: Some((0, 2)), ..whole(64, words, wgsl) };
    match format {
        Format::F32 => plain(8, include_str!("shaders/formats/f32.wgsl")),
        Format::F16 => plain(4, include_str!("shaders/formats/f16.wgsl")),
        Format::BF16 => plain(4, include_str!("shaders/formats/bf16.wgsl")),
        Format::Q4_0 => pairs(9, include_str!("shaders/formats/q4_0.wgsl")),
        Format::Q4_1 => whole(32, 5, include_str!("shaders/formats/q4_1.wgsl")),
        Format::Q5_0 => pairs(11, include_str!("shaders/formats/q5_0.wgsl")),
        Format::Q5_1 => whole(32, 6, include_str!("shaders/formats/q5_1.wgsl")),
        Format::Q8_0 => pairs(17, include_str!("shaders/formats/q8_0.wgsl")),
        Format::Q2K => whole(256, 21, include_str!("shaders/formats/q2_k.wgsl")),
        Format::Q3K => whole(256, 28, include_str!("shaders/formats/q3_k.wgsl")),
        Format::Q4K => whole(
            256,
            36,
            concat!(include_str!("shaders/formats/six_bits.wgsl"), include_str!("shaders/formats/q4_k.wgsl")),
        ),
        Format::Q5K => whole(
            256,
            44,
            concat!(include_str!("shaders/formats/six_bits.wgsl"), include_str!("shaders/formats/q5_k.wgsl")),
        ),
        Format::Q6K => whole(256, 53, include_str!("shaders/formats/q6_k.wgsl")),
        // The sums of codes are for products of integers.
        Format::Q8K => Layout { unused: 32, ..whole(256, 65, include_str!("shaders/formats/q8_k.wgsl")) },
        Format::IQ1S => three_bits::<IQ1S>(),
        Format::IQ1M => three_bits::<IQ1M>(),
        Format::IQ2XXS => three_bits::<IQ2XXS>(),
        Format::IQ2XS => three_bits::<IQ2XS>(),
        Format::IQ2S => three_bits::<IQ2S>(),
        Format::IQ3XXS => four_bits::<IQ3XXS>(),
        Format::IQ3S => four_bits::<IQ3S>(),
        Format::IQ4NL => pairs(9, include_str!("shaders/formats/iq4_nl.wgsl")),
        Format::IQ4XS => whole(256, 34, include_str!("shaders/formats/iq4_xs.wgsl")),
        Format::TQ1_0 => ternary(coded::tq1_0),
        Format::TQ2_0 => ternary(coded::tq2_0),
        Format::NVFP4 => whole(64, 9, include_str!("shaders/formats/nvfp4.wgsl")),
        Format::Q1_0 => Layout {
            blocks: 2,
            lead: Some((0, 2)),
            ..whole(256, 9, include_str!("shaders/formats/q1_0.wgsl"))
        },
        Format::Q2_0 => Layout {
            blocks: 2,
            lead: Some((0, 2)),
            ..whole(128, 9, include_str!("shaders/formats/q2_0.wgsl"))
        },
        Format::F8 => whole(32, 9, include_str!("shaders/formats/f8.wgsl")),
        Format::MXFP4 => Layout {
            blocks: 4,
            lead: Some((0, 1)),
            ..whole(128, 17, include_str!("shaders/formats/mxfp4.wgsl"))
        },
    }
}

impl Layout {
    /// Units of a row of `cols` weights: enough for whole segments too.
    pub(crate) fn units(&self, cols: usize) -> usize {
        cols.next_multiple_of(SEGMENT).div_ceil(self.weights)
    }

    /// The values as `looked_up` takes them.
    fn table(&self) -> String {
        let word = |four: &[i8; 4]| format!("{:#010x}u", u32::from_le_bytes(four.map(|v| v as u8)));
        let words: Vec<String> = self.values.as_chunks().0.iter().map(word).collect();
        format!("vec4<u32>({})", words.join(", "))
    }

    /// Words of a group of rows.
    pub(crate) fn group_words(&self, cols: usize) -> usize {
        self.units(cols) * self.words * LANES
    }

    /// Puts a unit's blocks, which may be fewer at the end of a row, into words.
    fn arrange(&self, block_bytes: usize, blocks: &[u8], words: &mut [u32]) {
        words.fill(0);
        if let Some(words_of) = self.words_of {
            return blocks.chunks_exact(block_bytes).for_each(|block| words_of(block, words));
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
        let (at, len) = self.lead.unwrap_or((0, 0));
        let mut to = (len * self.blocks).next_multiple_of(4);
        for (i, block) in blocks.chunks_exact(block_bytes).enumerate() {
            bytes[i * len..][..len].copy_from_slice(&block[at..at + len]);
            let rest = block.len() - len - self.unused;
            bytes[to..to + rest].copy_from_slice(&block[at + len..][..rest]);
            to += rest;
        }
    }

    /// Puts a group of rows (the last may have fewer than 32) into its words. `rows` are whole rows of the file.
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

/// How the weights that a kernel reads are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// In groups of rows, as this module says.
    Packed(Format),
    /// In plain rows, as a tensor.
    Rows(DType),
}

impl Stored {
    /// Tells it from others.
    pub(crate) fn code(self) -> u32 {
        match self {
            Stored::Packed(format) => format as u32,
            Stored::Rows(dtype) => 256 + dtype as u32,
        }
    }

    /// WGSL that reads weights from the binding `wN`, where N is `part`:
    ///
    /// `fn eight_N(base: u32, step: u32, group: u32, lane: u32, k8: u32) -> Eight` gives weights `8 * k8` to
    /// `8 * k8 + 7` of row `32 * group + lane`. `base` is the group where the weight begins in the block, and `step` its
    /// units in a row; of plain rows they are the tensor's offset and stride.
    pub(crate) fn source(self, part: usize) -> String {
        let text = match self {
            Stored::Packed(format) => {
                let layout = layout(format);
                let eights = layout.weights / EIGHT;
                format!(
                    "{}fn eight_N(base: u32, step: u32, group: u32, lane: u32, k8: u32) -> Eight {{\n  \
                       let at = ((base + group) * step + k8 / {eights}u) * {}u + lane;\n  \
                       return unpack_N(at, k8 % {eights}u);\n}}\n",
                    layout.wgsl.replace("VALUES", &layout.table()),
                    layout.words * LANES
                )
            }
            Stored::Rows(dtype) => {
                let element = match dtype {
                    DType::F16 => "unpack2x16float(wN[i / 2u])[i % 2u]",
                    DType::BF16 => "bitcast<f32>((wN[i / 2u] >> (16u * (i % 2u))) << 16u)",
                    _ => "bitcast<f32>(wN[i])",
                };
                let text = include_str!("shaders/formats/rows.wgsl");
                text.replace("ELEMENT", element)
            }
        };
        text.replace("_N", &format!("_{part}")).replace("wN", &format!("w{part}"))
    }
}
