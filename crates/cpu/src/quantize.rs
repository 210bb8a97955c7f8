//! Activations in 8 bits, as quantized weights are multiplied with them (like llama.cpp's `Q8_K`).
//!
//! A chunk of a row (256 inputs) becomes codes from -127 to 127 and one scale. Kernels go through one chunk of all
//! rows before the next, and rows are stored so: chunk by chunk, and within a chunk row by row.

use std::ops::Range;

use half::bf16;

use crate::mat::MatMut;
use crate::pack::{CHUNK, PackedLayout, SUBBLOCK};
use crate::simd::{CodeSums, Codes};

/// Rows of a tile that GEMM kernels may read at once.
pub(crate) const TILE: usize = 16;
/// Fewer rows than this are never read in tiles.
pub(crate) const MANY: usize = 32;

/// Sums of a row's codes that kernels need in addition to codes and scales, one word per run or sub-block. Depends on the
/// weights' layout only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowSums {
    /// Start value of the integer sums of a run: `-bias` times the sum of its codes, as an `i32`.
    Begin { run: usize, bias: u8 },
    /// Factor of float mins: the negated sum of a sub-block's codes, as an `f32`.
    Mins,
    /// Factor of integer mins: the sums of the codes of two runs, as two `i16`.
    Pairs { run: usize },
}

impl RowSums {
    /// Row sums that weights of `layout` need. `biased`: whether kernels add 128 to signed codes
    /// ([`Lines::BIASED`](crate::simd::Lines::BIASED)).
    pub(crate) fn of(layout: &PackedLayout, biased: bool) -> RowSums {
        let shape = layout.shape;
        let run = shape.run;
        match (shape.has_mins(), shape.is_wide()) {
            (true, _) if shape.has_int_scales() => RowSums::Pairs { run },
            (true, _) => RowSums::Mins,
            (_, true) => RowSums::Begin { run, bias: if biased { 128 } else { 0 } },
            _ => RowSums::Begin { run, bias: layout.bias },
        }
    }

    /// Inputs summed up in one word.
    pub(crate) fn per_word(self) -> usize {
        match self {
            RowSums::Begin { run, .. } => run,
            RowSums::Mins => SUBBLOCK,
            RowSums::Pairs { run } => 2 * run,
        }
    }
}

/// Rounds a row to bf16, to nearest even. What is left of `out` is zeros.
#[inline(always)]
pub(crate) fn to_bf16(x: &[f32], out: &mut [bf16]) {
    let (out, rest) = out.split_at_mut(x.len());
    out.iter_mut().zip(x).for_each(|(out, x)| {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        // NaN stays NaN, whatever its lower bits are.
        let bits = if x.is_nan() { bits >> 16 | 0x40 } else { rounded };
        *out = bf16::from_bits(bits as u16);
    });
    rest.fill(bf16::ZERO);
}

/// Quantizes a chunk, or the rest of a row, to 8-bit codes. Returns the scale (max |x| / 127), and the sums of each 16 codes.
///
/// NaN or infinity in `x` gives a NaN scale, and so NaN products.
///
/// # Safety
///
/// `codes` is as long as `x`, a multiple of 32, and the CPU has the instruction set.
#[inline(always)]
unsafe fn round_chunk<S: Codes>(x: &[f32], codes: &mut [u8]) -> (f32, CodeSums) {
    // SAFETY: the caller upholds the same contract.
    unsafe {
        let most = S::magnitude(x);
        // All so small that this overflows: they become zero.
        let by = 127.0 / most;
        let by = if by.is_finite() { by } else { 0.0 };
        let sums = S::round_codes(x, by, codes);
        (if most.is_finite() { most / 127.0 } else { f32::NAN }, sums)
    }
}

/// Quantized rows being written, by several threads.
pub(crate) struct QuantizeOut<'a> {
    /// Including padding rows.
    pub rows: usize,
    pub codes: MatMut<'a, u8>,
    pub scales: MatMut<'a, f32>,
    pub row_sums: Vec<(RowSums, MatMut<'a, u32>)>,
}

impl QuantizeOut<'_> {
    /// Quantizes a chunk of a row, or the rest of one.
    ///
    /// # Safety
    ///
    /// Nobody else may use that chunk of the row meanwhile, and the CPU has the instruction set.
    #[inline(always)]
    unsafe fn put<S: Codes>(&self, row: usize, chunk: usize, x: &[f32]) {
        let at = chunk * CHUNK * self.rows + row * x.len();
        // SAFETY: chunks of rows do not overlap in any of these arrays, and this one is the caller's alone.
        unsafe {
            let (scale, sums) = round_chunk::<S>(x, self.codes.part(0, at..at + x.len()));
            self.scales.put(0, chunk * self.rows + row, scale);
            let sums = &sums[..x.len() / 16];
            for (kind, out) in &self.row_sums {
                let words = out.part(0, at / kind.per_word()..(at + x.len()) / kind.per_word());
                match *kind {
                    RowSums::Begin { run: 16, bias } => fill::<1>(words, sums, |s| begin(bias, s[0])),
                    RowSums::Begin { run: CHUNK, bias } => {
                        fill::<16>(words, sums, |s| begin(bias, s.iter().sum()))
                    }
                    RowSums::Begin { bias, .. } => fill::<2>(words, sums, |s| begin(bias, s[0] + s[1])),
                    RowSums::Mins => fill::<2>(words, sums, |s| (-((s[0] + s[1]) as f32)).to_bits()),
                    RowSums::Pairs { run: 16 } => fill::<2>(words, sums, |s| pair(s[0], s[1])),
                    RowSums::Pairs { .. } => fill::<4>(words, sums, |s| pair(s[0] + s[1], s[2] + s[3])),
                }
            }
        }
    }
}

/// Writes one word for every `N` sums.
#[inline(always)]
fn fill<const N: usize>(words: &mut [u32], sums: &[i32], word: impl Fn(&[i32; N]) -> u32) {
    words.iter_mut().zip(sums.as_chunks().0).for_each(|(w, s)| *w = word(s));
}

/// Start value of integer sums over codes with this sum.
#[inline(always)]
fn begin(bias: u8, sum: i32) -> u32 {
    -(i32::from(bias) * sum) as u32
}

/// Two sums of codes as two `i16`, the first in the lower half.
#[inline(always)]
fn pair(first: i32, second: i32) -> u32 {
    u32::from(first as u16) | (second as u32) << 16
}

/// Quantizes a row, from chunk `first` on. An incomplete sub-block is padded with zeros.
///
/// # Safety
///
/// Nobody else may use the row meanwhile, and the CPU has the instruction set.
#[inline(always)]
pub(crate) unsafe fn round<S: Codes>(to: &QuantizeOut<'_>, row: usize, first: usize, x: &[f32]) {
    for (i, x) in (first..).zip(x.chunks(CHUNK)) {
        // SAFETY: the caller upholds the same contract.
        unsafe {
            match x.first_chunk::<CHUNK>() {
                // Length known at compile time.
                Some(x) => to.put::<S>(row, i, x),
                None if x.len().is_multiple_of(SUBBLOCK) => to.put::<S>(row, i, x),
                None => {
                    let mut padded = [0.0; CHUNK];
                    padded[..x.len()].copy_from_slice(x);
                    to.put::<S>(row, i, &padded[..x.len().next_multiple_of(SUBBLOCK)]);
                }
            }
        }
    }
}

/// Rows to allocate: GEMM kernels for many rows may read whole tiles from any row on, and ignore what is too much.
pub(crate) fn padded_rows(rows: usize) -> usize {
    if rows < MANY { rows } else { rows + TILE - 1 }
}

/// Quantized rows with the row sums for one kind of weight.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedView<'a> {
    pub rows: usize,
    pub codes: &'a [u8],
    pub scales: &'a [f32],
    pub row_sums: &'a [u32],
    /// log2 of the inputs per word of `row_sums`.
    pub shift: u32,
}

impl<'a> QuantizedView<'a> {
    /// Everything after the first `chunks` chunks, as rows of their own.
    pub(crate) fn after(self, chunks: usize) -> QuantizedView<'a> {
        let (rows, codes) = (chunks * self.rows, chunks * CHUNK * self.rows);
        let (codes, row_sums) = (&self.codes[codes..], &self.row_sums[codes >> self.shift..]);
        QuantizedView { codes, scales: &self.scales[rows..], row_sums, ..self }
    }

    /// Codes, scales and row sums of some rows for `inputs`, all within one chunk; row after row.
    #[inline(always)]
    pub(crate) fn chunk(
        &self,
        rows: Range<usize>,
        inputs: &Range<usize>,
    ) -> (&'a [u8], &'a [f32], &'a [u32]) {
        let at = inputs.start * self.rows + rows.start * inputs.len();
        let end = at + rows.len() * inputs.len();
        let scale = inputs.start / CHUNK * self.rows;
        let scales = &self.scales[scale + rows.start..scale + rows.end];
        (&self.codes[at..end], scales, &self.row_sums[at >> self.shift..end >> self.shift])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Scalar;

    fn rounded(x: &[f32]) -> (Vec<u8>, f32) {
        let mut codes = vec![0; x.len()];
        // SAFETY: every CPU has the scalar instruction set.
        let (scale, _) = unsafe { round_chunk::<Scalar>(x, &mut codes) };
        (codes, scale)
    }

    #[test]
    fn what_is_no_number_stays_none() {
        assert!(rounded(&[0.5; 64]).1 == 0.5 / 127.0);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [0.5; 64];
            x[40] = bad;
            assert!(rounded(&x).1.is_nan());
        }
    }

    #[test]
    fn rows_are_rounded_to_the_nearest_bf16() {
        let steps = (0..=u32::MAX).step_by(0x7ff1).map(f32::from_bits);
        let x: Vec<f32> = steps.chain([f32::MAX, f32::from_bits(0x7f80_0001), -0.0]).collect();
        let mut out = vec![bf16::ONE; x.len() + 3];
        to_bf16(&x, &mut out);
        for (x, out) in x.iter().zip(&out) {
            assert!(
                out.to_bits() == bf16::from_f32(*x).to_bits() || x.is_nan() && out.is_nan(),
                "{x:e}: {out}"
            );
        }
        assert_eq!(out[x.len()..], [bf16::ZERO; 3]);
    }

    #[test]
    fn tiny_numbers_count_as_zero_and_large_ones_do_not_overflow() {
        for x in [1e-42, f32::MAX / 2.0, 0.0] {
            let (codes, scale) = rounded(&[x; 32]);
            let back = f32::from(codes[0] as i8) * scale;
            assert!((back - x).abs() <= x.abs() * 1e-6 + 1e-41, "{x}");
        }
    }
}
