//! Mixture of experts (MoE): rows sorted by expert, so that each expert's weights are read once for all of its rows.

use std::ops::Range;

use tallow_core::ops::{Epilogue, Moe, Route};
use tallow_core::{
    Backend, DType, Expert, Groups, LinearWeights, Result, Routing, RoutingWeightOn, Scores, Tensor,
};

use crate::backend::Cpu;
use crate::kernels::{
    ActivationInput, ActivationTask, LinearTask, LoraTerms, Product, activate_rows, linear,
};
use crate::mat::{Mat, MatMut};
use crate::phases::{LinearInput, OutputColumns, cost};

/// A row's place among the rows sorted by expert, and its router weight.
#[derive(Clone, Copy)]
struct Share {
    place: usize,
    of: f32,
}

/// Rows sorted by expert. A row has one place for each of its experts.
struct ExpertRows {
    /// For each place, its row of `x`.
    at: Vec<u32>,
    /// For each place, the router weight.
    of: Vec<f32>,
    /// For each expert, the places of its rows.
    places: Vec<Range<usize>>,
    /// For each row in turn, its places in the order of experts.
    shares: Vec<Share>,
    /// For each row, where its shares end.
    ends: Vec<usize>,
}

impl ExpertRows {
    /// From the router weights `taken`, [rows, experts]; zero where a row does not use the expert.
    fn new(taken: &Mat<'_, f32>) -> ExpertRows {
        let mut counts = vec![0; taken.cols];
        for r in 0..taken.rows {
            counts.iter_mut().zip(taken.row(r)).for_each(|(n, share)| *n += usize::from(*share != 0.0));
        }
        let mut places = Vec::with_capacity(taken.cols);
        let mut end = 0;
        for count in counts {
            places.push(end..end);
            end += count;
        }
        let (mut at, mut by_place) = (vec![0; end], vec![0.0; end]);
        let (mut shares, mut ends) = (Vec::with_capacity(end), Vec::with_capacity(taken.rows));
        for r in 0..taken.rows {
            for (of, places) in taken.row(r).iter().zip(&mut places) {
                // NaN is computed as well, so that it shows in the result.
                if *of != 0.0 {
                    at[places.end] = r as u32;
                    by_place[places.end] = *of;
                    shares.push(Share { place: places.end, of: *of });
                    places.end += 1;
                }
            }
            ends.push(shares.len());
        }
        ExpertRows { at, of: by_place, places, shares, ends }
    }

    fn shares(&self, row: usize) -> &[Share] {
        let first = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.shares[first..self.ends[row]]
    }
}

/// An expert that has rows, with its linear layers of one phase.
struct Group<'a> {
    rows: Range<usize>,
    parts: Vec<OutputColumns<'a>>,
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
        Some(Group { rows, parts: OutputColumns::side_by_side(layer(e))?, outputs })
    };
    let mut groups: Vec<Group<'a>> = op.experts.iter().zip(&sorted.places).filter_map(with).collect();
    groups.sort_by_key(|g| std::cmp::Reverse(g.rows.len()));
    groups
}

fn cost_of(groups: &[Group<'_>]) -> usize {
    groups.iter().map(|g| cost(g.rows.len(), &g.parts)).sum()
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
        let up = groups(op, &sorted, |e| &e.up, width);
        let bent = self.activate_groups(op, &sorted, &up, width)?; // [places, width]
        let down = groups(op, &sorted, |e| std::slice::from_ref(&e.down), dim);
        let x = self.input(&bent, None, down.iter().flat_map(|g| &g.parts).map(|p| &p.w))?;
        let given = self.alloc(DType::F32, sorted.at.len(), dim)?; // [places, dim]
        let (pieces, out) = (self.pieces(&down), MatMut::<f32>::new(&given));
        let products: Vec<Product<'_>> =
            down.iter().flat_map(|g| &g.parts).map(|p| x.times(self.kernels, p.w)).collect();
        self.share(pieces.len(), cost_of(&down), |scratch, i| {
            let (group, outputs) = pieces[i].clone();
            let Group { rows, parts, .. } = &down[group];
            let (rows, out, bias) = (rows.clone(), out.columns(0..dim), parts.first().and_then(|p| p.bias));
            let task = LinearTask { bias, ..LinearTask::plain(products[group], rows, out) };
            linear(self.kernels, &task, outputs, &mut scratch.room);
        });
        let (given, residual) = (Mat::<f32>::new(&given), op.epilogue.residual.map(Mat::<f32>::new));
        let Epilogue { scale, softcap, .. } = op.epilogue;
        let by_result = op.weight_on == RoutingWeightOn::Output;
        self.by_rows(op.x.rows(), dim, |_, r, out| {
            out.fill(0.0);
            for share in sorted.shares(r) {
                let by = if by_result { share.of } else { 1.0 };
                (self.kernels.add_scaled)(out, by, given.row(share.place));
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
        let mut given = Vec::with_capacity(groups.len());
        for g in groups {
            let mut layers = Vec::with_capacity(g.parts.len());
            for p in &g.parts {
                let of = x.times(self.kernels, p.w);
                layers.push(ActivationInput {
                    of,
                    added: LoraTerms::default(),
                    bias: p.bias,
                    columns: p.columns(),
                });
            }
            given.push(layers);
        }
        let bent = self.alloc(DType::F32, sorted.at.len(), width)?;
        let (pieces, out) = (self.pieces(groups), MatMut::new(&bent));
        let act = op.act;
        self.share(pieces.len(), cost_of(groups), |scratch, i| {
            let (group, columns) = pieces[i].clone();
            let (given, rows) = (&given[group], groups[group].rows.clone());
            let joint = groups[group].parts.iter().map(|p| p.outputs).sum::<usize>();
            let apart = (joint == 2 * width).then_some(width);
            let task = ActivationTask { given, apart, act, out: &out, rows, columns };
            activate_rows(self.kernels, &task, &mut scratch.room);
        });
        Ok(bent)
    }

    /// Input rows in the order of places, multiplied by the router weights where `weight_on` is `RoutingWeightOn::Input`
    /// (Llama 4).
    fn sorted_input(
        &self,
        op: &Moe<'_, Cpu>,
        sorted: &ExpertRows,
        groups: &[Group<'_>],
    ) -> Result<LinearInput> {
        let parts = groups.iter().flat_map(|g| &g.parts).map(|p| &p.w);
        if op.weight_on == RoutingWeightOn::Output {
            return self.picked(op.x, &sorted.at, parts);
        }
        let from = Mat::<f32>::new(op.x);
        let x = self.by_rows(sorted.at.len(), op.x.cols(), |_, place, out| {
            let by = sorted.of[place];
            out.iter_mut().zip(from.row(sorted.at[place] as usize)).for_each(|(y, x)| *y = x * by);
        })?;
        self.input(&x, None, parts)
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

/// Index of the largest element, the first of equals; NaN is smallest.
fn best(of: &[f32]) -> usize {
    let better = |a: f32, b: f32| a > b || (b.is_nan() && !a.is_nan());
    (1..of.len()).fold(0, |best, i| if better(of[i], of[best]) { i } else { best })
}

/// [`Routing`] as threads share it.
#[derive(Clone, Copy)]
struct Choice<'a> {
    used: usize,
    scores: Scores,
    bias: Option<&'a [f32]>,
    groups: Option<Groups>,
    to_one: bool,
    scale: f32,
}

impl Choice<'_> {
    /// Router weights of a token. `scores` holds its logits at first; `worth` is scratch.
    fn shares(&self, scores: &mut [f32], worth: &mut [f32], out: &mut [f32]) {
        match self.scores {
            Scores::Softmax => {
                let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                scores.iter_mut().for_each(|x| *x = (*x - most).exp());
                let sum: f32 = scores.iter().sum();
                scores.iter_mut().for_each(|x| *x /= sum);
            }
            Scores::Sigmoid => scores.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
            Scores::SparseMixer { .. } => {}
        }
        worth.copy_from_slice(scores);
        if let Some(bias) = self.bias {
            worth.iter_mut().zip(bias).for_each(|(w, b)| *w += b);
        }
        if let Some(groups) = self.groups {
            // `out` is unused until the end, and has an element for each group.
            close_groups(groups, worth, &mut out[..groups.n_group]);
        }
        out.fill(0.0);
        let mut sum = 0.0;
        for _ in 0..self.used {
            let i = best(worth);
            out[i] = match self.scores {
                Scores::SparseMixer { near } => share_of_near(worth, i, near),
                Scores::Softmax | Scores::Sigmoid => scores[i],
            };
            worth[i] = f32::NAN;
            sum += out[i];
        }
        let scale = if self.to_one { self.scale / sum } else { self.scale };
        out.iter_mut().filter(|share| **share != 0.0).for_each(|share| *share *= scale);
    }
}

/// Softmax weight of the largest logit over those close to it (SparseMixer, PhiMoE). NaN is left out.
fn share_of_near(logits: &[f32], largest: usize, near: f32) -> f32 {
    let most = logits[largest];
    let close = |x: &&f32| most - **x <= near * x.abs().max(most);
    1.0 / logits.iter().filter(close).map(|x| (x - most).exp()).sum::<f32>()
}

/// Group-limited routing (DeepSeek): sets experts outside of the best `topk_group` groups to NaN. A group's score is
/// the sum of its `best` largest experts. `of_groups` is scratch.
fn close_groups(groups: Groups, worth: &mut [f32], of_groups: &mut [f32]) {
    let each = worth.len() / groups.n_group;
    for (of, worth) in of_groups.iter_mut().zip(worth.chunks(each)) {
        let mut left = worth.to_vec();
        *of = 0.0;
        for _ in 0..groups.best {
            let i = best(&left);
            *of += left[i];
            left[i] = f32::NAN;
        }
    }
    let mut open = vec![false; groups.n_group];
    for _ in 0..groups.topk_group {
        let i = best(of_groups);
        of_groups[i] = f32::NAN;
        open[i] = true;
    }
    for (worth, _) in worth.chunks_mut(each).zip(&open).filter(|(_, open)| !**open) {
        worth.fill(f32::NAN);
    }
}
