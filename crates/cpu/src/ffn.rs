//! A thread's part of the first phase of an FFN: gate and up go from their sums through the activation to the input of
//! down, without a round trip through memory.

use std::ops::Range;

use tallow_core::Activation;

use crate::gemm::{Activated, Sums};
use crate::kernels::Kernels;
use crate::linear::{LinearScratch, Product, blocks, multiply, multiply_into};
use crate::mat::{Mat, MatMut};
use crate::pack::PAIR;

/// A linear layer whose outputs are some columns of gate and up.
pub(crate) struct ActivationInput<'a> {
    pub product: Product<'a>,
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

/// Sums of gate that are kept until those of up are there: 32 KiB.
const KEPT: usize = 256;

/// Computes the task's columns for its rows.
///
/// Weights of gate are read for several pairs of panels, then those of up: each time memory is read elsewhere, the hardware's
/// prefetchers begin anew. With many rows reading counts for little, and there are more sums than the cache holds.
pub(crate) fn activate_rows(k: &Kernels, t: &ActivationTask<'_>, scratch: &mut LinearScratch) {
    let (mut gate, mut up) = (std::mem::take(&mut scratch.gate), std::mem::take(&mut scratch.up));
    for rows in blocks(t.rows.clone()) {
        let some = (KEPT / rows.len()).max(1) * PAIR;
        for first in t.columns.clone().step_by(some) {
            let columns = first..t.columns.end.min(first + some);
            load_sums(k, t.inputs, columns.clone(), rows.clone(), scratch, &mut gate);
            if let Some(from) = t.up {
                load_sums(k, t.inputs, first + from..columns.end + from, rows.clone(), scratch, &mut up);
            }
            let pairs = columns.clone().step_by(PAIR).zip(gate.chunks(rows.len()));
            for (i, (first, gate)) in pairs.enumerate() {
                let up = t.up.map(|_| &up[i * rows.len()..(i + 1) * rows.len()]);
                let (rows, columns) = (rows.clone(), first..columns.end.min(first + PAIR));
                (k.activate_sums)(&Activated { act: t.act, out: t.out, gate, up, rows, columns });
            }
        }
    }
    (scratch.gate, scratch.up) = (gate, up);
}

/// Computes the sums of `columns` from all layers that have some of them: those of all rows with [`PAIR`] columns, then with the
/// next.
fn load_sums(
    k: &Kernels,
    inputs: &[ActivationInput<'_>],
    columns: Range<usize>,
    rows: Range<usize>,
    scratch: &mut LinearScratch,
    all: &mut Vec<Sums>,
) {
    all.clear();
    all.resize(columns.len().div_ceil(PAIR) * rows.len(), Sums::ZERO);
    for (first, sums) in columns.clone().step_by(PAIR).zip(all.chunks_mut(rows.len())) {
        let columns = first..columns.end.min(first + PAIR);
        for layer in inputs {
            load_layer(k, layer, columns.clone(), rows.clone(), scratch, sums);
        }
    }
}

/// Computes the sums of those of `columns` that a layer has.
fn load_layer(
    k: &Kernels,
    layer: &ActivationInput<'_>,
    columns: Range<usize>,
    rows: Range<usize>,
    scratch: &mut LinearScratch,
    all: &mut [Sums],
) {
    let (start, end) = (columns.start.max(layer.columns.start), columns.end.min(layer.columns.end));
    if start >= end {
        return;
    }
    let outputs = start - layer.columns.start..end - layer.columns.start;
    for pair in outputs.start / PAIR..outputs.end.div_ceil(PAIR) {
        let ours = outputs.start.max(pair * PAIR)..outputs.end.min((pair + 1) * PAIR);
        let (from, to) = (ours.start - pair * PAIR, layer.columns.start + ours.start - columns.start);
        if from == 0 && ours.len() == columns.len() {
            multiply_into(k, &layer.product, pair, rows.clone(), scratch, all);
        } else {
            // They come from more than one pair.
            multiply(k, &layer.product, pair, rows.clone(), scratch);
            for (all, sums) in all.iter_mut().zip(&scratch.sums) {
                let sums = &sums.0.as_flattened()[from..from + ours.len()];
                all.0.as_flattened_mut()[to..to + ours.len()].copy_from_slice(sums);
            }
        }
        if let Some(bias) = layer.bias {
            let bias = &bias.row(0)[ours];
            for all in &mut *all {
                all.0.as_flattened_mut()[to..].iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            }
        }
    }
}
