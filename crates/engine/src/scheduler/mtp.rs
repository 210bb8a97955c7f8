//! Drafts by the model's MTP layer: which rows it computes, and when its guesses are worth their cost.
//!
//! For each position the layer reads the model's hidden state and the token that follows. Hidden states are there until the next
//! step of the model, so it computes the rows of each step at once, those of prompts too, and for the next turn the last ones of
//! a sequence that has ended. A sequence of which it has missed any has no guesses of it any more: one whose prefix was computed
//! without the layer, or whose guesses cost more than they bring. What is wrong in its K and V makes guesses wrong, never an
//! answer.

use super::draft_model::guessing;
use super::seq::Seq;
use super::{Batch, BatchPart, DraftCosts, DraftModelCost, Guess, LogitsRows, Scheduler};
use crate::block_pool::BlockId;

/// Most that rows without a guess may cost, as a share of the model's step.
const KEEPS_UP: f32 = 0.02;

impl Seq {
    /// True if the MTP layer has read all of its hidden states so far.
    pub(super) fn has_mtp(&self) -> bool {
        self.model.as_ref().is_some_and(|model| !model.lost)
    }

    /// Positions whose hidden states the MTP layer is to read, and whose next tokens are known.
    pub(super) fn unread(&self) -> usize {
        let seen = |seen: usize| seen.min(self.tokens.len() - 1);
        self.model.as_ref().map_or(0, |model| seen(model.seen).saturating_sub(model.computed))
    }

    /// Part of the MTP layer's step: the positions that it has not read.
    fn mtp_part(&self, page_len: usize) -> Option<BatchPart> {
        let model = self.model.as_ref()?;
        let (start, unread) = (model.computed, self.unread());
        let logits = if model.wanted > 0 { LogitsRows::Last } else { LogitsRows::None };
        let tokens = self.tokens[start + 1..][..unread].to_vec();
        (unread > 0).then(|| self.part_of(tokens, start, logits, page_len))
    }
}

impl Scheduler {
    /// True if there is an MTP layer that drafts.
    pub(super) fn has_mtp(&self) -> bool {
        self.limits.drafts.and_then(|drafts| drafts.model).is_some_and(|model| model.mtp)
    }

    /// Records which pages of sequences that have ended the layer has filled: the next turn goes on from them.
    pub(super) fn read_ended(&mut self, batch: &Batch, guesses: &[Guess]) {
        let page_len = self.pool.page_len();
        for mut seq in std::mem::take(&mut self.ended) {
            let part = batch.parts.iter().zip(guesses).find(|(part, _)| part.id == seq.id);
            let (Some((part, Guess::Computed)), Some(model)) = (part, &mut seq.model) else { continue };
            model.computed = part.start + part.tokens.len();
            // Others may have taken pages meanwhile.
            let filled = model.new_pages(page_len).map(|page| BlockId(seq.blocks[page]));
            for page in filled {
                if self.pool.is_idle(page) {
                    self.pool.set_draft_kv(page);
                }
            }
        }
    }

    /// Batch of the MTP layer: of each sequence the positions that the last step of the model has computed.
    pub(super) fn mtp_batch(&mut self, costs: &DraftCosts, model: &DraftModelCost) -> Option<Batch> {
        let page_len = self.pool.page_len();
        // Before anybody else takes their pages.
        let ended = self.ended.iter_mut().filter_map(|seq| {
            seq.model.iter_mut().for_each(|model| model.wanted = 0);
            seq.mtp_part(page_len)
        });
        let mut parts: Vec<BatchPart> = ended.collect();
        self.preempt_for_room();
        let (count, again) = (self.running.len(), self.pool.has_states());
        // Prompt lookup is asked only where that matters: its guess costs time.
        let may_guess = self.only_decodes() && self.running.iter().any(Seq::has_mtp);
        let open = if may_guess { self.open_to_guess() } else { vec![None; count] };
        let guessing = guessing(&open, |some| costs.of_model_guess(model, count, some, 1, again));
        let by_model = |at| costs.of_model_guess(model, count, guessing.max(1), at, again);
        let left: usize = self.running.iter().map(Seq::left).sum();
        let mut room = self.decode_budget(left).saturating_sub(left);
        let mut pages = self.pool.available().saturating_sub(count);
        // However right its guesses, they may not pay.
        let may_pay = costs.of_model_guess(model, count, count, 1, again) < 1.0;
        self.draft_model.trials.save(costs.step.of(count, count));
        for (seq, open) in self.running.iter_mut().zip(open) {
            let (unread, context) = (seq.unread(), model.context.saturating_sub(seq.tokens.len()));
            let most = seq.draft_room(room, page_len, pages).min(context);
            let Some(guess) = seq.model.as_mut().filter(|guess| !guess.lost) else { continue };
            let mut wanted = guess.plan(&by_model, if open.is_some() { most } else { 0 });
            let cost = model.step.of(unread);
            let is_open = open.is_some() && wanted == 0;
            if is_open && may_pay && most > 0 && self.draft_model.trials.pay(cost) {
                (wanted, guess.wanted) = (1, 1);
            }
            let keeps_up = wanted > 0 || !is_open || cost <= KEEPS_UP * costs.step.of(count, count);
            if !may_pay || !keeps_up {
                guess.lost = true;
                continue;
            }
            let need = (seq.tokens.len() + wanted).div_ceil(page_len);
            let taken = need.saturating_sub(seq.blocks.len());
            seq.blocks.extend((0..taken).map_while(|_| self.pool.take()));
            (room, pages) = (room - wanted, pages - taken);
            parts.extend(seq.mtp_part(page_len));
        }
        (!parts.is_empty()).then_some(Batch { parts })
    }
}
