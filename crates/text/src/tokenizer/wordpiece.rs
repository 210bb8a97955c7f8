//! [`WordPiece`]: greedy longest-prefix encoding: a word's longest known prefix, then the longest prefix of the rest.

use super::trie::{At, Trie};
use super::vocab::Vocab;
use super::{TokenizeError, shorten};

/// Maximum bytes of a token. Each position of a word costs up to this many steps.
pub(super) const LONGEST: usize = 1024;

/// The vocabulary as a trie, and the marks of tokens that start or continue a word.
#[derive(Debug)]
pub(super) struct WordPiece {
    trie: Trie,
    /// Trie positions of the tokens that start a word and of those that continue one.
    start: Option<At>,
    inner: Option<At>,
    pub(super) unknown: Option<u32>,
    most_chars: usize,
}

/// The prefixes that mark a token's position in a word.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marks<'a> {
    pub(super) start: &'a str,
    pub(super) inner: &'a str,
}

impl WordPiece {
    /// Words of more than `most_chars` characters are unknown. The error is the id of a token that is too long.
    pub(super) fn new(
        vocab: &Vocab,
        marks: Marks<'_>,
        unknown: Option<u32>,
        most_chars: usize,
    ) -> Result<WordPiece, u32> {
        // A token longer than any word that is encoded can never match.
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

    /// Appends a word's tokens to `out`: only the unknown token if any part of the word is unknown.
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
