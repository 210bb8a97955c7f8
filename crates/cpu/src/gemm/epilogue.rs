//! From the sums of a pair of panels to outputs: the epilogue of a linear layer, or the activation of gate and up, which
//! so take no round trip through memory.

use std::ops::Range;

use tallow_core::Activation;

use super::Sums;
use crate::mat::{Mat, MatMut};
use crate::pack::PAIR;
use crate::rowwise::{activate, gated, softcap};
use crate::simd::{Simd, prefetch_slice};

/// Outputs of a linear layer, and what is done to its sums on the way there.
pub(crate) struct OutputTask<'a> {
    /// [rows, outputs]. Nobody else writes these rows.
    pub out: MatMut<'a, f32>,
    /// [1, outputs]
    pub bias: Option<Mat<'a, f32>>,
    /// Factor of x Wᵀ + b.
    pub scale: f32,
    /// `cap * tanh(y / cap)`
    pub softcap: Option<f32>,
    /// [rows, outputs]: added last.
    pub residual: Option<Mat<'a, f32>>,
}

/// Sums to be turned into outputs.
pub(crate) struct Finish<'a> {
    pub task: &'a OutputTask<'a>,
    /// Sums of each of `rows`.
    pub sums: &'a [Sums],
    pub rows: Range<usize>,
    /// The task's outputs among those of the pair, which begins with output `first`.
    pub outputs: Range<usize>,
    pub first: usize,
}

/// Rows ahead for which outputs and residual are prefetched: rows lie far apart.
const AHEAD: usize = 12;

/// Epilogue: bias, scale, softcap, residual.
#[inline(always)]
pub(crate) unsafe fn finish<S: Simd>(f: &Finish<'_>) {
    let (t, at, ours) = (f.task, &f.outputs, f.outputs.start - f.first..f.outputs.end - f.first);
    let mut bias = [0.0; PAIR];
    if let Some(all) = t.bias {
        bias[ours.clone()].copy_from_slice(&all.row(0)[at.clone()]);
    }
    for (row, sums) in f.rows.clone().zip(f.sums) {
        let ahead = row + AHEAD;
        if ahead < f.rows.end {
            // SAFETY: the slice is only prefetched; its elements are the task's alone.
            let out = unsafe { t.out.part(ahead, at.clone()) };
            prefetch_slice(out);
            if let Some(residual) = t.residual {
                prefetch_slice(&residual.row(ahead)[at.clone()]);
            }
        }
        let mut y = Sums(sums.0);
        let y = y.0.as_flattened_mut();
        if t.bias.is_some() {
            y.iter_mut().zip(&bias).for_each(|(y, b)| *y += b);
        }
        if t.scale != 1.0 {
            y.iter_mut().for_each(|y| *y *= t.scale);
        }
        if let Some(cap) = t.softcap {
            // SAFETY: the caller has the instruction set.
            unsafe { softcap::<S>(y, cap) };
        }
        // SAFETY: the task's outputs are written by this thread alone.
        let out = unsafe { t.out.part(row, at.clone()) };
        let residual = t.residual.map(|residual| &residual.row(row)[at.clone()]);
        match (out.first_chunk_mut::<PAIR>(), y.first_chunk::<PAIR>()) {
            // Length known at compile time.
            (Some(out), Some(y)) => put(out, y, residual),
            _ => put(out, &y[ours.clone()], residual),
        }
    }
}

#[inline(always)]
fn put(out: &mut [f32], y: &[f32], residual: Option<&[f32]>) {
    match residual {
        Some(residual) => {
            for ((out, y), r) in out.iter_mut().zip(y).zip(residual) {
                *out = y + r;
            }
        }
        None => out.copy_from_slice(y),
    }
}

/// Sums of gate and up, to be activated.
pub(crate) struct Activated<'a> {
    pub act: Activation,
    /// [rows, width]. Nobody else writes these rows and columns.
    pub out: &'a MatMut<'a, f32>,
    /// Sums of gate for each of `rows`.
    pub gate: &'a [Sums],
    pub up: Option<&'a [Sums]>,
    pub rows: Range<usize>,
    pub columns: Range<usize>,
}

/// `act(gate) * up`, or `act(gate)` without `up`.
#[inline(always)]
pub(crate) unsafe fn activate_sums<S: Simd>(t: &Activated<'_>) {
    let columns = &t.columns;
    for (i, row) in t.rows.clone().enumerate() {
        let mut activated = Sums::ZERO;
        let (gate, to) = (t.gate[i].0.as_ptr().cast::<f32>(), activated.0.as_mut_ptr().cast::<f32>());
        // SAFETY: sums have `PAIR` elements, a whole number of vectors; the caller has the instruction set.
        unsafe {
            for at in (0..PAIR).step_by(S::LANES) {
                let mut y = activate::<S>(t.act, S::load(gate.add(at)));
                if let Some(up) = t.up {
                    y = S::mul(y, gated::<S>(t.act, S::load(up[i].0.as_ptr().cast::<f32>().add(at))));
                }
                S::store(to.add(at), y);
            }
        }
        let activated = activated.0.as_flattened();
        // SAFETY: the task's columns are written by this thread alone.
        unsafe { t.out.part(row, columns.clone()) }.copy_from_slice(&activated[..columns.len()]);
    }
}
