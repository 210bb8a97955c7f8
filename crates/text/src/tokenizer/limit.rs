//! Tokenization with a limit: a text that cannot fit is rejected without tokenizing all of it.

use super::{Special, TokenizeError, Tokenizer};

/// Bytes of the first prefix that is tokenized, per allowed token. Natural text has about four bytes per token.
const STRETCH: usize = 8;
/// Each prefix is this many times longer than the previous one, so that all of them cost little more than the text.
const GROWTH: usize = 4;
/// Minimum bytes of a prefix.
const SHORTEST: usize = 4096;

impl Tokenizer {
    /// The tokens of a text, as [`Tokenizer::encode`] returns them, or `None` if it has far more than `most`.
    ///
    /// A text that is far too long costs only as much as a text of about `most` tokens: its prefixes are checked first,
    /// by length alone where that suffices. Tokens near the end of a prefix may differ from those of the whole text, so
    /// they are only counted, with a margin. A text that is slightly too long is encoded in full.
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

    /// True if a text has far more than `most` tokens. Only checks prefixes, and only of texts so long that it is
    /// likely.
    pub fn exceeds(&self, text: &str, special: Special, most: usize) -> bool {
        let (mut stretch, margin) = (most.saturating_mul(STRETCH).max(SHORTEST), most / 4 + 64);
        while stretch < text.len() {
            // A prefix may fail for a reason that the whole text does not have, so only `TooMany` counts here.
            let begun = self.encode_at_most(beginning(text, stretch), special, most.saturating_add(margin));
            if matches!(begun, Err(TokenizeError::TooMany { .. })) {
                return true;
            }
            stretch = stretch.saturating_mul(GROWTH);
        }
        false
    }

    /// A prefix with at least `most` tokens, and enough more that the rest of the text does not change those; the whole
    /// text if there is no such prefix.
    pub fn beginning_of<'t>(&self, text: &'t str, special: Special, most: usize) -> &'t str {
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

/// The first `bytes` of a text, rounded down to a character boundary.
fn beginning(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}
