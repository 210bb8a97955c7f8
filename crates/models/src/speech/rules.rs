//! [`choose`]: which token comes next, by the rules that models of speech were made for.

use super::Speech;

/// A token, and how likely it was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chosen {
    /// The token.
    pub token: u32,
    /// The logarithm of its likelihood among those that were allowed.
    pub log: f32,
}

/// What comes next behind `written`, which has no special tokens in front. `draw` is from 0 to 1, and of use where the
/// temperature is above 0.
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

/// How likely one token is.
pub fn likelihood(logits: &[f32], token: u32) -> f32 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
    logits.get(token as usize).map_or(0.0, |x| (f64::from(x - most).exp() / sum) as f32)
}

/// The most likely language.
pub fn language(speech: &Speech, logits: &[f32]) -> Option<u32> {
    let likely = |id: u32| logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let ids = speech.languages.iter().map(|(_, id)| *id);
    ids.max_by(|a, b| likely(*a).total_cmp(&likely(*b)))
}

/// Takes out what must not come next.
fn restrict(speech: &Speech, written: &[u32], logits: &mut [f32]) {
    const OUT: f32 = f32::NEG_INFINITY;
    let (zero, end) = (speech.zero() as usize, speech.end as usize);
    let out = speech.never.iter().chain([&speech.start]).chain(&speech.before).chain(&speech.silence);
    out.for_each(|id| logits[*id as usize] = OUT);
    // Those between the end and times are for the front.
    logits[(end + 1).min(zero)..zero].fill(OUT);
    let is_time = |token: u32| token as usize >= zero;
    if written.is_empty() {
        speech.never_first.iter().for_each(|id| logits[*id as usize] = OUT);
        // A window begins with a time, and not with a late one.
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
        // Times come in pairs, of an end and of a beginning, but for the first and the last.
        (true, true) => logits[zero..].fill(OUT),
        (true, false) => logits[..end].fill(OUT),
        (false, _) => {}
    }
    // They do not go back, and no piece is without length.
    if let Some(time) = written.iter().rev().find(|t| is_time(**t)) {
        let from = *time as usize + usize::from(!last || before);
        let from = from.clamp(zero, logits.len());
        logits[zero..from].fill(OUT);
    }
    // Where some time is likelier than any text, it is a time.
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

    /// Three words, the end, what is special, and times from 8 on.
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
        // First a time, and none that is late.
        assert_eq!(next(&[], &[(0, 9.0), (12, 8.0), (9, 1.0)]), 9);
        // Behind it no other; nor anything that must never come.
        assert_eq!(next(&[9], &[(12, 9.0), (2, 8.0), (1, 1.0)]), 1);
        // Times do not go back.
        assert_eq!(next(&[10, 1], &[(9, 9.0), (10, 8.5), (0, 4.0)]), 0);
        // An end has a beginning behind it, of the same time or a later one, or all ends.
        assert_eq!(next(&[9, 1, 12], &[(0, 9.0), (11, 8.0), (12, 5.0)]), 12);
        assert_eq!(next(&[9, 1, 12], &[(0, 9.0), (3, 8.0), (12, 5.0)]), 3);
        // No special token is written.
        assert_eq!(next(&[9, 1], &[(5, 9.0), (6, 9.0), (7, 9.0), (0, 4.0)]), 0);
        // Many times that are each less likely than a word are together likelier.
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
