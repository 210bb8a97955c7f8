//! Tokenizing with a limit: texts that cannot fit are found out without tokenizing all of them.

use super::cut::Step as Cutting;
use super::normalize::{Form, Step as Normalizing};
use super::unicode::char_of;
use super::{Model, Parts, Special, TokenizeError, Tokenizer, Written};

/// Bytes of the first stretch of a text that is tokenized, for each token that it may have. Natural text has about four.
const STRETCH: usize = 8;
/// Each stretch is so many times longer than the one before, so that all of them together cost little more than the text.
const GROWTH: usize = 4;
/// Shortest stretch.
const SHORTEST: usize = 4096;

impl Tokenizer {
    /// The tokens of a text, as [`Tokenizer::encode`] gives them, or nothing if it has far more than `most`.
    ///
    /// A text that is far too long costs only what a text of about `most` tokens does. It is refused by its length where
    /// that is proof enough, and else by the tokens of its beginning. Near the end of a beginning these may be others than
    /// in the whole text, so they are only counted, and with a margin. A text that is a little too long is counted.
    pub fn encode_up_to(
        &self,
        text: &str,
        special: Special,
        most: usize,
    ) -> Result<Option<Vec<u32>>, TokenizeError> {
        if text.len() > most
            && self.parts.least(text.len(), special.written).is_some_and(|tokens| tokens > most)
        {
            return Ok(None);
        }
        let (mut stretch, margin) = (most.saturating_mul(STRETCH).max(SHORTEST), most / 4 + 64);
        while stretch < text.len() {
            // What is wrong with a beginning may be right in the whole, which has the last word.
            let begun = self.encode(beginning(text, stretch), special);
            if begun.is_ok_and(|tokens| tokens.len() > most.saturating_add(margin)) {
                return Ok(None);
            }
            stretch = stretch.saturating_mul(GROWTH);
        }
        self.encode(text, special).map(Some)
    }

    /// A beginning of a text that has at least `most` tokens, and so much more that what follows does not change
    /// these; the whole text, if it has no such beginning.
    pub(crate) fn beginning_of<'t>(&self, text: &'t str, special: Special, most: usize) -> &'t str {
        let mut stretch = most.saturating_mul(STRETCH).max(SHORTEST * 16);
        while stretch < text.len() {
            let begun = beginning(text, stretch);
            if self.encode(begun, special).is_ok_and(|tokens| tokens.len() > most.saturating_mul(2)) {
                return begun;
            }
            stretch = stretch.saturating_mul(GROWTH);
        }
        text
    }
}

/// The first `bytes` of a text, or a few fewer, in whole characters.
fn beginning(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// The characters that stand for the bytes of text.
fn byte_chars() -> impl Iterator<Item = char> {
    (0..=0xf4).filter(|byte| !matches!(byte, 0xc0 | 0xc1)).map(char_of)
}

impl Parts {
    /// The fewest tokens that so many bytes of text can have, if every byte of it shows in some token.
    fn least(&self, bytes: usize, written: Written) -> Option<usize> {
        let bytes = match written {
            // Marks are taken out; each stands before a text that is at least as long.
            Written::Shielded => bytes / 2,
            _ => bytes,
        };
        let added = self.added.iter().map(|token| token.content.len()).max();
        let longest = self.vocab.longest().max(added.unwrap_or(0)).max(1);
        let shrinks = self.shrinks()?;
        Some(bytes / longest.saturating_mul(shrinks))
    }

    /// How many times shorter text can get before the vocabulary sees it; nothing if bytes can vanish, or if any number
    /// of them can become one token.
    fn shrinks(&self) -> Option<usize> {
        let swallows = self.added.iter().any(|token| token.lstrip || token.rstrip);
        let as_bytes = self.cutter.0.iter().any(|step| matches!(step, Cutting::ByteLevel { .. }))
            || self.normalizer.0.iter().any(|step| matches!(step, Normalizing::ByteChars));
        let complete = match &self.model {
            Model::Bpe(_) if as_bytes => {
                byte_chars().all(|c| self.vocab.id(c.encode_utf8(&mut [0; 4])).is_some())
            }
            Model::Bpe(bpe) => bpe.options().bytes && self.vocab.bytes().iter().all(Option::is_some),
            _ => false,
        };
        let keeps = self.cutter.0.iter().all(|step| match step {
            Cutting::ByteLevel { .. } | Cutting::Digits { .. } | Cutting::Metaspace { .. } => true,
            Cutting::Split { behavior, .. } => *behavior != super::cut::Behavior::Removed,
            _ => false,
        });
        if swallows || !complete || !keeps {
            return None;
        }
        let mut shrinks = 1;
        for step in &self.normalizer.0 {
            match step {
                Normalizing::Prepend(_) | Normalizing::ByteChars => {}
                Normalizing::Text { pattern, with } if with.len() >= pattern.len() => {}
                // Three letters that become a syllable, or a letter with its marks.
                Normalizing::Form(Form::Nfc) => shrinks = 4,
                _ => return None,
            }
        }
        Some(shrinks)
    }
}
