//! The oracle: reference implementations in `f64`, as plain as possible.

use super::{Bounded, Host, Loose};
use crate::{Activation, DeltaHeads, Groups, NormKind, RopePairs, Scores, Span};

/// Twice the relative rounding error of one `f32` operation.
pub(super) const EPS: f64 = 1.2e-7;

/// `softcap(scale * (x · wᵀ + bias)) + residual`.
pub(super) struct Product<'a> {
    pub x: &'a Host,
    pub w: &'a Host,
    pub bias: Option<&'a Host>,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub residual: Option<&'a Host>,
}

impl Product<'_> {
    pub(super) fn get(&self) -> Bounded {
        Bounded::by_rows(self.x.rows, self.w.rows, |r| {
            (0..self.w.rows)
                .map(|c| {
                    let terms =
                        self.x.row(r).iter().zip(self.w.row(c)).map(|(a, b)| f64::from(*a) * f64::from(*b));
                    let (mut y, mut size) =
                        terms.fold((0.0, 0.0), |(y, s): (f64, f64), t| (y + t, s + t.abs()));
                    if let Some(bias) = self.bias {
                        y += f64::from(bias.data[c]);
                        size += f64::from(bias.data[c]).abs();
                    }
                    y *= f64::from(self.scale);
                    size *= f64::from(self.scale).abs();
                    y = self.softcap.map_or(y, |cap| f64::from(cap) * (y / f64::from(cap)).tanh());
                    if let Some(residual) = self.residual {
                        y += f64::from(residual.row(r)[c]);
                        size += f64::from(residual.row(r)[c]).abs();
                    }
                    // Rounding errors of a sum grow on average like the square root of its length; this is well above.
                    (y, EPS * size * (4.0 + (self.x.cols as f64).sqrt()) + 1e-6)
                })
                .collect()
        })
    }
}

pub(super) struct Normed<'a> {
    pub kind: NormKind,
    pub weight: &'a Host,
    pub bias: Option<&'a Host>,
    pub eps: f32,
}

impl Normed<'_> {
    /// Normalises one group of columns.
    fn group(&self, x: &[f64]) -> Vec<f64> {
        let n = x.len() as f64;
        let mean = if self.kind == NormKind::Layer { x.iter().sum::<f64>() / n } else { 0.0 };
        let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let by = 1.0 / (var + f64::from(self.eps)).sqrt();
        let bias = |i: usize| self.bias.map_or(0.0, |b| f64::from(b.data[i]));
        x.iter()
            .enumerate()
            .map(|(i, x)| (x - mean) * by * f64::from(self.weight.data[i]) + bias(i))
            .collect()
    }

    pub(super) fn row(&self, x: &[f64]) -> Vec<f64> {
        x.chunks(self.weight.cols).flat_map(|g| self.group(g)).collect()
    }
}

/// MoE routing of one token's logits.
pub(super) struct Routed<'a> {
    pub top_k: usize,
    pub scores: Scores,
    pub bias: &'a [f32],
    pub groups: Option<Groups>,
    pub norm_weights: bool,
    pub scale: f32,
}

impl Routed<'_> {
    pub(super) fn row(&self, logits: &[f32]) -> Vec<(f64, f64)> {
        let x: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
        if let Scores::SparseMixer { near } = self.scores {
            return self.one_by_one(&x, f64::from(near));
        }
        let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = x.iter().map(|x| (x - most).exp()).sum();
        let score = |x: &f64| match self.scores {
            Scores::Softmax => (x - most).exp() / sum,
            Scores::Sigmoid | Scores::SparseMixer { .. } => 1.0 / (1.0 + (-x).exp()),
        };
        let scores: Vec<f64> = x.iter().map(score).collect();
        let biased: Vec<f64> = scores.iter().zip(self.bias).map(|(s, b)| s + f64::from(*b)).collect();
        let best = |count: usize, among: &mut dyn Iterator<Item = usize>, by: &dyn Fn(usize) -> f64| {
            let mut order: Vec<usize> = among.collect();
            order.sort_by(|a, b| by(*b).total_cmp(&by(*a)).then(a.cmp(b)));
            order.truncate(count);
            order
        };
        let mut open: Vec<usize> = (0..x.len()).collect();
        if let Some(groups) = self.groups {
            let each = x.len() / groups.n_group;
            let worth = |g: usize| -> f64 {
                let top = best(groups.best, &mut (g * each..(g + 1) * each), &|i| biased[i]);
                top.into_iter().map(|i| biased[i]).sum()
            };
            let kept = best(groups.topk_group, &mut (0..groups.n_group), &worth);
            open.retain(|i| kept.contains(&(i / each)));
        }
        let chosen = best(self.top_k, &mut open.into_iter(), &|i| biased[i]);
        let all: f64 = if self.norm_weights { chosen.iter().map(|i| scores[*i]).sum() } else { 1.0 };
        let mut out = vec![(0.0, 0.0); x.len()];
        for i in chosen {
            let y = scores[i] / all * f64::from(self.scale);
            // A softmax uses differences of logits, whose rounding errors are proportional to the logits.
            out[i] = (y, y * (20.0 + most.abs()) * EPS + 1e-9);
        }
        out
    }
}

impl Routed<'_> {
    fn one_by_one(&self, x: &[f64], near: f64) -> Vec<(f64, f64)> {
        let mut left: Vec<usize> = (0..x.len()).collect();
        let mut chosen = Vec::new();
        for _ in 0..self.top_k {
            let best = *left.iter().max_by(|a, b| x[**a].total_cmp(&x[**b]).then(b.cmp(a))).unwrap_or(&0);
            let close = |i: &&usize| (x[best] - x[**i]) / x[**i].abs().max(x[best]) <= near;
            let sum: f64 = left.iter().filter(close).map(|i| (x[*i] - x[best]).exp()).sum();
            chosen.push((best, 1.0 / sum));
            left.retain(|i| *i != best);
        }
        let all: f64 = if self.norm_weights { chosen.iter().map(|(_, share)| share).sum() } else { 1.0 };
        let mut out = vec![(0.0, 0.0); x.len()];
        for (i, share) in chosen {
            let y = share / all * f64::from(self.scale);
            out[i] = (y, y * (20.0 + x[i].abs()) * EPS + 1e-9);
        }
        out
    }
}

pub(super) fn activate(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Relu2 => x.max(0.0).powi(2),
        Activation::Relu => x.max(0.0),
        Activation::QuickGelu => x / (1.0 + (-f64::from(Activation::SLOPE) * x).exp()),
        Activation::Clamped => {
            let x = x.min(f64::from(Activation::LIMIT));
            x / (1.0 + (-f64::from(Activation::SLOPE) * x).exp())
        }
    }
}

/// The factor that an activation is multiplied by, from `up`.
pub(super) fn gated(act: Activation, up: f64) -> f64 {
    let limit = f64::from(Activation::LIMIT);
    if act == Activation::Clamped { up.clamp(-limit, limit) + 1.0 } else { up }
}

/// Error function, by series near zero and continued fraction far from it: accurate to 1e-15.
pub(super) fn erf(x: f64) -> f64 {
    if x.abs() > 3.0 {
        let z = x.abs();
        let tail = (1..=60).rev().fold(z, |t, k| z + f64::from(k) / 2.0 / t);
        let far = 1.0 - (-z * z).exp() / (tail * std::f64::consts::PI.sqrt());
        return far * x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// RoPE of one head by a row of the table.
pub(super) fn rotate(head: &[f64], angles: &[f32], pairs: RopePairs) -> Vec<f64> {
    let (mut out, half) = (head.to_vec(), angles.len() / 2);
    for i in 0..half {
        let (a, b) = match pairs {
            RopePairs::Halves => (i, i + half),
            RopePairs::Interleaved => (2 * i, 2 * i + 1),
        };
        let (cos, sin) = (f64::from(angles[i]), f64::from(angles[half + i]));
        out[a] = head[a] * cos - head[b] * sin;
        out[b] = head[b] * cos + head[a] * sin;
    }
    out
}

/// Attention of one query head over one sequence.
pub(super) struct Attention<'a> {
    /// Keys of the head, one row per position, already rounded to the cache's type.
    pub k: &'a Host,
    /// Values, likewise.
    pub v: &'a Host,
    pub scale: f32,
    pub window: Option<usize>,
    pub chunk: Option<usize>,
    pub softcap: Option<f32>,
    pub sink: Option<f32>,
    /// The head's row of the relative position bias.
    pub bias: Option<&'a [f32]>,
    pub causal: bool,
    /// Rounding that a device may do of queries and softmax weights.
    pub rounding: Loose,
}

impl Attention<'_> {
    pub(super) fn get(&self, q: &[f32], position: usize) -> Vec<(f64, f64)> {
        let largest = |x: &[f32]| x.iter().fold(0.0, |most: f64, x| most.max(f64::from(x.abs())));
        let most_of_query = largest(q);
        let after = self.window.map_or(self.k.rows, |w| self.k.rows.min(position + w));
        let end = if self.causal { position + 1 } else { after };
        let first = self.window.map_or(0, |w| (position + 1).saturating_sub(w));
        let first = first.max(self.chunk.map_or(0, |n| position - position % n));
        // A score, the sum of its terms' magnitudes, and the error due to rounded queries. The score's rounding errors
        // are proportional to these, and are relative errors of its softmax weight. Query elements are rounded
        // independently, so their errors add up like random ones: three times the root of the sum of squares is five
        // times what is expected.
        let score = |p: usize| {
            let terms = q
                .iter()
                .zip(self.k.row(p))
                .map(|(a, b)| f64::from(*a) * f64::from(*b) * f64::from(self.scale));
            let (s, size) =
                terms.clone().fold((0.0, 0.0), |(s, size): (f64, f64), t| (s + t, size + t.abs()));
            let rounded = |k: &f32| f64::from(*k) * f64::from(self.scale) * most_of_query;
            let squares: f64 = match self.rounding {
                Loose::Exact => 0.0,
                Loose::Each(part) => terms.map(|t| (part * t).powi(2)).sum(),
                Loose::Largest(part) => self.k.row(p).iter().map(|k| (part * rounded(k)).powi(2)).sum(),
            };
            let bias = self.bias.map_or(0.0, |row| {
                let reach = row.len() as i64 / 2;
                f64::from(row[(p as i64 - position as i64 + reach).clamp(0, 2 * reach) as usize])
            });
            let (s, size) = (s + bias, size + bias.abs());
            let s = self.softcap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh());
            (s, size, 3.0 * squares.sqrt())
        };
        let scores: Vec<(f64, f64, f64)> = (first..end).map(score).collect();
        let sink = self.sink.map(f64::from);
        let most = scores.iter().map(|s| s.0).chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let size = scores.iter().fold(1.0, |m: f64, s| m.max(s.1));
        let weights: Vec<f64> = scores.iter().map(|s| (s.0 - most).exp()).collect();
        let sum: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - most).exp());
        let queries = scores.iter().fold(0.0, |m: f64, s| m.max(s.2));
        let (of_each, of_largest) = match self.rounding {
            Loose::Exact => (0.0, 0.0),
            Loose::Each(part) => (part, 0.0),
            Loose::Largest(part) => (0.0, part),
        };
        let off = EPS * size * (4.0 + (q.len() as f64).sqrt()) + of_each + queries;
        // Error due to rounded softmax weights, random as well.
        let weighed = (first..end).zip(&weights).map(|(p, w)| w / sum * largest(self.v.row(p)));
        let weighed = 3.0 * of_largest * weighed.fold(0.0, f64::max) * ((end - first) as f64).sqrt();
        (0..self.v.cols)
            .map(|c| {
                let terms = (first..end).zip(&weights).map(|(p, w)| w / sum * f64::from(self.v.row(p)[c]));
                let (y, size) = terms.fold((0.0, 0.0), |(y, size): (f64, f64), t| (y + t, size + t.abs()));
                (y, off * size + weighed + 1e-6)
            })
            .collect()
    }
}

/// Span index and sequence position of each row of a ragged step.
pub(super) fn row_places(spans: &[Span]) -> Vec<(usize, usize)> {
    spans.iter().enumerate().flat_map(|(i, s)| (s.start..s.end()).map(move |p| (i, p))).collect()
}

/// Decay factor of a head's state: `exp(-rate * softplus(said + bias))`.
pub(super) fn decay(said: f32, rate: f32, bias: f32) -> f64 {
    let x = f64::from(said) + f64::from(bias);
    (-f64::from(rate) * (1.0 + x.exp()).ln()).exp()
}

/// Gated delta rule over one sequence, from zero state; `kept(token, head)` is the decay factor.
pub(super) fn gated_delta(
    heads: DeltaHeads,
    [qk, v, gates]: [&Host; 3],
    kept: impl Fn(usize, usize) -> f64,
) -> Bounded {
    let DeltaHeads { values, key_dim, value_dim, .. } = heads;
    let mut matrices = vec![vec![vec![0.0f64; value_dim]; key_dim]; values];
    let rows = Bounded::by_rows(v.rows, heads.value_cols(), |r| {
        let mut row = Vec::new();
        for (h, s) in matrices.iter_mut().enumerate() {
            let part = |at: usize| qk.row(r)[at + heads.key_of(h) * key_dim..][..key_dim].iter();
            let q: Vec<f64> = part(0).map(|x| f64::from(*x)).collect();
            let k: Vec<f64> = part(heads.key_cols()).map(|x| f64::from(*x)).collect();
            let (kept, written) = (kept(r, h), 1.0 / (1.0 + (-f64::from(gates.row(r)[h])).exp()));
            s.iter_mut().flatten().for_each(|x| *x *= kept);
            for c in 0..value_dim {
                let at = |x: &[f64]| -> f64 { x.iter().zip(s.iter()).map(|(x, s)| x * s[c]).sum() };
                let more = written * (f64::from(v.row(r)[h * value_dim + c]) - at(&k));
                s.iter_mut().zip(&k).for_each(|(s, k)| s[c] += k * more);
                let y: f64 = q.iter().zip(s.iter()).map(|(q, s)| q * s[c]).sum();
                row.push((y / (key_dim as f64).sqrt(), 0.0));
            }
        }
        row
    });
    // Errors carry over from token to token and decay with the state.
    let most = rows.data.iter().fold(0.0, |m: f64, (y, _)| m.max(y.abs()));
    Bounded { data: rows.data.iter().map(|(y, _)| (*y, 2e-5 * most + 1e-6)).collect(), ..rows }
}
