//! Linear layers: unpack a few rows of weights at a time, multiply them with every row of the input.
//!
//! Each product is summed in lanes over the inputs in order, and the lanes are added up once at the end. That order
//! does not depend on how many rows the input has or how outputs are shared among threads.

#![allow(clippy::needless_range_loop, reason = "loops over register tiles are clearest by index")]

use half::{bf16, f16};
use tallow_quant::{Format, with_block};

use crate::mat::{Mat, MatMut};
use crate::simd::{self, Simd};

/// Inputs that are unpacked at a time: a multiple of every block, and small enough for the nearest cache.
const DEPTH: usize = 1024;
/// Weight rows that share a load of the input.
const ROWS: usize = 4;
/// The same when the input has a row or two, where more sums must be under way to keep the units busy.
const MANY_ROWS: usize = 8;

/// Rows of weights.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// Numbers that can be used as they are.
    F32(Mat<'a, f32>),
    /// Half precision.
    F16(Mat<'a, f16>),
    /// Brain floating point.
    BF16(Mat<'a, bf16>),
    /// Blocks, and how many numbers a row of them stands for.
    Blocks(Format, Mat<'a, u8>, usize),
}

impl Source<'_> {
    /// Inputs of the layer.
    pub(crate) fn cols(&self) -> usize {
        match self {
            Source::F32(m) => m.cols,
            Source::F16(m) => m.cols,
            Source::BF16(m) => m.cols,
            Source::Blocks(_, _, cols) => *cols,
        }
    }

    /// Some numbers of a row, from `at` on; `at` is a multiple of `DEPTH` or of the block.
    #[inline(always)]
    unsafe fn unpack<S: Simd>(&self, row: usize, at: usize, out: &mut [f32]) {
        let n = out.len();
        match self {
            Source::F32(m) => out.copy_from_slice(&m.row(row)[at..at + n]),
            // SAFETY: the caller has the instruction set.
            Source::F16(m) => unsafe { simd::widen_f16::<S>(&m.row(row)[at..at + n], out) },
            // SAFETY: as above.
            Source::BF16(m) => unsafe { simd::widen_bf16::<S>(&m.row(row)[at..at + n], out) },
            Source::Blocks(format, m, _) => {
                let (weights, bytes) = (format.block_weights(), format.block_bytes());
                unpack(*format, &m.row(row)[at / weights * bytes..][..n / weights * bytes], out);
            }
        }
    }
}

/// One whole row of a weight as plain numbers.
#[inline(always)]
pub(super) unsafe fn unpack_row<S: Simd>(w: &Source<'_>, row: usize, out: &mut [f32]) {
    // SAFETY: the caller has the instruction set.
    unsafe { w.unpack::<S>(row, 0, out) }
}

/// Unpacks whole blocks. Sizes agree: weights are checked when they are prepared.
#[inline(always)]
fn unpack(format: Format, bytes: &[u8], out: &mut [f32]) {
    let fits = with_block!(format, B => tallow_quant::unpack_as::<B>(bytes, out));
    debug_assert!(fits.is_ok(), "{fits:?}");
}

/// Some outputs of a linear layer.
pub(crate) struct LinearTask<'a> {
    /// [outputs, inputs]
    pub w: Source<'a>,
    /// Which outputs.
    pub outputs: std::ops::Range<usize>,
    /// [rows, inputs]
    pub x: Mat<'a, f32>,
    /// [rows, outputs]. Nobody else writes the columns of `outputs`.
    pub out: &'a MatMut<'a, f32>,
    /// [1, outputs]
    pub bias: Option<Mat<'a, f32>>,
    /// Multiplies the product.
    pub scale: f32,
    /// `cap * tanh(y / cap)`
    pub softcap: Option<f32>,
    /// [rows, outputs], added last.
    pub residual: Option<Mat<'a, f32>>,
}

#[inline(always)]
pub(super) unsafe fn linear<S: Simd>(t: &LinearTask<'_>, scratch: &mut Vec<f32>) {
    // SAFETY: the caller has the instruction set.
    unsafe {
        if t.x.rows <= 2 {
            panels::<S, MANY_ROWS>(t, scratch);
        } else {
            panels::<S, ROWS>(t, scratch);
        }
    }
}

/// All outputs of the task, `R` at a time.
#[inline(always)]
unsafe fn panels<S: Simd, const R: usize>(t: &LinearTask<'_>, scratch: &mut Vec<f32>) {
    let (k, m) = (t.w.cols(), t.x.rows);
    // Unpacked weights, then the sums: R vectors for every row of the input.
    let (weights, sums) = (R * DEPTH, R * m * S::LANES);
    scratch.resize(scratch.len().max(weights + sums), 0.0);
    let (weights, sums) = scratch.split_at_mut(weights);
    for first in t.outputs.clone().step_by(R) {
        // Past the last output the last one is computed again, and not stored.
        let row = |r: usize| (first + r).min(t.outputs.end - 1);
        for at in (0..k).step_by(DEPTH) {
            let n = DEPTH.min(k - at);
            let w: [*const f32; R] = std::array::from_fn(|r| {
                if let Source::F32(m) = &t.w {
                    return m.row(row(r))[at..at + n].as_ptr();
                }
                let unpacked = &mut weights[r * DEPTH..][..n];
                // SAFETY: the caller has the instruction set.
                unsafe { t.w.unpack::<S>(row(r), at, unpacked) };
                unpacked.as_ptr()
            });
            // SAFETY: each pointer of `w` has n elements behind it, each row of x has n from `at` on, and the sums have
            // R vectors for each row of x. The caller has the instruction set.
            unsafe {
                let mut c = 0;
                while c < m {
                    let s = &mut sums[c * R * S::LANES..];
                    match m - c {
                        1 => c += tile::<S, R, 1>(w, t.x, c, at..at + n, s),
                        2 | 3 => c += tile::<S, R, 2>(w, t.x, c, at..at + n, s),
                        4 | 5 => c += tile::<S, R, 4>(w, t.x, c, at..at + n, s),
                        _ if R == MANY_ROWS => c += tile::<S, R, 2>(w, t.x, c, at..at + n, s),
                        _ => c += tile::<S, R, 6>(w, t.x, c, at..at + n, s),
                    }
                }
            }
        }
        for c in 0..m {
            let live = R.min(t.outputs.end - first);
            // SAFETY: the task's outputs are ours alone; the sums have R vectors for row `c`.
            unsafe {
                let out = t.out.part(c, first..first + live);
                for (r, y) in out.iter_mut().enumerate() {
                    *y = if k == 0 { 0.0 } else { S::sum(S::load(sums[(c * R + r) * S::LANES..].as_ptr())) };
                }
                finish::<S>(t, c, first, out);
            }
        }
    }
}

/// Adds the products of `R` weight rows with `C` input rows, over some inputs, to their sums. Returns `C`.
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const C: usize>(
    w: [*const f32; R],
    x: Mat<'_, f32>,
    first: usize,
    inputs: std::ops::Range<usize>,
    sums: &mut [f32],
) -> usize {
    let n = inputs.len();
    let x: [*const f32; C] = std::array::from_fn(|c| x.row(first + c)[inputs.clone()].as_ptr());
    let sums = sums[..R * C * S::LANES].as_mut_ptr();
    // SAFETY: every pointer has n elements behind it, the sums R * C vectors; the caller has the instruction set.
    unsafe {
        let zero = S::splat(0.0);
        let mut acc = [[zero; R]; C];
        if inputs.start > 0 {
            for (i, a) in acc.as_flattened_mut().iter_mut().enumerate() {
                *a = S::load(sums.add(i * S::LANES));
            }
        }
        let full = n / S::LANES * S::LANES;
        for i in (0..full).step_by(S::LANES) {
            let w: [S::V; R] = std::array::from_fn(|r| S::load(w[r].add(i)));
            for c in 0..C {
                let x = S::load(x[c].add(i));
                for r in 0..R {
                    acc[c][r] = S::fma(w[r], x, acc[c][r]);
                }
            }
        }
        if full < n {
            let w: [S::V; R] = std::array::from_fn(|r| S::load_some(w[r].add(full), n - full));
            for c in 0..C {
                let x = S::load_some(x[c].add(full), n - full);
                for r in 0..R {
                    acc[c][r] = S::fma(w[r], x, acc[c][r]);
                }
            }
        }
        for (i, a) in acc.as_flattened().iter().enumerate() {
            S::store(sums.add(i * S::LANES), *a);
        }
    }
    C
}

/// Bias, scale, cap, residual.
#[inline(always)]
unsafe fn finish<S: Simd>(t: &LinearTask<'_>, row: usize, first: usize, out: &mut [f32]) {
    if let Some(bias) = t.bias {
        out.iter_mut().zip(&bias.row(0)[first..]).for_each(|(y, b)| *y += b);
    }
    if t.scale != 1.0 {
        out.iter_mut().for_each(|y| *y *= t.scale);
    }
    if let Some(cap) = t.softcap {
        // SAFETY: the caller has the instruction set.
        unsafe { super::rowwise::softcap::<S>(out, cap) };
    }
    if let Some(residual) = t.residual {
        out.iter_mut().zip(&residual.row(row)[first..]).for_each(|(y, r)| *y += r);
    }
}
