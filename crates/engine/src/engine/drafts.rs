//! Drafts of the next step: what constraints force, and what a draft model guesses.

use std::time::Instant;

use tallow_core::Backend;

use super::Engine;
use super::active::Active;
use crate::scheduler::Guess;
use crate::service;

impl<B: Backend> Engine<B> {
    /// Tells the scheduler of the tokens that constraints force.
    pub(super) fn force(&mut self) {
        let requests = &self.requests;
        if self.mask_threads.is_some() {
            self.scheduler.force(|id| requests.get(&id).map_or_else(Vec::new, Active::forced));
        }
    }

    /// Has the draft model, or the MTP layer, guess the tokens of the next step.
    pub(super) fn guess(&mut self) {
        let mut next = self.scheduler.draft_batch();
        while let Some(batch) = next {
            let began = Instant::now();
            next = match self.runner.guess(&batch) {
                Ok(guesses) => {
                    // A step that nothing is read from may still be under way.
                    if guesses.iter().any(|guess| matches!(guess, Guess::Token(_))) {
                        self.scheduler.guess_took(service::Batch::tokens(&batch), began.elapsed());
                    }
                    self.scheduler.guessed(&batch, &guesses)
                }
                Err(e) => {
                    // If the device is lost, the next step says so.
                    tracing::warn!("the draft model or MTP layer failed and is not used any more: {e}");
                    self.scheduler.stop_draft_model();
                    None
                }
            };
        }
    }
}
