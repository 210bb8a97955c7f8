//! [`Inputs`]: from texts and images to what encoders take.

use std::borrow::Cow;

use serde_json::Value;

use super::{EncoderModel, Image, Input};
use crate::error::Result;
use crate::images::Pictures;
use crate::images::decode::PictureError;
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
    /// It has so many tokens more that they were not counted.
    #[error("the text has more than {most} tokens, which the model takes; shorten it, or ask for truncation")]
    FarTooLong {
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
    /// The model sees no texts.
    #[error("the model makes vectors of images alone")]
    NoTexts,
    /// The model sees no images.
    #[error("the model makes vectors of texts alone")]
    NoImages,
    /// An image cannot be taken.
    #[error("{0}")]
    Image(#[from] PictureError),
    /// The tokenizer does not know how two texts stand together.
    #[error("the model's tokenizer does not say how two texts stand together, so it cannot rank")]
    NoPairs,
}

/// Makes inputs of texts and images. Copies share everything.
#[derive(Debug, Clone)]
pub struct Inputs {
    words: Option<Words>,
    pictures: Option<Pictures>,
    most: usize,
}

/// Makes inputs of texts.
#[derive(Debug, Clone)]
struct Words {
    tokenizer: Tokenizer,
    /// Are texts written as if without punctuation and capitals? Else the tokenizer says what becomes of them.
    plain: bool,
    /// Are they written in small letters?
    lowers: bool,
    /// What texts are filled up with, if they are.
    fill: Option<u32>,
    vocab: usize,
    types: usize,
    most: usize,
}

impl Inputs {
    /// For a model.
    pub fn new(model: &EncoderModel) -> Result<Inputs> {
        let pictures = model.of_images().and_then(|m| Some((m, m.spec.patches?)));
        let pictures = pictures.map(|(m, patches)| Pictures::new(&m.checkpoint, patches)).transpose()?;
        Ok(Inputs { words: model.of_texts().map(Words::new).transpose()?, pictures, most: model.context() })
    }

    /// The longest text, in tokens; rows of an image, where the model sees no texts.
    pub fn most(&self) -> usize {
        self.most
    }

    fn words(&self) -> std::result::Result<&Words, InputError> {
        self.words.as_ref().ok_or(InputError::NoTexts)
    }

    /// A text.
    pub fn text(&self, text: &str, cut: Cut) -> std::result::Result<Input, InputError> {
        self.words()?.text(text, cut)
    }

    /// The first of two texts that belong together. It is tokenized once, for any number of seconds.
    pub fn first(&self, text: &str, cut: Cut) -> std::result::Result<First<'_>, InputError> {
        let words = self.words()?;
        let frame = words.tokenizer.around_two().ok_or(InputError::NoPairs)?;
        Ok(First { words, frame, tokens: words.encode(text, cut)?, cut })
    }

    /// Two texts that belong together. If they are too long the longer loses its end first.
    pub fn pair(&self, first: &str, second: &str, cut: Cut) -> std::result::Result<Input, InputError> {
        self.first(first, cut)?.with(second)
    }

    /// Tokens as they are.
    pub fn tokens(&self, tokens: Vec<u32>, cut: Cut) -> std::result::Result<Input, InputError> {
        self.words()?.tokens(tokens, cut)
    }

    /// Bytes of memory that reading an image file takes at most.
    pub fn image_memory(&self, bytes: &[u8]) -> std::result::Result<usize, InputError> {
        let pictures = self.pictures.as_ref().ok_or(InputError::NoImages)?;
        Ok(pictures.memory(bytes)?)
    }

    /// The bytes of an image file.
    pub fn image(&self, bytes: &[u8]) -> std::result::Result<Image, InputError> {
        let pictures = self.pictures.as_ref().ok_or(InputError::NoImages)?;
        Ok(pictures.file(bytes)?)
    }
}

const TOKENIZER: &str = "tokenizer_config.json";

impl Words {
    fn new(model: &EncoderModel) -> Result<Words> {
        let (tokenizer, spec) = (model.tokenizer()?, &model.spec);
        let (vocab, types, most) = (spec.vocab, spec.types.unwrap_or(1), model.context());
        let json = model.checkpoint.json_beside(TOKENIZER)?.unwrap_or_default();
        // What the tokenizer says of it counts for more: it is what has filled up texts.
        let said = [&json["pad_token"], &json["pad_token"]["content"]].into_iter().find_map(Value::as_str);
        let said = said.and_then(|token| tokenizer.id_of(token)).filter(|id| (*id as usize) < vocab);
        let fill = spec.fill.map(|usual| said.unwrap_or(usual));
        let plain =
            json["tokenizer_class"].as_str().is_some_and(|class| class.starts_with("SiglipTokenizer"));
        let lowers = model.sentence.lowers;
        Ok(Words { tokenizer, plain, lowers, fill, vocab, types, most })
    }

    /// A text's tokens, as far as there can be room for them. What is to be cut off anyway is not tokenized.
    fn encode(&self, text: &str, cut: Cut) -> std::result::Result<Vec<u32>, InputError> {
        let text: Cow<'_, str> = match (self.plain, self.lowers) {
            (true, _) => plain(text).into(),
            (false, true) => text.to_lowercase().into(),
            (false, false) => text.into(),
        };
        match cut {
            Cut::No => {
                let tokens = self.tokenizer.encode_up_to(&text, Special::BARE, self.most)?;
                tokens.ok_or(InputError::FarTooLong { most: self.most })
            }
            Cut::End => {
                let begun = self.tokenizer.beginning_of(&text, Special::BARE, self.most);
                Ok(self.tokenizer.encode(begun, Special::BARE)?)
            }
        }
    }

    fn text(&self, text: &str, cut: Cut) -> std::result::Result<Input, InputError> {
        let frame = self.tokenizer.around_one();
        let mut tokens = self.encode(text, cut)?;
        let room = self.room(frame, tokens.len(), cut)?;
        tokens.truncate(room);
        self.checked(frame, &tokens, &[])
    }

    fn tokens(&self, mut tokens: Vec<u32>, cut: Cut) -> std::result::Result<Input, InputError> {
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
        if let Some(fill) = self.fill.filter(|_| !input.tokens.is_empty() && input.tokens.len() < self.most) {
            input.tokens.resize(self.most, fill);
            input.types.resize(self.most, 0);
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

/// The first of two texts that belong together.
#[derive(Debug, Clone)]
pub struct First<'a> {
    words: &'a Words,
    frame: &'a [Placed],
    tokens: Vec<u32>,
    cut: Cut,
}

impl First<'_> {
    /// Both texts. If they are too long the longer loses its end first.
    pub fn with(&self, second: &str) -> std::result::Result<Input, InputError> {
        let (a, mut b) = (&self.tokens, self.words.encode(second, self.cut)?);
        let room = self.words.room(self.frame, a.len() + b.len(), self.cut)?;
        let (for_a, for_b) = shared_out(room, a.len(), b.len());
        b.truncate(for_b);
        self.words.checked(self.frame, &a[..for_a.min(a.len())], &b)
    }
}

/// A text in small letters, without the punctuation of ASCII, with single spaces.
fn plain(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_ascii_punctuation()).collect();
    text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ")
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
    fn plain_texts_have_neither_capitals_nor_punctuation() {
        assert_eq!(plain("  A photo of\n a Cat's  [hat], ÄH…! "), "a photo of a cats hat äh…");
    }

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
