//! Rows of input in eight bits, as quantized weights are multiplied with them.
//!
//! A row's every 32 numbers become whole multiples, from -127 to 127, of one scale. Kernels go through a chunk of inputs
//! of all rows before the next, and so are the rows stored: chunk by chunk, in each chunk row by row.

use std::ops::Range;

use tallow_core::{Backend, DType, Result, Tensor};

use crate::backend::Cpu;
use crate::kernels::NormTask;
use crate::mat::{Mat, MatMut};
use crate::packed::{CHUNK, Layout, PART};

/// What kernels need of each run of a row beside its codes and scales. It depends on how weights are stored, and not on
/// the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// What whole sums begin with: the sum of the codes times this much less than zero, as an `i32`.
    Begin { run: usize, bias: u8 },
    /// What minimums are multiplied by: the scale times the sum of the codes, less than zero, as an `f32`.
    Less { run: usize },
}

impl Side {
    /// What weights of that layout need, where signed codes are multiplied with 128 added to them or not.
    pub(crate) fn of(layout: Layout, biased: bool) -> Side {
        let run = layout.run;
        match (layout.has_mins(), layout.is_wide()) {
            (true, _) => Side::Less { run },
            (_, true) => Side::Begin { run, bias: if biased { 128 } else { 0 } },
            _ => Side::Begin { run, bias: layout.bias },
        }
    }

    fn run(self) -> usize {
        match self {
            Side::Begin { run, .. } | Side::Less { run } => run,
        }
    }
}

/// Rounds some parts of a row: codes, a scale for each part, and the sum of the codes of each half part.
///
/// Where a part holds something that is no number, its scale is none either, and so will be what it is multiplied with.
#[inline(always)]
fn round_parts(x: &[f32], codes: &mut [u8], scales: &mut [f32], sums: &mut [f32; CHUNK / 16]) {
    let parts = x.chunks_exact(PART).zip(codes.chunks_exact_mut(PART)).zip(scales.iter_mut());
    for (((x, codes), scale), sums) in parts.zip(sums.chunks_exact_mut(2)) {
        // Magnitudes compare as their bits do, and what is no number is larger than all.
        let most = x.iter().fold(0, |most: u32, x| most.max(x.to_bits() & 0x7fff_ffff));
        let most = f32::from_bits(most);
        *scale = if most.is_finite() { most / 127.0 } else { f32::NAN };
        // Where all are so small that this overflows, they count as zero.
        let by = 127.0 / most;
        let by = if by.is_finite() { by } else { 0.0 };
        let mut whole = [0i32; PART];
        for ((code, whole), x) in codes.iter_mut().zip(&mut whole).zip(x) {
            // Adding 1.5 * 2^23 rounds to a whole number, ties to even, which stands in the lowest bits.
            *whole = ((x * by + 12_582_912.0).to_bits() as i32) << 24 >> 24;
            *code = *whole as u8;
        }
        let (low, high) = whole.split_at(PART / 2);
        (sums[0], sums[1]) = (low.iter().sum::<i32>() as f32, high.iter().sum::<i32>() as f32);
    }
}

/// Fills in what is needed of each run.
#[inline(always)]
fn fill_side(side: Side, scales: &[f32], halves: &[f32], out: &mut [u32]) {
    let begin = |bias: u8, sum: f32| {
        // SAFETY: the sum of so few bytes, times 128, is far within 32 bits, and it is a number.
        (unsafe { (-(f32::from(bias) * sum)).to_int_unchecked::<i32>() }) as u32
    };
    let wholes = halves.chunks_exact(2);
    match side {
        Side::Begin { run: PART, bias } => {
            out.iter_mut().zip(wholes).for_each(|(o, h)| *o = begin(bias, h[0] + h[1]));
        }
        Side::Begin { bias, .. } => out.iter_mut().zip(halves).for_each(|(o, h)| *o = begin(bias, *h)),
        Side::Less { run: PART } => {
            let both = scales.iter().zip(wholes);
            out.iter_mut().zip(both).for_each(|(o, (s, h))| *o = (-(s * (h[0] + h[1]))).to_bits());
        }
        Side::Less { .. } => {
            let both = scales.iter().zip(wholes);
            for (o, (s, h)) in out.chunks_exact_mut(2).zip(both) {
                (o[0], o[1]) = ((-(s * h[0])).to_bits(), (-(s * h[1])).to_bits());
            }
        }
    }
}

/// Rounded rows that are being written, by several threads.
pub(crate) struct Rounding<'a> {
    rows: usize,
    cols: usize,
    codes: MatMut<'a, u8>,
    scales: MatMut<'a, f32>,
    sides: Vec<(Side, MatMut<'a, u32>)>,
}

impl Rounding<'_> {
    /// Rounds a row's inputs from `first` on. They are whole parts of one chunk.
    ///
    /// # Safety
    ///
    /// Nobody else may use these inputs of the row meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn put(&self, row: usize, first: usize, x: &[f32]) {
        let (chunk, n) = (first / CHUNK * CHUNK, x.len());
        let at = chunk * self.rows + row * (self.cols - chunk).min(CHUNK) + (first - chunk);
        let mut sums = [0.0; CHUNK / 16];
        // SAFETY: no two inputs share any of these ranges, and these inputs are the caller's.
        unsafe {
            let scales = self.scales.part(0, at / PART..(at + n) / PART);
            round_parts(x, self.codes.part(0, at..at + n), scales, &mut sums);
            for (side, out) in &self.sides {
                let runs =
                    if side.run() == PART { at / PART..(at + n) / PART } else { at / 16..(at + n) / 16 };
                fill_side(*side, scales, &sums, out.part(0, runs));
            }
        }
    }
}

/// Rounds a whole row.
///
/// # Safety
///
/// Nobody else may use the row meanwhile.
#[inline(always)]
pub(crate) unsafe fn round(to: &Rounding<'_>, row: usize, x: &[f32]) {
    for (i, x) in x.chunks(CHUNK).enumerate() {
        // SAFETY: passed on to the caller.
        unsafe { to.put(row, i * CHUNK, x) };
    }
}

/// The rounded input of some linear layers.
pub(crate) struct Activations {
    rows: usize,
    cols: usize,
    codes: Tensor<Cpu>,
    scales: Tensor<Cpu>,
    sides: Vec<(Side, Tensor<Cpu>)>,
}

impl Activations {
    /// Rows yet to be written, with what weights need.
    pub(crate) fn new(
        b: &Cpu,
        rows: usize,
        cols: usize,
        needs: impl Iterator<Item = Side>,
    ) -> Result<Activations> {
        let codes = b.alloc(DType::U8, 1, rows * cols)?;
        let scales = b.alloc(DType::F32, 1, rows * cols / PART)?;
        let mut sides: Vec<(Side, Tensor<Cpu>)> = Vec::new();
        for side in needs {
            if sides.iter().all(|(s, _)| *s != side) {
                sides.push((side, b.alloc(DType::U32, 1, rows * cols / side.run())?));
            }
        }
        Ok(Activations { rows, cols, codes, scales, sides })
    }

    /// To write them.
    pub(crate) fn rounding(&self) -> Rounding<'_> {
        let (codes, scales) = (MatMut::new(&self.codes), MatMut::new(&self.scales));
        let sides = self.sides.iter().map(|(s, t)| (*s, MatMut::new(t))).collect();
        Rounding { rows: self.rows, cols: self.cols, codes, scales, sides }
    }

    /// Writes them: rows of `x`, normalised first if asked.
    pub(crate) fn fill(&self, b: &Cpu, x: Mat<'_, f32>, norm: Option<&NormTask<'_>>) {
        let (to, k, rows, cols) = (self.rounding(), b.kernels, self.rows, self.cols);
        let piece = (8192 / cols.max(1)).max(1);
        b.share(rows.div_ceil(piece), 4 * rows * cols, |scratch, i| {
            for r in i * piece..rows.min((i + 1) * piece) {
                let x = match norm {
                    Some(norm) => {
                        scratch.floats.resize(scratch.floats.len().max(cols), 0.0);
                        (k.norm)(norm, x.row(r), &mut scratch.floats[..cols]);
                        &scratch.floats[..cols]
                    }
                    None => x.row(r),
                };
                (k.round)(&to, r, x);
            }
        });
    }

    /// As kernels read them that multiply with weights of that kind.
    pub(crate) fn of(&self, side: Side) -> Option<Rounded<'_>> {
        let (_, sides) = self.sides.iter().find(|(s, _)| *s == side)?;
        let codes = Mat::<u8>::new(&self.codes).row(0);
        let (scales, sides) = (Mat::new(&self.scales).row(0), Mat::new(sides).row(0));
        Some(Rounded { rows: self.rows, codes, scales, sides, run: side.run() })
    }
}

/// Rounded rows, with what one kind of weights needs.
#[derive(Clone, Copy)]
pub(crate) struct Rounded<'a> {
    rows: usize,
    codes: &'a [u8],
    scales: &'a [f32],
    sides: &'a [u32],
    run: usize,
}

impl<'a> Rounded<'a> {
    /// Some inputs, a chunk of them, of some rows: codes, scales, and what else is needed, row after row.
    #[inline(always)]
    pub(crate) fn chunk(
        &self,
        rows: Range<usize>,
        inputs: &Range<usize>,
    ) -> (&'a [u8], &'a [f32], &'a [u32]) {
        let at = inputs.start * self.rows + rows.start * inputs.len();
        let end = at + rows.len() * inputs.len();
        // By the two divisors that there are: dividing by any other takes as long as some of the work that this is for.
        let sides = if self.run == PART { at / PART..end / PART } else { at / 16..end / 16 };
        (&self.codes[at..end], &self.scales[at / PART..end / PART], &self.sides[sides])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(x: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; x.len() / PART]);
        let sums = &mut [0.0; CHUNK / 16];
        round_parts(x, &mut codes, &mut scales, sums);
        (codes, scales)
    }

    #[test]
    fn what_is_no_number_stays_none() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [0.5; 64];
            x[40] = bad;
            let (_, scales) = rounded(&x);
            assert!(scales[0] == 0.5 / 127.0 && scales[1].is_nan());
        }
    }

    #[test]
    fn tiny_numbers_count_as_zero_and_large_ones_do_not_overflow() {
        for x in [1e-42, f32::MAX / 2.0, 0.0] {
            let (codes, scales) = rounded(&[x; 32]);
            let back = f32::from(codes[0] as i8) * scales[0];
            assert!((back - x).abs() <= x.abs() * 1e-6 + 1e-41, "{x}");
        }
    }
}
