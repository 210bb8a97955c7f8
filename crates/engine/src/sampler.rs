//! [`Sampler`]: from logits to a token.
//!
//! In this order: bias, penalties, temperature, then what the cuts leave (top-k, typical, top-p, min-p), then a draw.
//! The draw depends on the seed and on the place in the sequence, and on nothing else: the same request gives the same
//! text in any company, and again after its sequence had to be computed twice.

use std::cmp::Ordering;
use std::collections::HashMap;

/// The most tokens that a device is asked to find. What models recommend for top-k is 20 to 64.
const MAX_TOP_K: usize = 64;

/// How to choose tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Below 1 sharper, above 1 flatter; 0 takes the most likely token.
    pub temperature: f32,
    /// Only so many of the most likely; 0 for all.
    pub top_k: usize,
    /// Only the most likely that together have this much; 1 for all.
    pub top_p: f32,
    /// Only those at least this likely, in proportion to the most likely; 0 for all.
    pub min_p: f32,
    /// Only those whose surprise is nearest to what is expected, together this much; 1 for all.
    pub typical_p: f32,
    /// Divides (or, below 0, multiplies) logits of tokens that were there; 1 for none.
    pub repetition_penalty: f32,
    /// Taken from logits of tokens that were generated.
    pub presence_penalty: f32,
    /// Taken from logits of tokens for each time they were generated.
    pub frequency_penalty: f32,
    /// Added to logits.
    pub bias: Vec<(u32, f32)>,
    /// Of the draws.
    pub seed: u64,
    /// How many of the most likely tokens to report with each token, and whether to report at all.
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
    /// Always the most likely token.
    pub fn greedy() -> Sampling {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    /// How many of the most likely tokens are all that choosing looks at, where those are few. Then a device finds
    /// them, and the other logits are never read.
    pub fn top_k_needed(&self) -> Option<usize> {
        if !self.bias.is_empty() || self.penalises() || self.logprobs.is_some() {
            return None;
        }
        let most = if self.temperature <= 0.0 { 1 } else { self.top_k };
        (1..=MAX_TOP_K).contains(&most).then_some(most)
    }

    fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// A token with its log-probability: that of the model itself, before bias, penalties and temperature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// The token.
    pub token: u32,
    /// Its log-probability.
    pub logprob: f32,
}

/// A token that was chosen, and the most likely ones if they were asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// Its log-probability, where asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens, most likely first.
    pub top: Vec<Scored>,
}

/// The model gave something that is no number: its weights are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model's logits are not finite numbers: its weights are damaged, or overflow at this precision")]
pub struct NotFinite;

/// Chooses the tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    how: Sampling,
    /// How often each token was generated; 0 for those of the prompt alone.
    seen: HashMap<u32, u32>,
}

impl Sampler {
    /// For a sequence that begins with `prompt`.
    pub fn new(how: Sampling, prompt: &[u32]) -> Sampler {
        let seen = if how.penalises() { prompt.iter().map(|t| (*t, 0)).collect() } else { HashMap::new() };
        Sampler { how, seen }
    }

    /// How it chooses.
    pub fn how(&self) -> &Sampling {
        &self.how
    }

    /// Takes note of a token that was generated.
    pub fn accept(&mut self, token: u32) {
        if self.how.penalises() {
            *self.seen.entry(token).or_default() += 1;
        }
    }

    /// The token for `place`, the number of tokens before it. Changes `logits`.
    pub fn sample(&self, logits: &mut [f32], place: usize) -> Result<Choice, NotFinite> {
        check(logits)?;
        let raw = self.how.logprobs.map(|top| (logits.to_vec(), top));
        self.adjust(logits);
        let token = self.pick((0..).zip(logits.iter().copied()), place);
        match raw {
            Some((raw, top)) => score(&raw, token, top),
            None => Ok(Choice { token, logprob: None, top: Vec::new() }),
        }
    }

    /// The same from the most likely tokens alone: as many as the settings [look at](Sampling::looks_at), or all
    /// there are; of equals those with the lower numbers.
    ///
    /// It differs from `choose` in one thing: NaN counts as smallest, so one among the logits that are not here goes
    /// unnoticed, and its token is not chosen. A row that is NaN throughout, or somewhere plus infinity, is an error
    /// for both.
    pub fn sample_topk(&self, tokens: &[u32], logits: &[f32], place: usize) -> Result<Choice, NotFinite> {
        check(logits)?;
        let token = self.pick(tokens.iter().copied().zip(logits.iter().copied()), place);
        Ok(Choice { token, logprob: None, top: Vec::new() })
    }

    /// Bias and penalties.
    fn adjust(&self, logits: &mut [f32]) {
        for (token, bias) in &self.how.bias {
            if let Some(x) = logits.get_mut(*token as usize) {
                *x += bias;
            }
        }
        for (token, count) in &self.seen {
            let Some(x) = logits.get_mut(*token as usize) else { continue };
            *x = if *x > 0.0 { *x / self.how.repetition_penalty } else { *x * self.how.repetition_penalty };
            if *count > 0 {
                *x -= self.how.presence_penalty + self.how.frequency_penalty * *count as f32;
            }
        }
    }

    /// One of some tokens, by their logits.
    fn pick(&self, row: impl Iterator<Item = (u32, f32)> + Clone, place: usize) -> u32 {
        match self.how.temperature {
            t if t <= 0.0 => largest(row),
            t => self.draw(row, t, place),
        }
    }

    fn draw(&self, row: impl Iterator<Item = (u32, f32)> + Clone, temperature: f32, place: usize) -> u32 {
        let how = &self.how;
        let k = if how.top_k == 0 { usize::MAX } else { how.top_k };
        let mut left = candidates(row, temperature, k);
        if how.typical_p < 1.0 {
            left = typical(left, how.typical_p);
        }
        if how.top_p < 1.0 {
            let total: f64 = left.iter().map(|c| c.weight).sum();
            keep_until(&mut left, f64::from(how.top_p) * total);
        }
        if how.min_p > 0.0 {
            let least = left.iter().fold(0.0, |m: f64, c| m.max(c.weight)) * f64::from(how.min_p);
            left.retain(|c| c.weight >= least);
        }
        let total: f64 = left.iter().map(|c| c.weight).sum();
        let mut at = uniform(how.seed, place) * total;
        for c in &left {
            at -= c.weight;
            if at < 0.0 {
                return c.token;
            }
        }
        left.last().map_or(0, |c| c.token)
    }
}

/// A token that may be drawn, and its share.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: u32,
    logit: f32,
    weight: f64,
}

/// The most likely first, of equals the one with the lower number. By their logits, because weights of different
/// logits can be equal; and as a device compares numbers, to which 0 and -0 are equal.
fn order(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

/// The `k` most likely tokens, in order. Weights are in proportion to probabilities, the first being 1.
fn candidates(row: impl Iterator<Item = (u32, f32)> + Clone, temperature: f32, k: usize) -> Vec<Candidate> {
    let top = row.clone().fold(f32::NEG_INFINITY, |m, (_, x)| m.max(x));
    let weight = |x: f32| f64::from((x - top) / temperature).exp();
    // Below this share even a whole vocabulary of them comes to nothing; leaving them out saves sorting them.
    const NOTHING: f64 = 1e-12;
    let all = row.map(|(token, logit)| Candidate { token, logit, weight: weight(logit) });
    let mut all: Vec<Candidate> = all.filter(|c| c.weight > NOTHING).collect();
    if k < all.len() {
        all.select_nth_unstable_by(k.saturating_sub(1), order);
        all.truncate(k);
    }
    all.sort_unstable_by(order);
    all
}

/// Those whose surprise is nearest to the mean surprise, until they have `p` of the whole; most likely first again.
fn typical(mut left: Vec<Candidate>, p: f32) -> Vec<Candidate> {
    let total: f64 = left.iter().map(|c| c.weight).sum();
    let surprise = |c: &Candidate| -(c.weight / total).ln();
    let expected: f64 = left.iter().map(|c| c.weight / total * surprise(c)).sum();
    left.sort_by(|a, b| {
        let far = |c: &Candidate| (surprise(c) - expected).abs();
        far(a).total_cmp(&far(b)).then(a.token.cmp(&b.token))
    });
    keep_until(&mut left, f64::from(p) * total);
    left.sort_unstable_by(order);
    left
}

/// The first candidates until they weigh `enough`, at least one.
fn keep_until(left: &mut Vec<Candidate>, enough: f64) {
    let mut sum = 0.0;
    let count = left.iter().take_while(|c| {
        let short = sum < enough;
        sum += c.weight;
        short
    });
    let count = count.count().max(1);
    left.truncate(count);
}

/// The first of those with the largest logit.
fn largest(row: impl Iterator<Item = (u32, f32)>) -> u32 {
    row.reduce(|best, next| if next.1 > best.1 { next } else { best }).map_or(0, |(token, _)| token)
}

/// Minus infinity is a way to say never; anything else that is not finite is damage.
fn check(logits: &[f32]) -> Result<(), NotFinite> {
    let finite = logits.iter().fold((false, false), |(some, bad), x| {
        (some | x.is_finite(), bad | x.is_nan() | (*x == f32::INFINITY))
    });
    if finite == (true, false) { Ok(()) } else { Err(NotFinite) }
}

/// The `n` largest logits' tokens, largest first.
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

/// The logarithm of the sum of exponentials.
fn log_sum(logits: &[f32]) -> f32 {
    let top = logits.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
    let sum: f64 = logits.iter().map(|x| f64::from(x - top).exp()).sum();
    (f64::from(top) + sum.ln()) as f32
}

/// A number from 0 up to 1 that depends on the seed and the place alone.
fn uniform(seed: u64, place: usize) -> f64 {
    let mut z = seed.wrapping_add((place as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// A token's log-probability, and the `top` most likely tokens with theirs.
pub fn score(logits: &[f32], token: u32, top: usize) -> Result<Choice, NotFinite> {
    let sum = log_sum(logits);
    let logprob = logits.get(token as usize).map(|x| x - sum).filter(|p| !p.is_nan()).ok_or(NotFinite)?;
    let scored = |t: u32| Scored { token: t, logprob: logits[t as usize] - sum };
    let top = most_likely(logits, top).into_iter().map(scored).collect();
    Ok(Choice { token, logprob: Some(logprob), top })
}
