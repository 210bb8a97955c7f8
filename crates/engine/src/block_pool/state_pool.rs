//! [`StatePool`]: which sequences use which rows of the recurrent states, and which rows hold snapshots.
//!
//! A step reads the state of a sequence from one row and writes the next one to another. So a row in use never changes,
//! and a snapshot of the state after a full page of the KV cache is a row that is not used again: nothing is copied. A
//! later sequence with the same prefix reads that row in its first step (prefix caching).

use std::collections::BTreeMap;

use super::BlockId;

/// Row of the recurrent states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateRow(pub u32);

#[derive(Debug, Default)]
struct Row {
    /// Sequences that use it (reference count).
    users: u32,
    /// The page after which it is the state, if it is a snapshot.
    after: Option<BlockId>,
    /// When it became idle; its key in `idle`, for LRU eviction.
    returned: u64,
}

/// Owner of all rows.
#[derive(Debug, Default)]
pub(crate) struct StatePool {
    rows: Vec<Row>,
    /// Rows that hold nothing.
    free: Vec<StateRow>,
    /// Snapshots that no sequence uses, least recently used first.
    idle: BTreeMap<u64, StateRow>,
    returns: u64,
}

impl StatePool {
    pub(crate) fn new(rows: usize) -> StatePool {
        let rows = rows.min(u32::MAX as usize);
        let free = (0..rows as u32).rev().map(StateRow).collect();
        StatePool { rows: (0..rows).map(|_| Row::default()).collect(), free, ..StatePool::default() }
    }

    /// Number of rows.
    pub(crate) fn count(&self) -> usize {
        self.rows.len()
    }

    /// Number of rows that hold nothing.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    fn row(&mut self, id: StateRow) -> &mut Row {
        &mut self.rows[id.0 as usize]
    }

    /// Allocates a row: a free one, or else the least recently used snapshot, which is evicted; then also the page that
    /// it was the state after.
    pub(crate) fn take(&mut self) -> Option<(StateRow, Option<BlockId>)> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => self.idle.pop_first()?.1,
        };
        let row = self.row(id);
        row.users = 1;
        Some((id, row.after.take()))
    }

    /// Lends a row to one more sequence.
    pub(crate) fn lend(&mut self, id: StateRow) {
        let row = &mut self.rows[id.0 as usize];
        if row.users == 0 {
            self.idle.remove(&row.returned);
        }
        row.users += 1;
    }

    /// A sequence uses the row no more.
    pub(crate) fn give_back(&mut self, id: StateRow) {
        self.returns += 1;
        let returned = self.returns;
        let row = self.row(id);
        row.users = row.users.saturating_sub(1);
        if row.users > 0 {
            return;
        }
        if row.after.is_some() {
            row.returned = returned;
            self.idle.insert(returned, id);
        } else {
            self.free.push(id);
        }
    }

    /// Makes a row in use the snapshot after a page.
    pub(crate) fn publish(&mut self, id: StateRow, after: BlockId) {
        self.row(id).after = Some(after);
    }

    /// The row is no snapshot any more.
    pub(crate) fn forget(&mut self, id: StateRow) {
        let row = &mut self.rows[id.0 as usize];
        row.after = None;
        if row.users == 0 {
            self.idle.remove(&row.returned);
            self.free.push(id);
        }
    }

    /// With no sequence in the scheduler: checks that all rows can be allocated.
    pub(crate) fn at_rest(&self) -> Result<(), String> {
        let (count, available) = (self.count(), self.free.len() + self.idle.len());
        match available == count {
            true => Ok(()),
            false => Err(format!("nobody uses any state, and {available} of {count} can be had")),
        }
    }

    /// Checks that every row is in exactly one state. `held`: the rows of all sequences, once per use. `published`: the
    /// snapshots of all pages.
    pub(crate) fn check(
        &self,
        held: impl IntoIterator<Item = StateRow>,
        published: impl IntoIterator<Item = (BlockId, StateRow)>,
    ) -> Result<(), String> {
        let (mut users, mut after) = (vec![0u32; self.count()], vec![None; self.count()]);
        held.into_iter().for_each(|id| users[id.0 as usize] += 1);
        published.into_iter().for_each(|(page, id)| after[id.0 as usize] = Some(page));
        let mut lists = vec![(0u32, 0u32); self.count()];
        self.free.iter().for_each(|id| lists[id.0 as usize].0 += 1);
        self.idle.values().for_each(|id| lists[id.0 as usize].1 += 1);
        for (i, row) in self.rows.iter().enumerate() {
            if (row.users, row.after) != (users[i], after[i]) {
                let (has, is) = (users[i], after[i]);
                return Err(format!(
                    "state row {i} is {row:?}, and has {has} users and is the state after {is:?}"
                ));
            }
            let want = match (row.users, row.after) {
                (0, None) => (1, 0),
                (0, Some(_)) => (0, 1),
                _ => (0, 0),
            };
            if lists[i] != want {
                return Err(format!("state row {i} stands in {:?} lists and should in {want:?}", lists[i]));
            }
        }
        Ok(())
    }
}
