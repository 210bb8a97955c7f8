//! Copies published pages and states from the device, and has them kept.

use std::sync::atomic::Ordering;
use std::time::Instant;

use tallow_core::{Backend, Error};

use super::index::{Index, lock};
use super::key::{Kind, RecordName};
use super::store_thread::{PAUSE, Save};
use super::transfer::Transfer;
use super::{CacheTier, Medium, memory};
use crate::block_pool::{BlockId, BlockPool, Chain, StateRow};
use crate::runner::Runner;

/// Most pages that are copied to a full RAM cache before they have to be: so many are evicted between two steps with long
/// prompts, and each keeps a page out that is nowhere else.
const AHEAD: usize = 512;

/// A published page, or a snapshot of the state after one, that is not saved yet.
#[derive(Debug)]
pub(super) struct Unsaved {
    /// The page.
    pub(super) block: BlockId,
    pub(super) chain: Chain,
    /// The snapshot.
    pub(super) row: Option<StateRow>,
    pub(super) name: RecordName,
    /// True if it is a page that sequences begin with.
    pub(super) is_first: bool,
}

impl Unsaved {
    /// True if it has not been evicted.
    fn is_in(&self, pool: &BlockPool) -> bool {
        match self.row {
            None => pool.holds(self.block, self.chain),
            Some(row) => pool.holds_state(self.block, self.chain, row),
        }
    }
}

/// One that is being copied from the device.
#[derive(Debug)]
pub(super) struct Saving {
    of: Unsaved,
    content: Vec<u8>,
    transfer: Transfer,
}

impl Saving {
    /// Copies as many parts as the budget allows.
    fn copy<B: Backend>(
        &mut self,
        runner: &Runner<B>,
        state_parts: &[usize],
        budget: &mut usize,
    ) -> Result<(), Error> {
        match self.of.row {
            None => {
                let (_, bytes) = self.transfer.next(&[self.content.len()], budget);
                runner.read_page(self.of.block, &mut self.content[bytes])
            }
            Some(row) => {
                let (parts, bytes) = self.transfer.next(state_parts, budget);
                runner.read_state(row, parts, &mut self.content[bytes])
            }
        }
    }
}

impl CacheTier {
    /// Copies pages and states from the device, up to so many bytes, and has them saved. A state may take several calls: what
    /// holds a snapshot does not change, and if it is evicted meanwhile it is not saved.
    pub(super) fn save<B: Backend>(&mut self, runner: &Runner<B>, pool: &BlockPool, mut budget: usize) {
        while budget > 0 && !self.is_broken {
            let Some(mut saving) = self.saving.take().or_else(|| self.begin_save(pool)) else { return };
            let is_there = saving.of.is_in(pool);
            let copied = if is_there { saving.copy(runner, &self.state_parts, &mut budget) } else { Ok(()) };
            if copied.is_err() || !is_there {
                lock(&self.index).drop_queued(&saving.of.name.key);
            } else if saving.transfer.is_done() {
                self.thread.save(Save { name: saving.of.name, content: saving.content });
            } else {
                self.saving = Some(saving);
            }
            if let Err(why) = copied {
                self.give_up(&why.to_string());
            }
        }
    }

    /// True if anything can be saved now.
    pub(super) fn may_save(&self) -> bool {
        !self.is_broken && self.paused.is_none_or(|until| Instant::now() >= until)
    }

    /// The next to be saved, if there is room for it among those that wait for the store.
    fn begin_save(&mut self, pool: &BlockPool) -> Option<Saving> {
        while let Some(bytes) = self.next_save(pool)
            && self.thread.has_room(bytes)
            && let Some(of) = self.unsaved.pop_front()
        {
            // In files a page without the one before it would never be found, nor a state without its page. In RAM it may, as
            // long as that one is on the device.
            let name = &of.name;
            let is_found = |index: &Index| !self.medium.outlives() || of.is_first || index.has(&name.after);
            let is_new = |index: &Index| !index.has(&name.key) && is_found(index);
            if of.is_in(pool) && lock(&self.index).queue_if(name.key, is_new) {
                let Some(content) = zeros(bytes) else {
                    lock(&self.index).drop_queued(&name.key);
                    tracing::warn!("{}: there is no memory; no pages are saved for a minute", self.medium);
                    self.paused = Some(Instant::now() + PAUSE);
                    self.unsaved.clear();
                    return None;
                };
                return Some(Saving { of, content, transfer: Transfer::new(bytes) });
            }
        }
        None
    }

    /// Bytes of the next to be saved.
    pub(super) fn next_save(&mut self, pool: &BlockPool) -> Option<usize> {
        if self.unsaved.is_empty() {
            let idle = self.next_idle(pool);
            self.unsaved.extend(idle);
        }
        self.unsaved.front().map(|next| self.shape.content(next.name.kind))
    }

    /// The page that is evicted next of those that are not in RAM.
    fn next_idle(&mut self, pool: &BlockPool) -> Option<Unsaved> {
        while let Some((returned, block)) = self.at_risk(pool) {
            self.looked_at = returned;
            let Some(new) = pool.published(block) else { continue };
            // Others must not be saved.
            let Some(key) = self.chains.get(&new.chain) else { continue };
            if lock(&self.index).has(key) {
                continue;
            }
            let page = self.unsaved_page(new);
            if page.is_some() {
                return page;
            }
        }
        None
    }

    /// The next page that a RAM cache is to look at, and when it became idle. As long as there is room in RAM these are all idle
    /// pages; then those that are about to be evicted.
    pub(super) fn at_risk(&self, pool: &BlockPool) -> Option<(u64, BlockId)> {
        if self.medium != Medium::Ram || !self.may_save() {
            return None;
        }
        let page = memory::cost(self.shape, Kind::Page);
        let has_room = self.counts.bytes.load(Ordering::Relaxed) + page <= self.bytes;
        let ahead = AHEAD.min((self.bytes / page / 2) as usize);
        let next = pool.idle_after(self.looked_at);
        next.filter(|(returned, _)| has_room || !pool.is_behind(*returned, ahead))
    }
}

/// A buffer, if there is memory for it.
fn zeros(bytes: usize) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    content.try_reserve_exact(bytes).ok()?;
    content.resize(bytes, 0);
    Some(content)
}
