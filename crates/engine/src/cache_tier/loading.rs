//! Finds what of a request's prompt a tier has, and puts it in the KV cache.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::{Instant, SystemTime};

use tallow_core::Backend;

use super::index::lock;
use super::key::{Kind, RecordName};
use super::store_thread::Load;
use super::transfer::Transfer;
use super::{ALONE, BESIDE_STEPS, CacheTier, QUEUED, STALL, WAIT};
use crate::block_pool::{BlockId, BlockPool, Chain, Published, StateRow};
use crate::runner::Runner;
use crate::scheduler::NewSeq;

/// Pages of a request's prompt that a tier has and the KV cache has not.
#[derive(Debug)]
pub(super) struct Found {
    /// Pages of the KV cache before it.
    before: Vec<BlockId>,
    /// Chain after those.
    after: Chain,
    /// Pages in order; in a model with recurrent state, then the state after the last one.
    records: VecDeque<RecordName>,
    /// Tokens that it saves.
    tokens: usize,
    /// Tokens that were looked up.
    pub(super) asked: usize,
}

impl Found {
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// Pages on their way from the store, for the first of the requests held back.
#[derive(Debug)]
pub(super) struct Loading {
    /// Pages that are still to come, in order, and the state after the last one.
    records: VecDeque<RecordName>,
    contents: Receiver<Arc<Vec<u8>>>,
    /// Chain of the next page.
    after: Chain,
    /// Pages of the request so far. They are held until all are there, so that none is evicted meanwhile.
    blocks: Vec<BlockId>,
    state: Option<LoadingState>,
    /// Tokens that are found once the state is there.
    tokens: usize,
    /// When the last page came.
    progress: Instant,
}

/// State that is being copied to the device.
#[derive(Debug)]
struct LoadingState {
    row: StateRow,
    content: Arc<Vec<u8>>,
    transfer: Transfer,
}

impl Loading {
    fn is_done(&self) -> bool {
        self.records.is_empty() && self.state.is_none()
    }
}

impl CacheTier {
    /// Tokens of a request's whole pages that may be cached. The last token is always computed.
    fn usable<'a>(&self, new: &'a NewSeq) -> &'a [u32] {
        let page_len = self.shape.tokens;
        &new.tokens[..new.tokens.len().saturating_sub(1) / page_len * page_len]
    }

    /// Pages of a request's prompt that the tier has, if they reach further than those in the KV cache. In a model with recurrent state it
    /// ends after the last page with a saved state, and the pages before it may be in the KV cache or on disk. `spare`: pages
    /// of the KV cache that are left for others; without, room is not looked at.
    pub(super) fn find(&self, new: &NewSeq, pool: &BlockPool, spare: Option<usize>) -> Found {
        let (page_len, usable) = (self.shape.tokens, self.usable(new));
        let mut found =
            Found { before: Vec::new(), after: new.root, records: VecDeque::new(), tokens: 0, asked: 0 };
        let Some(mut after) = self.roots.get(&new.root).copied().filter(|_| !new.all_logits) else {
            return found;
        };
        let cached = pool.find(new.root, usable).blocks.len();
        let mut known = pool.find_pages(new.root, usable);
        found.asked = usable.len() - cached * page_len;
        let most = spare.map_or(usize::MAX, |spare| {
            let blocks: Vec<BlockId> = known.iter().map(|(block, _)| *block).collect();
            pool.available().saturating_sub(pool.idle_among(&blocks) + spare)
        });
        let (mut pages, mut state, mut end) = (Vec::new(), None, 0);
        let (mut index, now) = (lock(&self.index), SystemTime::now());
        for (i, tokens) in usable.chunks_exact(page_len).enumerate() {
            let page = self.keys.page_name(after, tokens.into());
            after = page.key;
            let is_known = i < known.len();
            // Pages in the KV cache are used, too: they are to stay on disk. In RAM they would keep others out that are nowhere
            // else.
            let is_saved = if is_known && !self.medium.outlives() {
                index.has(&page.key)
            } else {
                index.touch(&page.key, now)
            };
            if !is_known {
                if !is_saved || pages.len() == most {
                    break;
                }
                pages.push(page);
            }
            if self.shape.state.is_none() {
                end = i + 1;
                continue;
            }
            let name = self.keys.state_name(after, tokens.into());
            if index.touch(&name.key, now) {
                (state, end) = (Some(name), i + 1);
            }
        }
        if end > cached {
            pages.truncate(end.saturating_sub(known.len()));
            known.truncate(end);
            found.after = known.last().map_or(new.root, |(_, chain)| *chain);
            found.before = known.into_iter().map(|(block, _)| block).collect();
            found.records = pages.into_iter().chain(state).collect();
            found.tokens = (end - cached) * page_len;
        }
        found
    }

    /// Loads pages for the requests held back, one request at a time: the next may need the same.
    pub(super) fn load<B: Backend>(
        &mut self,
        runner: &Runner<B>,
        pool: &mut BlockPool,
        running: usize,
        is_alone: bool,
        ready: &mut Vec<NewSeq>,
    ) {
        let mut budget = if is_alone { ALONE } else { BESIDE_STEPS };
        while !self.held.is_empty() {
            if self.loading.is_none() && !self.begin_load(pool, running) {
                ready.extend(self.held.pop_front());
                continue;
            }
            // Waits only where no sequence runs and none is about to.
            let wait = is_alone && ready.is_empty();
            if !self.take_loaded(runner, pool, &mut budget, wait) {
                return;
            }
            // What could not be read is not found again. There may be an earlier state.
            if self.end_load(pool) {
                ready.extend(self.held.pop_front());
            }
        }
    }

    /// Has the pages of the first request held back read. Returns whether there are any to be read.
    pub(super) fn begin_load(&mut self, pool: &mut BlockPool, running: usize) -> bool {
        let Some(new) = self.held.front().filter(|_| !self.is_broken) else { return false };
        // Running sequences will need a page each.
        let found = self.find(new, pool, Some(running + 1));
        if found.is_empty() {
            return false;
        }
        let Found { before: blocks, after, records, tokens, .. } = found;
        blocks.iter().for_each(|block| pool.lend(*block));
        let (to, contents) = sync_channel((QUEUED / self.shape.page.max(1)).clamp(2, 256));
        self.thread.load(Load { records: records.iter().cloned().collect(), contents: to });
        let progress = Instant::now();
        self.loading = Some(Loading { records, contents, after, blocks, state: None, tokens, progress });
        true
    }

    /// Puts what was read in the KV cache. Returns whether no more comes.
    pub(super) fn take_loaded<B: Backend>(
        &mut self,
        runner: &Runner<B>,
        pool: &mut BlockPool,
        budget: &mut usize,
        wait: bool,
    ) -> bool {
        while let Some(loading) = self.loading.as_mut().filter(|loading| !loading.is_done()) {
            if *budget == 0 {
                return false;
            }
            if loading.state.is_some() {
                self.take_state(runner, pool, budget);
                continue;
            }
            let content = match loading.contents.try_recv() {
                Err(TryRecvError::Empty) if wait => match loading.contents.recv_timeout(WAIT) {
                    Err(RecvTimeoutError::Disconnected) => return true,
                    received => received.ok(),
                },
                Err(TryRecvError::Disconnected) => return true,
                received => received.ok(),
            };
            let Some(content) = content else {
                let stalls = loading.progress.elapsed() >= STALL;
                if stalls {
                    self.give_up("it does not answer");
                }
                return stalls;
            };
            loading.progress = Instant::now();
            let Some(name) = loading.records.pop_front() else { return true };
            match name.kind {
                Kind::State => {
                    let Some(row) = pool.take_state() else { return true };
                    loading.state =
                        Some(LoadingState { row, transfer: Transfer::new(content.len()), content });
                }
                Kind::Page => {
                    let Some(block) = pool.take() else { return true };
                    if let Err(why) = runner.write_page(block, &content) {
                        pool.give_back(&[block]);
                        self.give_up(&why.to_string());
                        return true;
                    }
                    let Published { chain, .. } = pool.publish(block, loading.after, &name.tokens);
                    loading.blocks.push(block);
                    loading.after = chain;
                    *budget = budget.saturating_sub(content.len());
                    if self.shape.state.is_none() {
                        self.counts.hits.fetch_add(name.tokens.len() as u64, Ordering::Relaxed);
                    }
                }
            }
        }
        true
    }

    /// Copies parts of the state that was read to the device; after the last one, publishes it.
    fn take_state<B: Backend>(&mut self, runner: &Runner<B>, pool: &mut BlockPool, budget: &mut usize) {
        let Some(loading) = &mut self.loading else { return };
        let Some(mut state) = loading.state.take() else { return };
        let (parts, bytes) = state.transfer.next(&self.state_parts, budget);
        if let Err(why) = runner.write_state(state.row, parts, &state.content[bytes]) {
            pool.give_back_state(state.row);
            return self.give_up(&why.to_string());
        }
        if !state.transfer.is_done() {
            loading.state = Some(state);
            return;
        }
        if let Some(page) = loading.blocks.last() {
            pool.publish_state(*page, state.row, true);
            self.counts.hits.fetch_add(loading.tokens as u64, Ordering::Relaxed);
        }
        pool.give_back_state(state.row);
    }

    /// Gives back the pages that were held for a request: now the scheduler finds them. Returns whether all came.
    pub(super) fn end_load(&mut self, pool: &mut BlockPool) -> bool {
        let Some(loading) = self.loading.take() else { return true };
        let is_done = loading.is_done();
        loading.state.iter().for_each(|state| pool.give_back_state(state.row));
        pool.give_back(&loading.blocks);
        is_done
    }
}
