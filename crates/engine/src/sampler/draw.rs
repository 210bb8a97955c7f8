//! [`Ranked`]: the most likely tokens of a row, cut and drawn from.
//!
//! A draw subtracts weights from a share of their sum, in order, so it depends on that sum to the last bit. Where not all
//! tokens are ranked only bounds of it are known. Rounding is monotonic: what is computed from both bounds encloses what
//! would be computed from the sum. A result that is the same from both is certain; else there is none.

use std::cmp::Ordering;

/// Below this weight even a whole vocabulary of tokens is negligible; dropping them saves sorting them.
pub(super) const NOTHING: f64 = 1e-12;

/// A candidate token and its unnormalised probability.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub token: u32,
    pub logit: f32,
    pub weight: f64,
}

/// Most likely first; of equals the lower token id first. Compares logits, because weights of different logits can be
/// equal; and compares as a device does, so that 0 equals -0.
pub(super) fn order(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

/// Probability of a token relative to that of one with the logit `top`.
pub(super) fn weight(logit: f32, top: f32, temperature: f32) -> f64 {
    match (logit - top) / temperature {
        // Far below `NOTHING`.
        away if away < -30.0 => 0.0,
        away => f64::from(away).exp(),
    }
}

/// The `k` most likely tokens of a row, in no order. The largest weight is 1.
pub(super) fn most_likely(
    row: impl Iterator<Item = (u32, f32)> + Clone,
    temperature: f32,
    k: usize,
) -> Vec<Candidate> {
    let top = row.clone().fold(f32::NEG_INFINITY, |m, (_, x)| m.max(x));
    let all = row.map(|(token, logit)| Candidate { token, logit, weight: weight(logit, top, temperature) });
    let mut all: Vec<Candidate> = all.filter(|c| c.weight > NOTHING).collect();
    if k < all.len() {
        all.select_nth_unstable_by(k.saturating_sub(1), order);
        all.truncate(k);
    }
    all
}

/// Cuts of the candidates, and the number that decides the draw.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw {
    /// Typical sampling, top-p and min-p, as in [`Sampling`](super::Sampling).
    pub typical_p: f32,
    pub top_p: f32,
    pub min_p: f32,
    /// Uniform in [0, 1).
    pub uniform: f64,
}

impl Draw {
    /// Draws from all candidates, which are in no order. Sorts them only if it must.
    pub(super) fn among(&self, mut all: Vec<Candidate>) -> u32 {
        if self.typical_p >= 1.0
            && let Some(token) = self.among_unsorted(&mut all)
        {
            return token;
        }
        all.sort_unstable_by(order);
        // Nothing is uncertain where all are ranked.
        self.among_ranked(Ranked { list: all, rest: None }).unwrap_or_default()
    }

    /// Draws from candidates in no order: finds the places of the cut and of the draw by selection, with sums that are
    /// off by rounding. `None` where that could matter.
    fn among_unsorted(&self, mut all: &mut [Candidate]) -> Option<u32> {
        if self.top_p < 1.0 {
            let last = place_of(all, f64::from(self.top_p), 0.0)?;
            all = &mut all[..=last];
        }
        let least = if self.min_p > 0.0 { f64::from(self.min_p) } else { 0.0 };
        let last = place_of(all, self.uniform, least)?;
        all.get(last).map(|c| c.token)
    }

    /// Draws from ranked candidates; `None` if the draw depends on what the others are.
    pub(super) fn among_ranked(&self, mut left: Ranked) -> Option<u32> {
        if self.typical_p < 1.0 {
            left = left.typical(self.typical_p)?;
        }
        if self.top_p < 1.0 {
            left.keep_until(f64::from(self.top_p))?;
        }
        if self.min_p > 0.0 {
            left.keep_likely(f64::from(self.min_p));
        }
        left.draw(self.uniform)
    }
}

/// In the order of likelihood, the index of the first candidate where the sum of weights of at least `least` exceeds the
/// `share` of their total; moves those before it to the front. `None` if that depends on how sums are rounded, or if the
/// sum does not exceed it.
fn place_of(all: &mut [Candidate], share: f64, least: f64) -> Option<usize> {
    // The candidates with smaller weights are behind those that count.
    let count = match least > 0.0 {
        true => partition(all, |c| c.weight >= least),
        false => all.len(),
    };
    let total: f64 = sum(&all[..count]);
    // Half of EPSILON for each addition, of which no weight sees more than five for each candidate.
    let margin = 4.0 * total * (count as f64 + 16.0) * f64::EPSILON;
    let (mut start, mut end) = (0, count);
    let (mut low, mut high) = (share * total - margin, share * total + margin);
    while end - start > 32 {
        let middle = (end - start) / 2;
        all[start..end].select_nth_unstable_by(middle, order);
        let before = sum(&all[start..start + middle]);
        if high < before {
            end = start + middle;
        } else if low >= before {
            (low, high, start) = (low - before, high - before, start + middle);
        } else {
            return None;
        }
    }
    all[start..end].sort_unstable_by(order);
    for (i, c) in all[start..end].iter().enumerate() {
        (low, high) = (low - c.weight, high - c.weight);
        if high < 0.0 {
            return Some(start + i);
        }
        if low < 0.0 {
            return None;
        }
    }
    None
}

/// Moves the candidates that satisfy `first` to the front, and counts them.
fn partition(all: &mut [Candidate], first: impl Fn(&Candidate) -> bool) -> usize {
    let mut count = 0;
    for i in 0..all.len() {
        if first(&all[i]) {
            all.swap(count, i);
            count += 1;
        }
    }
    count
}

fn sum(list: &[Candidate]) -> f64 {
    list.iter().map(|c| c.weight).sum()
}

/// The most likely tokens in order, and what is known of the others.
#[derive(Debug)]
pub(super) struct Ranked {
    pub list: Vec<Candidate>,
    /// `None` if there are no others.
    pub rest: Option<Rest>,
}

/// Tokens that are less likely than those ranked.
#[derive(Debug)]
pub(super) struct Rest {
    /// Bounds of the sum of their weights.
    pub least: f64,
    pub most: f64,
    /// Bound of the weight of each.
    pub each: f64,
    /// Bound of their number.
    pub count: usize,
}

impl Ranked {
    /// Bounds of the sum of all weights, taken in order.
    fn total(&self) -> (f64, f64) {
        let sum = sum(&self.list);
        let Some(rest) = &self.rest else { return (sum, sum) };
        // Rounding: half of EPSILON for each addition, and a few for these bounds.
        let by = (rest.count as f64 + 16.0) * f64::EPSILON;
        ((sum + rest.least) * (1.0 - by), (sum + rest.most) * (1.0 + by))
    }

    /// Keeps the `k` most likely tokens.
    pub(super) fn keep(&mut self, k: usize) {
        if k <= self.list.len() {
            self.list.truncate(k);
            self.rest = None;
        } else if let Some(rest) = &mut self.rest {
            rest.least = 0.0;
        }
    }

    /// Keeps the tokens whose surprise is nearest to the entropy, until they have `p` of the total; sorted by likelihood.
    fn typical(self, p: f32) -> Option<Ranked> {
        let (None, mut left) = (self.rest, self.list) else { return None };
        let total = sum(&left);
        let surprise = |c: &Candidate| -(c.weight / total).ln();
        let expected: f64 = left.iter().map(|c| c.weight / total * surprise(c)).sum();
        left.sort_by(|a, b| {
            let far = |c: &Candidate| (surprise(c) - expected).abs();
            far(a).total_cmp(&far(b)).then(a.token.cmp(&b.token))
        });
        let count = reach(&left, f64::from(p) * total).unwrap_or(left.len());
        left.truncate(count);
        left.sort_unstable_by(order);
        Some(Ranked { list: left, rest: None })
    }

    /// Keeps the first candidates until their weights sum to `p` of the total; at least one.
    fn keep_until(&mut self, p: f64) -> Option<()> {
        let (least, most) = self.total();
        match (reach(&self.list, p * least), reach(&self.list, p * most), &mut self.rest) {
            (Some(count), Some(other), _) if count == other => {
                self.list.truncate(count);
                self.rest = None;
            }
            (None, None, Some(rest)) => {
                let sum = sum(&self.list);
                rest.least = (p * least - sum).max(0.0);
                rest.most = rest.most.min(p * most + rest.each - sum);
            }
            (None, None, None) => (),
            _ => return None,
        }
        Some(())
    }

    /// Keeps the candidates with at least `p` times the weight of the first.
    fn keep_likely(&mut self, p: f64) {
        let least = self.list.iter().fold(0.0, |m: f64, c| m.max(c.weight)) * p;
        self.list.retain(|c| c.weight >= least);
        match &mut self.rest {
            Some(rest) if rest.each * (1.0 + 1e-9) >= least => rest.least = 0.0,
            rest => *rest = None,
        }
    }

    fn draw(&self, uniform: f64) -> Option<u32> {
        let (least, most) = self.total();
        let (mut low, mut high) = (uniform * least, uniform * most);
        for c in &self.list {
            (low, high) = (low - c.weight, high - c.weight);
            if high < 0.0 {
                return Some(c.token);
            }
            if low < 0.0 {
                return None;
            }
        }
        match self.rest {
            None => Some(self.list.last().map_or(0, |c| c.token)),
            Some(_) => None,
        }
    }
}

/// Number of leading candidates whose weights sum to at least `enough`, one or more; `None` if all of them
/// do not.
fn reach(list: &[Candidate], enough: f64) -> Option<usize> {
    let mut sum = 0.0;
    for (count, c) in list.iter().enumerate() {
        if sum >= enough {
            return Some(count.max(1));
        }
        sum += c.weight;
    }
    (sum >= enough).then_some(list.len())
}
