//! Tokenizing with a limit: texts that cannot fit are found out without tokenizing all of them.

use super::{Special, TokenizeError, Tokenizer};

/// Bytes of the first stretch of a text that is tokenized, for each token that it may have. Natural text has about four.
const STRETCH: usize = 8;
/// Each stretch is so many times longer than the one before, so that all of them together cost little more than the text.
const GROWTH: usize = 4;
/// Shortest stretch.
const SHORTEST: usize = 4096;

impl Tokenizer {
    /// The tokens of a text, as [`Tokenizer::encode`] gives them, or nothing if it has far more than `most`.
    ///
    /// A text that is far too long costs only what a text of about `most` tokens does: its beginning is looked at first,
    /// by its length where that is proof enough. Near the end of a beginning tokens may be others than in the whole text,
    /// so they are only counted, and with a margin. A text that is a little too long is counted.
    pub fn encode_up_to(
        &self,
        text: &str,
        special: Special,
        most: usize,
    ) -> Result<Option<Vec<u32>>, TokenizeError> {
        match self.exceeds(text, special, most) {
            true => Ok(None),
            false => self.encode(text, special).map(Some),
        }
    }

    /// Has a text far more than `most` tokens? Only looks at beginnings, and only of texts so long that they probably
    /// have.
    pub fn exceeds(&self, text: &str, special: Special, most: usize) -> bool {
        let (mut stretch, margin) = (most.saturating_mul(STRETCH).max(SHORTEST), most / 4 + 64);
        while stretch < text.len() {
            // What is wrong with a beginning may be right in the whole, which has the last word.
            let begun = self.encode_at_most(beginning(text, stretch), special, most.saturating_add(margin));
            if matches!(begun, Err(TokenizeError::TooMany { .. })) {
                return true;
            }
            stretch = stretch.saturating_mul(GROWTH);
        }
        false
    }

    /// A beginning of a text that has at least `most` tokens, and so much more that what follows does not change
    /// these; the whole text, if it has no such beginning.
    pub(crate) fn beginning_of<'t>(&self, text: &'t str, special: Special, most: usize) -> &'t str {
        let mut stretch = most.saturating_mul(STRETCH).max(SHORTEST * 16);
        while stretch < text.len() {
            let begun = beginning(text, stretch);
            let tokens = self.encode_at_most(begun, special, most.saturating_mul(2));
            if matches!(tokens, Err(TokenizeError::TooMany { .. })) {
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
