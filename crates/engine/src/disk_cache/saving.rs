//! Copies published pages and states from the device, and has them written.

use tallow_core::{Backend, Error};

use super::DiskCache;
use super::files::Save;
use super::index::{Index, lock};
use super::key::RecordName;
use super::transfer::Transfer;
use crate::block_pool::{BlockId, BlockPool, Chain, StateRow};
use crate::runner::Runner;

/// A published page, or a snapshot of the state after one, that is not saved yet.
#[derive(Debug)]
pub(super) struct Unsaved {
    /// The page.
    pub(super) block: BlockId,
    pub(super) chain: Chain,
    /// The snapshot.
    pub(super) row: Option<StateRow>,
    pub(super) name: RecordName,
    /// Whether it is a page that sequences begin with.
    pub(super) is_first: bool,
}

impl Unsaved {
    /// Whether it has not been evicted.
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
                let whole = self.transfer.content.len();
                let (_, bytes) = self.transfer.next(&[whole], budget);
                runner.read_page(self.of.block, &mut self.transfer.content[bytes])
            }
            Some(row) => {
                let (parts, bytes) = self.transfer.next(state_parts, budget);
                runner.read_state(row, parts, &mut self.transfer.content[bytes])
            }
        }
    }
}

impl DiskCache {
    /// Copies pages and states from the device, up to so many bytes, and has them written. A state may take several calls: what
    /// holds a snapshot does not change, and if it is evicted meanwhile it is not saved.
    pub(super) fn save<B: Backend>(&mut self, runner: &Runner<B>, pool: &BlockPool, mut budget: usize) {
        while budget > 0 && !self.is_broken {
            let Some(mut saving) = self.saving.take().or_else(|| self.begin_save(pool)) else { return };
            let is_there = saving.of.is_in(pool);
            let copied = if is_there { saving.copy(runner, &self.state_parts, &mut budget) } else { Ok(()) };
            if copied.is_err() || !is_there {
                lock(&self.index).drop_queued(&saving.of.name.key);
            } else if saving.transfer.is_done() {
                self.files.save(Save { name: saving.of.name, content: saving.transfer.content });
            } else {
                self.saving = Some(saving);
            }
            if let Err(why) = copied {
                self.give_up(&why.to_string());
            }
        }
    }

    /// The next to be saved, if there is room for it among those that are to be written.
    fn begin_save(&mut self, pool: &BlockPool) -> Option<Saving> {
        while let Some(bytes) = self.next_save()
            && self.files.has_room(bytes)
            && let Some(of) = self.unsaved.pop_front()
        {
            // A page without the one before it would never be found, nor a state without its page.
            let name = &of.name;
            let is_new = |index: &Index| !index.has(&name.key) && (of.is_first || index.has(&name.after));
            if of.is_in(pool) && lock(&self.index).queue_if(name.key, is_new) {
                return Some(Saving { of, transfer: Transfer::new(vec![0; bytes]) });
            }
        }
        None
    }

    /// Bytes of the next to be saved.
    pub(super) fn next_save(&self) -> Option<usize> {
        self.unsaved.front().map(|next| self.shape.content(next.name.kind))
    }
}
