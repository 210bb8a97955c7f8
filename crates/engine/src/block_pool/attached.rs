//! [`AttachedPool`]: memory of sequences that can be attached to published pages of the KV cache: recurrent states, and
//! pages of sliding-window layers.
//!
//! A step reads the state of a sequence from one row and writes the next one to another. So a row in use never changes,
//! and a snapshot of the state after a full page of the KV cache is a row that is not used again: nothing is copied. A
//! later sequence with the same prefix reads that row in its first step (prefix caching). Likewise with the pages of
//! sliding-window layers, once they are full.

use std::collections::BTreeMap;

use tallow_core::ops::ATTEND_TILE;

use super::{BlockId, BlockPool, NewState};

/// Row of the recurrent states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateRow(pub u32);

/// Page of the sliding-window layers' KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SwaPage(pub u32);

/// Sliding window of a model's layers, the longest if they differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Most tokens that a token attends to, itself included.
    pub tokens: usize,
    /// Tokens that are read together, from a multiple of it on.
    pub tile: usize,
}

impl SlidingWindow {
    /// A window of so many tokens.
    pub fn new(tokens: usize) -> SlidingWindow {
        SlidingWindow { tokens, tile: ATTEND_TILE }
    }

    /// The first page that is read for the token at `position`.
    fn first_page(self, position: usize, page_len: usize) -> usize {
        let first = (position + 1).saturating_sub(self.tokens);
        (first - first % self.tile.max(1)) / page_len.max(1)
    }

    /// Pages that are needed so that all sequences can run: those that `slots` sequences read, and those that the tokens of two
    /// steps fill, because the pages behind a window are given back only when a step is finished, and the next one is planned
    /// before.
    pub fn pages_needed(self, slots: usize, step: usize, page_len: usize) -> usize {
        let pages = |tokens: usize| tokens.div_ceil(page_len.max(1));
        slots
            .saturating_mul(pages(self.tokens.saturating_add(self.tile)).saturating_add(3))
            .saturating_add(pages(2 * step))
    }
}

/// Index of a row.
pub(crate) trait Index: Copy + PartialEq + std::fmt::Debug {
    /// Name of a row in messages.
    const NAME: &str;
    fn new(index: u32) -> Self;
    fn index(self) -> usize;
}

impl Index for StateRow {
    const NAME: &str = "state row";

    fn new(index: u32) -> StateRow {
        StateRow(index)
    }

    fn index(self) -> usize {
        self.0 as usize
    }
}

impl Index for SwaPage {
    const NAME: &str = "SWA page";

    fn new(index: u32) -> SwaPage {
        SwaPage(index)
    }

    fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug, Default)]
struct Row {
    /// Sequences that use it (reference count).
    users: u32,
    /// The published page that it is attached to.
    of: Option<BlockId>,
    /// True if rows that are not kept are evicted before it.
    kept: bool,
    /// When it became idle, for LRU eviction.
    returned: u64,
}

/// Owner of all rows.
#[derive(Debug)]
pub(crate) struct AttachedPool<I> {
    rows: Vec<Row>,
    /// Rows that hold nothing.
    free: Vec<I>,
    /// Attached rows that no sequence uses and that are not kept, least recently used first.
    idle: BTreeMap<u64, I>,
    /// The same for those that are kept.
    idle_kept: BTreeMap<u64, I>,
    /// So many idle rows that are not kept are evicted only after all others.
    left: usize,
    returns: u64,
}

impl<I: Index> AttachedPool<I> {
    /// `left`: of the rows that are not kept, so many are evicted only after all others.
    pub(crate) fn new(rows: usize, left: usize) -> AttachedPool<I> {
        let rows = rows.min(u32::MAX as usize);
        let free = (0..rows as u32).rev().map(I::new).collect();
        let rows = (0..rows).map(|_| Row::default()).collect();
        AttachedPool { rows, free, idle: BTreeMap::new(), idle_kept: BTreeMap::new(), left, returns: 0 }
    }

    /// Number of rows.
    pub(crate) fn count(&self) -> usize {
        self.rows.len()
    }

    /// Number of rows that can be allocated before one that is kept is evicted.
    pub(crate) fn spare(&self) -> usize {
        self.free.len() + self.idle.len().saturating_sub(self.left)
    }

    /// Number of rows that can be allocated: free or evictable.
    fn available(&self) -> usize {
        self.free.len() + self.idle.len() + self.idle_kept.len()
    }

    fn row(&mut self, id: I) -> &mut Row {
        &mut self.rows[id.index()]
    }

    /// The idle rows among which this one is, if it is idle.
    fn idle_like(&mut self, id: I) -> &mut BTreeMap<u64, I> {
        if self.rows[id.index()].kept { &mut self.idle_kept } else { &mut self.idle }
    }

    /// Allocates a row: a free one, or else the least recently used one that is attached, which is evicted; then also the
    /// page that it was attached to.
    pub(crate) fn take(&mut self) -> Option<(I, Option<BlockId>)> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                let is_kept = self.idle.len() <= self.left && !self.idle_kept.is_empty();
                let idle = if is_kept { &mut self.idle_kept } else { &mut self.idle };
                idle.pop_first()?.1
            }
        };
        let row = self.row(id);
        (row.users, row.kept) = (1, false);
        Some((id, row.of.take()))
    }

    /// Lends a row to one more sequence.
    pub(crate) fn lend(&mut self, id: I) {
        let Row { users, returned, .. } = *self.row(id);
        if users == 0 {
            self.idle_like(id).remove(&returned);
        }
        self.row(id).users += 1;
    }

    /// A sequence uses the row no more.
    pub(crate) fn give_back(&mut self, id: I) {
        self.returns += 1;
        let returned = self.returns;
        let row = self.row(id);
        row.users = row.users.saturating_sub(1);
        if row.users > 0 {
            return;
        }
        if row.of.is_some() {
            row.returned = returned;
            self.idle_like(id).insert(returned, id);
        } else {
            self.free.push(id);
        }
    }

    fn is_kept(&self, id: I) -> bool {
        self.rows[id.index()].kept
    }

    /// Keeps a row in use: rows that are not kept are evicted before it.
    pub(crate) fn keep(&mut self, id: I) {
        self.row(id).kept = true;
    }

    /// Attaches a row in use to a published page.
    pub(crate) fn attach(&mut self, id: I, page: BlockId) {
        self.row(id).of = Some(page);
    }

    /// The row is not attached any more.
    pub(crate) fn detach(&mut self, id: I) {
        let row = self.row(id);
        row.of = None;
        let Row { users, returned, .. } = *row;
        if users == 0 {
            self.idle_like(id).remove(&returned);
            self.free.push(id);
        }
    }

    /// With no sequence in the scheduler: checks that all rows can be allocated.
    pub(crate) fn at_rest(&self) -> Result<(), String> {
        let (count, available) = (self.count(), self.available());
        match available == count {
            true => Ok(()),
            false => Err(format!("nobody uses any {}, and {available} of {count} can be had", I::NAME)),
        }
    }

    /// Checks that every row is in exactly one state. `held`: the rows of all sequences, once per use. `attached`: those of
    /// all published pages.
    pub(crate) fn check(
        &self,
        held: impl IntoIterator<Item = I>,
        attached: impl IntoIterator<Item = (BlockId, I)>,
    ) -> Result<(), String> {
        let (mut users, mut of) = (vec![0u32; self.count()], vec![None; self.count()]);
        held.into_iter().for_each(|id| users[id.index()] += 1);
        attached.into_iter().for_each(|(page, id)| of[id.index()] = Some(page));
        let mut lists = vec![(0u32, 0u32); self.count()];
        self.free.iter().for_each(|id| lists[id.index()].0 += 1);
        self.idle.values().chain(self.idle_kept.values()).for_each(|id| lists[id.index()].1 += 1);
        for (i, row) in self.rows.iter().enumerate() {
            if (row.users, row.of) != (users[i], of[i]) {
                let (has, is) = (users[i], of[i]);
                return Err(format!(
                    "{} {i} is {row:?}, and has {has} users and is attached to {is:?}",
                    I::NAME
                ));
            }
            let want = match (row.users, row.of) {
                (0, None) => (1, 0),
                (0, Some(_)) => (0, 1),
                _ => (0, 0),
            };
            if lists[i] != want {
                let is = lists[i];
                return Err(format!("{} {i} stands in {is:?} lists and should in {want:?}", I::NAME));
            }
        }
        Ok(())
    }
}

/// Recurrent states and SWA pages, which are attached to published pages.
impl BlockPool {
    /// True if sliding-window layers have pages of their own.
    pub fn has_swa(&self) -> bool {
        self.swa.count() > 0
    }

    /// Number of pages of the sliding-window layers.
    pub fn swa_pages(&self) -> usize {
        self.swa.count()
    }

    /// The sliding window.
    pub fn window(&self) -> SlidingWindow {
        self.window
    }

    /// The first page of the sliding-window layers that is read for the token at `position`.
    pub(crate) fn first_reached(&self, position: usize) -> usize {
        self.window.first_page(position, self.page_len)
    }

    /// Allocates a page of the sliding-window layers: a free one, or else the least recently used attached one, which is
    /// evicted.
    pub fn take_swa(&mut self) -> Option<SwaPage> {
        let (swa, of) = self.swa.take()?;
        if let Some(page) = of {
            self.blocks[page.0 as usize].swa = None;
        }
        Some(swa)
    }

    /// Lends a page of the sliding-window layers to one more sequence.
    pub fn lend_swa(&mut self, swa: SwaPage) {
        self.swa.lend(swa);
    }

    /// A sequence uses the page of the sliding-window layers no more.
    pub fn give_back_swa(&mut self, swa: SwaPage) {
        self.swa.give_back(swa);
    }

    /// Keeps a page of the sliding-window layers, in use: it is evicted only after all that are not kept.
    pub fn keep_swa(&mut self, swa: SwaPage) {
        self.swa.keep(swa);
    }

    /// Attaches a full page of the sliding-window layers, in use, to the published page of the same tokens; not if that has one
    /// already.
    pub fn publish_swa(&mut self, page: BlockId, swa: SwaPage) {
        let block = &mut self.blocks[page.0 as usize];
        if block.published.is_some() && block.swa.is_none() {
            block.swa = Some(swa);
            self.swa.attach(swa, page);
        }
    }

    /// True if the model has recurrent state.
    pub fn has_states(&self) -> bool {
        self.states.count() > 0
    }

    /// Number of rows of recurrent states.
    pub fn state_rows(&self) -> usize {
        self.states.count()
    }

    /// Number of rows of recurrent states that can be allocated before a snapshot is evicted that is kept.
    pub fn spare_states(&self) -> usize {
        self.states.spare()
    }

    /// Number of rows of recurrent states that can be allocated: free or evictable.
    pub fn available_states(&self) -> usize {
        self.states.available()
    }

    /// Allocates a row for a recurrent state: a free one, or else a snapshot, which is evicted: the least recently used one that
    /// is not kept or, if these are a quarter of all rows or less, that is.
    pub fn take_state(&mut self) -> Option<StateRow> {
        let (row, after) = self.states.take()?;
        if let Some(page) = after {
            self.blocks[page.0 as usize].state = None;
        }
        Some(row)
    }

    /// Lends the snapshot after a page to one more sequence. It is kept from then on: where one prompt left another, more will.
    pub fn lend_state(&mut self, page: BlockId, row: StateRow) {
        self.states.lend(row);
        if !self.states.is_kept(row) {
            self.states.keep(row);
            self.settle_state(page, row);
        }
    }

    /// A sequence uses the row no more.
    pub fn give_back_state(&mut self, row: StateRow) {
        self.states.give_back(row);
    }

    /// Makes a row in use the snapshot after a published page. One that is `kept` is evicted after others, and takes their
    /// place. Returns whether it is the snapshot; not if there is one already.
    pub fn publish_state(&mut self, page: BlockId, row: StateRow, kept: bool) -> bool {
        if let Some(older) =
            self.blocks[page.0 as usize].state.filter(|older| kept && !self.states.is_kept(*older))
        {
            self.forget_state(page, older);
        }
        let block = &mut self.blocks[page.0 as usize];
        let is_new = block.published.is_some() && block.state.is_none();
        if is_new {
            block.state = Some(row);
            self.states.attach(row, page);
            if kept {
                self.states.keep(row);
            }
        }
        is_new
    }

    /// Says that no other snapshot is to replace the one after a page, if that is this row.
    pub(crate) fn settle_state(&mut self, page: BlockId, row: StateRow) {
        let block = &self.blocks[page.0 as usize];
        let Some((content, chain)) = block.published.as_ref().filter(|_| block.state == Some(row)) else {
            return;
        };
        for changes in &mut self.changes {
            let (chain, tokens) = (*chain, content.tokens.clone());
            changes.settled.push(NewState { block: page, row, chain, tokens });
        }
    }

    /// Removes the snapshot after a page, if it is that row.
    pub fn forget_state(&mut self, page: BlockId, row: StateRow) {
        if self.blocks[page.0 as usize].state.take_if(|state| *state == row).is_some() {
            self.states.detach(row);
        }
    }
}
