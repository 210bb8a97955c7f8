//! [`Spm`]: SentencePiece's BPE, which joins any two neighbours whose text is a token, best score first.

use super::merge::{Row, Seams, Wholes};
use super::vocab::Vocab;
use super::{TokenizeError, shorten};

/// A piece of a word: start and length.
pub(super) type Piece = (u32, u32);

/// Scores as ranks, and how text without a token is handled.
#[derive(Debug)]
pub(super) struct Spm {
    /// Rank of each token's score: the best has 0, equal scores have equal ranks.
    ranks: Vec<u32>,
    bytes: Box<[Option<u32>; 256]>,
    pub(super) unknown: Option<u32>,
    /// True if a run of unknown text becomes one token rather than one for each byte.
    fuse: bool,
    seams: Option<Seams>,
    wholes: Wholes,
    /// True if a word that is a token is used without merging.
    words_first: bool,
}

impl Spm {
    /// `scores` has one score for each id, none of them NaN.
    pub(super) fn new(vocab: &Vocab, scores: &[f32], unknown: Option<u32>) -> Spm {
        let mut sorted = scores.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        sorted.dedup();
        let rank = |score: &f32| sorted.partition_point(|other| other > score) as u32;
        let mut bytes = vocab.bytes();
        for (byte, id) in bytes.iter_mut().enumerate().take(128) {
            *id = id.or_else(|| vocab.id((byte as u8 as char).encode_utf8(&mut [0; 4])));
        }
        Spm {
            ranks: scores.iter().map(rank).collect(),
            bytes,
            unknown,
            fuse: false,
            words_first: false,
            seams: vocab.id("▁").map(|_| Seams::of(vocab.iter().map(|(_, text)| text))),
            wholes: Wholes::new(vocab.len()),
        }
    }

    /// Tiktoken's variant: the lower id merges first, and words that are tokens are used without merging.
    pub(super) fn of_ranks(vocab: &Vocab) -> Spm {
        Spm {
            ranks: (0..vocab.len() as u32).collect(),
            bytes: Box::new([None; 256]),
            unknown: None,
            fuse: false,
            seams: None,
            wholes: Wholes::new(0),
            words_first: true,
        }
    }

    /// True if every text becomes tokens, none of which stands for more bytes than its own text has.
    pub(super) fn takes_all(&self) -> bool {
        !self.fuse || self.bytes.iter().all(Option::is_some)
    }

    /// Fuses a run of unknown text into one token, as SentencePiece itself does.
    pub(super) fn fusing(self) -> Spm {
        Spm { fuse: true, ..self }
    }

    /// Appends a word's tokens to `out`.
    pub(super) fn add(
        &self,
        vocab: &Vocab,
        word: &str,
        row: &mut Row<Piece>,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        if self.words_first
            && let Some(id) = vocab.spoken(word)
        {
            out.push(id);
            return Ok(());
        }
        let Some(seams) = &self.seams else { return self.join(vocab, word, row, out) };
        let mut result = Ok(());
        seams.cut(word, |part| {
            let mut join = |out: &mut Vec<u32>| {
                let joined = self.join(vocab, part, row, out);
                if joined.is_err() {
                    result = joined;
                }
            };
            match vocab.spoken(part) {
                Some(id) => self.wholes.add(id, out, join),
                None => join(out),
            }
        });
        result
    }

    fn join(
        &self,
        vocab: &Vocab,
        word: &str,
        row: &mut Row<Piece>,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        let text = |(start, len): Piece| &word[start as usize..][..len as usize];
        if row.recall(word, out) {
            return Ok(());
        }
        let from = out.len();
        row.clear();
        word.char_indices().for_each(|(at, c)| row.push((at as u32, c.len_utf8() as u32)));
        row.join(|left, right| {
            let joined = (left.0, left.1 + right.1);
            let rank = self.ranks.get(vocab.spoken(text(joined))? as usize)?;
            Some((*rank, joined))
        });
        for piece in row.symbols() {
            let text = text(piece);
            if let Some(id) = vocab.spoken(text) {
                out.push(id);
                continue;
            }
            if self.fuse && text.bytes().any(|byte| self.bytes[byte as usize].is_none()) {
                let unknown = self.unknown.ok_or_else(|| TokenizeError::NoUnknown { text: shorten(text) })?;
                if out.last() != Some(&unknown) {
                    out.push(unknown);
                }
                continue;
            }
            for byte in text.bytes() {
                let id = self.bytes[byte as usize].or(self.unknown);
                out.push(id.ok_or_else(|| TokenizeError::NoUnknown { text: shorten(text) })?);
            }
        }
        // With `fuse` the tokens depend on the output before them, so the word is not cached.
        if !self.fuse {
            row.remember(word, from, out);
        }
        Ok(())
    }
}
