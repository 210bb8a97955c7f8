//! LoRA adapters loaded into an engine and selected per request.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;

use tallow_core::{Adapter, Backend, LoraRows};

use crate::failure::Failure;

/// Id of a loaded adapter. Loading an adapter again, even under the same name, gives a new id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LoraId(pub u64);

/// An adapter and its scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraRef {
    /// Adapter id.
    pub id: LoraId,
    /// Multiplies the LoRA delta.
    pub scale: f32,
}

/// Public description of a loaded adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedLora {
    /// Name by which requests select it.
    pub name: String,
    /// Path of its files.
    pub path: PathBuf,
    /// Id and default scale of the adapter.
    pub lora: LoraRef,
}

/// Adapters in use by requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoraUse {
    /// Adapters of running requests.
    pub running: Vec<LoraId>,
    /// Adapters of waiting requests.
    pub waiting: Vec<LoraId>,
}

/// Why loading or unloading an adapter failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoraError {
    /// The name is taken.
    #[error("there is a model or an adapter called {0:?} already; unload it first, or take another name")]
    Taken(String),
    /// No adapter has that name.
    #[error("there is no adapter called {0:?}")]
    Unknown(String),
    /// Not enough memory for adapters.
    #[error(
        "the adapter needs up to {needs} bytes, and of {room} for adapters {used} are in use; unload another first"
    )]
    Full {
        /// Bytes that the new adapter needs, an upper bound.
        needs: usize,
        /// Bytes for all adapters.
        room: usize,
        /// Bytes in use.
        used: usize,
    },
    /// Not an adapter for this model, or the device cannot hold it.
    #[error("{0}")]
    Refused(String),
    /// The engine has ended.
    #[error("{0}")]
    Ended(#[from] Failure),
}

/// Adapters on a device.
#[derive(Debug)]
pub(crate) struct Adapters<B: Backend> {
    all: BTreeMap<LoraId, Rc<Adapter<B>>>,
    /// Unloaded adapters, freed once no request uses them.
    leaving: BTreeSet<LoraId>,
}

impl<B: Backend> Default for Adapters<B> {
    fn default() -> Self {
        Adapters { all: BTreeMap::new(), leaving: BTreeSet::new() }
    }
}

impl<B: Backend> Adapters<B> {
    pub(crate) fn add(&mut self, id: LoraId, adapter: Adapter<B>) {
        self.all.insert(id, Rc::new(adapter));
    }

    /// True if a new request may use it.
    pub(crate) fn accepts(&self, id: LoraId) -> bool {
        self.all.contains_key(&id) && !self.leaving.contains(&id)
    }

    /// No new request may use it from here on.
    pub(crate) fn unload(&mut self, id: LoraId) {
        self.leaving.insert(id);
    }

    /// Frees the unloaded adapters that no request uses.
    pub(crate) fn evict(&mut self, has: impl Fn(LoraId) -> bool) {
        let gone: Vec<LoraId> = self.leaving.iter().copied().filter(|id| !has(*id)).collect();
        for id in gone {
            self.leaving.remove(&id);
            self.all.remove(&id);
        }
    }

    /// True if none is loaded.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Bytes of all adapters.
    pub(crate) fn bytes(&self) -> usize {
        self.all.values().map(|adapter| adapter.bytes()).sum()
    }

    /// The adapter of each range of a step's rows, in order. `parts`: rows and adapter of each sequence. Adjacent ranges
    /// with the same adapter and scale are merged.
    pub(crate) fn of(
        &self,
        parts: impl Iterator<Item = (usize, Option<LoraRef>)>,
    ) -> Result<Vec<LoraRows<B>>, tallow_core::Error> {
        let (mut all, mut row) = (Vec::<LoraRows<B>>::new(), 0);
        for (count, lora) in parts {
            let rows = row..row + count;
            row = rows.end;
            let Some(LoraRef { id, scale }) = lora else { continue };
            let by = self.all.get(&id).ok_or_else(|| tallow_core::Error::Shape {
                op: "step",
                what: "a sequence's adapter",
                want: "one that is loaded".into(),
                got: format!("{id:?}"),
            })?;
            match all.last_mut() {
                Some(last)
                    if last.rows.end == rows.start
                        && Rc::ptr_eq(&last.adapter, by)
                        && last.scale == scale =>
                {
                    last.rows.end = rows.end;
                }
                _ => all.push(LoraRows { rows, adapter: by.clone(), scale }),
            }
        }
        Ok(all)
    }
}
