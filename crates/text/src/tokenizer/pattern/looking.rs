//! [`Looking`]: patterns with look-around or back-references, matched by backtracking, within limits.
//!
//! A backtracking step can cost a scan of the whole text by a part of the pattern that is delegated to an automaton. So
//! the number of steps that one search may take falls as the text grows: together they scan about [`MOST_SCANNED`]
//! bytes. A search that needs more is repeated anchored at each start, each with the same limit of its own, and the
//! time limit is checked before each.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use fancy_regex::{Regex, RegexBuilder, RegexInput};

use super::MOST_COMPILED;

/// Bytes that the backtracking steps of a search may scan: about a second's worth.
const MOST_SCANNED: usize = 1 << 30;
/// Cost per byte of a pattern with back-references, relative to one without: it needs the positions of its capture
/// groups, and finding those is slow.
const GROUPS_COST: usize = 32;
/// Upper bounds, in bytes, of the classes of text lengths; the last has no bound.
const LONGEST: [usize; 5] = [1 << 10, 1 << 14, 1 << 18, 1 << 22, usize::MAX];
/// Bounds of the backtracking limit. Matching no more than a word at one start takes some tens of steps.
const LEAST_STEPS: usize = 128;
const MOST_STEPS: usize = 1_000_000;
/// Time limit of a search for each MiB of text, plus one MiB.
const TIME_PER_MIB: Duration = Duration::from_secs(4);

/// A pattern, compiled for each class of text lengths on first use.
#[derive(Debug)]
pub(super) struct Looking {
    source: String,
    steps: [usize; LONGEST.len()],
    compiled: [OnceLock<Regex>; LONGEST.len()],
}

impl Looking {
    pub(super) fn new(source: &str) -> Result<Looking, String> {
        let plain = without_groups(source);
        let cost = if plain.is_some() { 1 } else { GROUPS_COST };
        let steps = LONGEST.map(|longest| (MOST_SCANNED / cost / longest).clamp(LEAST_STEPS, MOST_STEPS));
        let looking =
            Looking { source: plain.unwrap_or_else(|| source.into()), steps, compiled: Default::default() };
        looking.regex(0)?;
        Ok(looking)
    }

    fn regex(&self, class: usize) -> Result<&Regex, String> {
        if let Some(regex) = self.compiled[class].get() {
            return Ok(regex);
        }
        let built = RegexBuilder::new(&self.source)
            .oniguruma_mode(true)
            .multi_line(true)
            .backtrack_limit(self.steps[class])
            .delegate_size_limit(MOST_COMPILED)
            .max_prog_size(100_000)
            .build();
        let built = built.map_err(|e| e.to_string())?;
        Ok(self.compiled[class].get_or_init(|| built))
    }

    /// Calls `each` with the start and end of every match. The error says why if a limit is exceeded.
    pub(super) fn find(&self, text: &str, mut each: impl FnMut(usize, usize)) -> Result<(), String> {
        let class = LONGEST.iter().position(|longest| text.len() <= *longest).unwrap_or(LONGEST.len() - 1);
        let regex = self.regex(class)?;
        let clock = Clock::start(text.len());
        let (mut at, mut last, mut stands) = (0, None, false);
        while at <= text.len() {
            clock.check()?;
            let from = |at| {
                let input = RegexInput::new(text).from_pos(at);
                // `\G` does not match right after an empty match.
                input.continue_from_previous_match_end(!stands)
            };
            let found = match regex.find_input(from(at)) {
                Ok(found) => found,
                // In searches anchored at each start, `\G` would match at every one, not only at the end of the
                // previous match.
                Err(e) if self.source.contains(r"\G") => return Err(e.to_string()),
                Err(_) => start_by_start(regex, text, at, &clock, from)?,
            };
            let Some(found) = found else { break };
            let (start, end) = (found.start(), found.end());
            if start < end {
                each(start, end);
                (at, stands) = (end, false);
            } else {
                if last != Some(end) {
                    each(start, end);
                }
                stands = end == at;
                at = end + text[end..].chars().next().map_or(1, char::len_utf8);
            }
            last = Some(end);
        }
        Ok(())
    }
}

/// The first match at or after `at`, by anchored searches at one start after the other.
fn start_by_start<'t>(
    regex: &Regex,
    text: &'t str,
    at: usize,
    clock: &Clock,
    from: impl Fn(usize) -> RegexInput<'t, str>,
) -> Result<Option<fancy_regex::Match<'t>>, String> {
    let starts = text[at..].char_indices().map(|(i, _)| at + i).chain([text.len()]);
    for start in starts {
        clock.check()?;
        let found = regex.find_input(from(start).anchored(true)).map_err(|e| e.to_string())?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The time limit of a search.
struct Clock {
    begun: Instant,
    limit: Duration,
}

impl Clock {
    fn start(bytes: usize) -> Clock {
        let limit = TIME_PER_MIB.saturating_mul((bytes >> 20) as u32 + 1);
        Clock { begun: Instant::now(), limit }
    }

    fn check(&self) -> Result<(), String> {
        if self.begun.elapsed() <= self.limit { Ok(()) } else { Err("took too long".into()) }
    }
}

/// The pattern with its capture groups made non-capturing. `None` if the pattern may refer to them.
fn without_groups(source: &str) -> Option<String> {
    // A leading `]` is a member of the class.
    if source.contains("[]") || source.contains("[^]") {
        return None;
    }
    let mut out = String::with_capacity(source.len());
    let mut chars = source.chars().peekable();
    let mut class = 0;
    while let Some(c) = chars.next() {
        out.push(c);
        match c {
            '\\' => {
                let escaped = chars.next()?;
                if class == 0 && matches!(escaped, '1'..='9' | 'k' | 'g') {
                    return None;
                }
                out.push(escaped);
            }
            '[' => class += 1,
            ']' if class > 0 => class -= 1,
            '(' if class == 0 => match chars.peek() {
                Some('?') => {
                    let rest: Vec<char> = chars.clone().take(3).collect();
                    // Named groups, and references to groups.
                    let named = match rest.as_slice() {
                        ['?', '<', next] => !matches!(next, '=' | '!'),
                        ['?', '-' | '+', digit] => digit.is_ascii_digit(),
                        ['?', kind, ..] => {
                            matches!(kind, 'P' | '(' | '&' | 'R' | '|' | '\'' | '0'..='9' | '+')
                        }
                        _ => true,
                    };
                    if named {
                        return None;
                    }
                }
                Some('*') => return None,
                _ => out.push_str("?:"),
            },
            _ => {}
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(looking: &Looking, text: &str) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        looking.find(text, |a, b| found.push((a, b))).unwrap();
        found
    }

    /// The matches of a search without limits.
    fn reference(source: &str, text: &str) -> Vec<(usize, usize)> {
        let regex = RegexBuilder::new(source).oniguruma_mode(true).multi_line(true).build().unwrap();
        regex.find_iter(text).map(|m| m.unwrap()).map(|m| (m.start(), m.end())).collect()
    }

    #[test]
    fn groups_are_dropped_where_nothing_refers_to_them() {
        for (source, want) in [
            (r"(a)(?=b)", Some(r"(?:a)(?=b)")),
            (r"(?<=(x))[(]\((?i:y)(?!z)", Some(r"(?<=(?:x))[(]\((?i:y)(?!z)")),
            (r"(a)\1", None),
            (r"(?<n>a)\k<n>", None),
            (r"(?P<n>a)(?P=n)", None),
            (r"(a)(?(1)b|c)", None),
        ] {
            assert_eq!(without_groups(source).as_deref(), want, "{source}");
        }
    }

    /// With a low backtracking limit, nearly all searches are made start by start.
    #[test]
    fn start_by_start_finds_the_same() {
        let alphabet: Vec<char> = "ab1 \né".chars().collect();
        let mut seed = 7u64;
        for source in [
            r"\d{1,3}(?=(?:\d{3})*\b)",
            r"(?=(\d{3})+(?!\d))",
            r"a+(?!b)|\s+$|b(?<=ab)",
            r"(a|b)\1",
            r"\Ga(?!b)|é",
            r"(?!a)b*",
            r"a\Kb*(?!1)",
        ] {
            let mut few = Looking::new(source).unwrap();
            few.steps = [6; LONGEST.len()];
            few.compiled = Default::default();
            for _ in 0..300 {
                let mut text = String::new();
                for _ in 0..20 {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    text.push(alphabet[(seed >> 33) as usize % alphabet.len()]);
                }
                let want = reference(source, &text);
                assert_eq!(all(&Looking::new(source).unwrap(), &text), want, "{source} on {text:?}");
                let mut found = Vec::new();
                if few.find(&text, |a, b| found.push((a, b))).is_ok() {
                    assert_eq!(found, want, "{source} on {text:?}");
                }
            }
        }
    }

    /// Searches whose time was quadratic in the text or worse: with 200 kB nearly a minute for the first, minutes for
    /// the others. Each start may scan a megabyte, so there is time for some thousands of them. Without limits the first
    /// alone would take half an hour.
    #[test]
    fn searches_that_find_nothing_are_given_up() {
        // Just under a MiB: the time limit is the shortest there is.
        let text = "a".repeat((1 << 20) - 1);
        for source in [r"(?=(a*)*b)a", r"(a|a)*+(?!c)b", r"(?<=a{0,100})b|a(?=.*z)"] {
            let looking = Looking::new(source).unwrap();
            let why = looking.find(&text, |_, _| ()).unwrap_err();
            assert!(why.contains("too long") || why.contains("limit"), "{source}: {why}");
        }
    }
}
