//! [`WordPiece`]: a word as its longest known beginning, then the longest of the rest, and so on.

use super::trie::{At, Trie};
use super::vocab::Vocab;
use super::{TokenizeError, shorten};

/// Longest token that is looked for. Each place of a word costs as many steps.
pub(super) const LONGEST: usize = 1024;

/// The vocabulary as a tree, and what marks tokens that start or go on with a word.
#[derive(Debug)]
pub(super) struct WordPiece {
    trie: Trie,
    /// Where tokens are that start a word, and those that go on with one.
    start: Option<At>,
    inner: Option<At>,
    unknown: Option<u32>,
    most_chars: usize,
}

/// What marks a token's place in a word.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marks<'a> {
    pub(super) start: &'a str,
    pub(super) inner: &'a str,
}

impl WordPiece {
    /// Words of more than `most_chars` characters are unknown. Says which token is too long to be looked for.
    pub(super) fn new(
        vocab: &Vocab,
        marks: Marks<'_>,
        unknown: Option<u32>,
        most_chars: usize,
    ) -> Result<WordPiece, u32> {
        // A token that is longer than any word that is cut need not be looked for.
        let most_bytes = most_chars.saturating_mul(4).saturating_add(marks.inner.len() + marks.start.len());
        let tokens = || vocab.iter().filter(|(id, text)| text.len() <= most_bytes && !vocab.is_silent(*id));
        if let Some((id, _)) = tokens().find(|(_, text)| text.len() > LONGEST) {
            return Err(id);
        }
        let trie = Trie::new(tokens().map(|(id, text)| (text, id)));
        let place = |mark| trie.walk(Trie::ROOT, mark);
        let (start, inner) = (place(marks.start), place(marks.inner));
        Ok(WordPiece { trie, start, inner, unknown, most_chars })
    }

    /// Adds a word's tokens to `out`: the unknown one alone if any part of the word is unknown.
    pub(super) fn add(&self, word: &str, out: &mut Vec<u32>) -> Result<(), TokenizeError> {
        let start = out.len();
        let too_long = word.len() > self.most_chars && word.chars().count() > self.most_chars;
        let mut at = if too_long { None } else { self.start };
        let mut rest = if too_long { "" } else { word };
        while !rest.is_empty() {
            let longest = at.and_then(|at| self.trie.prefixes(at, rest).last());
            let Some((len, id)) = longest else {
                out.truncate(start);
                break;
            };
            out.push(id);
            rest = &rest[len..];
            at = self.inner;
        }
        if out.len() == start {
            out.push(self.unknown.ok_or_else(|| TokenizeError::NoUnknown { text: shorten(word) })?);
        }
        Ok(())
    }
}
