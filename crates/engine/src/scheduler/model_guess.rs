//! [`ModelGuess`]: the draft model's guess for a sequence, and [`DraftModelRecord`]: what is learned from all of them.

use std::ops::Range;

use super::MOST_DRAFTED;
use super::accuracy::Accuracy;

/// Share of the time that goes into trials: guesses of one token where none is expected to pay.
const TRIALS: f32 = 0.01;
/// Most time that is saved up for trials, in steps.
const MOST_SAVED: f32 = 4.0;

/// Learned from the draft model's guesses in all sequences.
#[derive(Debug, Default)]
pub(super) struct DraftModelRecord {
    /// Estimate that a new sequence begins with: a model that is no good is not tried anew in each.
    accuracy: Accuracy,
    pub(super) trials: Trials,
}

/// Budget of trials: a share of the time.
#[derive(Debug, Default)]
pub(super) struct Trials {
    saved: f32,
}

impl DraftModelRecord {
    pub(super) fn new_guess(&self) -> ModelGuess {
        ModelGuess { accuracy: self.accuracy, ..ModelGuess::default() }
    }
}

impl Trials {
    /// Saves some of a step's cost for trials.
    pub(super) fn save(&mut self, step: f32) {
        self.saved = (self.saved + TRIALS * step).min(MOST_SAVED * step);
    }

    /// True if enough is saved for a trial.
    pub(super) fn can_pay(&self, cost: f32) -> bool {
        self.saved >= cost
    }

    /// Takes the cost of a trial from what is saved, if that is enough.
    pub(super) fn pay(&mut self, cost: f32) -> bool {
        let enough = self.can_pay(cost);
        if enough {
            self.saved -= cost;
        }
        enough
    }
}

/// What a step of the draft model or the MTP layer made of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guess {
    /// The most likely next token.
    Token(u32),
    /// Its tokens were computed, and no guess was asked for.
    Computed,
    /// Nothing: what it would have read is not there.
    Lost,
}

/// A draft model's or an MTP layer's guess for a sequence.
#[derive(Debug, Default)]
pub(super) struct ModelGuess {
    /// Tokens guessed to follow.
    pub(super) guess: Vec<u32>,
    /// Length of the guess that is being made.
    pub(super) wanted: usize,
    pub(super) accuracy: Accuracy,
    /// Tokens whose K and V the draft model has computed, guessed ones among them.
    pub(super) computed: usize,
    /// Pages that the pool knows to have its K and V.
    pages: usize,
    /// Tokens whose hidden states the model has computed.
    pub(super) seen: usize,
    /// True if hidden states are gone that an MTP layer has not read. It guesses nothing for the sequence any more.
    pub(super) lost: bool,
}

impl ModelGuess {
    /// Starts behind a prefix, of which `pages` have the draft model's K and V.
    pub(super) fn start(&mut self, pages: usize, page_len: usize) {
        self.forget();
        (self.computed, self.pages, self.seen) = (pages * page_len, pages, pages * page_len);
    }

    /// Forgets what was computed: the pages were given back.
    pub(super) fn forget(&mut self) {
        (self.computed, self.pages, self.wanted) = (0, 0, 0);
        (self.seen, self.lost) = (0, false);
        self.guess.clear();
    }

    /// A step of the model has computed these tokens. Hidden states of a step are there until the next one.
    pub(super) fn saw(&mut self, tokens: Range<usize>) {
        self.lost |= self.computed < tokens.start;
        self.seen = tokens.end;
    }

    /// Length of its next guess, at most `most`: as many tokens as are likely enough.
    pub(super) fn plan(&mut self, needed: &dyn Fn(usize) -> f32, most: usize) -> usize {
        self.guess.clear();
        self.wanted = self.accuracy.likely(needed, most.min(MOST_DRAFTED));
        self.wanted
    }

    /// Tokens that its next guess is expected to bring beyond those that pay for it.
    pub(super) fn gain(&self, needed: &dyn Fn(usize) -> f32) -> f32 {
        (1..=self.wanted).map(|n| self.accuracy.all_right(n) - needed(n)).sum()
    }

    /// The first tokens of the guess.
    pub(super) fn draft(&self, most: usize) -> &[u32] {
        &self.guess[..self.guess.len().min(most)]
    }

    /// Compares the guess with the tokens that followed. What was computed after a wrong one does not count.
    pub(super) fn learn(&mut self, sampled: &[u32], computed: usize, record: &mut DraftModelRecord) {
        self.accuracy.learn(&self.guess, sampled);
        record.accuracy.learn(&self.guess, sampled);
        self.guess.clear();
        self.computed = self.computed.min(computed);
    }

    /// The pages that the draft model has filled since the last call, by their index in the sequence.
    pub(super) fn new_pages(&mut self, page_len: usize) -> Range<usize> {
        let before = std::mem::replace(&mut self.pages, self.computed / page_len);
        before..self.pages
    }
}
