//! [`Unigram`]: the segmentation of a word with the highest sum of token scores (Viterbi).

use super::trie::Trie;
use super::vocab::Vocab;
use super::{TokenizeError, shorten};

/// Maximum bytes of a token. Each position of a text costs up to this many steps.
pub(super) const LONGEST: usize = 1024;

/// Amount by which an unknown character's score is below the worst token's.
const UNKNOWN_PENALTY: f64 = 10.0;

/// Scores, and how characters without a token are handled.
#[derive(Debug)]
pub(super) struct Unigram {
    trie: Trie,
    scores: Vec<f64>,
    pub(super) unknown: Option<u32>,
    unknown_score: f64,
    bytes: Option<Box<[Option<u32>; 256]>>,
}

/// The best path to a position in the word.
#[derive(Debug, Clone, Copy)]
pub(super) struct Best {
    score: f64,
    from: u32,
    id: u32,
}

const NOWHERE: Best = Best { score: 0.0, from: u32::MAX, id: 0 };

impl Unigram {
    /// `scores` has one score for each id; `chosen` says which tokens a text may be split into. Unknown characters
    /// score [`UNKNOWN_PENALTY`] below `worst`.
    pub(super) fn new(
        vocab: &Vocab,
        scores: Vec<f64>,
        worst: f64,
        unknown: Option<u32>,
        chosen: impl Fn(u32) -> bool,
    ) -> Unigram {
        // Only ids that a lookup by text returns, which decides between tokens with equal text.
        let tokens = vocab.iter().filter(|(id, text)| chosen(*id) && vocab.spoken(text) == Some(*id));
        Unigram {
            trie: Trie::new(tokens.map(|(id, text)| (text, id))),
            scores,
            unknown,
            unknown_score: worst - UNKNOWN_PENALTY,
            bytes: None,
        }
    }

    /// Writes unknown text as byte tokens, if all its bytes have one.
    pub(super) fn with_bytes(self, vocab: &Vocab) -> Unigram {
        Unigram { bytes: Some(vocab.bytes()), ..self }
    }

    /// True if every text becomes tokens, none of which stands for more bytes than its own text has.
    pub(super) fn takes_all(&self) -> bool {
        self.bytes.as_ref().is_some_and(|bytes| bytes.iter().all(Option::is_some))
    }

    /// Appends a word's tokens to `out`.
    pub(super) fn add(
        &self,
        vocab: &Vocab,
        word: &str,
        best: &mut Vec<Best>,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        best.clear();
        best.resize(word.len() + 1, NOWHERE);
        for (at, c) in word.char_indices() {
            let score = best[at].score;
            let mut reach = |len: usize, id: u32, score: f64| {
                let there = &mut best[at + len];
                if there.from == NOWHERE.from || score > there.score {
                    *there = Best { score, from: at as u32, id };
                }
            };
            let mut known = false;
            for (len, id) in self.trie.prefixes(Trie::ROOT, &word[at..]) {
                reach(len, id, score + self.scores[id as usize]);
                known |= len == c.len_utf8();
            }
            if !known {
                let unknown =
                    self.unknown.ok_or_else(|| TokenizeError::NoUnknown { text: shorten(&word[at..]) })?;
                reach(c.len_utf8(), unknown, score + self.unknown_score);
            }
        }
        // Backtracks from the end; runs of unknown characters are fused.
        let start = out.len();
        let (mut end, mut unknown_end) = (word.len(), None);
        while end > 0 {
            let Best { from, id, .. } = best[end];
            let from = from as usize;
            if Some(id) == self.unknown {
                unknown_end = unknown_end.or(Some(end));
            } else {
                if let Some(end_of_unknown) = unknown_end.take() {
                    self.add_unknown(vocab, &word[end..end_of_unknown], out);
                }
                out.push(id);
            }
            end = from;
        }
        if let Some(end) = unknown_end {
            self.add_unknown(vocab, &word[..end], out);
        }
        out[start..].reverse();
        Ok(())
    }

    /// Appends the tokens of unknown text, in reverse order.
    fn add_unknown(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        let bytes = self.bytes.as_ref();
        let byte = |b: u8| bytes.and_then(|bytes| bytes[b as usize]);
        if let Some(id) = vocab.spoken(text) {
            out.push(id);
        } else if text.bytes().all(|b| byte(b).is_some()) {
            out.extend(text.bytes().rev().filter_map(byte));
        } else {
            out.extend(self.unknown);
        }
    }
}
