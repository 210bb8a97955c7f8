//! Drafts by a smaller model (`--draft`): which tokens it computes, and when its guesses are worth their cost.
//!
//! The draft model has K and V of its own in the same pages: those of a page's tokens are at the same place in both. So
//! it needs no scheduler: it reads and writes the pages that sequences have anyway. It may be behind: before it guesses,
//! it computes the tokens that it has not seen, a chunk of a long prompt in each step. The pool knows which pages have its
//! K and V of all tokens; a prefix that lacks them costs the draft model some time, and nothing else. What is wrong in
//! them makes guesses wrong, never an answer.

use std::time::Duration;

use super::accuracy::Accuracy;
use super::seq::Seq;
use super::{Batch, BatchPart, DraftCosts, DraftModelCost, Guess, LogitsRows, Scheduler};
use crate::block_pool::BlockId;

/// Tokens that an answer is expected to go on for: a prompt that the draft model has not seen must pay within them.
const AHEAD: usize = 64;

impl Seq {
    /// Part of the draft model's first step: the tokens that it has not seen, or the first `most` of them; then its guess
    /// comes later.
    fn draft_part(&mut self, most: usize, page_len: usize) -> Option<BatchPart> {
        let model = self.model.as_mut()?;
        let behind = self.tokens.len() - model.computed;
        let tokens = &self.tokens[model.computed..][..behind.min(most)];
        let (start, tokens, guesses) = (model.computed, tokens.to_vec(), behind <= most);
        if !guesses {
            model.wanted = 0;
        }
        Some(self.part_of(tokens, start, if guesses { LogitsRows::Last } else { LogitsRows::None }, page_len))
    }

    /// Takes the result of a step of the draft model or the MTP layer, and returns its part of the next one, if its guess is to
    /// be longer.
    fn guessed(&mut self, computed: usize, guess: Guess, mtp: bool, page_len: usize) -> Option<BatchPart> {
        let model = self.model.as_mut()?;
        model.lost |= guess == Guess::Lost;
        // What an MTP layer computes from its own hidden states is computed again from the model's.
        if guess != Guess::Lost && (!mtp || model.guess.is_empty()) {
            model.computed = computed;
        }
        let Guess::Token(token) = guess else { return None };
        model.guess.push(token);
        (model.guess.len() < model.wanted)
            .then(|| self.part_of(vec![token], computed, LogitsRows::Last, page_len))
    }

    /// A part with tokens that the draft model or the MTP layer computes.
    pub(super) fn part_of(
        &self,
        tokens: Vec<u32>,
        start: usize,
        logits: LogitsRows,
        page_len: usize,
    ) -> BatchPart {
        let blocks = self.blocks.first((start + tokens.len()).div_ceil(page_len));
        BatchPart { start, ..BatchPart::new(self.id, tokens, blocks, logits) }
    }
}

/// Number of sequences for which the draft model guesses a token: those left if each pays for its share of a step of
/// that many.
pub(super) fn guessing(open: &[Option<Accuracy>], needed: impl Fn(usize) -> f32) -> usize {
    let mut some = open.iter().flatten().count();
    while some > 0 {
        let likely = open.iter().flatten().filter(|accuracy| accuracy.all_right(1) > needed(some)).count();
        if likely >= some {
            break;
        }
        some = likely;
    }
    some
}

impl Scheduler {
    /// Batch of the draft model or the MTP layer, before the next step's; `None` if it has nothing to compute. Its result goes to
    /// [`guessed`](Self::guessed).
    pub fn draft_batch(&mut self) -> Option<Batch> {
        let costs = self.limits.drafts?;
        let model = costs.model?;
        match model.mtp {
            true => self.mtp_batch(&costs, &model),
            false => self.draft_model_batch(&costs, &model),
        }
    }

    /// True if all that the next step computes are the newest tokens of sequences, so that they may have drafts.
    pub(super) fn only_decodes(&self) -> bool {
        let may_start = !self.waiting.is_empty() && self.running.len() < self.limits.slots;
        !may_start && self.running.iter().all(Seq::decodes)
    }

    /// Accuracy of the guesses for each sequence for which there may be some, and for which prompt lookup has none.
    pub(super) fn open_to_guess(&mut self) -> Vec<Option<Accuracy>> {
        let mtp = self.has_mtp();
        let rows = self.running.iter().map(Seq::left).sum();
        let by_lookup = self.draft_lengths(rows, self.decode_budget(rows).saturating_sub(rows));
        let accuracy = |(at, seq): (usize, &Seq)| {
            let model = seq.model.as_ref().filter(|model| !(mtp && model.lost));
            model.filter(|_| by_lookup.of(at) == 0).map(|model| model.accuracy)
        };
        self.running.iter().enumerate().map(accuracy).collect()
    }

    /// Batch of the draft model: of each sequence the tokens that it has not seen. `None` if nothing is to be guessed.
    ///
    /// A token that the draft model guesses costs a step of that model and a place in the step that checks it. Where no guess
    /// is expected to pay, a small share of the time goes into trials, which must pay for the tokens that the draft model
    /// has not seen, too.
    fn draft_model_batch(&mut self, costs: &DraftCosts, model: &DraftModelCost) -> Option<Batch> {
        self.preempt_for_room();
        if !self.only_decodes() {
            return None;
        }
        let (count, page_len, has_states) =
            (self.running.len(), self.pool.page_len(), self.pool.has_states());
        let open = self.open_to_guess();
        let guessing = guessing(&open, |some| costs.of_model_guess(model, count, some, 1, has_states));
        let by_model = |at| costs.of_model_guess(model, count, guessing.max(1), at, has_states);
        let left: usize = self.running.iter().map(Seq::left).sum();
        let chunk = self.decode_budget(left);
        let mut room = chunk.saturating_sub(left);
        let mut pages = self.pool.available().saturating_sub(count);
        let mut parts = Vec::new();
        self.draft_model.trials.save(costs.step.of(count, count));
        for (seq, _) in self.running.iter_mut().zip(&open).filter(|(_, open)| open.is_some()) {
            let context = model.context.saturating_sub(seq.tokens.len());
            let most = seq.draft_room(room, page_len, pages).min(context);
            let Some(guess) = &mut seq.model else { continue };
            let mut wanted = guess.plan(&by_model, most);
            let unseen = seq.tokens.len() - guess.computed;
            let gain = guess.gain(&by_model) * costs.step.of(count, count) / count as f32;
            let steps = seq.most.saturating_sub(seq.tokens.len()).min(AHEAD) as f32;
            if unseen > AHEAD && model.step.of(unseen) > gain * steps {
                wanted = 0;
            }
            if wanted == 0 {
                let cost = model.step.of(unseen.min(chunk));
                if most == 0 || by_model(1) >= 1.0 || !self.draft_model.trials.pay(cost) {
                    continue;
                }
                (wanted, guess.wanted) = (1, 1);
            }
            let need = (seq.tokens.len() + wanted).div_ceil(page_len);
            let taken = need.saturating_sub(seq.blocks.len());
            seq.blocks.extend((0..taken).map_while(|_| self.pool.take()));
            (room, pages) = (room - wanted, pages - taken);
            parts.extend(seq.draft_part(chunk, page_len));
        }
        (!parts.is_empty()).then_some(Batch { parts })
    }

    /// Takes what the draft model or the MTP layer made of its batch. Returns what it computes next.
    pub fn guessed(&mut self, batch: &Batch, guesses: &[Guess]) -> Option<Batch> {
        let page_len = self.pool.page_len();
        let mtp = self.has_mtp();
        self.read_ended(batch, guesses);
        let mut next = 0;
        let mut parts = Vec::new();
        for (part, guess) in batch.parts.iter().zip(guesses) {
            let Some(at) = self.place(part.id, next) else { continue };
            let computed = part.start + part.tokens.len();
            parts.extend(self.running[at].guessed(computed, *guess, mtp, page_len));
            next = at + 1;
        }
        (!parts.is_empty()).then_some(Batch { parts })
    }

    /// Learns how long a step of the draft model took.
    pub fn guess_took(&mut self, tokens: usize, time: Duration) {
        let model = self.limits.drafts.iter_mut().filter_map(|drafts| drafts.model.as_mut());
        model.for_each(|model| model.step.learn(tokens, time));
    }

    /// Has nothing guessed by the draft model any more.
    pub fn stop_draft_model(&mut self) {
        self.limits.drafts.iter_mut().for_each(|drafts| drafts.model = None);
    }

    /// Records which pages of a sequence the draft model has filled.
    pub(super) fn record_draft_kv(&mut self, at: usize) {
        let page_len = self.pool.page_len();
        let seq = &mut self.running[at];
        let Some(model) = &mut seq.model else { return };
        for page in model.new_pages(page_len) {
            self.pool.set_draft_kv(BlockId(seq.blocks[page]));
        }
    }
}
