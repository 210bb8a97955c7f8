//! First phase of an FFN: gate and up go from their sums through the activation to the input of down, without a round
//! trip through memory.

use std::ops::Range;

use tallow_core::Activation;

use super::Kernels;
use super::gemm::Sums;
use super::linear::{LinearScratch, LoraTerms, Product, blocks, multiply};
use super::rowwise::{activate, gated};
use crate::mat::{Mat, MatMut};
use crate::packed::{PAIR, ROWS};
use crate::simd::Simd;

/// A linear layer whose outputs are some columns of gate and up.
pub(crate) struct ActivationInput<'a> {
    pub of: Product<'a>,
    pub added: LoraTerms<'a>,
    /// [1, outputs]
    pub bias: Option<Mat<'a, f32>>,
    /// Its columns among those of gate and up.
    pub columns: Range<usize>,
}

/// Some columns of the input of down.
pub(crate) struct ActivationTask<'a> {
    /// The columns of gate, followed by those of up.
    pub given: &'a [ActivationInput<'a>],
    /// Offset in columns from gate to up, if the FFN is gated.
    pub apart: Option<usize>,
    pub act: Activation,
    /// [rows, width]
    pub out: &'a MatMut<'a, f32>,
    /// Which rows.
    pub rows: Range<usize>,
    /// Columns to compute, which nobody else writes. They begin at a multiple of [`PAIR`].
    pub columns: Range<usize>,
}

/// Computes the task's columns for its rows.
pub(crate) fn activate_rows(k: &Kernels, t: &ActivationTask<'_>, room: &mut LinearScratch) {
    for rows in blocks(t.rows.clone()) {
        for first in t.columns.clone().step_by(PAIR) {
            let columns = first..t.columns.end.min(first + PAIR);
            load_rows(k, t.given, columns.clone(), rows.clone(), room);
            if let Some(apart) = t.apart {
                room.gathered.swap(0, 1);
                load_rows(k, t.given, first + apart..columns.end + apart, rows.clone(), room);
            }
            let [last, gate] = &room.gathered;
            let (gate, up) = if t.apart.is_some() { (gate, Some(&last[..])) } else { (last, None) };
            (k.activate_sums)(&ActivationRows { task: t, gate, up, rows: rows.clone(), columns });
        }
    }
}

/// Computes the sums of `columns`, at most as many as a pair of panels has, from all layers that have some of them.
/// The result is `room.gathered[0]`.
fn load_rows(
    k: &Kernels,
    given: &[ActivationInput<'_>],
    columns: Range<usize>,
    rows: Range<usize>,
    room: &mut LinearScratch,
) {
    for g in given {
        let (start, end) = (columns.start.max(g.columns.start), columns.end.min(g.columns.end));
        if start >= end {
            continue;
        }
        let outputs = start - g.columns.start..end - g.columns.start;
        for pair in outputs.start / PAIR..outputs.end.div_ceil(PAIR) {
            multiply(k, &g.of, g.added, pair, rows.clone(), room);
            let ours = outputs.start.max(pair * PAIR)..outputs.end.min((pair + 1) * PAIR);
            let (from, to) = (ours.start - pair * PAIR, g.columns.start + ours.start - columns.start);
            let (sums, all) = (&mut room.sums, &mut room.gathered[0]);
            if from == 0 && ours.len() == columns.len() {
                std::mem::swap(sums, all);
            } else {
                // They come from more than one pair.
                all.resize(rows.len(), Sums([[0.0; ROWS]; 2]));
                for (all, sums) in all.iter_mut().zip(sums) {
                    let sums = &sums.0.as_flattened()[from..from + ours.len()];
                    all.0.as_flattened_mut()[to..to + ours.len()].copy_from_slice(sums);
                }
            }
            if let Some(bias) = g.bias {
                let bias = &bias.row(0)[ours];
                for all in all {
                    all.0.as_flattened_mut()[to..].iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                }
            }
        }
    }
}

/// Sums of gate and up, to be activated.
pub(crate) struct ActivationRows<'a> {
    task: &'a ActivationTask<'a>,
    /// One for each of `rows`.
    gate: &'a [Sums],
    up: Option<&'a [Sums]>,
    rows: Range<usize>,
    columns: Range<usize>,
}

/// `act(gate) * up`, or `act(gate)` without `up`.
#[inline(always)]
pub(super) unsafe fn activate_sums<S: Simd>(b: &ActivationRows<'_>) {
    let (t, columns) = (b.task, &b.columns);
    for (i, row) in b.rows.clone().enumerate() {
        let mut bent = Sums([[0.0; ROWS]; 2]);
        let (gate, to) = (b.gate[i].0.as_ptr().cast::<f32>(), bent.0.as_mut_ptr().cast::<f32>());
        // SAFETY: sums have `PAIR` elements, a whole number of vectors; the caller has the instruction set.
        unsafe {
            for at in (0..PAIR).step_by(S::LANES) {
                let mut y = activate::<S>(t.act, S::load(gate.add(at)));
                if let Some(up) = b.up {
                    y = S::mul(y, gated::<S>(t.act, S::load(up[i].0.as_ptr().cast::<f32>().add(at))));
                }
                S::store(to.add(at), y);
            }
        }
        let bent = bent.0.as_flattened();
        // SAFETY: the task's columns are written by this thread alone.
        unsafe { t.out.part(row, columns.clone()) }.copy_from_slice(&bent[..columns.len()]);
    }
}
