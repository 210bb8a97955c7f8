//! [`Sampler`]: from logits to a token.
//!
//! In this order: logit bias, penalties, temperature, truncation (top-k, typical, top-p, min-p), then a random draw.
//! The draw depends only on the seed and the position in the sequence: the same request gives the same text in any
//! batch, and again after it was preempted and recomputed.
//!
//! Logits are read as [`Candidates`] where those can be enough, with the same result as from the whole row.
//!
//! A request may bring a [`Constraint`], which restricts the tokens that sampling chooses from, or rules of its own instead: a
//! [`LogitsPolicy`].

mod candidates;
mod constraint;
mod draw;

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

pub use candidates::{Candidates, Tail, candidates_of};
use constraint::Constrained;
pub use constraint::{Allowed, Constraint, MaskThreads, TokenMask};
use draw::Draw;

/// Largest k for which the top-k tokens alone are read. Model cards recommend a top-k of 20 to 64.
const MAX_TOP_K: usize = 64;

/// Sampling parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Temperature: below 1 sharper, above 1 flatter; 0 is greedy.
    pub temperature: f32,
    /// Keep only the `top_k` most likely tokens; 0 for all.
    pub top_k: usize,
    /// Nucleus sampling: keep the most likely tokens whose probabilities sum to `top_p`; 1 for all.
    pub top_p: f32,
    /// Keep tokens with at least `min_p` times the probability of the most likely one; 0 for all.
    pub min_p: f32,
    /// Locally typical sampling: keep the tokens whose surprise is nearest to the entropy and whose probabilities sum
    /// to `typical_p`; 1 for all.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the answer; 1 for none.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of generated tokens.
    pub presence_penalty: f32,
    /// Subtracted from the logits of generated tokens once per occurrence.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub bias: Vec<(u32, f32)>,
    /// Seed of the draws.
    pub seed: u64,
    /// Number of most likely tokens to return with each token; `None` returns no log-probabilities at all.
    pub logprobs: Option<usize>,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

impl Sampling {
    /// Greedy sampling: always the most likely token.
    pub fn greedy() -> Sampling {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    /// The k for which the top-k tokens are all that sampling needs, if k is small. The device then computes the top-k
    /// and the other logits are never read.
    pub fn top_k_needed(&self) -> Option<usize> {
        if !self.bias.is_empty() || self.penalises() || self.logprobs.is_some() {
            return None;
        }
        let most = if self.temperature <= 0.0 { 1 } else { self.top_k };
        (1..=MAX_TOP_K).contains(&most).then_some(most)
    }

    /// True if `most` candidates can be enough, and are faster than the row. The mass of the others is known for usual
    /// temperatures only, typical sampling must know each of them, and the largest of a row is found faster than they are.
    fn draws_from(&self, most: usize) -> bool {
        let cut = (1..=most).contains(&self.top_k);
        let drawn = cut || self.top_k == 0 && self.typical_p >= 1.0;
        let usual = (0.001..=1000.0).contains(&self.temperature);
        usual && drawn && self.logprobs.unwrap_or(0) < most
    }

    /// A logit after the penalties of a token that was generated `count` times, or is only in the prompt.
    fn penalised(&self, x: f32, count: u32) -> f32 {
        let x = if x > 0.0 { x / self.repetition_penalty } else { x * self.repetition_penalty };
        match count {
            0 => x,
            _ => x - (self.presence_penalty + self.frequency_penalty * count as f32),
        }
    }

    fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// Part of a row of logits that sampling needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsNeeded {
    /// The top k tokens, and under a constraint the row if it allows none of them.
    TopK(usize),
    /// [`Candidates`], and in rare cases the row.
    Candidates,
    /// The row.
    Row,
}

/// A token with the model's own log-probability, before bias, penalties and temperature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// The token.
    pub token: u32,
    /// Its log-probability.
    pub logprob: f32,
}

/// A chosen token, and the most likely ones if requested.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// Its log-probability, if requested.
    pub logprob: Option<f32>,
    /// The most likely tokens, most likely first.
    pub top: Vec<Scored>,
}

/// Sampling failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The logits are not finite: the weights are damaged, or overflow.
    #[error(
        "the model's logits are not finite numbers: its weights are damaged, or overflow at this precision"
    )]
    NotFinite,
    /// The request's constraint.
    #[error("{0}")]
    Constraint(String),
}
use SampleError::NotFinite;

/// Chooses a request's tokens by rules of its own, on the engine's thread, in place of [`Sampling`].
pub trait LogitsPolicy: Debug + Send + Sync {
    /// The token that follows `written`, the tokens generated so far. Called again with the same arguments if the step
    /// fails after it.
    fn choose(&self, written: &[u32], logits: &[f32]) -> u32;
}

/// Samples the tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    how: Sampling,
    /// Count of each generated token; 0 for tokens only in the prompt.
    seen: HashMap<u32, u32>,
    /// Rules that replace `how`, and the tokens generated so far.
    policy: Option<(Arc<dyn LogitsPolicy>, Vec<u32>)>,
    constraint: Option<Constrained>,
}

impl Sampler {
    /// A sampler for a sequence that begins with `prompt`.
    pub fn new(how: Sampling, prompt: &[u32]) -> Sampler {
        let seen = if how.penalises() { prompt.iter().map(|t| (*t, 0)).collect() } else { HashMap::new() };
        Sampler { how, seen, policy: None, constraint: None }
    }

    /// A sampler with rules of its own, if there are any.
    #[must_use]
    pub fn with_policy(self, policy: Option<Arc<dyn LogitsPolicy>>) -> Sampler {
        Sampler { policy: policy.map(|policy| (policy, Vec::new())), ..self }
    }

    /// A sampler that chooses from the tokens that a constraint allows. Its masks are computed on `threads`.
    #[must_use]
    pub fn with_constraint(self, constraint: Box<dyn Constraint>, threads: MaskThreads) -> Sampler {
        let mut constrained = Constrained::new(constraint, threads);
        constrained.prepare();
        Sampler { constraint: Some(constrained), ..self }
    }

    /// Sampling parameters.
    pub fn how(&self) -> &Sampling {
        &self.how
    }

    /// Counts a generated token, for the penalties, the policy or the constraint.
    pub fn accept(&mut self, token: u32) {
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
        if let Some((_, written)) = &mut self.policy {
            written.push(token);
        }
        if self.how.penalises() {
            *self.seen.entry(token).or_default() += 1;
        }
    }

    /// Has what the constraint allows next computed while the device computes the logits.
    pub fn prepare(&mut self) {
        if let Some(constraint) = &mut self.constraint {
            constraint.prepare();
        }
    }

    /// The tokens that the constraint forces to come next, as far as that is known by now.
    pub fn forced(&self) -> Vec<u32> {
        self.constraint.as_ref().map_or_else(Vec::new, Constrained::forced)
    }

    /// The tokens that the constraint allows next.
    fn allowed(&self) -> Result<Option<Arc<Allowed>>, SampleError> {
        self.constraint.as_ref().map(Constrained::allowed).transpose().map_err(SampleError::Constraint)
    }

    /// Samples the token at position `place`, the number of tokens before it. Modifies `logits`.
    pub fn sample(&self, logits: &mut [f32], place: usize) -> Result<Choice, SampleError> {
        check(&*logits)?;
        if let Some((policy, written)) = &self.policy {
            return Ok(Choice { token: policy.choose(written, logits), logprob: None, top: Vec::new() });
        }
        let allowed = self.allowed()?;
        if let Some(Allowed::Forced { token, .. }) = allowed.as_deref() {
            return match self.how.logprobs {
                Some(top) => score(logits, *token, top),
                None => Ok(Choice { token: *token, logprob: None, top: Vec::new() }),
            };
        }
        let raw = self.how.logprobs.map(|top| (logits.to_vec(), top));
        self.adjust(logits);
        let token = match allowed.as_deref() {
            Some(Allowed::Any(mask)) if self.how.temperature <= 0.0 => {
                mask.largest(logits).ok_or_else(nothing_allowed)?
            }
            Some(Allowed::Any(mask)) if !mask.apply(logits) => return Err(nothing_allowed()),
            _ => self.pick((0..).zip(logits.iter().copied()), place),
        };
        match raw {
            Some((raw, top)) => score(&raw, token, top),
            None => Ok(Choice { token, logprob: None, top: Vec::new() }),
        }
    }

    /// Samples from the top-k tokens alone: as many as [`needs`](Self::needs) says; of tokens with equal logits those with the
    /// lower ids. `None` if that takes the whole row, because a constraint allows none of them.
    ///
    /// Differs from [`sample`](Self::sample) in one case: top-k ranks NaN lowest, so a NaN among the logits left out
    /// goes unnoticed and its token is not chosen. A row that is all NaN or contains +inf is an error for both.
    pub fn sample_topk(
        &self,
        tokens: &[u32],
        logits: &[f32],
        place: usize,
    ) -> Result<Option<Choice>, SampleError> {
        check(logits)?;
        let row = tokens.iter().copied().zip(logits.iter().copied());
        let token = match self.allowed()?.as_deref() {
            None => Some(self.pick(row, place)),
            Some(Allowed::Forced { token, .. }) => Some(*token),
            // The likeliest comes first.
            Some(Allowed::Any(mask)) => {
                let mut allowed = row.filter(|(token, x)| mask.contains(*token) && *x > f32::NEG_INFINITY);
                allowed.next().map(|(token, _)| token)
            }
        };
        Ok(token.map(|token| Choice { token, logprob: None, top: Vec::new() }))
    }

    /// The part of a row of `vocab` logits that sampling needs.
    pub fn needs(&self, vocab: usize) -> LogitsNeeded {
        if self.policy.is_some() {
            return LogitsNeeded::Row;
        }
        match self.how.top_k_needed() {
            Some(k) if self.constraint.is_none() => LogitsNeeded::TopK(k.min(vocab)),
            // The likeliest may not be allowed, but one of some as a rule.
            Some(_) if self.how.temperature <= 0.0 => LogitsNeeded::TopK(MAX_TOP_K.min(vocab)),
            _ if self.how.draws_from(candidates_of(vocab)) => LogitsNeeded::Candidates,
            _ => LogitsNeeded::Row,
        }
    }

    /// Tokens whose logits have a bias or a penalty, where those of a draft have been accepted too; ascending.
    pub fn edited(&self, draft: &[u32], vocab: usize) -> Vec<u32> {
        let biased = self.how.bias.iter().map(|(token, _)| *token);
        let drafted = if self.how.penalises() { draft } else { &[] };
        let seen = self.seen.keys().copied().chain(drafted.iter().copied());
        let mut edited: Vec<u32> = biased.chain(seen).filter(|token| (*token as usize) < vocab).collect();
        edited.sort_unstable();
        edited.dedup();
        edited
    }

    /// Applies logit bias and penalties.
    fn adjust(&self, logits: &mut [f32]) {
        for (token, bias) in &self.how.bias {
            if let Some(x) = logits.get_mut(*token as usize) {
                *x += bias;
            }
        }
        for (token, count) in &self.seen {
            if let Some(x) = logits.get_mut(*token as usize) {
                *x = self.how.penalised(*x, *count);
            }
        }
    }

    /// Applies bias and penalties to the logits of some tokens, in ascending order of tokens.
    fn adjust_some(&self, logits: &mut [(u32, f32)]) {
        for (token, bias) in &self.how.bias {
            if let Ok(at) = logits.binary_search_by_key(token, |(token, _)| *token) {
                logits[at].1 += bias;
            }
        }
        for (token, x) in logits {
            if let Some(count) = self.seen.get(token) {
                *x = self.how.penalised(*x, *count);
            }
        }
    }

    /// Picks one of the tokens by their logits.
    fn pick(&self, row: impl Iterator<Item = (u32, f32)> + Clone, place: usize) -> u32 {
        match self.how.temperature {
            t if t <= 0.0 => largest(row),
            t => {
                let k = if self.how.top_k == 0 { usize::MAX } else { self.how.top_k };
                self.draw_at(place).among(draw::most_likely(row, t, k))
            }
        }
    }

    fn draw_at(&self, place: usize) -> Draw {
        let Sampling { typical_p, top_p, min_p, seed, .. } = self.how;
        Draw { typical_p, top_p, min_p, uniform: uniform(seed, place) }
    }
}

fn nothing_allowed() -> SampleError {
    SampleError::Constraint(
        "the model gives none of the tokens that the answer's constraint allows a chance".into(),
    )
}

/// First token with the largest logit. A NaN, which only penalties and biases make here, is less than all, as in the top-k of
/// devices and in [`TokenMask::largest`].
fn largest(row: impl Iterator<Item = (u32, f32)>) -> u32 {
    let greater = |a: f32, b: f32| a > b || b.is_nan();
    row.reduce(|best, next| if greater(next.1, best.1) { next } else { best }).map_or(0, |(token, _)| token)
}

/// -inf masks a token; NaN, +inf, or no finite logit at all is an error.
fn check<'a>(logits: impl IntoIterator<Item = &'a f32>) -> Result<(), SampleError> {
    let finite = logits.into_iter().fold((false, false), |(some, bad), x| {
        (some | x.is_finite(), bad | x.is_nan() | (*x == f32::INFINITY))
    });
    if finite == (true, false) { Ok(()) } else { Err(NotFinite) }
}

/// Ids of the `n` largest logits, largest first.
fn most_likely(logits: &[f32], n: usize) -> Vec<u32> {
    let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    if n == 0 || ids.is_empty() {
        return Vec::new();
    }
    if n < ids.len() {
        ids.select_nth_unstable_by(n - 1, order);
        ids.truncate(n);
    }
    ids.sort_unstable_by(order);
    ids
}

/// log-sum-exp.
fn log_sum(logits: &[f32]) -> f32 {
    let top = logits.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
    let sum: f64 = logits.iter().map(|x| f64::from(x - top).exp()).sum();
    (f64::from(top) + sum.ln()) as f32
}

/// Uniform in [0, 1), from the seed and the position alone (SplitMix64).
pub fn uniform(seed: u64, place: usize) -> f64 {
    let mut z = seed.wrapping_add((place as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Log-probability of a token, and the `top` most likely tokens with theirs.
pub fn score(logits: &[f32], token: u32, top: usize) -> Result<Choice, SampleError> {
    let sum = log_sum(logits);
    let logprob = logits.get(token as usize).map(|x| x - sum).filter(|p| !p.is_nan()).ok_or(NotFinite)?;
    let scored = |t: u32| Scored { token: t, logprob: logits[t as usize] - sum };
    let top = most_likely(logits, top).into_iter().map(scored).collect();
    Ok(Choice { token, logprob: Some(logprob), top })
}
