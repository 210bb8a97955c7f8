//! [`Candidates`]: what a device returns of a row of logits in place of all of them.
//!
//! The most likely tokens, the softmax mass of the others, and the logits of the tokens that have a bias or a penalty. The
//! mass is known within bounds, and a result that does not depend on where in them it is equals that of the whole row, to
//! the last bit. Where it does, the row must be read.

use tallow_core::ops::{TAIL_ELEMENT_ERROR, TAIL_SUM_ERROR};

use super::SampleError::{self, NotFinite};
use super::draw::{self, Candidate, NOTHING, Ranked, Rest, order};
use super::{Allowed, Choice, Sampler, Scored, TokenMask, check};

/// Most candidates.
const MOST: usize = 1024;

/// Bound of the relative error of the device's sums: its own error, and that of the arguments of `exp`, which the host
/// rounds to `f32`: by 2^-23 of at most 30, or by 2^-24 of at most 80.
const INEXACT: f64 = TAIL_SUM_ERROR + 5e-6;

/// Number of candidates read of a row of `vocab` logits.
pub fn candidates_of(vocab: usize) -> usize {
    (vocab / 8).min(MOST)
}

/// Largest logits of a row and sums over it, which a device returns in place of the whole row.
#[derive(Clone, Copy, Debug)]
pub struct Candidates<'a> {
    /// The most likely tokens, most likely first; of equals the lower id first. Not all of them.
    pub tokens: &'a [u32],
    /// Logits of `tokens`.
    pub logits: &'a [f32],
    /// Sums over the other tokens.
    pub tail: Tail,
    /// The tokens that [`Sampler::edited`] names, and maybe more: ascending.
    pub edited: &'a [u32],
    /// Logits of `edited`.
    pub edited_logits: &'a [f32],
}

/// Tokens that are not candidates.
#[derive(Clone, Copy, Debug)]
pub struct Tail {
    /// Their number.
    pub count: usize,
    /// Sum of `exp((x - max) / temperature)` over their logits, as [`TailSum`](tallow_core::ops::TailSum) returns it. For any temperature if the
    /// sampler is greedy.
    pub at_temperature: f32,
    /// The same at temperature 1, if log-probabilities are wanted.
    pub at_one: f32,
}

impl Sampler {
    /// Samples like [`sample`](Self::sample) with the same result, or `None` if that takes the whole row.
    pub fn sample_candidates(
        &self,
        row: &Candidates<'_>,
        place: usize,
    ) -> Result<Option<Choice>, SampleError> {
        check(row.logits.iter().chain(row.edited_logits))?;
        if row.tail.at_temperature.is_nan() {
            return Err(NotFinite);
        }
        let allowed = self.allowed()?;
        let picked = match allowed.as_deref() {
            Some(Allowed::Forced { token, .. }) => Some(*token),
            Some(Allowed::Any(mask)) => self.pick_candidate(row, Some(mask), place),
            None => self.pick_candidate(row, None, place),
        };
        let Some(token) = picked else { return Ok(None) };
        Ok(match self.how.logprobs {
            Some(top) => row.score(token, top),
            None => Some(Choice { token, logprob: None, top: Vec::new() }),
        })
    }

    fn pick_candidate(&self, row: &Candidates<'_>, mask: Option<&TokenMask>, place: usize) -> Option<u32> {
        let mut edited: Vec<(u32, f32)> = row.edited().collect();
        self.adjust_some(&mut edited);
        if edited.iter().any(|(_, x)| x.is_nan() || *x == f32::INFINITY) {
            return None;
        }
        let is_edited = |token: &u32| row.edited.binary_search(token).is_ok();
        let plain = row.tokens.iter().copied().zip(row.logits.iter().copied());
        let known = plain.filter(|(token, _)| !is_edited(token)).chain(edited);
        let known = known.filter(|(token, _)| mask.is_none_or(|mask| mask.contains(*token)));
        let last = row.last();
        let top = known.clone().map(|(_, x)| x).fold(f32::NEG_INFINITY, f32::max);
        let t = self.how.temperature;
        let weight = |x: f32| if t > 0.0 { draw::weight(x, top, t) } else { 1.0 };
        let known = known.map(|(token, logit)| Candidate { token, logit, weight: weight(logit) });
        // Those behind the last candidate may come after any of the tokens that are not known.
        let (mut list, late): (Vec<Candidate>, Vec<Candidate>) = known.partition(|c| order(c, &last).is_le());
        list.retain(|c| c.weight > NOTHING);
        list.sort_unstable_by(order);
        let first = list.first().filter(|c| c.logit == top && top.is_finite())?;
        if t <= 0.0 {
            return Some(first.token);
        }
        let each = weight(last.logit);
        let rest = if each > NOTHING { Some(row.rest(top, t, &late, each)?) } else { None };
        // Any of the others may not be allowed; those that are known are.
        let edited: f64 = late.iter().map(|c| c.weight).filter(|weight| *weight > NOTHING).sum();
        let rest = rest.map(|rest| if mask.is_some() { Rest { least: edited, ..rest } } else { rest });
        let mut left = Ranked { list, rest };
        if self.how.top_k > 0 {
            left.keep(self.how.top_k);
        }
        self.draw_at(place).among_ranked(left)
    }
}

impl Candidates<'_> {
    /// The last candidate: all other tokens come after it, by the logits of the model.
    fn last(&self) -> Candidate {
        let (token, logit) = (self.tokens.last(), self.logits.last());
        let (token, logit) = (token.map_or(0, |t| *t), logit.map_or(f32::NEG_INFINITY, |x| *x));
        Candidate { token, logit, weight: 0.0 }
    }

    fn edited(&self) -> impl Iterator<Item = (u32, f32)> {
        self.edited.iter().copied().zip(self.edited_logits.iter().copied())
    }

    /// The tokens behind the last candidate, those of `late` among them, with weights relative to a logit `top`.
    fn rest(&self, top: f32, temperature: f32, late: &[Candidate], each: f64) -> Option<Rest> {
        let most = f64::from(*self.logits.first()?);
        let (top, t, count) = (f64::from(top), f64::from(temperature), self.tail.count as f64);
        let scale = ((most - top) / t).exp();
        let sum = f64::from(self.tail.at_temperature) * scale;
        let margin = sum * INEXACT + scale * count * TAIL_ELEMENT_ERROR;
        // Tokens whose logits are edited are in the sum as they were before.
        let last = self.last();
        let before = self.edited().filter(|(token, logit)| {
            let c = Candidate { token: *token, logit: *logit, weight: 0.0 };
            order(&c, &last).is_gt()
        });
        let before: f64 = before.map(|(_, x)| ((f64::from(x) - top) / t).exp()).sum();
        let edited: f64 = late.iter().map(|c| c.weight).filter(|weight| *weight > NOTHING).sum();
        let cut = count * NOTHING;
        let least = (sum - before - margin - cut).max(0.0) + edited;
        let most = (sum - before + margin).max(0.0) + edited;
        let count = self.tail.count + self.tokens.len();
        most.is_finite().then_some(Rest { least, most, each, count })
    }

    /// Log-probability of a token, and the `top` most likely tokens with theirs, as [`score`](super::score) computes
    /// them of the row.
    fn score(&self, token: u32, top: usize) -> Option<Choice> {
        let sum = self.log_sum()?;
        let mut ranked: Vec<(u32, f32)> =
            self.tokens.iter().copied().zip(self.logits.iter().copied()).collect();
        let found = self.edited().chain(ranked.iter().copied()).find(|(t, _)| *t == token);
        let logprob = found.map(|(_, x)| x - sum).filter(|p| !p.is_nan())?;
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        ranked.truncate(top);
        // Tokens that are not known could be as likely as the last candidate.
        let last = self.last().logit;
        let certain = ranked.last().is_none_or(|(_, x)| *x > last);
        let scored = |(token, x): (u32, f32)| Scored { token, logprob: x - sum };
        let top = ranked.into_iter().map(scored).collect();
        certain.then_some(Choice { token, logprob: Some(logprob), top })
    }

    /// log-sum-exp of the row, if it is certain after rounding.
    fn log_sum(&self) -> Option<f32> {
        let most = *self.logits.first()?;
        let sum: f64 = self.logits.iter().map(|x| f64::from(x - most).exp()).sum();
        let (tail, count) = (f64::from(self.tail.at_one), self.tail.count as f64);
        let margin = tail * INEXACT + count * TAIL_ELEMENT_ERROR;
        // Rounding of a sum over the row, and of the logarithm.
        let by = (count + self.tokens.len() as f64 + 64.0) * f64::EPSILON;
        let log = |sum: f64| (f64::from(most) + sum.ln()) as f32;
        let (least, most) =
            (log((sum + tail - margin) * (1.0 - by)), log((sum + tail + margin) * (1.0 + by)));
        (least == most).then_some(least)
    }
}
