//! Mixture of experts (MoE): rows sorted by expert, so that each expert's weights are read once for all of its rows.

use std::ops::Range;

use tallow_core::ops::{Epilogue, Moe, Route};
use tallow_core::{DType, Expert, LinearWeights, Memory, Result, Routing, RoutingWeightOn, Tensor, Weight};

use super::device::Cpu;
use super::ffn::activation_inputs;
use super::input::LinearInput;
use super::linear::OutputColumns;
use crate::ffn::{ActivationTask, activate_rows};
use crate::linear::{LinearTask, Product, linear};
use crate::mat::{Mat, MatMut};
use crate::moe::{Choice, ExpertRows};

/// An expert that has rows, with its linear layers of one phase.
struct Group<'a> {
    rows: Range<usize>,
    layers: Vec<OutputColumns<'a>>,
    /// Outputs of the phase.
    outputs: usize,
}

/// The experts that have rows, those with most first: they take longest, and starting them last would leave threads
/// idle at the end.
fn groups<'a>(
    op: &'a Moe<'_, Cpu>,
    sorted: &ExpertRows,
    layer: impl Fn(&'a Expert<Cpu>) -> &'a [LinearWeights<Cpu>],
    outputs: usize,
) -> Vec<Group<'a>> {
    let with = |(e, rows): (&'a Expert<Cpu>, &Range<usize>)| {
        let rows = Some(rows.clone()).filter(|rows| !rows.is_empty())?;
        Some(Group { rows, layers: OutputColumns::side_by_side(layer(e))?, outputs })
    };
    let mut groups: Vec<Group<'a>> = op.experts.iter().zip(&sorted.places).filter_map(with).collect();
    groups.sort_by_key(|g| std::cmp::Reverse(g.rows.len()));
    groups
}

/// Has the system read the weights of all experts that have rows from the disk at once: page faults would ask for one piece
/// after the other.
fn fetch_experts(op: &Moe<'_, Cpu>, sorted: &ExpertRows) {
    let used = op.experts.iter().zip(&sorted.places).filter(|(_, rows)| !rows.is_empty());
    for layer in used.flat_map(|(expert, _)| expert.up.iter().chain([&expert.down])) {
        if let Some(Weight::Blocks { data, .. }) = layer.weight.in_order() {
            data.buf().fetch();
        }
    }
}

/// Approximate number of multiplications.
fn cost_of(groups: &[Group<'_>]) -> usize {
    let of = |g: &Group<'_>| g.layers.iter().map(|l| g.rows.len() * l.outputs * l.w.cols()).sum::<usize>();
    groups.iter().map(of).sum()
}

impl Cpu {
    /// The work of a phase in pieces: a group, and some columns of its result.
    fn pieces(&self, groups: &[Group<'_>]) -> Vec<(usize, Range<usize>)> {
        let total = groups.iter().map(|g| g.outputs).sum();
        let piece = self.piece(total);
        let of = |(i, g): (usize, &Group<'_>)| {
            let outputs = g.outputs;
            (0..outputs).step_by(piece).map(move |first| (i, first..outputs.min(first + piece)))
        };
        groups.iter().enumerate().flat_map(of).collect()
    }

    /// [`Backend::moe`]
    pub(crate) fn moe_phases(&self, op: &Moe<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (dim, width) = (op.x.cols(), op.experts.first().map_or(0, |e| e.down.weight.cols()));
        let sorted = ExpertRows::new(&Mat::new(op.routing_weights));
        if self.beyond_memory {
            fetch_experts(op, &sorted);
        }
        let up = groups(op, &sorted, |e| &e.up, width);
        let activated = self.activate_groups(op, &sorted, &up, width)?; // [places, width]
        let down = groups(op, &sorted, |e| std::slice::from_ref(&e.down), dim);
        let x = self.input(&activated, None, down.iter().flat_map(|g| &g.layers).map(|l| &l.w))?;
        let outputs = self.alloc(DType::F32, sorted.at.len(), dim)?; // [places, dim]
        let (pieces, out) = (self.pieces(&down), MatMut::<f32>::new(&outputs));
        let products: Vec<Product<'_>> =
            down.iter().flat_map(|g| &g.layers).map(|l| x.times(self.kernels, l.w)).collect();
        self.share(pieces.len(), cost_of(&down), |scratch, i| {
            let (group, outputs) = pieces[i].clone();
            let Group { rows, layers, .. } = &down[group];
            let mut task = LinearTask::plain(products[group], rows.clone(), out.columns(0..dim));
            task.output.bias = layers.first().and_then(|l| l.bias);
            linear(self.kernels, &task, outputs, &mut scratch.linear);
        });
        let (outputs, residual) = (Mat::<f32>::new(&outputs), op.epilogue.residual.map(Mat::<f32>::new));
        let Epilogue { scale, softcap, .. } = op.epilogue;
        let by_result = op.weight_on == RoutingWeightOn::Output;
        self.by_rows(op.x.rows(), dim, |_, r, out| {
            out.fill(0.0);
            for share in sorted.shares(r) {
                let by = if by_result { share.of } else { 1.0 };
                (self.kernels.add_scaled)(out, by, outputs.row(share.place));
            }
            if scale != 1.0 {
                out.iter_mut().for_each(|y| *y *= scale);
            }
            if let Some(cap) = softcap {
                (self.kernels.softcap)(out, cap);
            }
            if let Some(residual) = residual {
                (self.kernels.add_scaled)(out, 1.0, residual.row(r));
            }
        })
    }

    /// Gate, up and activation of each expert that has rows. [places, width]
    fn activate_groups(
        &self,
        op: &Moe<'_, Cpu>,
        sorted: &ExpertRows,
        groups: &[Group<'_>],
        width: usize,
    ) -> Result<Tensor<Cpu>> {
        let x = self.sorted_input(op, sorted, groups)?;
        let inputs: Vec<_> = groups.iter().map(|g| activation_inputs(self.kernels, &x, &g.layers)).collect();
        let activated = self.alloc(DType::F32, sorted.at.len(), width)?;
        let (pieces, out) = (self.pieces(groups), MatMut::new(&activated));
        let act = op.act;
        self.share(pieces.len(), cost_of(groups), |scratch, i| {
            let (group, columns) = pieces[i].clone();
            let (inputs, rows) = (&inputs[group], groups[group].rows.clone());
            let joint = groups[group].layers.iter().map(|l| l.outputs).sum::<usize>();
            let up = (joint == 2 * width).then_some(width);
            let task = ActivationTask { inputs, up, act, out: &out, rows, columns };
            activate_rows(self.kernels, &task, &mut scratch.linear);
        });
        Ok(activated)
    }

    /// Input rows in the order of places, multiplied by the router weights where `weight_on` is `RoutingWeightOn::Input`
    /// (Llama 4).
    fn sorted_input(
        &self,
        op: &Moe<'_, Cpu>,
        sorted: &ExpertRows,
        groups: &[Group<'_>],
    ) -> Result<LinearInput> {
        let weights = groups.iter().flat_map(|g| &g.layers).map(|l| &l.w);
        if op.weight_on == RoutingWeightOn::Output {
            return self.gathered_input(op.x, &sorted.at, weights);
        }
        let from = Mat::<f32>::new(op.x);
        let x = self.by_rows(sorted.at.len(), op.x.cols(), |_, place, out| {
            let by = sorted.of[place];
            out.iter_mut().zip(from.row(sorted.at[place] as usize)).for_each(|(y, x)| *y = x * by);
        })?;
        self.input(&x, None, weights)
    }

    /// [`Backend::route`]
    pub(crate) fn routed(&self, op: &Route<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let logits = Mat::<f32>::new(op.logits);
        let bias = op.routing.bias.as_ref().map(|bias| Mat::<f32>::new(bias).row(0));
        let Routing { top_k, scores, groups, norm_weights, scale, .. } = *op.routing;
        let choice = Choice { used: top_k, scores, bias, groups, to_one: norm_weights, scale };
        self.by_rows(logits.rows, logits.cols, |scratch, r, out| {
            scratch.floats.resize(scratch.floats.len().max(2 * out.len()), 0.0);
            let (scores, worth) = scratch.floats.split_at_mut(out.len());
            scores.copy_from_slice(logits.row(r));
            choice.shares(scores, &mut worth[..out.len()], out);
        })
    }
}
