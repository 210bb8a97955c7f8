//! [`Index`]: where each record is.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::key::RecordKey;
use super::recency::Recency;

/// Place of a record: queued for writing, in a segment, or in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On its way to its place.
    Queued,
    /// At that byte of a segment.
    Record { segment: u32, at: u64 },
    /// In the host's memory.
    Memory,
}

/// Index of the records. Shared by the store, which reads and writes them, and the engine, which looks them up.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) places: HashMap<RecordKey, Place>,
    /// When a record of a segment was last used.
    pub(super) used: BTreeMap<u32, SystemTime>,
    /// Order in which records in memory are evicted.
    pub(super) recency: Recency,
}

impl Index {
    /// True if a record is in its place, or on its way there.
    pub(super) fn has(&self, key: &RecordKey) -> bool {
        self.places.contains_key(key)
    }

    /// True if a record is in its place; if so it is used now.
    pub(super) fn touch(&mut self, key: &RecordKey, now: SystemTime) -> bool {
        match self.places.get(key) {
            Some(Place::Record { segment, .. }) => {
                self.used.insert(*segment, now);
                true
            }
            Some(Place::Memory) => {
                self.recency.touch(key);
                true
            }
            Some(Place::Queued) | None => false,
        }
    }

    /// Marks a record as on its way to its place, on a condition. Returns whether that was met.
    pub(super) fn queue_if(&mut self, key: RecordKey, condition: impl Fn(&Index) -> bool) -> bool {
        let may = condition(self);
        if may {
            self.places.insert(key, Place::Queued);
        }
        may
    }

    /// A record that was on its way will not get there.
    pub(super) fn drop_queued(&mut self, key: &RecordKey) {
        if self.places.get(key) == Some(&Place::Queued) {
            self.places.remove(key);
        }
    }
}

/// The index, shared.
pub(super) type SharedIndex = Arc<Mutex<Index>>;

/// Locks the index. It is whole after each of its methods, so a panic elsewhere spoils nothing.
pub(super) fn lock(index: &SharedIndex) -> MutexGuard<'_, Index> {
    index.lock().unwrap_or_else(PoisonError::into_inner)
}
