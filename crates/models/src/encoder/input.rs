//! [`Inputs`]: from texts and images to encoder inputs.

use std::borrow::Cow;

use crate::encoder::PatchProcessor;
use serde_json::Value;
use tallow_media::image::decode::PictureError;
use tallow_text::tokenizer::{Piece, Placed, Special, TokenizeError, Tokenizer};

use super::{EncoderModel, Image, Input};
use crate::Result;

/// Truncation: how a text that is too long is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncation {
    /// No truncation: a text that is too long is refused.
    No,
    /// Truncation: the end of the text is cut off.
    End,
}

/// Why an input cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// It cannot be tokenized.
    #[error("{0}")]
    Text(#[from] TokenizeError),
    /// It has too many tokens.
    #[error("the text has {tokens} tokens, and the model takes {most}; shorten it, or ask for truncation")]
    TooLong {
        /// Its tokens, including special ones.
        tokens: usize,
        /// The most that the model takes.
        most: usize,
    },
    /// It is so much too long that tokenization was cut short, without a count.
    #[error("the text has more than {most} tokens, which the model takes; shorten it, or ask for truncation")]
    FarTooLong {
        /// The most tokens that the model takes.
        most: usize,
    },
    /// It has no tokens.
    #[error("a text of no tokens has no vector")]
    Empty,
    /// A token id is out of range.
    #[error("there is no token {token}: the model has {vocab}")]
    Unknown {
        /// The token id.
        token: u32,
        /// The vocabulary size.
        vocab: usize,
    },
    /// The model takes no texts.
    #[error("the model makes vectors of images alone")]
    NoTexts,
    /// The model takes no images.
    #[error("the model makes vectors of texts alone")]
    NoImages,
    /// The image cannot be read.
    #[error("{0}")]
    Image(#[from] PictureError),
    /// The tokenizer has no template for pairs of texts.
    #[error("the model's tokenizer does not say how two texts stand together, so it cannot rank")]
    NoPairs,
}

/// Builds encoder inputs from texts and images. Clones share everything.
#[derive(Debug, Clone)]
pub struct Inputs {
    words: Option<Words>,
    pictures: Option<PatchProcessor>,
    most: usize,
}

/// Builds inputs from texts.
#[derive(Debug, Clone)]
struct Words {
    tokenizer: Tokenizer,
    /// True if punctuation and case are removed first (SigLIP). Otherwise normalization is the tokenizer's.
    plain: bool,
    /// True if texts are lowercased first.
    lowers: bool,
    /// The token that texts are padded with, if they are.
    fill: Option<u32>,
    /// A text's tokens and the special ones around it.
    frame: Vec<Placed>,
    vocab: usize,
    types: usize,
    most: usize,
}

impl Inputs {
    /// Makes the inputs of a model.
    pub fn new(model: &EncoderModel) -> Result<Inputs> {
        let pictures = model.of_images().and_then(|m| Some((m, m.spec.patches?)));
        let pictures =
            pictures.map(|(m, patches)| PatchProcessor::new(&m.checkpoint, patches)).transpose()?;
        Ok(Inputs { words: model.of_texts().map(Words::new).transpose()?, pictures, most: model.context() })
    }

    /// The longest text in tokens; for a model of images alone, the rows of an image.
    pub fn most(&self) -> usize {
        self.most
    }

    fn words(&self) -> std::result::Result<&Words, InputError> {
        self.words.as_ref().ok_or(InputError::NoTexts)
    }

    /// Encodes a text.
    pub fn text(&self, text: &str, cut: Truncation) -> std::result::Result<Input, InputError> {
        self.words()?.text(text, cut)
    }

    /// The first text of a pair. It is tokenized once, for any number of second ones.
    pub fn first(&self, text: &str, cut: Truncation) -> std::result::Result<First<'_>, InputError> {
        let words = self.words()?;
        let frame = words.tokenizer.around_two().ok_or(InputError::NoPairs)?;
        Ok(First { words, frame, tokens: words.encode(text, cut)?, cut })
    }

    /// Encodes a pair of texts. If it is too long, the longer text is truncated first.
    pub fn pair(&self, first: &str, second: &str, cut: Truncation) -> std::result::Result<Input, InputError> {
        self.first(first, cut)?.with(second)
    }

    /// An input of given tokens, without special ones.
    pub fn tokens(&self, tokens: Vec<u32>, cut: Truncation) -> std::result::Result<Input, InputError> {
        self.words()?.tokens(tokens, cut)
    }

    /// Upper bound of the memory that decoding an image file takes, in bytes.
    pub fn image_memory(&self, bytes: &[u8]) -> std::result::Result<usize, InputError> {
        let pictures = self.pictures.as_ref().ok_or(InputError::NoImages)?;
        Ok(pictures.memory(bytes)?)
    }

    /// Decodes and preprocesses an image file.
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
        let json = model.checkpoint.json_file(TOKENIZER)?.unwrap_or_default();
        // The tokenizer's own padding token takes precedence: it is what texts were padded with in training.
        let said = [&json["pad_token"], &json["pad_token"]["content"]].into_iter().find_map(Value::as_str);
        let said = said.and_then(|token| tokenizer.id_of(token)).filter(|id| (*id as usize) < vocab);
        let fill = spec.pad.map(|usual| said.unwrap_or(usual));
        let plain =
            json["tokenizer_class"].as_str().is_some_and(|class| class.starts_with("SiglipTokenizer"));
        let lowers = model.sentence.lowers;
        let mut frame = tokenizer.around_one().to_vec();
        // Decoders' tokenizers may leave the end token to this flag (e5-mistral): the vector is that of the end token.
        let ends = model.family.is_decoder() && json["add_eos_token"].as_bool() == Some(true);
        if let Some(end) =
            tokenizer.eos().filter(|_| ends && matches!(frame.last(), Some(p) if p.piece == Piece::First))
        {
            frame.push(Placed { piece: Piece::Token(end), of: 0 });
        }
        Ok(Words { tokenizer, plain, lowers, fill, frame, vocab, types, most })
    }

    /// A text's tokens, at most as many as the model takes. With truncation, what would be cut off is not tokenized.
    fn encode(&self, text: &str, cut: Truncation) -> std::result::Result<Vec<u32>, InputError> {
        let text: Cow<'_, str> = match (self.plain, self.lowers) {
            (true, _) => plain(text).into(),
            (false, true) => text.to_lowercase().into(),
            (false, false) => text.into(),
        };
        match cut {
            Truncation::No => {
                let tokens = self.tokenizer.encode_up_to(&text, Special::BARE, self.most)?;
                tokens.ok_or(InputError::FarTooLong { most: self.most })
            }
            Truncation::End => {
                let begun = self.tokenizer.beginning_of(&text, Special::BARE, self.most);
                Ok(self.tokenizer.encode(begun, Special::BARE)?)
            }
        }
    }

    fn text(&self, text: &str, cut: Truncation) -> std::result::Result<Input, InputError> {
        let mut tokens = self.encode(text, cut)?;
        let room = self.room(&self.frame, tokens.len(), cut)?;
        tokens.truncate(room);
        self.checked(&self.frame, &tokens, &[])
    }

    fn tokens(&self, mut tokens: Vec<u32>, cut: Truncation) -> std::result::Result<Input, InputError> {
        let room = self.room(&[], tokens.len(), cut)?;
        tokens.truncate(room);
        self.checked(&[Placed { piece: Piece::First, of: 0 }], &tokens, &[])
    }

    /// Number of the texts' tokens that fit in addition to the special tokens of `frame`.
    fn room(
        &self,
        frame: &[Placed],
        texts: usize,
        cut: Truncation,
    ) -> std::result::Result<usize, InputError> {
        let around = frame.iter().filter(|p| matches!(p.piece, Piece::Token(_))).count();
        let (tokens, most) = (texts + around, self.most);
        match cut {
            Truncation::No if tokens > most => Err(InputError::TooLong { tokens, most }),
            Truncation::No | Truncation::End => Ok(most.saturating_sub(around)),
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
            // A model without types for a second text has one type.
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

/// The first text of a pair.
#[derive(Debug, Clone)]
pub struct First<'a> {
    words: &'a Words,
    frame: &'a [Placed],
    tokens: Vec<u32>,
    cut: Truncation,
}

impl First<'_> {
    /// The pair. If it is too long, the longer text is truncated first.
    pub fn with(&self, second: &str) -> std::result::Result<Input, InputError> {
        let (a, mut b) = (&self.tokens, self.words.encode(second, self.cut)?);
        let room = self.words.room(self.frame, a.len() + b.len(), self.cut)?;
        let (for_a, for_b) = shared_out(room, a.len(), b.len());
        b.truncate(for_b);
        self.words.checked(self.frame, &a[..for_a.min(a.len())], &b)
    }
}

/// The text in lower case, without ASCII punctuation, with single spaces.
fn plain(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_ascii_punctuation()).collect();
    text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Tokens that each of two texts may keep: the longer is truncated first, as `tokenizers` does.
fn shared_out(room: usize, a: usize, b: usize) -> (usize, usize) {
    if a + b <= room {
        return (a, b);
    }
    let shorter = a.min(b);
    match shorter <= room / 2 {
        true if a <= b => (a, room - a),
        true => (room - b, b),
        // Both get half; the longer one gets the odd token.
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
