//! [`BlockPool`]: which sequences use which pages of the KV cache, and what the pages hold.
//!
//! Host bookkeeping only; nothing here touches a tensor. A full page whose tokens are computed is *published* under the
//! page before it and its own tokens; a later sequence with the same prefix shares the page (prefix caching). Keys are
//! compared in full, so a hash collision cannot leak one user's cache to another.
//!
//! Pages with the cross-attention K and V of an encoder input are published under its digest: the encoder is
//! bidirectional, so that they depend on all of the input, and either all of them are found or none counts.
//!
//! In a model with recurrent state, pages are of use only up to one with a snapshot of the state after it: a row of the
//! states that no step writes again.
//!
//! Sliding-window layers may have pages of their own. Those that no window of a sequence reaches any more are given back; a
//! full one stays attached to the published page of the same tokens until another sequence needs its memory. A prefix is of
//! use up to where all pages that the window of the next token reaches are still there.

use std::collections::{BTreeMap, HashMap};

use tallow_core::PageTable;

use crate::encoder_input::InputDigest;

mod attached;

use attached::AttachedPool;
pub use attached::{SlidingWindow, StateRow, SwaPage};

/// Page of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

impl Extend<BlockId> for PageTable {
    fn extend<I: IntoIterator<Item = BlockId>>(&mut self, blocks: I) {
        self.extend(blocks.into_iter().map(|block| block.0));
    }
}

impl FromIterator<BlockId> for PageTable {
    fn from_iter<I: IntoIterator<Item = BlockId>>(blocks: I) -> PageTable {
        blocks.into_iter().map(|block| block.0).collect()
    }
}

/// Parent of a page: the published page before it, or the start of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chain(u64);

impl Chain {
    /// Start of sequences without a salt, which share their pages with each other.
    pub const ROOT: Chain = Chain(0);

    /// Parent of pages with cross-attention K and V.
    const INPUT: Chain = Chain(1 << 62);

    /// Start of sequences that share pages only with those of the same salt.
    pub fn salted(salt: u64) -> Chain {
        // Published pages count up from 1 and never reach bits 62 and 63.
        Chain(salt | 1 << 63)
    }
}

/// Content of a published page: its prefix and its tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Content {
    after: Chain,
    tokens: Box<[u32]>,
}

impl Content {
    /// Content of a page of cross-attention K and V: instead of tokens, the digest of the encoder input and the page's
    /// index.
    fn of_input(InputDigest([a, b, c, d]): InputDigest, page: u32) -> Content {
        Content { after: Chain::INPUT, tokens: Box::new([a, b, c, d, page]) }
    }
}

#[derive(Debug, Default)]
struct Block {
    /// Sequences that use it (reference count).
    users: u32,
    /// Its content, and the chain of what follows it, once published.
    published: Option<(Content, Chain)>,
    /// Snapshot of the recurrent state after the page; only of published pages.
    state: Option<StateRow>,
    /// The sliding-window layers' page of the same tokens; only of published pages.
    swa: Option<SwaPage>,
    /// True if a draft model's K and V of its tokens are in it too.
    draft_kv: bool,
    /// When it became idle; its key in `idle`, for LRU eviction.
    returned: u64,
}

/// Pages of the cache that a sequence begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// The pages, in order.
    pub blocks: Vec<BlockId>,
    /// Chain after the last page; `None` if there are none.
    pub end: Option<Chain>,
    /// Snapshot of the recurrent state after the last page, in a model that has any.
    pub state: Option<StateRow>,
    /// The last pages of the sliding-window layers, as many as the window of the next token reaches; none if these layers have
    /// no pages of their own.
    pub swa: Vec<SwaPage>,
    /// Number of published pages with the prefix; more than `blocks` if there is no snapshot after the last ones, or not all
    /// that a window reaches.
    pub published: usize,
}

/// Result of publishing a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The page that is found from now on: the published one, or that of another sequence with the same content.
    pub block: BlockId,
    /// Chain of what follows it.
    pub chain: Chain,
}

/// A page that was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewPage {
    pub(crate) block: BlockId,
    /// Its parent.
    pub(crate) after: Chain,
    /// Chain of what follows it.
    pub(crate) chain: Chain,
    pub(crate) tokens: Box<[u32]>,
}

/// A snapshot of the recurrent state after a published page, which no other is to replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewState {
    pub(crate) block: BlockId,
    pub(crate) row: StateRow,
    /// Chain of what follows the page.
    pub(crate) chain: Chain,
    /// Tokens of the page.
    pub(crate) tokens: Box<[u32]>,
}

/// Changes since changes were last taken.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Pages that were published, in order.
    pub(crate) published: Vec<NewPage>,
    /// Snapshots that have settled, in order; each after a page that was published before.
    pub(crate) settled: Vec<NewState>,
    /// Chains after pages that were evicted. They may have been published since, too.
    pub(crate) evicted: Vec<Chain>,
}

/// Owner of all pages.
#[derive(Debug)]
pub struct BlockPool {
    page_len: usize,
    blocks: Vec<Block>,
    /// Free pages with no cached content.
    free: Vec<BlockId>,
    /// Pages that no sequence uses but that hold cached tokens, least recently used first.
    idle: BTreeMap<u64, BlockId>,
    index: HashMap<Content, BlockId>,
    returns: u64,
    chains: u64,
    states: AttachedPool<StateRow>,
    swa: AttachedPool<SwaPage>,
    window: SlidingWindow,
    /// Recorded for each cache tier.
    changes: Vec<Changes>,
}

impl BlockPool {
    /// `count` pages of `page_len` tokens, for a model without recurrent state.
    pub fn new(count: usize, page_len: usize) -> BlockPool {
        BlockPool::with_states(count, page_len, 0)
    }

    /// `count` pages of `page_len` tokens, and rows of recurrent states: none for a model without, else two for each
    /// running sequence and more for snapshots.
    pub fn with_states(count: usize, page_len: usize, state_rows: usize) -> BlockPool {
        let count = count.min(u32::MAX as usize);
        BlockPool {
            states: AttachedPool::new(state_rows, state_rows / 4),
            swa: AttachedPool::new(0, 0),
            window: SlidingWindow::new(1),
            page_len,
            blocks: (0..count).map(|_| Block::default()).collect(),
            free: (0..count as u32).rev().map(BlockId).collect(),
            idle: BTreeMap::new(),
            index: HashMap::new(),
            returns: 0,
            chains: 0,
            changes: Vec::new(),
        }
    }

    /// Adds pages of the sliding-window layers.
    pub fn with_swa(self, pages: usize, window: SlidingWindow) -> BlockPool {
        BlockPool { swa: AttachedPool::new(pages, 0), window, ..self }
    }

    /// Records which pages are published and evicted from now on. Returns the number of the record, of which
    /// [`take_changes`](Self::take_changes) is to be called after each step.
    pub(crate) fn record_changes(&mut self) -> usize {
        self.changes.push(Changes::default());
        self.changes.len() - 1
    }

    /// Changes since the last call, in that record.
    pub(crate) fn take_changes(&mut self, record: usize) -> Changes {
        self.changes.get_mut(record).map(std::mem::take).unwrap_or_default()
    }

    /// The least recently used idle page that became idle after that time, and the time when it did: the pages of a cache tier
    /// that looks at each of them once. 0: the first.
    pub(crate) fn idle_after(&self, returned: u64) -> Option<(u64, BlockId)> {
        self.idle.range(returned.saturating_add(1)..).next().map(|(returned, id)| (*returned, *id))
    }

    /// True if so many pages at least would be evicted or taken free before one that became idle at that time; counts no more of
    /// them.
    pub(crate) fn is_behind(&self, returned: u64, pages: usize) -> bool {
        let idle = pages.saturating_sub(self.free.len());
        self.idle.range(..returned).take(idle).count() >= idle
    }

    /// A published page as it was recorded when it was published.
    pub(crate) fn published(&self, id: BlockId) -> Option<NewPage> {
        let (content, chain) = self.blocks[id.0 as usize].published.as_ref()?;
        Some(NewPage { block: id, after: content.after, chain: *chain, tokens: content.tokens.clone() })
    }

    /// True if a page still holds what was published with that chain behind it.
    pub(crate) fn holds(&self, id: BlockId, chain: Chain) -> bool {
        self.blocks[id.0 as usize].published.as_ref().is_some_and(|(_, after)| *after == chain)
    }

    /// True if a page still holds what was published with that chain behind it, with that row as the snapshot after it.
    pub(crate) fn holds_state(&self, id: BlockId, chain: Chain, row: StateRow) -> bool {
        self.holds(id, chain) && self.blocks[id.0 as usize].state == Some(row)
    }

    /// Tokens per page.
    pub fn page_len(&self) -> usize {
        self.page_len
    }

    /// Number of pages.
    pub fn count(&self) -> usize {
        self.blocks.len()
    }

    /// Pages that can be allocated: free or evictable.
    pub fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Pages in use by sequences.
    pub fn in_use(&self) -> usize {
        self.count().saturating_sub(self.available())
    }

    /// Longest published prefix of `tokens` after `root` that a sequence can go on from. In a model with recurrent state it
    /// ends after a page with a snapshot; with pages of sliding-window layers, where all are there that a window reaches.
    pub fn find(&self, root: Chain, tokens: &[u32]) -> Prefix {
        let mut pages = self.find_pages(root, tokens);
        let (published, of) = (pages.len(), |id: BlockId| &self.blocks[id.0 as usize]);
        // Pages of the sliding-window layers up to each, without a gap.
        let mut run = 0;
        let runs = pages.iter().map(|(id, _)| {
            run = if of(*id).swa.is_some() { run + 1 } else { 0 };
            run
        });
        let runs: Vec<usize> = if self.has_swa() { runs.collect() } else { Vec::new() };
        let reached = |len: usize| len - self.first_reached(len * self.page_len);
        let is_end = |last: usize| {
            let has_state = !self.has_states() || of(pages[last].0).state.is_some();
            has_state && (!self.has_swa() || runs[last] >= reached(last + 1))
        };
        let len = (0..published).rev().find(|last| is_end(*last)).map_or(0, |last| last + 1);
        pages.truncate(len);
        let swa = if self.has_swa() { &pages[len - reached(len)..] } else { &[] };
        let swa = swa.iter().filter_map(|(id, _)| of(*id).swa).collect();
        let (end, state) = pages.last().map_or((None, None), |(id, chain)| (Some(*chain), of(*id).state));
        Prefix { blocks: pages.into_iter().map(|(id, _)| id).collect(), end, state, swa, published }
    }

    /// Published pages with which `tokens` begin, and the chain after each, whether there is a snapshot or not.
    pub(crate) fn find_pages(&self, root: Chain, tokens: &[u32]) -> Vec<(BlockId, Chain)> {
        let mut after = root;
        let page = |page: &[u32]| {
            let id = *self.index.get(&Content { after, tokens: page.into() })?;
            after = self.blocks[id.0 as usize].published.as_ref()?.1;
            Some((id, after))
        };
        tokens.chunks_exact(self.page_len).map_while(page).collect()
    }

    /// Number of these pages that are idle, so that lending them makes fewer available.
    pub fn idle_among(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().filter(|b| self.blocks[b.0 as usize].users == 0).count()
    }

    /// Lends a cached page to one more sequence.
    pub fn lend(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        if block.users == 0 {
            self.idle.remove(&block.returned);
        }
        block.users += 1;
    }

    /// Allocates a page: a free one, or else the least recently used idle page, which is evicted.
    pub fn take(&mut self) -> Option<BlockId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                let (_, id) = self.idle.pop_first()?;
                let block = &mut self.blocks[id.0 as usize];
                if let Some((content, chain)) = block.published.take() {
                    self.index.remove(&content);
                    self.changes.iter_mut().for_each(|changes| changes.evicted.push(chain));
                }
                if let Some(row) = block.state.take() {
                    self.states.detach(row);
                }
                if let Some(swa) = block.swa.take() {
                    self.swa.detach(swa);
                }
                id
            }
        };
        let block = &mut self.blocks[id.0 as usize];
        (block.users, block.draft_kv) = (1, false);
        Some(id)
    }

    /// Records that a page holds the draft model's K and V too, of all its tokens.
    pub(crate) fn set_draft_kv(&mut self, id: BlockId) {
        self.blocks[id.0 as usize].draft_kv = true;
    }

    /// True if no sequence has the page: it is as the last one left it.
    pub(crate) fn is_idle(&self, id: BlockId) -> bool {
        self.blocks[id.0 as usize].users == 0
    }

    /// Number of these pages, from the first on, that hold the draft model's K and V too.
    pub(crate) fn with_draft_kv(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().take_while(|id| self.blocks[id.0 as usize].draft_kv).count()
    }

    /// Pages with the cross-attention K and V of an encoder input, if all of them are published.
    pub fn find_input(&self, input: &InputDigest, pages: usize) -> Option<Vec<BlockId>> {
        (0..pages as u32).map(|page| self.index.get(&Content::of_input(*input, page)).copied()).collect()
    }

    /// Publishes all pages with the cross-attention K and V of an encoder input.
    pub fn publish_input(&mut self, input: &InputDigest, blocks: impl IntoIterator<Item = BlockId>) {
        for (page, id) in (0..).zip(blocks) {
            self.publish_content(id, Content::of_input(*input, page));
        }
    }

    /// Publishes a page that holds `tokens`, computed after `after`.
    pub fn publish(&mut self, id: BlockId, after: Chain, tokens: &[u32]) -> Published {
        let published = self.publish_content(id, Content { after, tokens: tokens.into() });
        // Otherwise it is the page of another sequence, which was published before.
        if published.block == id {
            for changes in &mut self.changes {
                let new = NewPage { block: id, after, chain: published.chain, tokens: tokens.into() };
                changes.published.push(new);
            }
        }
        published
    }

    fn publish_content(&mut self, id: BlockId, content: Content) -> Published {
        if let Some(twin) = self.index.get(&content)
            && let Some((_, chain)) = &self.blocks[twin.0 as usize].published
        {
            // Another sequence published the same content first: its page stays the indexed one.
            return Published { block: *twin, chain: *chain };
        }
        self.chains += 1;
        let chain = Chain(self.chains);
        self.index.insert(content.clone(), id);
        self.blocks[id.0 as usize].published = Some((content, chain));
        Published { block: id, chain }
    }

    /// Frees a sequence's pages. The last ones are evicted first: they are of no use without the pages before them.
    pub fn give_back(&mut self, blocks: &[BlockId]) {
        for id in blocks.iter().rev() {
            let block = &mut self.blocks[id.0 as usize];
            block.users = block.users.saturating_sub(1);
            if block.users > 0 {
                continue;
            }
            if block.published.is_some() {
                self.returns += 1;
                block.returned = self.returns;
                self.idle.insert(self.returns, *id);
            } else {
                self.free.push(*id);
            }
        }
    }

    /// With no sequence in the scheduler: checks that all pages are available and all idle pages indexed. O(1), by
    /// counts only; [`check`](Self::check) looks at every page.
    pub fn at_rest(&self) -> Result<(), String> {
        let (count, available) = (self.count(), self.available());
        let (idle, indexed) = (self.idle.len(), self.index.len());
        match (available == count, idle == indexed) {
            (true, true) => self.states.at_rest().and_then(|()| self.swa.at_rest()),
            (false, _) => Err(format!("nobody uses any page, and {available} of {count} can be had")),
            (_, false) => Err(format!("{idle} pages hold something, and {indexed} are indexed")),
        }
    }

    /// Checks that every page, and every row of recurrent states, is in exactly one state. `held`: the pages of all
    /// sequences, once per use; `states`: their rows; `swa`: their pages of sliding-window layers.
    pub fn check(
        &self,
        held: impl IntoIterator<Item = BlockId>,
        states: impl IntoIterator<Item = StateRow>,
        swa: impl IntoIterator<Item = SwaPage>,
    ) -> Result<(), String> {
        let blocks = || (0..).map(BlockId).zip(&self.blocks);
        self.states.check(states, blocks().filter_map(|(id, block)| Some((id, block.state?))))?;
        self.swa.check(swa, blocks().filter_map(|(id, block)| Some((id, block.swa?))))?;
        let mut users = vec![0u32; self.count()];
        held.into_iter().for_each(|id| users[id.0 as usize] += 1);
        let mut places = vec![0u32; self.count()];
        self.free.iter().chain(self.idle.values()).for_each(|id| places[id.0 as usize] += 1);
        for (i, block) in self.blocks.iter().enumerate() {
            if block.users != users[i] {
                return Err(format!("page {i} counts {} users and has {}", block.users, users[i]));
            }
            let want = u32::from(block.users == 0);
            if places[i] != want {
                return Err(format!("page {i} has {} users and stands in {} lists", block.users, places[i]));
            }
            if let Some((content, _)) = &block.published
                && self.index.get(content) != Some(&BlockId(i as u32))
            {
                return Err(format!("page {i} is published and cannot be found"));
            }
        }
        let published = self.blocks.iter().filter(|b| b.published.is_some()).count();
        match published == self.index.len() {
            true => Ok(()),
            false => Err(format!("{published} pages are published and {} are indexed", self.index.len())),
        }
    }
}
