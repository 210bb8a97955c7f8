//! [`PromptLookup`]: drafts tokens of an answer by what followed the same n-gram before (prompt lookup decoding).
//!
//! Code that is edited, text that is quoted and structures that repeat have long stretches of the prompt in the answer.
//! Where the last tokens occurred before, the tokens that followed them are guessed. A step computes the guesses with
//! the last token, and those that sampling chooses are kept: the answer is the same as without drafts.
//!
//! Where an answer departs from the text that it copies, the next n-grams occur nowhere. Most edits replace a token by
//! another, so the guess goes on as far behind as before; the next n-gram that is found sets that right. How often such guesses
//! are right is another question, and known by itself.
//!
//! A guess that is not computed is compared with the answer too. So how often guesses are right is known at no cost, and
//! a draft is made only where it is expected to pay.

use std::collections::HashMap;

use super::MOST_DRAFTED;
use super::accuracy::Accuracy;
use super::draft_lengths::Guesses;

/// Tokens that must match before anything is guessed: fewer match by chance.
const NGRAM: usize = 3;

/// Index of a sequence's n-grams, and how often guesses were right.
#[derive(Debug, Default)]
pub(super) struct PromptLookup {
    /// End of the last occurrence of each n-gram.
    ends: HashMap<[u32; NGRAM], u32>,
    /// Tokens indexed so far. The n-gram at the very end is left out, or it would find itself.
    indexed: usize,
    /// How far behind the end the tokens are that are guessed to follow it: since the last n-gram that was found.
    behind: Option<usize>,
    /// Tokens guessed to follow.
    guess: Vec<u32>,
    /// True if the last tokens occurred before.
    by_ngram: bool,
    accuracy: Accuracy,
    /// Of guesses that go on where no n-gram is found.
    going_on: Accuracy,
}

impl PromptLookup {
    /// Guesses the tokens that follow, at most `most` to be computed.
    pub(super) fn guess(&mut self, tokens: &[u32], most: usize) -> Guesses {
        while self.indexed + 1 < tokens.len() {
            self.indexed += 1;
            if let Some(ngram) = tokens[..self.indexed].last_chunk() {
                self.ends.insert(*ngram, self.indexed as u32);
            }
        }
        let found = tokens.last_chunk().and_then(|ngram: &[u32; NGRAM]| self.ends.get(ngram));
        self.by_ngram = found.is_some();
        self.behind = found.map(|end| tokens.len() - *end as usize).or(self.behind);
        let following = self.behind.map_or(&[][..], |behind| &tokens[tokens.len() - behind..]);
        self.guess = following[..following.len().min(MOST_DRAFTED)].to_vec();
        let accuracy = if self.by_ngram { self.accuracy } else { self.going_on };
        Guesses { count: self.guess.len().min(most), accuracy }
    }

    /// The first `count` tokens of the guess.
    pub(super) fn draft(&self, count: usize) -> &[u32] {
        &self.guess[..count.min(self.guess.len())]
    }

    /// Compares the guess with the tokens that followed.
    pub(super) fn learn(&mut self, sampled: &[u32]) {
        let accuracy = if self.by_ngram { &mut self.accuracy } else { &mut self.going_on };
        accuracy.learn(&self.guess, sampled);
        self.guess.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_the_same_tokens_is_guessed() {
        let mut lookup = PromptLookup::default();
        assert_eq!(lookup.guess(&[1, 2, 3, 4, 5, 6, 9, 2, 3, 4], 8).count, 6);
        assert_eq!(lookup.guess, [5, 6, 9, 2, 3, 4]);
        assert_eq!((lookup.draft(2), lookup.draft(0)), (&[5, 6][..], &[][..]));
        // The newest occurrence counts, and the n-gram at the end is none.
        assert_eq!(lookup.guess(&[1, 2, 3, 4, 5, 6, 9, 2, 3, 4, 7, 2, 3, 4], 3).count, 3);
        assert_eq!(lookup.guess, [7, 2, 3, 4]);
        // As far behind as before where a token is another one.
        assert_eq!(lookup.guess(&[1, 2, 3, 4, 5, 6, 9, 2, 3, 4, 7, 2, 3, 4, 8], 8).count, 4);
        assert_eq!(lookup.guess, [2, 3, 4, 8]);
        // Too short for an n-gram.
        let mut lookup = PromptLookup::default();
        assert_eq!(lookup.guess(&[], 8).count + lookup.guess(&[1, 1], 8).count, 0);
    }

    /// A copy in which one token in six is another one: each guess but those of these is right, at once after them too.
    #[test]
    fn a_guess_goes_on_after_a_token_that_was_replaced() {
        let prompt: Vec<u32> = (0..60).collect();
        let answer = prompt.iter().map(|token| if token % 6 == 5 { token + 1000 } else { *token });
        let (mut lookup, mut tokens) = (PromptLookup::default(), prompt.clone());
        let mut right = Vec::new();
        for next in answer {
            lookup.guess(&tokens, 8);
            right.push(lookup.draft(1) == [next]);
            lookup.learn(&[next]);
            tokens.push(next);
        }
        // Nothing is found before the first three tokens.
        let expected: Vec<bool> = (0..60).map(|at| at >= 3 && at % 6 != 5).collect();
        assert_eq!(right, expected);
        // What is right after a replaced token is no less likely then.
        assert!(lookup.going_on.all_right(1) > 0.6, "{lookup:?}");
    }

    /// Also from guesses that were not computed.
    #[test]
    fn how_often_guesses_are_right_is_learned() {
        let mut lookup = PromptLookup::default();
        let tokens: Vec<u32> = (0..20).chain(0..4).collect();
        let mut right = |learn: &[u32]| {
            let accuracy = lookup.guess(&tokens, 0).accuracy.all_right(1);
            lookup.learn(learn);
            accuracy
        };
        assert_eq!(right(&[4, 5, 6, 7]), 0.5);
        for _ in 0..10 {
            right(&[4, 5, 6, 7]);
        }
        assert!(right(&[9]) > 0.95);
        for _ in 0..20 {
            right(&[9]);
        }
        assert!(right(&[4]) < 0.05);
    }
}
