//! [`Bpe`]: byte-pair encoding (BPE) by a list of merges.

use hashbrown::HashMap;

use super::merge::{Row, Seams, Wholes};
use super::unicode::char_of;
use super::vocab::Vocab;

/// A list of merges, and how characters without a token are handled.
#[derive(Debug)]
pub(super) struct Bpe {
    /// Rank and result of each pair of pieces. Pieces that are tokens have their token ids.
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// Merge pieces that are not in the vocabulary; they have the ids after the vocabulary's last.
    strangers: Strangers,
    pub(super) options: Options,
    bytes: Option<Box<[Option<u32>; 256]>>,
    seams: Option<Seams>,
    wholes: Wholes,
}

#[derive(Debug, Default)]
struct Strangers {
    texts: Vec<Box<str>>,
    ids: HashMap<Box<str>, u32>,
}

/// BPE settings of a file besides its merges.
#[derive(Debug, Default)]
pub(super) struct Options {
    /// The token for characters that have none.
    pub(super) unknown: Option<u32>,
    /// True if a run of unknown characters becomes one token (`fuse_unk`).
    pub(super) fuse: bool,
    /// True if unknown characters become byte tokens if the vocabulary has those (`byte_fallback`).
    pub(super) bytes: bool,
    /// True if a word that is a token is used without merging (`ignore_merges`).
    pub(super) words_first: bool,
    /// Prefix of every character that does not start a word (`continuing_subword_prefix`).
    pub(super) inner: String,
    /// Suffix of a word's last character (`end_of_word_suffix`).
    pub(super) last: String,
    pub(super) dialect: Dialect,
}

/// Interpretation of irregular merge lists.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// A merge of pieces that are not tokens is an error; of two equal merges the later wins.
    #[default]
    TokenizerJson,
    /// Such pieces may be intermediate steps to tokens; of two equal merges the earlier wins.
    Gguf,
}

/// An invalid merge.
#[derive(Debug)]
pub(super) struct BadMerge {
    pub(super) at: usize,
    pub(super) why: String,
}

impl Bpe {
    /// `merges` are in rank order.
    pub(super) fn new<'a>(
        vocab: &Vocab,
        merges: impl Iterator<Item = (&'a str, &'a str)>,
        options: Options,
    ) -> Result<Bpe, BadMerge> {
        let mut bpe = Bpe {
            merges: HashMap::with_capacity(merges.size_hint().1.unwrap_or_default()),
            strangers: Strangers::default(),
            bytes: options.bytes.then(|| vocab.bytes()),
            seams: None,
            wholes: Wholes::new(vocab.len()),
            options,
        };
        let mut joined = String::new();
        for (at, (left, right)) in merges.enumerate() {
            let Some(end) = right.strip_prefix(bpe.options.inner.as_str()) else {
                let why = format!("{right:?} does not start with {:?}", bpe.options.inner);
                return Err(BadMerge { at, why });
            };
            joined.clear();
            joined.extend([left, end]);
            let pieces = [left, right, joined.as_str()].map(|text| bpe.piece(vocab, text));
            let [Ok(left), Ok(right), Ok(new)] = pieces else {
                let why = pieces.into_iter().find_map(Result::err).unwrap_or_default();
                return Err(BadMerge { at, why });
            };
            if vocab.is_silent(new) {
                continue;
            }
            let merge = (at as u32, new);
            match bpe.options.dialect {
                Dialect::TokenizerJson => _ = bpe.merges.insert((left, right), merge),
                Dialect::Gguf => _ = bpe.merges.entry((left, right)).or_insert(merge),
            }
        }
        if bpe.options.inner.is_empty() && bpe.options.last.is_empty() && vocab.id("▁").is_some() {
            let strangers = bpe.strangers.texts.iter().map(|text| &**text);
            bpe.seams = Some(Seams::of(vocab.iter().map(|(_, text)| text).chain(strangers)));
        }
        Ok(bpe)
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// True if every text becomes tokens, none of which stands for more bytes than its own text has.
    pub(super) fn takes_all(&self, vocab: &Vocab) -> bool {
        let bytes = || (0..=255).all(|byte| vocab.spoken(char_of(byte).encode_utf8(&mut [0; 4])).is_some());
        let Options { unknown, fuse, .. } = &self.options;
        let byte_tokens = self.bytes.as_ref().is_some_and(|bytes| bytes.iter().all(Option::is_some));
        byte_tokens || (unknown.is_some() && !fuse) || bytes()
    }

    fn piece(&mut self, vocab: &Vocab, text: &str) -> Result<u32, String> {
        if let Some(id) = vocab.id(text) {
            return Ok(id);
        }
        if self.options.dialect == Dialect::TokenizerJson {
            return Err(format!("{:?} is not in the vocabulary", super::shorten(text)));
        }
        if let Some(id) = self.strangers.ids.get(text) {
            return Ok(*id);
        }
        let id = (vocab.len() + self.strangers.texts.len()) as u32;
        self.strangers.texts.push(text.into());
        self.strangers.ids.insert(text.into(), id);
        Ok(id)
    }

    /// Appends a word's tokens to `out`.
    pub(super) fn add(&self, vocab: &Vocab, word: &str, row: &mut Row<u32>, out: &mut Vec<u32>) {
        match &self.seams {
            Some(seams) => seams.cut(word, |part| self.add_part(vocab, part, row, out)),
            None => self.add_part(vocab, word, row, out),
        }
    }

    fn add_part(&self, vocab: &Vocab, word: &str, row: &mut Row<u32>, out: &mut Vec<u32>) {
        match vocab.spoken(word) {
            Some(id) if self.options.words_first => out.push(id),
            Some(id) => self.wholes.add(id, out, |out| self.join(vocab, word, row, out)),
            None => self.join(vocab, word, row, out),
        }
    }

    fn join(&self, vocab: &Vocab, word: &str, row: &mut Row<u32>, out: &mut Vec<u32>) {
        if row.recall(word, out) {
            return;
        }
        let from = out.len();
        row.clear();
        self.spell(vocab, word, row);
        row.join(|left, right| self.merges.get(&(left, right)).copied());
        for id in row.symbols() {
            match self.strangers.texts.get((id as usize).wrapping_sub(vocab.len())) {
                None => out.push(id),
                // A piece that did not become a token is split into its characters.
                Some(text) => {
                    out.extend(text.chars().filter_map(|c| vocab.spoken(c.encode_utf8(&mut [0; 4]))))
                }
            }
        }
        row.remember(word, from, out);
    }

    /// The initial symbols of a word, one for each character, before any merge.
    fn spell(&self, vocab: &Vocab, word: &str, row: &mut Row<u32>) {
        let Options { inner, last, unknown, fuse, .. } = &self.options;
        let plain = inner.is_empty() && last.is_empty();
        let mut written = String::new();
        // An unknown character is held back so that the next one can be fused with it.
        let mut waiting = None;
        for (at, c) in word.char_indices() {
            let buffer = &mut [0; 4];
            let mut text: &str = c.encode_utf8(buffer);
            if !plain {
                let is_last = at + text.len() == word.len();
                written.clear();
                written.extend([if at > 0 { inner } else { "" }, text, if is_last { last } else { "" }]);
                text = &written;
            }
            if let Some(id) = vocab.spoken(text).or_else(|| self.strangers.ids.get(text).copied()) {
                waiting.take().into_iter().for_each(|unknown| row.push(unknown));
                row.push(id);
            } else if let Some(ids) = self.byte_tokens(text) {
                ids.for_each(|id| row.push(id));
            } else if let Some(unknown) = unknown
                && let Some(before) = waiting.replace(*unknown)
                && !fuse
            {
                row.push(before);
            }
        }
        waiting.into_iter().for_each(|unknown| row.push(unknown));
    }

    /// The byte tokens of a text, if each of its bytes has one.
    fn byte_tokens(&self, text: &str) -> Option<impl Iterator<Item = u32>> {
        let bytes = self.bytes.as_ref()?;
        let ids = || text.bytes().map(|b| bytes[b as usize]);
        ids().all(|id| id.is_some()).then(|| ids().flatten())
    }
}
