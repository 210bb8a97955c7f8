//! [`Codes`]: where a matrix's whole numbers stand.

use std::ops::Range;

use super::super::Stored;
use super::bits_at;

/// A matrix's whole numbers, by how they lie in their tensor.
#[derive(Debug)]
pub(super) enum Codes {
    /// A word has neighbouring inputs of one output; a row of words has all outputs.
    Down {
        /// [inputs / numbers of a word, outputs]
        words: Stored,
        /// Of a number.
        bits: usize,
    },
    /// A word has eight outputs of one input, four bits each, every other first.
    Across {
        /// [inputs, outputs / 8]
        words: Stored,
    },
    /// A word has neighbouring inputs of one output; a row of words has all inputs.
    Along {
        /// [outputs, inputs / numbers of a word]
        words: Stored,
        /// Of a number.
        bits: usize,
    },
    /// [outputs, inputs]: signed bytes.
    Bytes(Stored),
    /// [outputs, inputs]: floats of eight bits, which are no whole numbers.
    Floats(Stored),
}

/// Which output each four bits of a word belong to, lowest first.
pub(super) const ACROSS: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

impl Codes {
    /// What they may be.
    pub(super) fn range(&self) -> Range<i32> {
        match self {
            Codes::Down { bits, .. } | Codes::Along { bits, .. } => 0..1 << bits,
            Codes::Across { .. } => 0..16,
            Codes::Bytes(_) | Codes::Floats(_) => -128..128,
        }
    }

    /// The tensor.
    pub(super) fn stored(&self) -> &Stored {
        match self {
            Codes::Down { words, .. } | Codes::Across { words } | Codes::Along { words, .. } => words,
            Codes::Bytes(bytes) | Codes::Floats(bytes) => bytes,
        }
    }

    /// Reads some rows of `cols` codes, one after another.
    pub(super) fn read(&self, rows: Range<usize>, cols: usize, out: &mut [i16]) {
        let stored = self.stored();
        let width = stored.shape.last().copied().unwrap_or(0);
        let words = stored.bytes().as_chunks::<4>().0;
        let word = |i: usize| u32::from_le_bytes(words[i]);
        let out = out.chunks_exact_mut(cols).take(rows.len());
        match self {
            Codes::Down { bits: 4, .. } => {
                // Lines of the file outermost: each holds a word of every output.
                let mut out: Vec<&mut [i16]> = out.collect();
                for (i, line) in words.chunks_exact(width).enumerate() {
                    for (row, word) in out.iter_mut().zip(&line[rows.clone()]) {
                        let word = u32::from_le_bytes(*word);
                        let to = row[8 * i..].iter_mut().take(8).enumerate();
                        to.for_each(|(i, to)| *to = (word >> (4 * i) & 15) as i16);
                    }
                }
            }
            Codes::Down { bits, .. } => {
                for (r, out) in rows.zip(out) {
                    let code = |i: usize| bits_at(|w| word(w * width + r), i * bits, *bits);
                    out.iter_mut().enumerate().for_each(|(i, to)| *to = code(i) as i16);
                }
            }
            Codes::Across { .. } => {
                let mut out: Vec<&mut [i16]> = out.collect();
                for (i, line) in words.chunks_exact(width).enumerate() {
                    for (r, row) in rows.clone().zip(&mut out) {
                        let at = ACROSS.iter().position(|of| *of == r % 8).unwrap_or(0);
                        row[i] = (u32::from_le_bytes(line[r / 8]) >> (4 * at) & 15) as i16;
                    }
                }
            }
            Codes::Along { bits, .. } => {
                for (r, out) in rows.zip(out) {
                    let code = |i: usize| bits_at(|w| word(r * width + w), i * bits, *bits);
                    out.iter_mut().enumerate().for_each(|(i, to)| *to = code(i) as i16);
                }
            }
            Codes::Bytes(stored) | Codes::Floats(stored) => {
                let bytes = &stored.bytes()[rows.start * cols..rows.end * cols];
                let lines = bytes.chunks_exact(cols);
                out.zip(lines).for_each(|(out, line)| {
                    out.iter_mut().zip(line).for_each(|(to, byte)| *to = i16::from(*byte as i8));
                });
            }
        }
    }
}
