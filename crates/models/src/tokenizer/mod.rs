//! [`Tokenizer`]: text to token ids and back, from a `tokenizer.json` or from a GGUF file's metadata.
//!
//! One pipeline serves every kind of vocabulary: tokens that are written in the text are cut out of it, the rest is
//! normalised, cut into words, and each word is given to the vocabulary's model. All of it takes time and memory in
//! proportion to the text, whatever the text is, and nothing in a file or a text can make it panic.

mod added;
mod bpe;
mod charsmap;
mod cut;
mod decode;
mod ends;
mod field;
mod frame;
mod gguf;
mod json;
mod keys;
mod limit;
mod merge;
mod normalize;
mod pattern;
mod pre;
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

use added::{Added, Part, shield};
use bpe::Bpe;
use cut::{Cutter, Words};
use decode::{Chunk, Stage};
use frame::Frame;
pub use frame::{Piece, Placed};
pub(crate) use keys::SAMPLES;
use merge::Row;
use normalize::Normalizer;
use spm::Spm;
use unigram::Unigram;
use vocab::Vocab;
use wordpiece::WordPiece;

use crate::LoadError;

/// Longest text that is encoded.
pub const MOST_TEXT: usize = 32 << 20;
/// Longest text that normalising may make of it.
const MOST_GROWN: usize = 256 << 20;

/// What to do about special tokens when encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Special {
    /// Those that the model expects around a text.
    pub around: Around,
    /// Those that are written in the text.
    pub written: Written,
}

impl Special {
    /// A whole prompt that a person wrote: what the model expects around it is added, and it may not steer the model.
    pub const PROMPT: Special = Special { around: Around::Added, written: Written::Plain };
    /// A rendered chat: the template has written all special tokens itself.
    pub const RENDERED: Special = Special { around: Around::Omitted, written: Written::Parsed };
    /// The tokens of the text and nothing else.
    pub const BARE: Special = Special { around: Around::Omitted, written: Written::Plain };
}

/// The tokens that a model expects around a text: the one that begins it, the one that ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Around {
    /// They are added.
    Added,
    /// They are not.
    Omitted,
}

/// Special tokens that are written in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// They are text like any other. Text of users should be read so.
    Plain,
    /// They are the tokens.
    Parsed,
    /// They are the tokens, except where [`Tokenizer::shield`] has marked them as text.
    Shielded,
}

/// Which tokens decoding shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// All.
    All,
    /// All but special ones.
    Text,
}

/// Why a text has no tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenizeError {
    /// The text is too long.
    #[error("the text has {bytes} bytes; at most {most} can be tokenized")]
    TooLong {
        /// Its bytes, or those that normalising would make of it.
        bytes: usize,
        /// How many are taken.
        most: usize,
    },
    /// The text has more tokens than were wanted.
    #[error("the text has more than {most} tokens")]
    TooMany {
        /// How many were wanted at most.
        most: usize,
    },
    /// A pattern of the tokenizer gave up.
    #[error("the tokenizer's pattern {pattern:?} could not be searched in this text: {why}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What the search said.
        why: String,
    },
    /// The vocabulary lacks something and has no token for what it lacks.
    #[error("the vocabulary has no token for {text:?}, and none for unknown text")]
    NoUnknown {
        /// The text, or its start.
        text: String,
    },
}

fn check_length(bytes: usize, most: usize) -> Result<(), TokenizeError> {
    if bytes <= most { Ok(()) } else { Err(TokenizeError::TooLong { bytes, most }) }
}

/// The start of a text that may be long.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.into(),
    }
}

/// Text to token ids and back. Copies share everything.
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
    /// The most bytes of normalised text that one token can stand for. `None` where text can vanish, or a run of
    /// unknown text is one token.
    widest: Option<usize>,
}

/// How words become tokens.
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
    /// The most bytes of a text that one token can stand for, if all text becomes tokens.
    fn widest(&self, vocab: &Vocab, cutter: &Cutter) -> Option<usize> {
        let whole = match self {
            Model::Bpe(bpe) => bpe.takes_all(vocab),
            Model::Spm(_) => true,
            Model::Unigram(unigram) => unigram.takes_all(),
            Model::WordPiece(_) | Model::WordLevel { .. } => false,
        };
        (whole && cutter.keeps_all()).then(|| vocab.longest().max(1))
    }
}

/// Tokens on their way out, and memory that encoding uses again for each word.
struct Scratch {
    out: Vec<u32>,
    /// How many tokens are wanted at most.
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

    /// Are so many tokens more still within what is wanted?
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

    /// The text of tokens. Ids that are none are left out.
    pub fn decode(&self, ids: &[u32], shown: Shown) -> String {
        let mut stream = self.stream(shown);
        ids.iter().for_each(|id| stream.feed(*id));
        stream.end();
        stream.text
    }

    /// Decodes token by token.
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

    /// Decodes the tokens that follow a prompt, token by token: what they add to the prompt's own text. It is not the
    /// text that they would be alone; SentencePiece's first token loses its space only where no text is before it.
    pub fn stream_after(&self, prompt: &[u32], shown: Shown) -> Detokenizer {
        let mut stream = self.stream(shown);
        let tail = &prompt[self.context_of(prompt, shown)..];
        tail.iter().for_each(|id| stream.feed(*id));
        // What the prompt alone would end with may be in the stages still; it comes out with the tokens that follow.
        stream.text.clear();
        let mut stages = stream.stages.clone();
        decode::finish(&mut stages, &mut stream.known);
        stream
    }

    /// Where the tokens begin that the text after a prompt depends on: a few that have text, from one that does not
    /// need those before it to be read.
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

    /// The tokens with the one that begins a text in front, once, if the model is used to that.
    pub fn begun(&self, mut tokens: Vec<u32>) -> Vec<u32> {
        let Some(bos) = self.bos().filter(|_| self.adds_bos()) else { return tokens };
        match tokens.iter().take_while(|id| **id == bos).count() {
            0 => tokens.insert(0, bos),
            n => drop(tokens.drain(1..n)),
        }
        tokens
    }

    /// Marks the special tokens in a text that somebody else wrote, so that [`Written::Shielded`] reads them as text
    /// when it has become part of a rendered chat. Other readings must not see the result.
    pub fn shield<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.parts.added.shield(text)
    }

    /// A token as the vocabulary writes it.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        let added = self.parts.added.get(id).map(|token| token.content.as_str());
        added.or_else(|| self.parts.vocab.text(id))
    }

    /// The bytes that a token adds in the middle of a text, which need not be whole characters.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let (text, verbatim) = self.parts.decoded(id)?;
        Some(Stage::bytes(&self.parts.stages, text, verbatim))
    }

    /// The token that the vocabulary writes like this.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.parts.added.id(text).or_else(|| self.parts.vocab.id(text))
    }

    /// One more than the highest id.
    pub fn vocab_size(&self) -> usize {
        let added = self.parts.added.iter().map(|token| token.id as usize + 1).max();
        self.parts.vocab.len().max(added.unwrap_or(0))
    }

    /// Is it the tokenizer of a model that knows so many tokens?
    pub(crate) fn belongs_to(&self, path: &Path, model: usize) -> Result<(), LoadError> {
        let have = self.vocab_size();
        // A few tokens more are common: fine-tunes add a padding token that nobody trained. Prompts are checked.
        if have <= model + model / 32 {
            return Ok(());
        }
        let why = format!(
            "the tokenizer has {have} tokens, and the model knows {model}: they do not belong together"
        );
        Err(LoadError::bad(path, "the tokenizer", why))
    }

    /// A text and the tokens that the model expects around it.
    pub fn around_one(&self) -> &[Placed] {
        self.parts.frame.one()
    }

    /// Two texts and the tokens that the model expects around and between them, if it is used to two.
    pub fn around_two(&self) -> Option<&[Placed]> {
        self.parts.frame.two()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.parts.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.parts.eos
    }

    /// Does encoding put the token that begins a text before it, if asked for what belongs around it?
    pub fn adds_bos(&self) -> bool {
        self.bos().is_some_and(|bos| self.parts.frame.before().next() == Some(bos))
    }

    /// Is an answer complete with this token: the end of the text, or of the model's turn?
    pub fn ends_generation(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// All tokens that [end an answer](Tokenizer::ends_generation).
    pub fn ends(&self) -> impl Iterator<Item = u32> {
        self.ends.iter().copied()
    }

    /// The same tokenizer where these tokens end an answer too, such as those that a generation config names.
    #[must_use]
    pub fn ending_with(self, ids: &[u32]) -> Tokenizer {
        let ends = self.ends.iter().chain(ids).copied().collect();
        Tokenizer { ends: Arc::new(ends), ..self }
    }

    /// Does this token steer the model, rather than being text?
    pub fn is_special(&self, id: u32) -> bool {
        self.parts.added.get(id).is_some_and(|token| token.special)
    }
}

impl Parts {
    /// Adds the tokens of a part of the text that has no special ones.
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

    /// What decoding a token starts from, and whether it is written out as it is.
    fn decoded(&self, id: u32) -> Option<(&str, bool)> {
        match self.added.get(id) {
            Some(token) => Some((token.decoded(), token.verbatim)),
            None => Some((self.vocab.text(id)?, false)),
        }
    }
}

/// Tokens to text, one at a time.
///
/// Text is given out as soon as no later token can change it, and never a part of a character. All that is given out,
/// put together, is what [`Tokenizer::decode`] gives for the whole list.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    stages: Vec<Stage>,
    shown: Shown,
    /// Special tokens that are shown in any case.
    also: Vec<u32>,
    text: String,
    /// The end of the prompt's text, where the stages have it still: as much of it as comes out is left out.
    known: String,
}

impl Detokenizer {
    /// The same, which shows these special tokens, too.
    #[must_use]
    pub fn showing(mut self, also: Vec<u32>) -> Detokenizer {
        self.also = also;
        self
    }

    /// Takes a token and gives the text that is certain with it, if any.
    pub fn push(&mut self, id: u32) -> Option<&str> {
        self.text.clear();
        self.feed(id);
        self.leave_out_known();
        (!self.text.is_empty()).then_some(self.text.as_str())
    }

    /// Gives what was still waiting for more. Afterwards another list can begin.
    pub fn finish(&mut self) -> Option<&str> {
        self.text.clear();
        self.end();
        self.leave_out_known();
        self.known.clear();
        (!self.text.is_empty()).then_some(self.text.as_str())
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
