//! [`Tokenizer`]: text to token ids and back, from a `tokenizer.json`, a GGUF file's metadata or another vocabulary
//! file.
//!
//! One pipeline serves every kind of vocabulary: added tokens are split off, the rest is normalised and pre-tokenized
//! into words, and each word is encoded by the model (BPE, SentencePiece BPE, Unigram, WordPiece). Time and memory are
//! linear in the text, whatever the text is, and nothing in a file or a text can cause a panic.

mod added;
mod bpe;
mod charsmap;
mod config_files;
mod cut;
mod decode;
mod ends;
mod field;
mod files;
mod fim;
mod frame;
mod gguf;
mod json;
mod keys;
mod limit;
mod merge;
mod merges;
mod normalize;
mod pattern;
mod pre;
mod protobuf;
mod ranks;
mod same_text;
mod sentencepiece;
mod spm;
mod trie;
pub(crate) mod unicode;
mod unigram;
mod vocab;
mod wordpiece;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use tallow_checkpoint::FileError;

use added::{Added, Part, shield};
use bpe::Bpe;
use cut::{Cutter, Words};
use decode::{Chunk, Stage};
pub use fim::FillInMiddle;
use frame::Frame;
pub use frame::{Piece, Placed};
pub use keys::SAMPLES;
use merge::Row;
use normalize::Normalizer;
use spm::Spm;
use unigram::Unigram;
use vocab::Vocab;
use wordpiece::WordPiece;

/// Maximum bytes of a text that is encoded.
pub const MOST_TEXT: usize = 32 << 20;
/// Maximum bytes of the normalised text.
const MOST_GROWN: usize = 256 << 20;

/// Treatment of special tokens in encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Special {
    /// The tokens that the model expects around a text (BOS, EOS).
    pub around: Around,
    /// Special tokens written in the text.
    pub written: Written,
}

impl Special {
    /// A whole prompt written by a user: BOS and EOS are added, and special tokens in it are read as text.
    pub const PROMPT: Special = Special { around: Around::Added, written: Written::Plain };
    /// A rendered chat: the template has written all special tokens itself.
    pub const RENDERED: Special = Special { around: Around::Omitted, written: Written::Parsed };
    /// The tokens of the text and nothing else.
    pub const BARE: Special = Special { around: Around::Omitted, written: Written::Plain };
}

/// The tokens that a model expects around a text, such as BOS and EOS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Around {
    /// They are added.
    Added,
    /// They are not added.
    Omitted,
}

/// Special tokens that are written in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// They are read as text. Use this for users' text.
    Plain,
    /// They are parsed as special tokens.
    Parsed,
    /// They are parsed as special tokens, except where [`Tokenizer::shield`] has marked them as text.
    Shielded,
}

/// The tokens that decoding shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// All tokens.
    All,
    /// All but special tokens.
    Text,
}

/// Why a text could not be tokenized.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenizeError {
    /// The text is too long.
    #[error("the text has {bytes} bytes; at most {most} can be tokenized")]
    TooLong {
        /// Bytes of the text, or of the normalised text.
        bytes: usize,
        /// Maximum number of bytes.
        most: usize,
    },
    /// The text has more tokens than the caller's limit.
    #[error("the text has more than {most} tokens")]
    TooMany {
        /// The caller's limit.
        most: usize,
    },
    /// A pattern of the tokenizer exceeded its limits.
    #[error("the tokenizer's pattern {pattern:?} could not be searched in this text: {why}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The search's error message.
        why: String,
    },
    /// Some text has no token, and the vocabulary has no unknown token.
    #[error("the vocabulary has no token for {text:?}, and none for unknown text")]
    NoUnknown {
        /// The text, or its start.
        text: String,
    },
}

fn check_length(bytes: usize, most: usize) -> Result<(), TokenizeError> {
    if bytes <= most { Ok(()) } else { Err(TokenizeError::TooLong { bytes, most }) }
}

/// The first 60 characters of a text, for error messages.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.into(),
    }
}

/// Text to token ids and back. Clones share all data.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    parts: Arc<Parts>,
    ends: Arc<BTreeSet<u32>>,
}

#[derive(Debug)]
struct Parts {
    vocab: Vocab,
    added: Added,
    normalizer: Normalizer,
    cutter: Cutter,
    model: Model,
    frame: Frame,
    stages: Vec<Stage>,
    bos: Option<u32>,
    eos: Option<u32>,
    /// Maximum bytes of normalised text that one token can stand for. `None` if text can be dropped, or a run of
    /// unknown text becomes one token.
    widest: Option<usize>,
}

/// The model, which encodes a word.
#[derive(Debug)]
enum Model {
    Bpe(Box<Bpe>),
    Spm(Box<Spm>),
    Unigram(Box<Unigram>),
    WordPiece(Box<WordPiece>),
    /// Every word is a token or unknown.
    WordLevel {
        unknown: Option<u32>,
    },
}

impl Model {
    /// Maximum bytes of text that one token can stand for, if that is bounded.
    fn widest(&self, vocab: &Vocab, cutter: &Cutter) -> Option<usize> {
        let whole = match self {
            Model::Bpe(bpe) => bpe.takes_all(vocab),
            Model::Spm(spm) => spm.takes_all(),
            Model::Unigram(unigram) => unigram.takes_all(),
            Model::WordPiece(_) | Model::WordLevel { .. } => false,
        };
        (whole && cutter.keeps_all()).then(|| vocab.longest().max(1))
    }
}

/// The output tokens, and scratch memory that is reused for each word.
struct Scratch {
    out: Vec<u32>,
    /// Maximum number of tokens.
    most: usize,
    ids: Row<u32>,
    pieces: Row<spm::Piece>,
    best: Vec<unigram::Best>,
}

impl Scratch {
    fn new(most: usize) -> Scratch {
        let (ids, pieces, best) = Default::default();
        Scratch { out: Vec::new(), most, ids, pieces, best }
    }

    fn push(&mut self, id: u32) -> Result<(), TokenizeError> {
        self.out.push(id);
        self.check(0)
    }

    /// Checks that `more` further tokens stay within the limit.
    fn check(&self, more: usize) -> Result<(), TokenizeError> {
        match self.out.len().saturating_add(more) <= self.most {
            true => Ok(()),
            false => Err(TokenizeError::TooMany { most: self.most }),
        }
    }
}

impl Tokenizer {
    /// The tokens of a text.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, TokenizeError> {
        self.encode_at_most(text, special, usize::MAX)
    }

    /// The tokens of a text, or [`TokenizeError::TooMany`] as soon as it is certain that there are more than `most`:
    /// mostly from the text's length alone, before any work is done.
    pub fn encode_at_most(
        &self,
        text: &str,
        special: Special,
        most: usize,
    ) -> Result<Vec<u32>, TokenizeError> {
        check_length(text.len(), MOST_TEXT)?;
        let parts = &*self.parts;
        let around = special.around == Around::Added;
        let mut scratch = Scratch::new(most);
        if around {
            scratch.out.extend(parts.frame.before());
        }
        parts.added.split(text, special.written, added::Stage::Raw, |part| match part {
            Part::Token(id) => scratch.push(id),
            Part::Text(text, at) => {
                let text = match special.written {
                    Written::Shielded => shield::take(text),
                    _ => Cow::Borrowed(text),
                };
                parts.section(&text, at == 0, special.written, &mut scratch)
            }
        })?;
        if around {
            scratch.out.extend(parts.frame.after());
        }
        scratch.check(0)?;
        Ok(scratch.out)
    }

    /// The text of tokens. Unknown ids are skipped.
    pub fn decode(&self, ids: &[u32], shown: Shown) -> String {
        let mut stream = self.stream(shown);
        ids.iter().for_each(|id| stream.feed(*id));
        stream.end();
        stream.text
    }

    /// A streaming detokenizer.
    pub fn stream(&self, shown: Shown) -> Detokenizer {
        Detokenizer {
            tokenizer: self.clone(),
            stages: self.parts.stages.clone(),
            shown,
            also: Vec::new(),
            text: String::new(),
            known: String::new(),
        }
    }

    /// A streaming detokenizer for the tokens that follow a prompt: it returns what they add to the prompt's text. That
    /// can differ from their text alone, as SentencePiece drops the leading space only at the start of a text.
    pub fn stream_after(&self, prompt: &[u32], shown: Shown) -> Detokenizer {
        let mut stream = self.stream(shown);
        let tail = &prompt[self.context_of(prompt, shown)..];
        tail.iter().for_each(|id| stream.feed(*id));
        // The stages may still hold back the end of the prompt's text, which would come out with the following tokens.
        stream.text.clear();
        let mut stages = stream.stages.clone();
        decode::finish(&mut stages, &mut stream.known);
        stream
    }

    /// The index of the first prompt token that the text after the prompt can depend on: a few tokens with text are
    /// enough, and the first of them must not be a byte token, which needs those before it.
    fn context_of(&self, prompt: &[u32], shown: Shown) -> usize {
        const ENOUGH: usize = 8;
        let parts = &*self.parts;
        let mut with_text = 0;
        for (at, id) in prompt.iter().enumerate().rev() {
            let Some((text, _)) = parts.decoded(*id) else { continue };
            if (shown == Shown::Text && parts.added.is_hidden(text)) || text.is_empty() {
                continue;
            }
            with_text += 1;
            if with_text >= ENOUGH && unicode::byte_token(text).is_none() {
                return at;
            }
        }
        0
    }

    /// The tokens with exactly one BOS in front, if the tokenizer adds BOS.
    pub fn begun(&self, mut tokens: Vec<u32>) -> Vec<u32> {
        let Some(bos) = self.bos().filter(|_| self.adds_bos()) else { return tokens };
        match tokens.iter().take_while(|id| **id == bos).count() {
            0 => tokens.insert(0, bos),
            n => drop(tokens.drain(1..n)),
        }
        tokens
    }

    /// Marks the special tokens in untrusted text, so that [`Written::Shielded`] reads them as text when it has become
    /// part of a rendered chat. The result must only be encoded with [`Written::Shielded`].
    pub fn shield<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.parts.added.shield(text)
    }

    /// A token's text as the vocabulary has it.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        let added = self.parts.added.get(id).map(|token| token.content.as_str());
        added.or_else(|| self.parts.vocab.text(id))
    }

    /// The bytes that a token adds in the middle of a text; they need not be whole characters.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let (text, verbatim) = self.parts.decoded(id)?;
        Some(Stage::bytes(&self.parts.stages, text, verbatim))
    }

    /// The id of a token text.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.parts.added.id(text).or_else(|| self.parts.vocab.id(text))
    }

    /// The highest id plus one.
    pub fn vocab_size(&self) -> usize {
        let added = self.parts.added.iter().map(|token| token.id as usize + 1).max();
        self.parts.vocab.len().max(added.unwrap_or(0))
    }

    /// Checks that the tokenizer fits a model with `model` tokens.
    pub fn belongs_to(&self, path: &Path, model: usize) -> Result<(), FileError> {
        let have = self.vocab_size();
        // A few tokens more are common: fine-tunes add an untrained padding token. Prompts are checked.
        if have <= model + model / 32 {
            return Ok(());
        }
        let why = format!(
            "the tokenizer has {have} tokens, and the model knows {model}: they do not belong together"
        );
        Err(FileError::bad(path, "the tokenizer", why))
    }

    /// The template for one text: the text and the tokens that the model expects around it.
    pub fn around_one(&self) -> &[Placed] {
        self.parts.frame.one()
    }

    /// The template for a pair of texts, if the tokenizer has one.
    pub fn around_two(&self) -> Option<&[Placed]> {
        self.parts.frame.two()
    }

    /// The token that begins a text (BOS).
    pub fn bos(&self) -> Option<u32> {
        self.parts.bos
    }

    /// The token that ends a text (EOS).
    pub fn eos(&self) -> Option<u32> {
        self.parts.eos
    }

    /// True if encoding with [`Around::Added`] puts BOS in front.
    pub fn adds_bos(&self) -> bool {
        self.bos().is_some_and(|bos| self.parts.frame.before().next() == Some(bos))
    }

    /// True if this token ends generation: end of text, or end of the model's turn.
    pub fn ends_generation(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// All tokens that [end generation](Tokenizer::ends_generation).
    pub fn ends(&self) -> impl Iterator<Item = u32> {
        self.ends.iter().copied()
    }

    /// The same tokenizer with further tokens that end generation, such as those of `generation_config.json`.
    #[must_use]
    pub fn ending_with(self, ids: &[u32]) -> Tokenizer {
        let ends = self.ends.iter().chain(ids).copied().collect();
        Tokenizer { ends: Arc::new(ends), ..self }
    }

    /// True if this is a special (control) token rather than text.
    pub fn is_special(&self, id: u32) -> bool {
        self.parts.added.get(id).is_some_and(|token| token.special)
    }
}

impl Parts {
    /// Encodes a part of the text that contains no special tokens.
    fn section(
        &self,
        text: &str,
        at_start: bool,
        written: Written,
        scratch: &mut Scratch,
    ) -> Result<(), TokenizeError> {
        let text = self.normalizer.run(text)?;
        self.added.split(&text, written, added::Stage::Normalized, |part| match part {
            Part::Token(id) => scratch.push(id),
            Part::Text(text, at) => {
                scratch.check(self.widest.map_or(0, |widest| text.len() / widest))?;
                let words = self.cutter.run(Words::new(text.into(), at_start && at == 0))?;
                words.iter().try_for_each(|word| self.word(word, scratch))
            }
        })
    }

    fn word(&self, word: &str, scratch: &mut Scratch) -> Result<(), TokenizeError> {
        let out = &mut scratch.out;
        match &self.model {
            Model::Bpe(bpe) => bpe.add(&self.vocab, word, &mut scratch.ids, out),
            Model::Spm(spm) => spm.add(&self.vocab, word, &mut scratch.pieces, out)?,
            Model::Unigram(unigram) => unigram.add(&self.vocab, word, &mut scratch.best, out)?,
            Model::WordPiece(pieces) => pieces.add(word, out)?,
            Model::WordLevel { unknown } => {
                let id = self.vocab.spoken(word).or(*unknown);
                out.push(id.ok_or_else(|| TokenizeError::NoUnknown { text: shorten(word) })?);
            }
        }
        scratch.check(0)
    }

    /// The text that decoding of a token starts from, and whether it bypasses the byte-level decoder.
    fn decoded(&self, id: u32) -> Option<(&str, bool)> {
        match self.added.get(id) {
            Some(token) => Some((token.decoded(), token.verbatim)),
            None => Some((self.vocab.text(id)?, false)),
        }
    }
}

/// A streaming detokenizer.
///
/// Text is returned as soon as no later token can change it, and only in whole characters. Concatenated, the returned
/// pieces equal what [`Tokenizer::decode`] returns for the whole list.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    stages: Vec<Stage>,
    shown: Shown,
    /// Special tokens that are always shown.
    also: Vec<u32>,
    text: String,
    /// The end of the prompt's text that the stages still hold back; it is removed from the output.
    known: String,
}

impl Detokenizer {
    /// The same detokenizer, which also shows these special tokens.
    #[must_use]
    pub fn showing(mut self, also: Vec<u32>) -> Detokenizer {
        self.also = also;
        self
    }

    /// Takes a token and returns the text that is now certain, if any.
    pub fn push(&mut self, id: u32) -> Option<&str> {
        self.text.clear();
        self.feed(id);
        self.leave_out_known();
        (!self.text.is_empty()).then_some(self.text.as_str())
    }

    /// Returns the text that was held back. Afterwards another list can begin.
    pub fn finish(&mut self) -> Option<&str> {
        self.text.clear();
        self.end();
        self.leave_out_known();
        self.known.clear();
        (!self.text.is_empty()).then_some(self.text.as_str())
    }

    /// The number of whole characters that are held back because later tokens may change them.
    pub fn waiting(&self) -> usize {
        let mut rest = self.clone();
        let text = rest.finish().unwrap_or_default();
        text.trim_end_matches(char::REPLACEMENT_CHARACTER).chars().count()
    }

    fn leave_out_known(&mut self) {
        if self.known.is_empty() || self.text.is_empty() {
            return;
        }
        let same = self.text.chars().zip(self.known.chars()).take_while(|(a, b)| a == b);
        let bytes = same.map(|(c, _)| c.len_utf8()).sum();
        let differs = bytes < self.text.len();
        self.text.drain(..bytes);
        self.known.drain(..if differs { self.known.len() } else { bytes });
    }

    fn feed(&mut self, id: u32) {
        let parts = &self.tokenizer.parts;
        let Some((text, verbatim)) = parts.decoded(id) else { return };
        if self.shown == Shown::Text && parts.added.is_hidden(text) && !self.also.contains(&id) {
            return;
        }
        let chunk = Chunk { text: text.into(), opens: true, closes: true, verbatim };
        decode::push(&mut self.stages, chunk, &mut self.text);
    }

    fn end(&mut self) {
        decode::finish(&mut self.stages, &mut self.text);
    }
}
