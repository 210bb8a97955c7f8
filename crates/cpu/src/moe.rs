//! Mixture of experts (MoE): a token's router weights, and rows sorted by expert.

use std::ops::Range;

use tallow_core::{Groups, Scores};

use crate::mat::Mat;

/// A row's place among the rows sorted by expert, and its router weight.
#[derive(Clone, Copy)]
pub(crate) struct Share {
    pub place: usize,
    pub of: f32,
}

/// Rows sorted by expert. A row has one place for each of its experts.
pub(crate) struct ExpertRows {
    /// Row of `x` for each place.
    pub at: Vec<u32>,
    /// Routing weight for each place.
    pub of: Vec<f32>,
    /// Places of the rows of each expert.
    pub places: Vec<Range<usize>>,
    /// For each row in turn, its places in the order of experts.
    shares: Vec<Share>,
    /// End of the shares of each row.
    ends: Vec<usize>,
}

impl ExpertRows {
    /// From the router weights `taken`, [rows, experts]; zero where a row does not use the expert.
    pub(crate) fn new(taken: &Mat<'_, f32>) -> ExpertRows {
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

    /// The experts of a row.
    pub(crate) fn shares(&self, row: usize) -> &[Share] {
        let first = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.shares[first..self.ends[row]]
    }
}

/// Index of the largest element, the first of equals; NaN is smallest.
fn best(of: &[f32]) -> usize {
    let better = |a: f32, b: f32| a > b || (b.is_nan() && !a.is_nan());
    (1..of.len()).fold(0, |best, i| if better(of[i], of[best]) { i } else { best })
}

/// [`Routing`] as threads share it.
#[derive(Clone, Copy)]
pub(crate) struct Choice<'a> {
    pub used: usize,
    pub scores: Scores,
    pub bias: Option<&'a [f32]>,
    pub groups: Option<Groups>,
    pub to_one: bool,
    pub scale: f32,
}

impl Choice<'_> {
    /// Router weights of a token. `scores` holds its logits at first; `worth` is scratch.
    pub(crate) fn shares(&self, scores: &mut [f32], worth: &mut [f32], out: &mut [f32]) {
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
