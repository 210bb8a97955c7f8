//! Comparison of lists of tokens by their text, although it is divided in other places.

use super::decode::Stage;
use super::{Model, Tokenizer};

impl Tokenizer {
    /// The longest beginnings of two lists with the same text, as numbers of tokens. Both lists go on from the same
    /// place in a text.
    ///
    /// Only tokens of plain text are compared by their bytes. All others, such as special tokens, match only themselves,
    /// and never text that is spelled like them.
    pub fn same_text(
        &self,
        a: impl IntoIterator<Item = u32>,
        b: impl IntoIterator<Item = u32>,
    ) -> (usize, usize) {
        let (mut a, mut b) = (a.into_iter(), b.into_iter());
        let (mut a_taken, mut b_taken, mut same) = (0, 0, (0, 0));
        // Bytes that one list is ahead of the other, and whether that one is `a`.
        let (mut lead, mut a_leads) = (Vec::new(), false);
        loop {
            let next = if lead.is_empty() {
                same = (a_taken, b_taken);
                let (Some(of_a), Some(of_b)) = (a.next(), b.next()) else { return same };
                (a_taken, b_taken) = (a_taken + 1, b_taken + 1);
                if of_a == of_b {
                    continue;
                }
                let Some(bytes) = self.plain_bytes(of_a) else { return same };
                (lead, a_leads) = (bytes, true);
                Some(of_b)
            } else if a_leads {
                b_taken += 1;
                b.next()
            } else {
                a_taken += 1;
                a.next()
            };
            let Some(bytes) = next.and_then(|id| self.plain_bytes(id)) else { return same };
            let common = lead.len().min(bytes.len());
            if lead[..common] != bytes[..common] {
                return same;
            }
            match bytes.len() > common {
                true => (lead, a_leads) = (bytes[common..].to_vec(), !a_leads),
                false => drop(lead.drain(..common)),
            }
        }
    }

    /// The bytes of a token of plain text; there is at least one.
    fn plain_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let parts = &*self.parts;
        let is_plain = Stage::add_bytes(&parts.stages)
            && parts.added.get(id).is_none()
            && !parts.vocab.is_silent(id)
            && !self.ends_generation(id)
            && ![parts.bos, parts.eos, parts.model.unknown()].contains(&Some(id));
        self.token_bytes(id).filter(|bytes| is_plain && !bytes.is_empty())
    }
}

impl Model {
    /// The token of text that has no other.
    fn unknown(&self) -> Option<u32> {
        match self {
            Model::Bpe(bpe) => bpe.options.unknown,
            Model::Spm(spm) => spm.unknown,
            Model::Unigram(unigram) => unigram.unknown,
            Model::WordPiece(pieces) => pieces.unknown,
            Model::WordLevel { unknown } => *unknown,
        }
    }
}
