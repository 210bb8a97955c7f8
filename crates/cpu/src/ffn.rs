//! A thread's part of the first phase of an FFN: gate and up go from their sums through the activation to the input of
//! down, without a round trip through memory.

use std::ops::Range;

use tallow_core::Activation;

use crate::gemm::{Activated, Sums};
use crate::kernels::Kernels;
use crate::linear::{AddToSums, LinearScratch, Product, blocks, multiply};
use crate::mat::{Mat, MatMut};
use crate::pack::PAIR;

/// A linear layer whose outputs are some columns of gate and up.
pub(crate) struct ActivationInput<'a> {
    pub product: Product<'a>,
    pub delta: Option<&'a dyn AddToSums>,
    /// [1, outputs]
    pub bias: Option<Mat<'a, f32>>,
    /// Its columns among those of gate and up.
    pub columns: Range<usize>,
}

/// Some columns of the input of down.
pub(crate) struct ActivationTask<'a> {
    /// The columns of gate, followed by those of up.
    pub inputs: &'a [ActivationInput<'a>],
    /// First column of up, if the FFN is gated.
    pub up: Option<usize>,
    pub act: Activation,
    /// [rows, width]
    pub out: &'a MatMut<'a, f32>,
    /// The rows.
    pub rows: Range<usize>,
    /// Columns to compute, which nobody else writes. They begin at a multiple of [`PAIR`].
    pub columns: Range<usize>,
}

/// Computes the task's columns for its rows.
pub(crate) fn activate_rows(k: &Kernels, t: &ActivationTask<'_>, scratch: &mut LinearScratch) {
    for rows in blocks(t.rows.clone()) {
        for first in t.columns.clone().step_by(PAIR) {
            let columns = first..t.columns.end.min(first + PAIR);
            load_sums(k, t.inputs, columns.clone(), rows.clone(), scratch);
            if let Some(up) = t.up {
                scratch.gate_up.swap(0, 1);
                load_sums(k, t.inputs, first + up..columns.end + up, rows.clone(), scratch);
            }
            let [last, gate] = &scratch.gate_up;
            let (gate, up) = if t.up.is_some() { (gate, Some(&last[..])) } else { (last, None) };
            (k.activate_sums)(&Activated { act: t.act, out: t.out, gate, up, rows: rows.clone(), columns });
        }
    }
}

/// Computes the sums of `columns`, at most as many as a pair of panels has, from all layers that have some of them.
/// The result is `scratch.gate_up[0]`.
fn load_sums(
    k: &Kernels,
    inputs: &[ActivationInput<'_>],
    columns: Range<usize>,
    rows: Range<usize>,
    scratch: &mut LinearScratch,
) {
    for layer in inputs {
        let (start, end) = (columns.start.max(layer.columns.start), columns.end.min(layer.columns.end));
        if start >= end {
            continue;
        }
        let outputs = start - layer.columns.start..end - layer.columns.start;
        for pair in outputs.start / PAIR..outputs.end.div_ceil(PAIR) {
            multiply(k, &layer.product, layer.delta, pair, rows.clone(), scratch);
            let ours = outputs.start.max(pair * PAIR)..outputs.end.min((pair + 1) * PAIR);
            let (from, to) = (ours.start - pair * PAIR, layer.columns.start + ours.start - columns.start);
            let (sums, all) = (&mut scratch.sums, &mut scratch.gate_up[0]);
            if from == 0 && ours.len() == columns.len() {
                std::mem::swap(sums, all);
            } else {
                // They come from more than one pair.
                all.resize(rows.len(), Sums::ZERO);
                for (all, sums) in all.iter_mut().zip(sums) {
                    let sums = &sums.0.as_flattened()[from..from + ours.len()];
                    all.0.as_flattened_mut()[to..to + ours.len()].copy_from_slice(sums);
                }
            }
            if let Some(bias) = layer.bias {
                let bias = &bias.row(0)[ours];
                for all in all {
                    all.0.as_flattened_mut()[to..].iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                }
            }
        }
    }
}
