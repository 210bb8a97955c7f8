//! [`MemoryStore`]: pages and snapshots of recurrent states in the host's memory.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::index::{Place, SharedIndex, lock};
use super::key::{Kind, RecordKey, RecordName};
use super::store::{RecordShape, Store};
use super::{TierCounts, TierError};

/// Bytes that the tables take for a record: its key stands in six of them, some of which have grown to twice their entries.
const BOOKKEEPING: usize = 768;

#[derive(Debug)]
struct Record {
    name: RecordName,
    content: Arc<Vec<u8>>,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct MemoryStore {
    shape: RecordShape,
    index: SharedIndex,
    records: HashMap<RecordKey, Record>,
    /// Most bytes of all records.
    limit: u64,
    bytes: u64,
    counts: Arc<TierCounts>,
}

impl MemoryStore {
    /// A store of `limit` bytes at most.
    pub(super) fn new(
        shape: RecordShape,
        limit: u64,
        counts: Arc<TierCounts>,
    ) -> Result<MemoryStore, TierError> {
        let store = MemoryStore {
            shape,
            index: SharedIndex::default(),
            records: HashMap::new(),
            limit,
            bytes: 0,
            counts,
        };
        let least = shape.kinds().map(|kind| cost(shape, kind)).sum();
        if limit < least { Err(TierError::TooSmall { limit, least }) } else { Ok(store) }
    }

    /// Forgets a record.
    fn remove(&mut self, key: &RecordKey) {
        let mut index = lock(&self.index);
        index.places.remove(key);
        index.recency.remove(key);
        drop(index);
        if let Some(record) = self.records.remove(key) {
            self.bytes = self.bytes.saturating_sub(cost(self.shape, record.name.kind));
        }
    }
}

/// Bytes of a record, with what it takes to find it.
pub(super) fn cost(shape: RecordShape, kind: Kind) -> u64 {
    (shape.content(kind) + 4 * shape.tokens + BOOKKEEPING) as u64
}

impl Store for MemoryStore {
    fn index(&self) -> &SharedIndex {
        &self.index
    }

    fn label(&self) -> String {
        "the RAM cache".into()
    }

    /// Keeps a record. For that the least recently used ones are evicted; the record itself if only those that it follows are
    /// left.
    fn save(&mut self, name: &RecordName, content: Vec<u8>) -> io::Result<()> {
        if name.tokens.len() != self.shape.tokens || content.len() != self.shape.content(name.kind) {
            return Err(io::Error::other("the page or state has another size"));
        }
        if self.records.contains_key(&name.key) {
            return Ok(());
        }
        self.records.try_reserve(1).map_err(|why| io::Error::other(why.to_string()))?;
        let bytes = content.len() as u64;
        self.records.insert(name.key, Record { name: name.clone(), content: Arc::new(content) });
        self.bytes += cost(self.shape, name.kind);
        let mut index = lock(&self.index);
        index.places.insert(name.key, Place::Memory);
        index.recency.insert(name.key, name.after);
        drop(index);
        while self.bytes > self.limit {
            let Some(oldest) = lock(&self.index).recency.oldest() else { break };
            self.remove(&oldest);
        }
        self.counts.saved_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.counts.bytes.store(self.bytes, Ordering::Relaxed);
        Ok(())
    }

    /// A record's content. All of its name is compared: with a key alone, two with the same digest would be taken for each other.
    fn load(&mut self, name: &RecordName) -> Option<Arc<Vec<u8>>> {
        let record = self.records.get(&name.key)?;
        if record.name != *name {
            self.remove(&name.key);
            self.counts.bytes.store(self.bytes, Ordering::Relaxed);
            return None;
        }
        self.counts.loaded_bytes.fetch_add(record.content.len() as u64, Ordering::Relaxed);
        Some(record.content.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache_tier::key::Keys;

    const SHAPE: RecordShape = RecordShape { tokens: 4, page: 40, state: Some(100) };

    fn store(limit: u64) -> MemoryStore {
        MemoryStore::new(SHAPE, limit, Arc::default()).unwrap()
    }

    /// A sequence's pages, each second one with the state after it, and their contents.
    fn sequence(salt: Option<&str>, pages: u32) -> Vec<(RecordName, Vec<u8>)> {
        let keys = Keys::of_memory();
        let mut after = keys.start(salt);
        let page = |i: u32| {
            let tokens: Box<[u32]> = (0..4).map(|at| 1000 * i + at).collect();
            let page = keys.page_name(after, tokens.clone());
            after = page.key;
            let state = (i % 2 == 1).then(|| (keys.state_name(after, tokens), vec![i as u8; 100]));
            [Some((page, vec![i as u8; 40])), state].into_iter().flatten()
        };
        (0..pages).flat_map(page).collect()
    }

    fn save_all(store: &mut MemoryStore, records: &[(RecordName, Vec<u8>)]) {
        for (name, content) in records {
            store.save(name, content.clone()).unwrap();
            assert!(store.bytes <= store.limit, "{} of {} bytes", store.bytes, store.limit);
            assert_eq!(store.counts.bytes.load(Ordering::Relaxed), store.bytes);
        }
    }

    /// True for each record that is there, which then has the right content.
    fn there(store: &mut MemoryStore, records: &[(RecordName, Vec<u8>)]) -> Vec<bool> {
        let mut is_there = |(name, content): &(RecordName, Vec<u8>)| {
            let loaded = store.load(name);
            assert_eq!(loaded.is_some(), lock(&store.index).has(&name.key));
            assert!(loaded.as_ref().is_none_or(|loaded| **loaded == *content));
            loaded.is_some()
        };
        records.iter().map(&mut is_there).collect()
    }

    #[test]
    fn what_is_saved_is_found_and_nothing_else() {
        let mut store = store(1 << 20);
        let records = sequence(None, 4);
        save_all(&mut store, &records);
        let bytes = store.bytes;
        // Twice is once.
        save_all(&mut store, &records);
        assert_eq!((store.bytes, there(&mut store, &records)), (bytes, vec![true; 6]));
        assert_eq!(there(&mut store, &sequence(Some("key 1"), 4)), [false; 6]);
        // A key with something else behind it: as if two had the same digest. It is not found again.
        for wrong in [
            RecordName { after: records[3].0.key, ..records[1].0.clone() },
            RecordName { tokens: [1, 2, 3, 4].into(), ..records[1].0.clone() },
            RecordName { kind: Kind::State, ..records[1].0.clone() },
        ] {
            assert_eq!(store.load(&wrong), None);
            assert_eq!(there(&mut store, &records), [true, false, true, true, true, true]);
            save_all(&mut store, &records);
        }
        assert_eq!(store.bytes, bytes);
        // Of another size than the model's: a mistake of ours.
        let other = sequence(Some("key 2"), 1);
        assert!(store.save(&other[0].0, vec![0; 41]).is_err());
        assert_eq!(there(&mut store, &other), [false]);
    }

    #[test]
    fn the_least_recently_used_go_and_the_bound_is_held() {
        let least = cost(SHAPE, Kind::Page) + cost(SHAPE, Kind::State);
        let refused = MemoryStore::new(SHAPE, least - 1, Arc::default()).err();
        assert_eq!(refused, Some(TierError::TooSmall { limit: least - 1, least }));
        let mut store = store(6 * cost(SHAPE, Kind::State));
        let (first, second) = (sequence(Some("a"), 2), sequence(Some("b"), 2));
        save_all(&mut store, &first);
        save_all(&mut store, &second);
        first.iter().for_each(|(name, _)| {
            assert!(lock(&store.index).touch(&name.key, std::time::SystemTime::now()));
        });
        let third = sequence(Some("c"), 1);
        save_all(&mut store, &third);
        assert_eq!(there(&mut store, &first), [true; 3]);
        // Its state went first, and the beginning of a sequence goes last.
        assert_eq!(there(&mut store, &second), [true, true, false]);
        assert_eq!(there(&mut store, &third), [true]);
    }

    /// Of a sequence that is too long for it, the beginning is kept.
    #[test]
    fn the_end_of_a_sequence_that_does_not_fit_is_not_kept() {
        let mut store = store(4 * cost(SHAPE, Kind::Page));
        let pages: Vec<_> = sequence(None, 5).into_iter().filter(|(n, _)| n.kind == Kind::Page).collect();
        save_all(&mut store, &pages);
        assert_eq!(there(&mut store, &pages), [true, true, true, true, false]);
    }
}
