//! [`Pattern`]: the regular expressions of pre-tokenizers, matched in linear time where possible.
//!
//! The patterns are written for Oniguruma, which backtracks. Nearly all of them need only one look-around: `\s+(?!\S)`,
//! the spaces before the last one of a run. It is compiled as `\s+` and the match is shortened afterwards, so that the
//! rest can be left to automata, which read each byte once. Other patterns go to a backtracking engine ([`Looking`])
//! with limits on its steps and time.

mod looking;
mod posix;

use regex_automata::meta::Regex;
use regex_automata::util::syntax;

use super::TokenizeError;
use looking::Looking;

/// Maximum bytes of a pattern. Real ones have at most some 2,000.
const MOST_SOURCE: usize = 16 << 10;
/// Maximum bytes of a compiled pattern.
const MOST_COMPILED: usize = 32 << 20;

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    source: String,
    engine: Engine,
}

#[derive(Debug)]
enum Engine {
    /// The top-level alternatives in order of preference.
    Linear {
        alternatives: Regex,
        spaces: Option<Spaces>,
    },
    Looking(Box<Looking>),
}

/// The alternative that was `\s+(?!\S)`.
#[derive(Debug, Clone, Copy)]
struct Spaces {
    at: usize,
    /// True if the next alternative matches a single space.
    one_follows: bool,
}

/// The look-around that nearly every pattern has.
const SPACES_BEFORE_THE_LAST: &str = r"\s+(?!\S)";

impl Pattern {
    pub(super) fn new(source: &str) -> Result<Pattern, String> {
        if source.is_empty() || source.len() > MOST_SOURCE {
            return Err(format!("has {} bytes; 1 to {MOST_SOURCE} are taken", source.len()));
        }
        let spelled_out = posix::spelled_out(source);
        let engine = match linear(&spelled_out) {
            Some(engine) => engine,
            None => Engine::Looking(Box::new(Looking::new(&spelled_out)?)),
        };
        Ok(Pattern { source: source.into(), engine })
    }

    /// The pattern that matches exactly this text.
    pub(super) fn literal(text: &str) -> Result<Pattern, String> {
        Pattern::new(&regex_syntax::escape(text))
    }

    /// Calls `each` with the start and end of every match, in order and without overlap.
    pub(super) fn find(&self, text: &str, mut each: impl FnMut(usize, usize)) -> Result<(), TokenizeError> {
        match &self.engine {
            Engine::Linear { alternatives, spaces: None } => {
                alternatives.find_iter(text).for_each(|m| each(m.start(), m.end()));
                Ok(())
            }
            Engine::Linear { alternatives, spaces: Some(spaces) } => {
                find_shortened(alternatives, *spaces, text, each);
                Ok(())
            }
            Engine::Looking(looking) => looking
                .find(text, each)
                .map_err(|why| TokenizeError::Pattern { pattern: self.source.clone(), why }),
        }
    }
}

/// Finds matches where alternative `spaces` is `\s+(?!\S)` but compiled as `\s+`.
fn find_shortened(regex: &Regex, spaces: Spaces, text: &str, mut each: impl FnMut(usize, usize)) {
    let mut input = regex_automata::Input::new(text);
    while let Some(m) = regex.search(&input) {
        let (start, mut end) = (m.start(), m.end());
        let mut counts = true;
        // A run that is not at the end of the text gives up its last space. A run of one space does not match at all:
        // the next alternative takes it, if there is one.
        if m.pattern().as_usize() == spaces.at && end < text.len() {
            let last = text[start..end].chars().next_back().map_or(0, char::len_utf8);
            match end - last > start {
                true => end -= last,
                false => counts = spaces.one_follows,
            }
        }
        if counts {
            each(start, end);
        }
        // No alternative here can match the empty string; this avoids an infinite loop if one did.
        let step = if start < end { 0 } else { text[end..].chars().next().map_or(1, char::len_utf8) };
        if end + step > text.len() {
            return;
        }
        input.set_start(end + step);
    }
}

/// The pattern without look-around, if both engines interpret it in the same way.
fn linear(source: &str) -> Option<Engine> {
    let mut alternatives = alternatives(source)?;
    let mut spaces = None;
    if let Some(at) = alternatives.iter().position(|a| *a == SPACES_BEFORE_THE_LAST) {
        alternatives[at] = r"\s+";
        spaces = Some(Spaces { at, one_follows: at + 1 < alternatives.len() });
        // The next alternative must match the one space that is left.
        if !matches!(alternatives[at + 1..], [] | [r"\s+"] | [r"\s"]) {
            return None;
        }
    }
    let regex = Regex::builder()
        .configure(Regex::config().nfa_size_limit(Some(MOST_COMPILED)))
        .syntax(syntax::Config::new().multi_line(true).nest_limit(50))
        .build_many(&alternatives)
        .ok()?;
    Some(Engine::Linear { alternatives: regex, spaces })
}

/// The top-level alternatives of a pattern. `None` if the two dialects interpret some part of it differently.
fn alternatives(source: &str) -> Option<Vec<&str>> {
    let (mut found, mut from) = (Vec::new(), 0);
    let (mut groups, mut classes) = (0usize, 0usize);
    let bytes = source.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        let rest = &source[i..];
        match bytes[i] {
            b'\\' => i = escape(bytes, i)?,
            b'[' => {
                let inside = rest[1..].trim_start_matches('^');
                // A leading `]` and POSIX classes are interpreted differently.
                if inside.starts_with(']') || inside.starts_with(':') {
                    return None;
                }
                classes += 1;
            }
            b']' if classes > 0 => classes -= 1,
            _ if classes > 0 => {}
            b'^' | b'$' | b']' => return None,
            b'(' => {
                let spaces = groups == 0 && rest.starts_with(r"(?!\S)") && &source[from..i] == r"\s+";
                match rest.as_bytes().get(1) {
                    Some(b'?') if spaces || rest.starts_with("(?:") || rest.starts_with("(?i:") => i += 1,
                    Some(b'?') => return None,
                    _ => {}
                }
                groups += 1;
            }
            b')' => groups = groups.checked_sub(1)?,
            // Possessive and lazy quantifiers.
            b'+' | b'*' | b'?' | b'}' if matches!(bytes.get(i + 1), Some(b'+' | b'*' | b'?' | b'{')) => {
                return None;
            }
            b'|' if groups == 0 => {
                found.push(&source[from..i]);
                from = i + 1;
            }
            _ => {}
        }
        // The other bytes of a multi-byte character are skipped up to the next character boundary.
        i += 1;
        while !source.is_char_boundary(i) {
            i += 1;
        }
    }
    found.push(&source[from..]);
    (groups == 0 && classes == 0).then_some(found)
}

/// Index of the last byte of the escape at `i`. `None` for anchors, back-references and escapes that only one dialect
/// has.
fn escape(bytes: &[u8], i: usize) -> Option<usize> {
    match bytes.get(i + 1)? {
        b'b' | b'B' | b'A' | b'z' | b'Z' | b'G' | b'K' | b'h' | b'H' | b'R' | b'X' | b'0'..=b'9' | 0x80.. => {
            None
        }
        b'p' | b'P' | b'x' | b'u' if bytes.get(i + 2) == Some(&b'{') => {
            Some(i + bytes[i..].iter().position(|b| *b == b'}')?)
        }
        _ => Some(i + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pattern: &Pattern, text: &str) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        pattern.find(text, |a, b| found.push((a, b))).unwrap();
        found
    }

    /// Real patterns with the one look-around.
    const REAL: [&str; 5] = [
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"[!\x22#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
        r"[\p{Lu}\p{Lo}&&[^\p{Han}]]+|\p{Han}+|[^\s\p{L}]+|\s+(?!\S)|\s",
    ];

    #[test]
    fn the_linear_reading_equals_the_backtracking_one() {
        let alphabet: Vec<char> = "aZé你1٣'s'Re  \t\n\r\u{a0}\u{2003}.!/ſ\u{301}🙂 ".chars().collect();
        let mut seed = 1u64;
        for source in REAL {
            let pattern = Pattern::new(source).unwrap();
            assert!(matches!(pattern.engine, Engine::Linear { spaces: Some(_), .. }), "{source}");
            let slow = Looking::new(source).unwrap();
            for _ in 0..2000 {
                let mut text = String::new();
                for _ in 0..24 {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    text.push(alphabet[(seed >> 33) as usize % alphabet.len()]);
                }
                let mut want = Vec::new();
                slow.find(&text, |a, b| want.push((a, b))).unwrap();
                assert_eq!(all(&pattern, &text), want, "{source} on {text:?}");
            }
        }
    }

    #[test]
    fn what_the_dialects_read_differently_backtracks() {
        for source in
            [r"\p{N}{1,3}+", r"a++b", r"\s+$", r"^a", r"(?=a)b", r"(a)\1", r"[]a]", r"a+?", r"\ba", r"x(?!y)"]
        {
            assert!(matches!(Pattern::new(source).unwrap().engine, Engine::Looking(_)), "{source}");
        }
        // Oniguruma reads a plus after braces as a repetition of the repetition.
        assert_eq!(all(&Pattern::new(r"\p{N}{1,3}+").unwrap(), "a1234567"), [(1, 8)]);
        // Its anchors match at lines.
        assert_eq!(all(&Pattern::new(r"\s+$").unwrap(), "a  \nb "), [(1, 3), (5, 6)]);
    }

    #[test]
    fn empty_matches_cut_but_do_not_hang() {
        assert_eq!(all(&Pattern::new(r"(?=(\d{3})+(?!\d))").unwrap(), "12345"), [(2, 2)]);
        assert_eq!(all(&Pattern::new("x*").unwrap(), "axb"), [(0, 0), (1, 2), (3, 3)]);
    }

    #[test]
    fn long_runs_take_time_in_proportion() {
        let pattern = Pattern::new(REAL[1]).unwrap();
        for text in
            [" ".repeat(1 << 20) + "a", "1".repeat(1 << 20), "\n ".repeat(1 << 19), "é".repeat(1 << 19)]
        {
            let mut covered = 0;
            pattern.find(&text, |a, b| covered += b - a).unwrap();
            assert_eq!(covered, text.len());
        }
    }

    #[test]
    fn patterns_that_cannot_be_compiled_or_finished_are_refused() {
        for source in ["", "(", "[a", r"\p{Nonsense}", "a{1,1000000000}", "(?:a{1000}){1000}(?=b){1000}"] {
            assert!(Pattern::new(source).is_err(), "{source}");
        }
        assert!(Pattern::new(&"a".repeat(MOST_SOURCE + 1)).is_err());
        let pattern = Pattern::new(r"(a*)*\1b").unwrap();
        assert!(matches!(pattern.find(&"a".repeat(100_000), |_, _| ()), Err(TokenizeError::Pattern { .. })));
    }
}
