//! [`Table`]: zeros and scales, which a file has for each group of each output.
//!
//! They are read where they are needed and let go: those of a whole model may take a tenth of its size.

use tallow_quant::Format;

use super::super::{Kind, Stored};
use super::bits_at;
use super::codes::ACROSS;

/// Something for each group of each output.
pub(super) enum Table<T> {
    /// The same for all.
    All(T),
    /// A row for each output.
    ByRow(Vec<T>),
    /// A row for each group.
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

/// Where it stands what codes are for zero.
#[derive(Debug)]
pub(super) enum Zeros {
    /// The same for all.
    All(i32),
    /// [groups, words of all outputs], each less by `lift`.
    Down { words: Stored, bits: usize, lift: i32 },
    /// [groups, outputs / 8], every other first.
    Across { words: Stored },
    /// [words of all outputs, groups]
    Along { words: Stored, bits: usize },
    /// [outputs, groups]: signed bytes, each less by `lift`.
    Bytes { bytes: Stored, lift: i32 },
}

impl Zeros {
    /// Reads all, for so many outputs.
    pub(super) fn read(&self, rows: usize) -> Table<i32> {
        match self {
            Zeros::All(zero) => Table::All(*zero),
            Zeros::Down { words, bits, lift } => {
                let lines = words.bytes().as_chunks::<4>().0.chunks_exact(words.shape[1]);
                let zero =
                    |line: &[[u8; 4]], r| bits_at(|w| u32::from_le_bytes(line[w]), r * bits, *bits) as i32;
                Table::ByGroup(lines.flat_map(|line| (0..rows).map(move |r| zero(line, r) + lift)).collect())
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
            Zeros::Bytes { bytes, lift } => {
                let mut all: Vec<i32> = bytes.bytes().iter().map(|z| i32::from(*z as i8) + lift).collect();
                match all.as_slice() {
                    [_] => Table::All(all.swap_remove(0)),
                    _ => Table::ByRow(all),
                }
            }
        }
    }
}

/// Where scales stand: numbers of which it is known that all are finite.
#[derive(Debug)]
pub(super) enum Scales {
    /// One for all.
    All(Stored),
    /// A row for each output, or for as many as share one.
    ByRow(Stored),
    /// A row for each group.
    ByGroup(Stored),
}

impl Scales {
    /// Reads all.
    pub(super) fn read(&self) -> Table<f32> {
        match self {
            Scales::All(stored) => Table::All(numbers(stored).first().copied().unwrap_or(0.0)),
            Scales::ByRow(stored) => Table::ByRow(numbers(stored)),
            Scales::ByGroup(stored) => Table::ByGroup(numbers(stored)),
        }
    }
}

/// A tensor's plain numbers; none where it has others.
pub(super) fn numbers(stored: &Stored) -> Vec<f32> {
    if matches!(&stored.kind, Kind::Other(elements) if elements == "F8_E8M0") {
        // Powers of two; the last number is none.
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
