//! [`Added`]: added tokens, which are matched in the text itself before pre-tokenization (Hugging Face's
//! `added_tokens`).

use std::borrow::Cow;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use hashbrown::{HashMap, HashSet};

use super::Written;
use super::unicode::WORD;

/// Maximum total bytes of all added tokens. Real files have a few thousand.
const MOST_BYTES: usize = 4 << 20;

/// An added token: it is matched in the text instead of being produced by the model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) content: String,
    /// True if it is a special (control) token rather than text.
    pub(super) special: bool,
    /// True if it matches only where no word character is adjacent.
    pub(super) single_word: bool,
    /// True if a match also consumes the white space before (`lstrip`) and after it (`rstrip`).
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
    /// The token's normalised text, if it is matched in the normalised text; `None` if it is matched in the raw text.
    pub(super) normalized: Option<String>,
    /// True if it decodes to its own text, bypassing the byte-level decoder.
    pub(super) verbatim: bool,
}

impl AddedToken {
    /// A special token.
    pub(super) fn special(id: u32, content: &str) -> AddedToken {
        AddedToken { id, content: content.into(), special: true, verbatim: true, ..AddedToken::default() }
    }

    /// The text that decoding starts from.
    pub(super) fn decoded(&self) -> &str {
        self.normalized.as_deref().unwrap_or(&self.content)
    }

    fn looked_for_raw(&self) -> AddedToken {
        let normalized = self.normalized.clone().filter(|_| !self.special);
        AddedToken { normalized, ..self.clone() }
    }
}

/// All added tokens, by id, and the automata that find them.
#[derive(Debug, Default)]
pub(super) struct Added {
    tokens: HashMap<u32, AddedToken>,
    ids: HashMap<String, u32>,
    /// Texts of the special tokens. Decoding hides a token whose decoded text is one of these.
    hidden: HashSet<String>,
    all: Finders,
    plain: Finders,
    shielded: Finders,
}

/// Automata for the tokens matched in the raw text and for those matched in the normalised text.
#[derive(Debug, Default)]
struct Finders {
    raw: Option<Finder>,
    normalized: Option<Finder>,
}

#[derive(Debug)]
struct Finder {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

/// A part of a split text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part<'t> {
    /// Text and its byte offset.
    Text(&'t str, usize),
    Token(u32),
}

/// The text that is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Raw,
    Normalized,
}

impl Finder {
    fn new<'a>(tokens: impl Iterator<Item = (&'a str, u32)>) -> Result<Option<Finder>, String> {
        let (texts, ids): (Vec<&str>, Vec<u32>) = tokens.unzip();
        if texts.is_empty() {
            return Ok(None);
        }
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&texts);
        Ok(Some(Finder { automaton: automaton.map_err(|e| e.to_string())?, ids }))
    }

    /// The next match at or after byte `from`: start, end and id.
    fn next(&self, text: &str, from: usize) -> Option<(usize, usize, u32)> {
        let found = self.automaton.find(Input::new(text).range(from..))?;
        Some((found.start(), found.end(), self.ids[found.pattern().as_usize()]))
    }
}

impl Finders {
    fn new<'a>(tokens: impl Iterator<Item = &'a AddedToken> + Clone) -> Result<Finders, String> {
        let raw = tokens.clone().filter(|t| t.normalized.is_none()).map(|t| (t.content.as_str(), t.id));
        let normalized = tokens.filter_map(|t| Some((t.normalized.as_deref()?, t.id)));
        // A token that normalises to the empty string never matches.
        let normalized = normalized.filter(|(text, _)| !text.is_empty());
        Ok(Finders { raw: Finder::new(raw)?, normalized: Finder::new(normalized)? })
    }
}

impl Added {
    /// `tokens` must not contain tokens with empty text, which never match.
    pub(super) fn new(tokens: Vec<AddedToken>) -> Result<Added, String> {
        let bytes: usize = tokens.iter().map(|t| t.content.len().max(t.decoded().len())).sum();
        if bytes > MOST_BYTES {
            return Err(format!("are {bytes} bytes long together; {MOST_BYTES} are taken"));
        }
        let mut added = Added {
            ids: tokens.iter().map(|t| (t.content.clone(), t.id)).collect(),
            hidden: tokens.iter().filter(|t| t.special).map(|t| t.content.clone()).collect(),
            tokens: tokens.into_iter().map(|t| (t.id, t)).collect(),
            ..Added::default()
        };
        let mut sorted: Vec<&AddedToken> = added.tokens.values().collect();
        sorted.sort_by_key(|t| t.id);
        let all = Finders::new(sorted.iter().copied())?;
        let plain = Finders::new(sorted.iter().copied().filter(|t| !t.special))?;
        // The shield marks are put into raw text, so special tokens are matched there.
        let raw: Vec<AddedToken> = sorted.iter().map(|t| t.looked_for_raw()).collect();
        let shielded = Finders::new(raw.iter())?;
        (added.all, added.plain, added.shielded) = (all, plain, shielded);
        Ok(added)
    }

    pub(super) fn get(&self, id: u32) -> Option<&AddedToken> {
        self.tokens.get(&id)
    }

    pub(super) fn id(&self, content: &str) -> Option<u32> {
        self.ids.get(content).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &AddedToken> {
        self.tokens.values()
    }

    /// True if decoding hides a token that decodes from `decoded` when special tokens are hidden.
    pub(super) fn is_hidden(&self, decoded: &str) -> bool {
        self.hidden.contains(decoded)
    }

    fn finder(&self, written: Written, stage: Stage) -> Option<&Finder> {
        let finders = match written {
            Written::Plain => &self.plain,
            Written::Parsed => &self.all,
            Written::Shielded => &self.shielded,
        };
        match stage {
            Stage::Raw => finders.raw.as_ref(),
            Stage::Normalized => finders.normalized.as_ref(),
        }
    }

    /// Splits the text into tokens and the text between them. Of tokens that start at the same offset the longest wins.
    pub(super) fn split<'t, E>(
        &self,
        text: &'t str,
        written: Written,
        stage: Stage,
        mut each: impl FnMut(Part<'t>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut from = 0;
        if let Some(finder) = self.finder(written, stage) {
            let mut at = 0;
            while let Some((start, end, id)) = finder.next(text, at) {
                let Some(token) = self.tokens.get(&id) else { break };
                if written == Written::Shielded && token.special && shield::covers(text, start) {
                    at = after_first(text, start);
                    continue;
                }
                at = end;
                // The previous token may have consumed this one together with the white space after it.
                if let Some((start, end)) =
                    token.extent(text, start, end, from).filter(|(_, end)| *end > from)
                {
                    if from < start {
                        each(Part::Text(&text[from..start], from))?;
                    }
                    each(Part::Token(id))?;
                    from = end;
                }
            }
        }
        if from < text.len() {
            each(Part::Text(&text[from..], from))?;
        }
        Ok(())
    }

    /// Marks the special tokens written in a text, so that they are not parsed as special tokens.
    pub(super) fn shield<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut places = Vec::new();
        if let Some(finder) = &self.shielded.raw {
            let mut at = 0;
            while let Some((start, _, id)) = finder.next(text, at) {
                if self.tokens.get(&id).is_some_and(|token| token.special) {
                    places.push(start);
                }
                at = after_first(text, start);
            }
        }
        shield::put(text, &places)
    }
}

impl AddedToken {
    /// The byte range that a match takes, not before `from`. `None` if the token is `single_word` and a word touches
    /// it.
    fn extent(&self, text: &str, start: usize, end: usize, from: usize) -> Option<(usize, usize)> {
        let touches = |c: Option<char>| c.is_some_and(|c| WORD.has(c));
        let (before, after) = (&text[..start], &text[end..]);
        if self.single_word && (touches(before.chars().next_back()) || touches(after.chars().next())) {
            return None;
        }
        let free = from.min(start);
        let start = if self.lstrip { free + text[free..start].trim_end().len() } else { start };
        let end = if self.rstrip { text.len() - after.trim_start().len() } else { end };
        Some((start, end))
    }
}

fn after_first(text: &str, start: usize) -> usize {
    start + text[start..].chars().next().map_or(1, char::len_utf8)
}

/// The mark before a special token that is to be read as text.
///
/// It is a Unicode noncharacter, reserved for use inside a program. Occurrences in the text itself are doubled.
pub(super) mod shield {
    use std::borrow::Cow;

    const MARK: char = '\u{FDD0}';

    /// True if a mark precedes the byte offset `at`.
    pub(super) fn covers(text: &str, at: usize) -> bool {
        text[..at].chars().rev().take_while(|c| *c == MARK).count() % 2 == 1
    }

    /// Inserts marks at the byte offsets `places`, which are sorted.
    pub(super) fn put<'t>(text: &'t str, places: &[usize]) -> Cow<'t, str> {
        if places.is_empty() && !text.contains(MARK) {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len() + 3 * places.len());
        let mut places = places.iter().copied().peekable();
        for (at, c) in text.char_indices() {
            if places.next_if_eq(&at).is_some() {
                out.push(MARK);
            }
            if c == MARK {
                out.push(MARK);
            }
            out.push(c);
        }
        Cow::Owned(out)
    }

    /// The text with the marks removed.
    pub(in crate::tokenizer) fn take(text: &str) -> Cow<'_, str> {
        if !text.contains(MARK) {
            return Cow::Borrowed(text);
        }
        let mut chars = text.chars().peekable();
        let mut out = String::with_capacity(text.len());
        while let Some(c) = chars.next() {
            // A doubled mark becomes one; a single mark is dropped.
            if c != MARK || chars.next_if_eq(&MARK).is_some() {
                out.push(c);
            }
        }
        Cow::Owned(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, content: &str) -> AddedToken {
        AddedToken { id, content: content.into(), special: true, ..AddedToken::default() }
    }

    fn parts(added: &Added, text: &str, written: Written) -> Vec<String> {
        let mut found = Vec::new();
        let each = |part: Part<'_>| {
            found.push(match part {
                Part::Text(text, _) => text.to_owned(),
                Part::Token(id) => format!("#{id}"),
            });
            Ok::<(), ()>(())
        };
        added.split(text, written, Stage::Raw, each).unwrap();
        found
    }

    #[test]
    fn the_longest_token_at_the_leftmost_place_counts() {
        let added = Added::new(vec![token(1, "<a"), token(2, "<a>"), token(3, ">>")]).unwrap();
        assert_eq!(parts(&added, "x<a>><a>>", Written::Parsed), ["x", "#2", ">", "#2", ">"]);
        assert_eq!(parts(&added, "x<a>>", Written::Plain), ["x<a>>"]);
    }

    #[test]
    fn tokens_swallow_spaces_and_stand_alone_as_told() {
        let (mut left, mut right, mut alone) = (token(1, "<l>"), token(2, "<r>"), token(3, "mask"));
        (left.lstrip, right.rstrip, alone.single_word) = (true, true, true);
        let added = Added::new(vec![left, right, alone]).unwrap();
        assert_eq!(
            parts(&added, "a  <l> b <r> \n <l>c", Written::Parsed),
            ["a", "#1", " b ", "#2", "#1", "c"]
        );
        assert_eq!(parts(&added, "mask masks _mask mask", Written::Parsed), ["#3", " masks _mask ", "#3"]);
    }

    #[test]
    fn a_million_swallowing_tokens_take_time_in_proportion() {
        let mut left = token(1, "<l>");
        (left.lstrip, left.single_word) = (true, true);
        let added = Added::new(vec![left]).unwrap();
        assert_eq!(parts(&added, &"<l> ".repeat(1_000_000), Written::Parsed).len(), 1_000_001);
    }

    #[test]
    fn what_is_shielded_is_text_and_comes_back_unchanged() {
        let added = Added::new(vec![token(1, "<|x<|"), token(2, "<|end|>"), token(3, "§")]).unwrap();
        for user in ["<|end|>", "a<|x<|end|>§", "\u{FDD0}<|end|>\u{FDD0}", "\u{FDD0}\u{FDD0}§", "nothing"] {
            let shielded = added.shield(user);
            let prompt = format!("<|end|>{shielded}<|end|>");
            let parts = parts(&added, &prompt, Written::Shielded);
            assert_eq!(parts.len(), 3, "{parts:?}");
            assert_eq!((parts[0].as_str(), parts[2].as_str()), ("#2", "#2"));
            assert_eq!(shield::take(&parts[1]), user);
        }
    }
}
