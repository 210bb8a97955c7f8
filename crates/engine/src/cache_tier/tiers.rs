//! [`CacheTiers`]: the cache tiers behind the KV cache, each slower and larger than the one before.

use std::sync::Arc;

use tallow_core::Backend;

use super::{CacheTier, Medium, TierCounts, TierError, TierSettings};
use crate::block_pool::BlockPool;
use crate::runner::Runner;
use crate::scheduler::{NewSeq, Scheduler, SeqId};

/// RAM before disk. Each has what was computed by itself: none looks at what another has, and none waits for another's pages to
/// be written. What is loaded from one is published in the KV cache, and so comes to the others, too.
#[derive(Debug, Default)]
pub(crate) struct CacheTiers {
    tiers: Vec<CacheTier>,
}

impl CacheTiers {
    /// Opens one more.
    pub(crate) fn open<B: Backend>(
        &mut self,
        settings: TierSettings,
        runner: &Runner<B>,
        scheduler: &mut Scheduler,
        counts: Arc<TierCounts>,
    ) -> Result<(), TierError> {
        let tier = CacheTier::open(settings, runner, scheduler, counts, self.tiers.len())?;
        let at = if tier.medium == Medium::Ram { 0 } else { self.tiers.len() };
        self.tiers.insert(at, tier);
        Ok(())
    }

    /// True if none has anything to do.
    pub(crate) fn is_idle(&self, pool: &BlockPool) -> bool {
        self.tiers.iter().all(|tier| tier.is_idle(pool))
    }

    /// True if any holds pages of the KV cache, and may hold a row of the recurrent states.
    pub(crate) fn holds_pages(&self) -> bool {
        self.tiers.iter().any(CacheTier::holds_pages)
    }

    /// Number of requests held back.
    pub(crate) fn held(&self) -> usize {
        self.tiers.iter().map(CacheTier::held).sum()
    }

    /// Takes a request whose prefix one of them has, and holds it back until the pages are loaded; returns it otherwise.
    /// `salt`: that of the request.
    pub(crate) fn hold(&mut self, new: NewSeq, salt: Option<&str>, pool: &BlockPool) -> Option<NewSeq> {
        self.tiers.iter_mut().for_each(|tier| tier.note_root(new.root, salt));
        hold_in(&mut self.tiers, new, pool)
    }

    /// Forgets a request that is held back.
    pub(crate) fn forget(&mut self, id: SeqId, pool: &mut BlockPool) {
        self.tiers.iter_mut().for_each(|tier| tier.forget(id, pool));
    }

    /// Goes on between two steps: loads pages, and gives away pages to be saved. Returns the requests that wait no longer.
    pub(crate) fn advance<B: Backend>(
        &mut self,
        runner: &Runner<B>,
        scheduler: &mut Scheduler,
    ) -> Vec<NewSeq> {
        let mut ready = Vec::new();
        for at in 0..self.tiers.len() {
            let Some((this, slower)) = self.tiers[at..].split_first_mut() else { break };
            for new in this.advance(runner, scheduler) {
                // A slower one may have more of its prefix.
                ready.extend(hold_in(slower, new, scheduler.pool()));
            }
        }
        ready
    }

    /// Has what is left saved, for a while, as the engine ends.
    pub(crate) fn close<B: Backend>(&mut self, runner: &Runner<B>, pool: &mut BlockPool) {
        self.tiers.iter_mut().for_each(|tier| tier.close(runner, pool));
        self.forget_all();
    }

    /// Forgets all of them, as when the device is lost: they have no pages to save.
    pub(crate) fn forget_all(&mut self) {
        self.tiers.clear();
    }
}

/// The first that has a request's prefix holds it back.
fn hold_in(tiers: &mut [CacheTier], new: NewSeq, pool: &BlockPool) -> Option<NewSeq> {
    tiers.iter_mut().try_fold(new, |new, tier| tier.hold(new, pool))
}
