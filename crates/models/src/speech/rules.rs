//! [`choose`]: samples the next token under Whisper's timestamp rules.

use super::Speech;

/// A sampled token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chosen {
    /// The token.
    pub token: u32,
    /// Log-probability among the allowed tokens.
    pub log: f32,
}

/// Samples the token that follows `written`, which excludes the prompt's special tokens. `draw` is from 0 to 1, and
/// used only if the temperature is above 0.
pub fn choose(speech: &Speech, written: &[u32], logits: &[f32], temperature: f32, draw: f64) -> Chosen {
    let mut logits = logits.to_vec();
    logits.resize(speech.vocab, f32::NEG_INFINITY);
    restrict(speech, written, &mut logits);
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
    let log = |i: usize| (f64::from(logits[i] - most) - sum.ln()) as f32;
    let best = || (0..logits.len()).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or(0);
    let i = if temperature > 0.0 {
        let weight = |x: &f32| (f64::from(x - most) / f64::from(temperature)).exp();
        let mut left = draw * logits.iter().map(weight).sum::<f64>();
        let mut over = |x: &f32| {
            left -= weight(x);
            left < 0.0
        };
        logits.iter().position(&mut over).unwrap_or_else(best)
    } else {
        best()
    };
    Chosen { token: i as u32, log: log(i) }
}

/// Probability of a token.
pub fn likelihood(logits: &[f32], token: u32) -> f32 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
    logits.get(token as usize).map_or(0.0, |x| (f64::from(x - most).exp() / sum) as f32)
}

/// The most likely language token.
pub fn language(speech: &Speech, logits: &[f32]) -> Option<u32> {
    let likely = |id: u32| logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let ids = speech.languages.iter().map(|(_, id)| *id);
    ids.max_by(|a, b| likely(*a).total_cmp(&likely(*b)))
}

/// Masks the logits of tokens that must not come next.
fn restrict(speech: &Speech, written: &[u32], logits: &mut [f32]) {
    const OUT: f32 = f32::NEG_INFINITY;
    let (zero, end) = (speech.zero() as usize, speech.end as usize);
    let out = speech.never.iter().chain([&speech.start]).chain(&speech.before).chain(&speech.silence);
    out.for_each(|id| logits[*id as usize] = OUT);
    // Special tokens between the end token and the timestamps belong to the prompt.
    logits[(end + 1).min(zero)..zero].fill(OUT);
    let is_time = |token: u32| token as usize >= zero;
    if written.is_empty() {
        speech.never_first.iter().for_each(|id| logits[*id as usize] = OUT);
        // A window starts with a timestamp, at most `max_initial_timestamp_index`.
        logits[..zero].fill(OUT);
        let late = zero + speech.latest_start as usize + 1;
        if late < logits.len() {
            logits[late..].fill(OUT);
        }
        return;
    }
    let last = written.last().is_some_and(|t| is_time(*t));
    let before = written.len() < 2 || is_time(written[written.len() - 2]);
    match (last, before) {
        // Timestamps come in pairs, an end and the next start, except for the first and the last one.
        (true, true) => logits[zero..].fill(OUT),
        (true, false) => logits[..end].fill(OUT),
        (false, _) => {}
    }
    // Timestamps must not decrease, and a segment must not be empty.
    if let Some(time) = written.iter().rev().find(|t| is_time(**t)) {
        let from = *time as usize + usize::from(!last || before);
        let from = from.clamp(zero, logits.len());
        logits[zero..from].fill(OUT);
    }
    // If the timestamps together are more likely than any text token, force a timestamp.
    let most = logits.iter().copied().fold(OUT, f32::max);
    let times: f64 = logits[zero..].iter().map(|x| f64::from(x - most).exp()).sum();
    let text = logits[..zero].iter().copied().fold(OUT, f32::max);
    if times > f64::from(text - most).exp() {
        logits[..zero].fill(OUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens 0 to 2 are text, 3 is the end, then special tokens, timestamps from 8 on.
    fn speech() -> Speech {
        Speech {
            start: 4,
            end: 3,
            before: None,
            silence: Some(6),
            timeless: 7,
            languages: vec![("en".into(), 5)],
            transcribe: 6,
            translate: 6,
            never: vec![2],
            never_first: vec![3],
            latest_start: 2,
            vocab: 16,
            context: 20,
        }
    }

    fn next(written: &[u32], likely: &[(u32, f32)]) -> u32 {
        let mut logits = vec![0.0; 16];
        likely.iter().for_each(|(id, x)| logits[*id as usize] = *x);
        choose(&speech(), written, &logits, 0.0, 0.0).token
    }

    #[test]
    fn times_frame_what_is_said() {
        // First a timestamp, at most the latest allowed one.
        assert_eq!(next(&[], &[(0, 9.0), (12, 8.0), (9, 1.0)]), 9);
        // No other timestamp after it, nor a suppressed token.
        assert_eq!(next(&[9], &[(12, 9.0), (2, 8.0), (1, 1.0)]), 1);
        // Timestamps do not decrease.
        assert_eq!(next(&[10, 1], &[(9, 9.0), (10, 8.5), (0, 4.0)]), 0);
        // After an end timestamp comes a start at the same time or later, or the end token.
        assert_eq!(next(&[9, 1, 12], &[(0, 9.0), (11, 8.0), (12, 5.0)]), 12);
        assert_eq!(next(&[9, 1, 12], &[(0, 9.0), (3, 8.0), (12, 5.0)]), 3);
        // Special tokens are masked.
        assert_eq!(next(&[9, 1], &[(5, 9.0), (6, 9.0), (7, 9.0), (0, 4.0)]), 0);
        // Timestamps that are each less likely than a text token may be more likely together.
        assert_eq!(next(&[9, 1], &[(0, 1.0), (13, 0.9), (14, 0.8), (15, 0.7)]), 13);
    }

    #[test]
    fn draws_go_by_likelihood() {
        let mut logits = vec![f32::NEG_INFINITY; 16];
        (logits[0], logits[1]) = (0.0, 0.0);
        let at = |draw| choose(&speech(), &[9], &logits, 1.0, draw);
        assert_eq!((at(0.2).token, at(0.7).token), (0, 1));
        assert!((at(0.2).log - 0.5f32.ln()).abs() < 1e-6);
        assert!((likelihood(&logits, 1) - 0.5).abs() < 1e-6);
    }
}
