//! `CacheTier`: pages of the prefix cache that the device has evicted, or a process before this one has computed, and
//! snapshots of recurrent states: in the host's memory (RAM cache) or in files (disk cache).
//!
//! Pages are saved while they are in the KV cache: the engine copies them from the device between steps, a few at a time, and a
//! thread keeps them. For a disk cache they are copied once they are published, oldest first; for a RAM cache once no sequence
//! uses them, least recently used first. A request whose prefix a tier has is held back while that thread reads it; its pages
//! are put in the KV cache and published as if they had been computed here. Then the scheduler gets the request, and finds them
//! as it finds all others.
//!
//! In a model with recurrent state, pages are of use only up to one with a snapshot of the state after it. Snapshots are saved
//! as pages are, each behind its page; and a prefix is loaded up to the last page with a saved snapshot.
//!
//! A page is found by a digest of the tokens up to its end, of the request's salt, and in files of all that its content depends
//! on. So pages of another model, device or program are not found, and what is found is compared and checked before it is
//! used (`RecordStore`). Pages of requests with an adapter or an encoder are not saved.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tallow_core::Backend;

use crate::block_pool::{BlockPool, Chain, NewPage, NewState};
use crate::runner::Runner;
use crate::scheduler::{NewSeq, Scheduler, SeqId};

mod folder;
mod index;
mod key;
mod loading;
mod memory;
mod recency;
mod saving;
mod store;
mod store_thread;
mod tiers;
mod transfer;

use folder::Folder;
use index::SharedIndex;
use key::{Fingerprint, Keys, RecordKey, fingerprint};
use loading::Loading;
use memory::MemoryStore;
use saving::{Saving, Unsaved};
use store::{RecordShape, RecordStore, Store};
use store_thread::StoreThread;

pub(crate) use tiers::CacheTiers;

/// Bytes copied from or to the device between two steps while sequences run, so that their steps hardly take longer. At most a
/// page, or one layer's part of a state, goes beyond.
const BESIDE_STEPS: usize = 4 << 20;
/// Bytes copied at once while none runs, before messages are handled again.
const ALONE: usize = 16 << 20;
/// Most bytes that wait to be written, unless a single state has more, and bytes of pages that are read ahead.
const QUEUED: usize = 64 << 20;
/// Most salts whose sequences' pages are saved at one time.
const SALTS: usize = 1 << 16;
/// Time that a store may take to answer. After that it is not used any more.
const STALL: Duration = Duration::from_secs(10);
/// Time that the engine waits for the store when it has nothing else to do.
const WAIT: Duration = Duration::from_millis(2);
/// Time for which the engine saves what is left when it ends.
const FLUSH: Duration = Duration::from_secs(10);

/// Settings of a disk cache.
#[derive(Clone, Debug)]
pub struct DiskCacheSettings {
    /// Folder of the files; made if it is not there.
    pub folder: PathBuf,
    /// Most bytes of all files in it.
    pub bytes: u64,
    /// All that pages depend on, beside the device and the size of pages: the model, the program, the kind of arithmetic.
    /// Pages that were saved with anything else are not found.
    pub identity: Vec<Vec<u8>>,
}

/// Settings of a cache tier.
#[derive(Clone, Debug)]
pub enum TierSettings {
    /// RAM cache: pages that the device evicts are kept in the host's memory.
    Ram {
        /// Most bytes that it may take.
        bytes: u64,
    },
    /// Disk cache.
    Disk(DiskCacheSettings),
}

/// Medium of a cache tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    Ram,
    Disk,
}

impl Medium {
    /// True if it outlives the process.
    fn outlives(self) -> bool {
        self == Medium::Disk
    }
}

impl std::fmt::Display for Medium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Medium::Ram => "the RAM cache",
            Medium::Disk => "the disk cache",
        })
    }
}

/// Why there is no cache tier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// Another process uses the folder.
    #[error("{} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The folder cannot be used.
    #[error("{}: {why}", folder.display())]
    Unusable {
        /// The folder.
        folder: PathBuf,
        /// Why not.
        why: String,
    },
    /// Hardly a page fits, with the state after it.
    #[error("{limit} bytes are too few for this model's pages; {least} are the least")]
    TooSmall {
        /// Bytes that it may take.
        limit: u64,
        /// Bytes that it needs.
        least: u64,
    },
    /// The thread cannot be started.
    #[error("its thread cannot be started: {0}")]
    Thread(String),
    /// The model keeps more of sequences than is saved.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The engine has ended.
    #[error("{0}")]
    Ended(#[from] crate::failure::Failure),
}

/// Counts of a cache tier.
#[derive(Debug, Default)]
pub struct TierCounts {
    /// True if there is one.
    pub is_on: AtomicBool,
    /// Prompt tokens looked up, which were neither in the KV cache nor in a tier before this one.
    pub queries: AtomicU64,
    /// Of these, tokens whose pages were loaded.
    pub hits: AtomicU64,
    /// Bytes saved.
    pub saved_bytes: AtomicU64,
    /// Bytes loaded.
    pub loaded_bytes: AtomicU64,
    /// Bytes of files that were removed because something was wrong with them.
    pub refused_bytes: AtomicU64,
    /// Bytes of all that it has now.
    pub bytes: AtomicU64,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct CacheTier {
    medium: Medium,
    keys: Keys,
    shape: RecordShape,
    /// Bytes of each part of a recurrent state; none in a model without.
    state_parts: Vec<usize>,
    index: SharedIndex,
    thread: StoreThread,
    /// Most bytes that it may take.
    bytes: u64,
    /// Number of the pool's record of changes for it.
    record: usize,
    counts: Arc<TierCounts>,
    /// Key of what follows each published page.
    chains: HashMap<Chain, RecordKey>,
    /// Key of what sequences of each salt begin with.
    roots: HashMap<Chain, RecordKey>,
    /// Pages and states to be saved, in order.
    unsaved: VecDeque<Unsaved>,
    /// Most of them.
    most_unsaved: usize,
    /// The one that is being copied from the device.
    saving: Option<Saving>,
    /// Requests held back.
    held: VecDeque<NewSeq>,
    loading: Option<Loading>,
    /// When the last of the idle pages that a RAM cache has looked at became idle.
    looked_at: u64,
    /// Nothing is saved until then.
    paused: Option<Instant>,
    /// The store does not answer, or the device cannot be read.
    is_broken: bool,
}

impl CacheTier {
    /// Opens a tier for a model, and has the pool record which pages are published from now on. `tiers`: number of those that
    /// there are.
    pub(crate) fn open<B: Backend>(
        settings: TierSettings,
        runner: &Runner<B>,
        scheduler: &mut Scheduler,
        counts: Arc<TierCounts>,
        tiers: usize,
    ) -> Result<CacheTier, TierError> {
        let limits = scheduler.limits();
        let pool = scheduler.pool_mut();
        if runner.has_encoder() {
            let why = "the model has an encoder, whose pages are not saved; leave the cache out";
            return Err(TierError::Unsupported(why));
        }
        if pool.has_swa() {
            let why =
                "the sliding-window layers have pages of their own, which are not saved; leave the cache out";
            return Err(TierError::Unsupported(why));
        }
        // While a state is loaded it has a row, beside the two that each sequence may need.
        if pool.has_states() && pool.state_rows() <= 2 * limits.slots + tiers {
            let why = "there are no rows for snapshots of the model's recurrent state; leave the cache out";
            return Err(TierError::Unsupported(why));
        }
        let state_parts = if pool.has_states() { runner.state_parts() } else { Vec::new() };
        let state = pool.has_states().then(|| state_parts.iter().sum());
        let shape = RecordShape { tokens: pool.page_len(), page: runner.page_bytes(), state };
        let (medium, bytes, keys, (index, thread)) = match settings {
            TierSettings::Ram { bytes } => {
                let store = MemoryStore::new(shape, bytes, counts.clone())?;
                (Medium::Ram, bytes, Keys::of_memory(), start(store)?)
            }
            TierSettings::Disk(DiskCacheSettings { folder, bytes, identity }) => {
                // Angles of RoPE may depend on the context.
                let own = format!("{} {} {}", runner.backend().label(), shape.tokens, limits.context);
                let (own, layout) = (own.into_bytes(), runner.cache_layout().into_bytes());
                let own = [&own[..], &layout];
                let fingerprint = fingerprint(own.into_iter().chain(identity.iter().map(Vec::as_slice)));
                let (keys, store) = open_folder(&folder, fingerprint, shape, bytes, counts.clone())?;
                (Medium::Disk, bytes, keys, start(store)?)
            }
        };
        counts.is_on.store(true, Ordering::Relaxed);
        Ok(CacheTier {
            medium,
            keys,
            shape,
            state_parts,
            index,
            thread,
            bytes,
            record: pool.record_changes(),
            counts,
            chains: HashMap::new(),
            roots: HashMap::new(),
            unsaved: VecDeque::new(),
            most_unsaved: pool.count() + pool.state_rows(),
            saving: None,
            held: VecDeque::new(),
            loading: None,
            looked_at: 0,
            paused: None,
            is_broken: false,
        })
    }

    /// True if it has nothing to do.
    pub(crate) fn is_idle(&self, pool: &BlockPool) -> bool {
        let saves = !self.unsaved.is_empty() || self.saving.is_some() || self.at_risk(pool).is_some();
        self.held.is_empty() && !saves
    }

    /// True if it holds pages of the KV cache, and may hold a row of the recurrent states.
    pub(crate) fn holds_pages(&self) -> bool {
        self.loading.is_some()
    }

    /// Number of requests held back.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Notes what sequences of a salt begin with.
    pub(crate) fn note_root(&mut self, root: Chain, salt: Option<&str>) {
        if self.roots.len() >= SALTS {
            // Pages that follow those forgotten here are not saved.
            self.roots.clear();
        }
        self.roots.entry(root).or_insert_with(|| self.keys.start(salt));
    }

    /// Takes a request whose prefix it has, and holds it back until the pages are loaded; returns it otherwise.
    pub(crate) fn hold(&mut self, new: NewSeq, pool: &BlockPool) -> Option<NewSeq> {
        if self.is_broken {
            return Some(new);
        }
        let found = self.find(&new, pool, None);
        self.counts.queries.fetch_add(found.asked as u64, Ordering::Relaxed);
        if found.is_empty() {
            return Some(new);
        }
        self.held.push_back(new);
        None
    }

    /// Forgets a request that is held back.
    pub(crate) fn forget(&mut self, id: SeqId, pool: &mut BlockPool) {
        if self.held.front().is_some_and(|first| first.id == id) {
            self.end_load(pool);
        }
        self.held.retain(|new| new.id != id);
    }

    /// Goes on between two steps: takes pages that were loaded, and gives away pages to be saved. Returns the requests that
    /// wait no longer.
    pub(crate) fn advance<B: Backend>(
        &mut self,
        runner: &Runner<B>,
        scheduler: &mut Scheduler,
    ) -> Vec<NewSeq> {
        let is_alone = scheduler.is_idle();
        let running = scheduler.running();
        let pool = scheduler.pool_mut();
        self.note_changes(pool);
        if !self.is_broken && !self.thread.is_alive() {
            self.give_up("its thread has ended");
        }
        let mut ready = Vec::new();
        self.load(runner, pool, running, is_alone, &mut ready);
        // So that pages that were loaded are not taken for unsaved ones later.
        self.note_changes(pool);
        self.save(runner, pool, if is_alone { ALONE } else { BESIDE_STEPS });
        if is_alone && ready.is_empty() && self.loading.is_none() {
            self.wait_for_room(pool);
        }
        ready
    }

    /// If nothing can be saved now, waits for what is written, for a while.
    fn wait_for_room(&mut self, pool: &BlockPool) {
        if self.saving.is_none()
            && let Some(bytes) = self.next_save(pool)
        {
            self.thread.wait_for_room(bytes, WAIT);
        }
    }

    /// Follows which pages and states were published, and which pages were evicted.
    fn note_changes(&mut self, pool: &mut BlockPool) {
        let changes = pool.take_changes(self.record);
        for new in changes.published {
            let chain = new.chain;
            let Some(page) = self.unsaved_page(new) else { continue };
            self.chains.insert(chain, page.name.key);
            // In RAM it comes once it may be evicted.
            if self.medium == Medium::Disk {
                self.queue(page);
            }
        }
        for NewState { block, row, chain, tokens } in changes.settled {
            let Some(page) = self.chains.get(&chain) else { continue };
            let name = self.keys.state_name(*page, tokens);
            self.queue(Unsaved { block, chain, row: Some(row), name, is_first: false });
        }
        for chain in changes.evicted {
            self.chains.remove(&chain);
        }
    }

    /// A published page as it is saved; `None` if pages of its sequence are not.
    fn unsaved_page(&self, new: NewPage) -> Option<Unsaved> {
        let root = self.roots.get(&new.after);
        let after = root.or_else(|| self.chains.get(&new.after)).copied()?;
        let name = self.keys.page_name(after, new.tokens);
        Some(Unsaved { block: new.block, chain: new.chain, row: None, name, is_first: root.is_some() })
    }

    fn queue(&mut self, unsaved: Unsaved) {
        if self.may_save() && self.unsaved.len() < self.most_unsaved {
            self.unsaved.push_back(unsaved);
        }
    }

    /// Goes on without it.
    fn give_up(&mut self, why: &str) {
        tracing::error!("{} is not used any more: {why}", self.medium);
        self.is_broken = true;
        self.unsaved.clear();
        self.saving = None;
        self.counts.is_on.store(false, Ordering::Relaxed);
    }

    /// Saves what is left, for a while, as the engine ends.
    pub(crate) fn close<B: Backend>(&mut self, runner: &Runner<B>, pool: &mut BlockPool) {
        let end = Instant::now() + FLUSH;
        self.end_load(pool);
        self.held.clear();
        if !self.medium.outlives() {
            return;
        }
        self.note_changes(pool);
        while !self.is_idle(pool) && self.thread.is_alive() && Instant::now() < end {
            self.save(runner, pool, ALONE);
            self.wait_for_room(pool);
        }
        if !self.thread.close(end.saturating_duration_since(Instant::now())) {
            tracing::warn!("the disk is too slow: the last pages are not saved");
        }
    }
}

/// Starts the thread of a store.
fn start(store: impl Store) -> Result<(SharedIndex, StoreThread), TierError> {
    let index = store.index().clone();
    let thread = StoreThread::start(store, QUEUED).map_err(|why| TierError::Thread(why.to_string()))?;
    Ok((index, thread))
}

/// Opens the pages of a folder.
fn open_folder(
    path: &Path,
    fingerprint: Fingerprint,
    shape: RecordShape,
    bytes: u64,
    counts: Arc<TierCounts>,
) -> Result<(Keys, RecordStore), TierError> {
    let folder = Folder::open(path)?;
    let path = folder.path().to_path_buf();
    let secret =
        folder.secret().map_err(|why| TierError::Unusable { folder: path.clone(), why: why.to_string() })?;
    let keys = Keys::new(secret, fingerprint);
    let store = RecordStore::open(folder, keys.clone(), shape, bytes, counts)?;
    let (pages, states) = store.counts();
    let states = if shape.state.is_some() { format!(", and {states} states") } else { String::new() };
    tracing::info!("{}: {pages} pages of {} tokens are on disk{states}", path.display(), shape.tokens);
    Ok((keys, store))
}

#[cfg(test)]
mod tests;
