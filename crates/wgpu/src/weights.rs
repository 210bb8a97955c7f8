//! How weights lie on the device, and the WGSL that reads them.
//!
//! Rows are taken in groups of 32, the invocations that read them side by side. A row is a row of *units*: as many
//! blocks of the format as make whole 32-bit words. Of each unit, word after word, the 32 rows' words lie next to each
//! other, so that a group of invocations reads whole lines of memory. Nothing is unpacked on the way: a weight takes
//! what it takes in the file, but for the padding of odd sizes.

use tallow_core::{DType, Format};

/// Rows that are read side by side.
pub(crate) const LANES: usize = 32;
/// Weights that are unpacked at a time.
pub(crate) const EIGHT: usize = 8;
/// Weights of a row between two places where a sum may be cut.
pub(crate) const SEGMENT: usize = 32;

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
    /// WGSL that gives eight weights: `unpack_N(at, j)` gives those from `8 * j` on of the unit at word `at`.
    wgsl: &'static str,
}

/// The layout of a format.
pub(crate) fn layout(format: Format) -> Layout {
    let whole = |weights, words, wgsl| Layout { weights, words, blocks: 1, lead: None, unused: 0, wgsl };
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
        Format::IQ4NL => pairs(9, include_str!("shaders/formats/iq4_nl.wgsl")),
        Format::IQ4XS => whole(256, 34, include_str!("shaders/formats/iq4_xs.wgsl")),
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

    /// Words of a group of rows.
    pub(crate) fn group_words(&self, cols: usize) -> usize {
        self.units(cols) * self.words * LANES
    }

    /// Puts a unit's blocks, which may be fewer at the end of a row, into words.
    fn arrange(&self, block_bytes: usize, blocks: &[u8], words: &mut [u32]) {
        words.fill(0);
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
        let row_bytes = cols / format.block_weights() * block_bytes;
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
                    layout.wgsl,
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
