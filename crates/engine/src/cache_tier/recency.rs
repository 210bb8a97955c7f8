//! [`Recency`]: which record in memory is evicted next.

use std::collections::{BTreeMap, HashMap};

use super::key::RecordKey;

/// When a record was last used.
#[derive(Clone, Copy, Debug)]
struct Use {
    /// The record that it follows.
    after: RecordKey,
    last: u64,
}

/// Leaf-first LRU order of records: a page without the pages before it is found by nobody, so a record is evicted only after
/// all that follow it.
#[derive(Debug, Default)]
pub(super) struct Recency {
    records: HashMap<RecordKey, Use>,
    /// Number of records that follow each key, also a key whose record is not here.
    followers: HashMap<RecordKey, u32>,
    /// Records that none follows, least recently used first.
    leaves: BTreeMap<u64, RecordKey>,
    uses: u64,
}

impl Recency {
    /// Adds a record that is used now. It must not be there.
    pub(super) fn insert(&mut self, key: RecordKey, after: RecordKey) {
        *self.followers.entry(after).or_default() += 1;
        if let Some(before) = self.records.get(&after) {
            self.leaves.remove(&before.last);
        }
        self.uses += 1;
        self.records.insert(key, Use { after, last: self.uses });
        if !self.followers.contains_key(&key) {
            self.leaves.insert(self.uses, key);
        }
    }

    /// Says that a record is used now.
    pub(super) fn touch(&mut self, key: &RecordKey) {
        let Some(record) = self.records.get_mut(key) else { return };
        self.uses += 1;
        if self.leaves.remove(&record.last).is_some() {
            self.leaves.insert(self.uses, *key);
        }
        record.last = self.uses;
    }

    /// Removes a record.
    pub(super) fn remove(&mut self, key: &RecordKey) {
        let Some(Use { after, last }) = self.records.remove(key) else { return };
        self.leaves.remove(&last);
        let left = self.followers.get_mut(&after).map(|count| {
            *count = count.saturating_sub(1);
            *count
        });
        if left == Some(0) {
            self.followers.remove(&after);
            if let Some(before) = self.records.get(&after) {
                self.leaves.insert(before.last, after);
            }
        }
    }

    /// The record to be evicted next.
    pub(super) fn oldest(&self) -> Option<RecordKey> {
        self.leaves.first_key_value().map(|(_, key)| *key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> RecordKey {
        RecordKey([n; 32])
    }

    /// Evicts all, in order.
    fn order(mut recency: Recency) -> Vec<u8> {
        let next = || {
            let key = recency.oldest()?;
            recency.remove(&key);
            Some(key.0[0])
        };
        let order = std::iter::from_fn(next).collect();
        assert!(recency.records.is_empty() && recency.leaves.is_empty() && recency.followers.is_empty());
        order
    }

    /// Two sequences after a common page: 1 2 3, and 1 4.
    fn two() -> Recency {
        let mut recency = Recency::default();
        for (n, after) in [(1, 0), (2, 1), (3, 2), (4, 1)] {
            recency.insert(key(n), key(after));
        }
        recency
    }

    #[test]
    fn the_least_recently_used_end_of_a_sequence_goes_first() {
        assert_eq!(order(two()), [3, 2, 4, 1]);
        let mut recency = two();
        recency.touch(&key(2));
        assert_eq!(order(recency), [3, 4, 2, 1], "a page before a leaf is used");
        let mut recency = two();
        [1, 2, 3].iter().for_each(|n| recency.touch(&key(*n)));
        assert_eq!(order(recency), [4, 3, 2, 1]);
    }

    /// Pages may come in any order: the end of a sequence is evicted from the device first.
    #[test]
    fn a_record_may_come_before_the_one_that_it_follows() {
        let mut recency = Recency::default();
        for (n, after) in [(3, 2), (2, 1), (9, 8), (1, 0)] {
            recency.insert(key(n), key(after));
        }
        assert_eq!(order(recency), [3, 2, 9, 1]);
        // One of the middle is removed, and comes back.
        let mut recency = two();
        recency.remove(&key(2));
        recency.insert(key(2), key(1));
        assert_eq!(recency.oldest(), Some(key(3)));
        assert_eq!(order(recency), [3, 4, 2, 1]);
    }
}
