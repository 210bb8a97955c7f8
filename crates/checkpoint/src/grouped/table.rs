//! [`Table`]: zero points and scales of each group of each output.
//!
//! They are read when needed and dropped afterwards: those of a whole model may take a tenth of its size.

use tallow_quant::Format;

use super::super::{Kind, Stored};
use super::bits_at;
use super::codes::ACROSS;

/// A value for each group of each output.
pub(super) enum Table<T> {
    /// One value for all elements.
    All(T),
    /// [outputs, groups]
    ByRow(Vec<T>),
    /// [groups, outputs]
    ByGroup(Vec<T>),
}

impl<T: Copy> Table<T> {
    pub(super) fn as_slice(&self) -> &[T] {
        match self {
            Table::All(one) => std::slice::from_ref(one),
            Table::ByRow(all) | Table::ByGroup(all) => all,
        }
    }

    pub(super) fn at(&self, row: usize, group: usize, (rows, groups): (usize, usize)) -> T {
        match self {
            Table::All(one) => *one,
            Table::ByRow(all) => all[row * groups + group],
            Table::ByGroup(all) => all[group * rows + row],
        }
    }
}

/// Stored zero points.
#[derive(Debug)]
pub(super) enum Zeros {
    /// One for all.
    All(i32),
    /// [groups, packed words of all outputs], each minus `zero_offset`.
    Down { words: Stored, bits: usize, zero_offset: i32 },
    /// [groups, outputs / 8], in the order of [`ACROSS`].
    Across { words: Stored },
    /// [packed words of all outputs, groups]
    Along { words: Stored, bits: usize },
    /// [outputs, groups]: i8, each minus `zero_offset`.
    Bytes { bytes: Stored, zero_offset: i32 },
}

impl Zeros {
    /// Reads all of them, for `rows` outputs.
    pub(super) fn read(&self, rows: usize) -> Table<i32> {
        match self {
            Zeros::All(zero) => Table::All(*zero),
            Zeros::Down { words, bits, zero_offset } => {
                let lines = words.bytes().as_chunks::<4>().0.chunks_exact(words.shape[1]);
                let zero =
                    |line: &[[u8; 4]], r| bits_at(|w| u32::from_le_bytes(line[w]), r * bits, *bits) as i32;
                Table::ByGroup(
                    lines.flat_map(|line| (0..rows).map(move |r| zero(line, r) + zero_offset)).collect(),
                )
            }
            Zeros::Across { words } => {
                let eight = |word: &[u8; 4]| {
                    let (word, mut eight) = (u32::from_le_bytes(*word), [0; 8]);
                    ACROSS
                        .iter()
                        .enumerate()
                        .for_each(|(at, of)| eight[*of] = (word >> (4 * at) & 15) as i32);
                    eight
                };
                Table::ByGroup(words.bytes().as_chunks().0.iter().flat_map(eight).collect())
            }
            Zeros::Along { words, bits } => {
                let (lines, count) = (words.bytes().as_chunks::<4>().0, words.shape[1]);
                let word = |w: usize, g: usize| u32::from_le_bytes(lines[w * count + g]);
                let zero = |r: usize, g: usize| bits_at(|w| word(w, g), r * bits, *bits) as i32;
                Table::ByRow((0..rows).flat_map(|r| (0..count).map(move |g| zero(r, g))).collect())
            }
            Zeros::Bytes { bytes, zero_offset } => {
                let mut all: Vec<i32> =
                    bytes.bytes().iter().map(|z| i32::from(*z as i8) + zero_offset).collect();
                match all.as_slice() {
                    [_] => Table::All(all.swap_remove(0)),
                    _ => Table::ByRow(all),
                }
            }
        }
    }
}

/// Stored scales; checked to be finite.
#[derive(Debug)]
pub(super) enum Scales {
    /// One for all.
    All(Stored),
    /// [outputs, groups], or a row per block of outputs.
    ByRow(Stored),
    /// [groups, outputs]
    ByGroup(Stored),
}

impl Scales {
    /// Reads all of them.
    pub(super) fn read(&self) -> Table<f32> {
        match self {
            Scales::All(stored) => Table::All(numbers(stored).first().copied().unwrap_or(0.0)),
            Scales::ByRow(stored) => Table::ByRow(numbers(stored)),
            Scales::ByGroup(stored) => Table::ByGroup(numbers(stored)),
        }
    }
}

/// The elements of a float tensor; empty for other element types.
pub(super) fn numbers(stored: &Stored) -> Vec<f32> {
    if matches!(&stored.kind, Kind::Other(elements) if elements == "F8_E8M0") {
        // E8M0: powers of two; the last code is NaN.
        let power = |e: &u8| if *e == u8::MAX { f32::NAN } else { f32::exp2(f32::from(*e) - 127.0) };
        return stored.bytes().iter().map(power).collect();
    }
    let Kind::Weights(format @ (Format::F32 | Format::F16 | Format::BF16)) = stored.kind else {
        return Vec::new();
    };
    let mut data = vec![0.0; stored.len()];
    match tallow_quant::unpack(format, stored.bytes(), &mut data) {
        Ok(()) => data,
        Err(_) => Vec::new(),
    }
}
