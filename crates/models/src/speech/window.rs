//! [`cut`]: splits a window's tokens into segments by their timestamps, and returns how far to advance.

use super::{Speech, TICK};

/// A segment of a window.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// Seconds from the start of the window.
    pub start: f64,
    /// Seconds from the start of the window.
    pub end: f64,
    /// Text tokens.
    pub tokens: Vec<u32>,
}

/// Segments of a window of `seconds`, and the seconds after which the next window starts.
pub fn cut(speech: &Speech, written: &[u32], seconds: f64) -> (Vec<Piece>, f64) {
    let zero = speech.zero();
    let is_time = |token: &u32| *token >= zero;
    let time = |token: u32| f64::from(token - zero) * TICK;
    let written = written.strip_suffix(&[speech.end]).unwrap_or(written);
    let piece = |part: &[u32], start: f64, end: f64| {
        let tokens = part.iter().copied().filter(|t| *t < speech.end).collect();
        Piece { start, end: end.max(start), tokens }
    };
    // Positions between an end timestamp and the next start.
    let mut cuts: Vec<usize> =
        (1..written.len()).filter(|i| is_time(&written[i - 1]) && is_time(&written[*i])).collect();
    let ended = matches!(written, [.., a, b] if !is_time(a) && is_time(b));
    if cuts.is_empty() {
        let last = written.iter().rev().find(|t| is_time(t)).map(|t| time(*t));
        let first = written.first().filter(|t| is_time(t)).map_or(0.0, |t| time(*t));
        let end = last.filter(|t| *t > first).unwrap_or(seconds).min(seconds.max(first));
        return (vec![piece(written, first, end)], seconds);
    }
    if ended {
        cuts.push(written.len());
    }
    let (mut pieces, mut from) = (Vec::new(), 0);
    for to in cuts {
        let part = &written[from..to];
        let start = part.first().filter(|t| is_time(t)).map_or(0.0, |t| time(*t));
        pieces.push(piece(part, start, part.last().filter(|t| is_time(t)).map_or(seconds, |t| time(*t))));
        from = to;
    }
    // An unfinished segment is decoded again in the next window.
    let done = if ended { seconds } else { time(written[from - 1]).min(seconds) };
    (pieces, if done > 0.0 { done } else { seconds })
}

/// Estimated compression ratio of a text (LZ77: repeats as back-references). Text that loops has a high ratio.
pub fn repetition(text: &str) -> f32 {
    const SHORT: usize = 4;
    let bytes = text.as_bytes();
    let mut seen = std::collections::HashMap::new();
    let (mut at, mut written) = (0, 0usize);
    while at < bytes.len() {
        let key = bytes.get(at..at + SHORT);
        let before = key.and_then(|key| seen.insert(key, at));
        let same = before.map_or(0, |before: usize| {
            bytes[at..].iter().zip(&bytes[before..]).take_while(|(a, b)| a == b).count()
        });
        // A back-reference costs about three bytes, whatever its length.
        (at, written) = if same >= SHORT { (at + same, written + 3) } else { (at + 1, written + 1) };
    }
    // A literal takes about two thirds of a byte after entropy coding.
    bytes.len() as f32 / (0.67 * written as f32 + 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speech() -> Speech {
        Speech {
            start: 100,
            end: 99,
            before: None,
            silence: None,
            timeless: 199,
            languages: Vec::new(),
            transcribe: 101,
            translate: 102,
            never: Vec::new(),
            never_first: Vec::new(),
            latest_start: 50,
            vocab: 2000,
            context: 448,
        }
    }

    fn pieces(written: &[u32]) -> (Vec<(f64, f64, Vec<u32>)>, f64) {
        let (pieces, done) = cut(&speech(), written, 30.0);
        (pieces.into_iter().map(|p| (p.start, p.end, p.tokens)).collect(), done)
    }

    #[test]
    fn windows_are_cut_where_times_stand_together() {
        // The last segment is unfinished: the next window starts with it.
        let (some, done) = pieces(&[200, 1, 2, 300, 300, 3, 450, 500, 4, 5]);
        assert_eq!(some, [(0.0, 2.0, vec![1, 2]), (2.0, 5.0, vec![3])]);
        assert_eq!(done, 5.0);
        // The last timestamp ends the last segment and nothing follows: the whole window is done.
        let (some, done) = pieces(&[200, 1, 300, 310, 3, 450, 99]);
        assert_eq!(some, [(0.0, 2.0, vec![1]), (2.2, 5.0, vec![3])]);
        assert_eq!(done, 30.0);
        let (some, done) = pieces(&[250, 1, 2, 99]);
        assert_eq!((some, done), (vec![(1.0, 30.0, vec![1, 2])], 30.0));
        let (some, done) = pieces(&[200, 1, 2, 400]);
        assert_eq!((some, done), (vec![(0.0, 4.0, vec![1, 2])], 30.0));
        // Always advances, whatever the tokens are.
        assert_eq!(pieces(&[200, 200]).1, 30.0);
        assert_eq!(pieces(&[]).1, 30.0);
    }

    #[test]
    fn circles_are_told_from_text() {
        let text =
            "And so my fellow Americans, ask not what your country can do for you, ask what you can do.";
        assert!(repetition(text) < 2.0, "{}", repetition(text));
        assert!(repetition(&"I'm sorry. ".repeat(20)) > 4.0);
        assert_eq!(repetition(""), 0.0);
    }
}
