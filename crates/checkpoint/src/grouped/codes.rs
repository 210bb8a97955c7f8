//! [`Codes`]: the quantized integers of a matrix.

use std::ops::Range;

use super::super::Stored;
use super::bits_at;

/// Quantized integers of a matrix, by their layout in the tensor.
#[derive(Debug)]
pub(super) enum Codes {
    /// GPTQ: a word packs neighbouring inputs of one output; a row of words spans all outputs.
    Down {
        /// [inputs / codes per word, outputs]
        words: Stored,
        /// Bits per code.
        bits: usize,
    },
    /// AWQ: a word packs eight outputs of one input, 4 bits each, in the order of [`ACROSS`].
    Across {
        /// [inputs, outputs / 8]
        words: Stored,
    },
    /// compressed-tensors, MLX: a word packs neighbouring inputs of one output; a row of words spans all inputs.
    Along {
        /// [outputs, inputs / codes per word]
        words: Stored,
        /// Bits per code.
        bits: usize,
    },
    /// [outputs, inputs]: i8.
    Bytes(Stored),
    /// [outputs, inputs]: FP8 (E4M3), which are not integers.
    Floats(Stored),
}

/// Output index of each 4-bit field of an AWQ word, lowest bits first.
pub(super) const ACROSS: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

impl Codes {
    /// Range of the codes.
    pub(super) fn range(&self) -> Range<i32> {
        match self {
            Codes::Down { bits, .. } | Codes::Along { bits, .. } => 0..1 << bits,
            Codes::Across { .. } => 0..16,
            Codes::Bytes(_) | Codes::Floats(_) => -128..128,
        }
    }

    /// The tensor that holds them.
    pub(super) fn stored(&self) -> &Stored {
        match self {
            Codes::Down { words, .. } | Codes::Across { words } | Codes::Along { words, .. } => words,
            Codes::Bytes(bytes) | Codes::Floats(bytes) => bytes,
        }
    }

    /// Reads rows of `cols` codes into `out`, one after another.
    pub(super) fn read(&self, rows: Range<usize>, cols: usize, out: &mut [i16]) {
        let stored = self.stored();
        let width = stored.shape.last().copied().unwrap_or(0);
        let words = stored.bytes().as_chunks::<4>().0;
        let word = |i: usize| u32::from_le_bytes(words[i]);
        let out = out.chunks_exact_mut(cols).take(rows.len());
        match self {
            Codes::Down { bits: 4, .. } => {
                // File rows in the outer loop: each has a word of every output.
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
