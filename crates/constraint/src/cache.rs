//! [`Cache`]: the grammars that were compiled last.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::compiled::Compiled;

/// Grammars by their text. The least recently used ones go where there are too many, or too many bytes.
#[derive(Debug)]
pub(crate) struct Cache {
    entries: HashMap<String, Entry>,
    most: usize,
    most_bytes: usize,
    bytes: usize,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    compiled: Arc<Compiled>,
    used: u64,
    bytes: usize,
}

impl Cache {
    pub(crate) fn new(most: usize, most_bytes: usize) -> Cache {
        Cache { entries: HashMap::new(), most, most_bytes, bytes: 0, clock: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn get(&mut self, key: &str) -> Option<Arc<Compiled>> {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.clock;
        Some(Arc::clone(&entry.compiled))
    }

    pub(crate) fn insert(&mut self, key: String, compiled: &Arc<Compiled>) {
        let bytes = compiled.bytes() + key.len();
        if self.most == 0 || bytes > self.most_bytes {
            return;
        }
        self.clock += 1;
        self.bytes += bytes;
        let entry = Entry { compiled: Arc::clone(compiled), used: self.clock, bytes };
        if let Some(old) = self.entries.insert(key, entry) {
            self.bytes -= old.bytes;
        }
        while self.entries.len() > self.most || self.bytes > self.most_bytes {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone());
            let Some(gone) = oldest.and_then(|key| self.entries.remove(&key)) else { return };
            self.bytes -= gone.bytes;
        }
    }
}
