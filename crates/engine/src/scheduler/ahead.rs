//! A step that is launched ahead: before the tokens that it computes are read from the device, which takes them from the
//! step that has sampled them (vLLM's async scheduling).

use super::seq::Seq;
use super::{Batch, DraftModelCost, LogitsRows, Scheduler};

impl Scheduler {
    /// The step after `running`, which is under way ([`advance`](Self::advance)), as if nobody ended but those that reach their
    /// maximum length with it. `None` where it depends on what `running` samples, or on who ends: where a sequence is to be
    /// admitted, where drafts are worth it, or where memory is short.
    pub fn next_ahead(&mut self, running: &Batch) -> Option<Batch> {
        let page_len = self.pool.page_len();
        let drafts = self.limits.drafts;
        // Each sequence has two rows in any case. Beside the third there must be some for snapshots.
        let has_rows = !self.pool.has_states() || self.pool.state_rows() >= 4 * self.limits.slots;
        let may_guess = |model: DraftModelCost| !model.mtp || self.running.iter().any(Seq::has_mtp);
        let has_draft_model = drafts.and_then(|drafts| drafts.model).is_some_and(may_guess);
        if !has_rows || has_draft_model || self.will_admit() {
            return None;
        }
        let count = self.running.len();
        let room = self.decode_budget(count).saturating_sub(count);
        let will_draft = match drafts {
            Some(_) => !self.draft_lengths(count, room).each.is_empty(),
            // Asking for shares would take turns at them.
            None => self.has_forced(),
        };
        if will_draft {
            return None;
        }
        // Their order has not changed, but some may have gone.
        let mut places = running.parts.iter().enumerate();
        let (mut going, mut pages) = (Vec::with_capacity(count), 0);
        for (at, seq) in self.running.iter_mut().enumerate() {
            let (follows, part) = places.find(|(_, part)| part.id == seq.id)?;
            let samples = part.logits == LogitsRows::Last && part.drafted == 0;
            if !samples || seq.left() > 0 || seq.will_encode() {
                return None;
            }
            if seq.tokens.len() + 1 < seq.most {
                pages += seq.pages(page_len).saturating_sub(seq.blocks.len());
                going.push((at, follows));
            }
        }
        let rows = if self.pool.has_states() { going.len() } else { 0 };
        if going.is_empty() || pages > self.pool.available() || rows > self.pool.available_states() {
            return None;
        }
        let mut parts = Vec::with_capacity(going.len());
        for (at, follows) in going {
            let seq = &mut self.running[at];
            seq.blocks.extend((seq.blocks.len()..seq.pages(page_len)).map_while(|_| self.pool.take()));
            if self.pool.has_swa() {
                seq.swa.extend(seq.tokens.len() + 1, &mut self.pool);
            }
            if self.pool.has_states() {
                seq.ahead_state = self.pool.take_state();
            }
            parts.push(seq.part_ahead(follows, page_len));
        }
        Some(Batch { parts })
    }

    /// The step that was launched ahead is not run, because the one before it has failed.
    pub fn drop_ahead(&mut self) {
        for seq in &mut self.running {
            seq.ahead_state.take().into_iter().for_each(|row| self.pool.give_back_state(row));
        }
    }
}
