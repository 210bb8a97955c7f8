//! [`Inputs`]: from texts to what an encoder takes.

use super::{EncoderModel, Input};
use crate::error::Result;
use crate::tokenizer::{Piece, Placed, Special, TokenizeError, Tokenizer};

/// What is done with a text that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// It is refused.
    No,
    /// Its end is left out.
    End,
}

/// Why texts are none for a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// It cannot be tokenized.
    #[error("{0}")]
    Text(#[from] TokenizeError),
    /// It has too many tokens.
    #[error("the text has {tokens} tokens, and the model takes {most}; shorten it, or ask for truncation")]
    TooLong {
        /// How many it has, with those around it.
        tokens: usize,
        /// How many the model takes.
        most: usize,
    },
    /// There is nothing.
    #[error("a text of no tokens has no vector")]
    Empty,
    /// There is no such token.
    #[error("there is no token {token}: the model has {vocab}")]
    Unknown {
        /// The token.
        token: u32,
        /// How many there are.
        vocab: usize,
    },
    /// The tokenizer does not know how two texts stand together.
    #[error("the model's tokenizer does not say how two texts stand together, so it cannot rank")]
    NoPairs,
}

/// Makes inputs of texts. Copies share everything.
#[derive(Debug, Clone)]
pub struct Inputs {
    tokenizer: Tokenizer,
    vocab: usize,
    types: usize,
    most: usize,
}

impl Inputs {
    /// For a model.
    pub fn new(model: &EncoderModel) -> Result<Inputs> {
        let (tokenizer, spec) = (model.tokenizer()?, &model.spec);
        let (vocab, types, most) = (spec.vocab, spec.types.unwrap_or(1), model.context());
        Ok(Inputs { tokenizer, vocab, types, most })
    }

    /// The longest input, in tokens.
    pub fn most(&self) -> usize {
        self.most
    }

    /// A text.
    pub fn text(&self, text: &str, cut: Cut) -> std::result::Result<Input, InputError> {
        let frame = self.tokenizer.around_one();
        let mut tokens = self.tokenizer.encode(text, Special::BARE)?;
        let room = self.room(frame, tokens.len(), cut)?;
        tokens.truncate(room);
        self.checked(frame, &tokens, &[])
    }

    /// Two texts that belong together. If they are too long the longer loses its end first.
    pub fn pair(&self, first: &str, second: &str, cut: Cut) -> std::result::Result<Input, InputError> {
        let frame = self.tokenizer.around_two().ok_or(InputError::NoPairs)?;
        let mut a = self.tokenizer.encode(first, Special::BARE)?;
        let mut b = self.tokenizer.encode(second, Special::BARE)?;
        let room = self.room(frame, a.len() + b.len(), cut)?;
        let (for_a, for_b) = shared_out(room, a.len(), b.len());
        a.truncate(for_a);
        b.truncate(for_b);
        self.checked(frame, &a, &b)
    }

    /// Tokens as they are.
    pub fn tokens(&self, mut tokens: Vec<u32>, cut: Cut) -> std::result::Result<Input, InputError> {
        let room = self.room(&[], tokens.len(), cut)?;
        tokens.truncate(room);
        self.checked(&[Placed { piece: Piece::First, of: 0 }], &tokens, &[])
    }

    /// Tokens of texts that there is room for in a frame.
    fn room(&self, frame: &[Placed], texts: usize, cut: Cut) -> std::result::Result<usize, InputError> {
        let around = frame.iter().filter(|p| matches!(p.piece, Piece::Token(_))).count();
        let (tokens, most) = (texts + around, self.most);
        match cut {
            Cut::No if tokens > most => Err(InputError::TooLong { tokens, most }),
            Cut::No | Cut::End => Ok(most.saturating_sub(around)),
        }
    }

    fn checked(&self, frame: &[Placed], a: &[u32], b: &[u32]) -> std::result::Result<Input, InputError> {
        let mut input = Input { tokens: Vec::new(), types: Vec::new() };
        for placed in frame {
            match &placed.piece {
                Piece::Token(id) => input.tokens.push(*id),
                Piece::First => input.tokens.extend(a),
                Piece::Second => input.tokens.extend(b),
            }
            // Who does not tell texts apart has one kind of tokens.
            let of = if (placed.of as usize) < self.types { placed.of } else { 0 };
            input.types.resize(input.tokens.len(), of);
        }
        let (vocab, tokens) = (self.vocab, &input.tokens);
        match tokens.iter().find(|id| **id as usize >= vocab) {
            Some(id) => Err(InputError::Unknown { token: *id, vocab }),
            None if tokens.is_empty() => Err(InputError::Empty),
            None if tokens.len() > self.most => {
                Err(InputError::TooLong { tokens: tokens.len(), most: self.most })
            }
            None => Ok(input),
        }
    }
}

/// How many tokens each of two texts may keep: the longer gives first, as `tokenizers` has it.
fn shared_out(room: usize, a: usize, b: usize) -> (usize, usize) {
    if a + b <= room {
        return (a, b);
    }
    let shorter = a.min(b);
    match shorter <= room / 2 {
        true if a <= b => (a, room - a),
        true => (room - b, b),
        // Both are halved; the longer has the odd one.
        false if a <= b => (room / 2, room - room / 2),
        false => (room - room / 2, room / 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_text_gives_first() {
        assert_eq!(shared_out(10, 4, 6), (4, 6));
        assert_eq!(shared_out(10, 4, 60), (4, 6));
        assert_eq!(shared_out(10, 60, 4), (6, 4));
        assert_eq!(shared_out(9, 60, 70), (4, 5));
        assert_eq!(shared_out(9, 70, 60), (5, 4));
        assert_eq!(shared_out(0, 7, 6), (0, 0));
    }
}
