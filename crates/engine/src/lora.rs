//! What an engine has loaded to be added to its model, for some requests and not for others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;

use tallow_core::{Adapter, Backend, LoraRows};

use crate::handle::Failure;
use crate::scheduler::BatchPart;

/// An adapter that an engine has loaded. What is loaded again, be it under the same name, is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LoraId(pub u64);

/// An adapter, and how much it counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraRef {
    /// Which.
    pub id: LoraId,
    /// Multiplies what it adds.
    pub scale: f32,
}

/// An adapter as everybody may see it.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedLora {
    /// What requests call it.
    pub name: String,
    /// Where its files are.
    pub path: PathBuf,
    /// Itself, and how much it counts unless a request says otherwise.
    pub lora: LoraRef,
}

/// Adapters of the requests that an engine has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoraUse {
    /// Those of requests under way.
    pub running: Vec<LoraId>,
    /// Those of requests that wait.
    pub waiting: Vec<LoraId>,
}

/// Why an adapter was not loaded, or not unloaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoraError {
    /// Something goes by its name.
    #[error("there is a model or an adapter called {0:?} already; unload it first, or take another name")]
    Taken(String),
    /// Nothing goes by its name.
    #[error("there is no adapter called {0:?}")]
    Unknown(String),
    /// There is no room for it.
    #[error(
        "the adapter needs up to {needs} bytes, and of {room} for adapters {used} are in use; unload another first"
    )]
    Full {
        /// Bytes of the new one, from above.
        needs: usize,
        /// Bytes for all.
        room: usize,
        /// Bytes of those that are there.
        used: usize,
    },
    /// It is not one for this model, or the device cannot take it.
    #[error("{0}")]
    Refused(String),
    /// The engine does not answer.
    #[error("{0}")]
    Ended(#[from] Failure),
}

/// Adapters on a device.
#[derive(Debug)]
pub(crate) struct Adapters<B: Backend> {
    all: BTreeMap<LoraId, Rc<Adapter<B>>>,
    /// Those that nobody can ask for any more. They are let go once nobody has them.
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

    /// May a new request have it?
    pub(crate) fn accepts(&self, id: LoraId) -> bool {
        self.all.contains_key(&id) && !self.leaving.contains(&id)
    }

    /// No new request may have it from here on.
    pub(crate) fn unload(&mut self, id: LoraId) {
        self.leaving.insert(id);
    }

    /// Lets go of those that are leaving, but for those that somebody has.
    pub(crate) fn evict(&mut self, has: impl Fn(LoraId) -> bool) {
        let gone: Vec<LoraId> = self.leaving.iter().copied().filter(|id| !has(*id)).collect();
        for id in gone {
            self.leaving.remove(&id);
            self.all.remove(&id);
        }
    }

    /// Are none loaded?
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Bytes of all.
    pub(crate) fn bytes(&self) -> usize {
        self.all.values().map(|adapter| adapter.bytes()).sum()
    }

    /// Which rows of a step have which adapter, in order. Neighbours with the same are one.
    pub(crate) fn of(&self, parts: &[BatchPart]) -> Result<Vec<LoraRows<B>>, tallow_core::Error> {
        let (mut all, mut row) = (Vec::<LoraRows<B>>::new(), 0);
        for part in parts {
            let rows = row..row + part.tokens.len();
            row = rows.end;
            let Some(LoraRef { id, scale }) = part.lora else { continue };
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
