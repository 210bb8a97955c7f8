//! `DiskCache`: pages of the prefix cache that outlive the process, in files, and snapshots of recurrent states.
//!
//! Pages are saved once they are published, oldest first, and only while they are in the KV cache: the engine copies them
//! from the device between steps, a few at a time, and a thread writes them. A request whose prefix is on disk is held back
//! while that thread reads it; its pages are put in the KV cache and published as if they had been computed here. Then the
//! scheduler gets the request, and finds them as it finds all others.
//!
//! In a model with recurrent state, pages are of use only up to one with a snapshot of the state after it. Snapshots are saved
//! as pages are, each behind its page; and a prefix is loaded up to the last page with a saved snapshot.
//!
//! A page is found by a digest of the tokens up to its end, of the request's salt, and of all that its content depends on.
//! So pages of another model, device or program are not found, and what is found is compared and checked before it is
//! used (`RecordStore`). Pages of requests with an adapter or an encoder are not saved.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tallow_core::Backend;

use crate::block_pool::{BlockPool, Chain, NewState};
use crate::runner::Runner;
use crate::scheduler::{NewSeq, Scheduler, SeqId};

mod files;
mod folder;
mod index;
mod key;
mod loading;
mod saving;
mod store;
mod transfer;

use files::Files;
use folder::Folder;
use index::SharedIndex;
use key::{Keys, RecordKey, fingerprint};
use loading::Loading;
use saving::{Saving, Unsaved};
use store::{RecordShape, RecordStore};

/// Bytes copied from or to the device between two steps while sequences run, so that their steps hardly take longer. At most a
/// page, or one layer's part of a state, goes beyond.
const BESIDE_STEPS: usize = 4 << 20;
/// Bytes copied at once while none runs, before messages are handled again.
const ALONE: usize = 16 << 20;
/// Most bytes that wait to be written, unless a single state has more, and bytes of pages that are read ahead.
const QUEUED: usize = 64 << 20;
/// Most salts whose sequences' pages are saved at one time.
const SALTS: usize = 1 << 16;
/// How long a disk may take to answer. After that it is not used any more.
const STALL: Duration = Duration::from_secs(10);
/// How long the engine waits for the disk when it has nothing else to do.
const WAIT: Duration = Duration::from_millis(2);
/// How long the engine saves what is left when it ends.
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

/// Why there is no disk cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskCacheError {
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
    /// The model keeps more of sequences than is saved.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The engine has ended.
    #[error("{0}")]
    Ended(#[from] crate::failure::Failure),
}

/// Counts of a disk cache.
#[derive(Debug, Default)]
pub struct DiskCounts {
    /// Whether there is one.
    pub is_on: AtomicBool,
    /// Prompt tokens looked up, which were not in the KV cache.
    pub queries: AtomicU64,
    /// Of these, tokens whose pages were loaded.
    pub hits: AtomicU64,
    /// Bytes written.
    pub saved_bytes: AtomicU64,
    /// Bytes read.
    pub loaded_bytes: AtomicU64,
    /// Bytes of files that were removed because something was wrong with them.
    pub refused_bytes: AtomicU64,
    /// Bytes of all files now.
    pub bytes: AtomicU64,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct DiskCache {
    keys: Keys,
    shape: RecordShape,
    /// Bytes of each part of a recurrent state; none in a model without.
    state_parts: Vec<usize>,
    index: SharedIndex,
    files: Files,
    counts: Arc<DiskCounts>,
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
    /// The disk does not answer, or the device cannot be read.
    is_broken: bool,
}

impl DiskCache {
    /// Opens a disk cache for a model, and has the pool record which pages are published from now on.
    pub(crate) fn open<B: Backend>(
        settings: DiskCacheSettings,
        runner: &Runner<B>,
        scheduler: &mut Scheduler,
        counts: Arc<DiskCounts>,
    ) -> Result<DiskCache, DiskCacheError> {
        let DiskCacheSettings { folder, bytes, identity } = settings;
        let limits = scheduler.limits();
        let pool = scheduler.pool_mut();
        if runner.has_encoder() {
            let why = "the model has an encoder, whose pages are not saved; leave the disk cache out";
            return Err(DiskCacheError::Unsupported(why));
        }
        // While a state is loaded it has a row, beside the two that each sequence may need.
        if pool.has_states() && pool.state_rows() <= 2 * limits.slots {
            let why =
                "there are no rows for snapshots of the model's recurrent state; leave the disk cache out";
            return Err(DiskCacheError::Unsupported(why));
        }
        let state_parts = if pool.has_states() { runner.state_parts() } else { Vec::new() };
        let state = pool.has_states().then(|| state_parts.iter().sum());
        let shape = RecordShape { tokens: pool.page_len(), page: runner.page_bytes(), state };
        // Angles of RoPE may depend on the context.
        let own = format!("{} {} {}", runner.backend().label(), shape.tokens, limits.context);
        let (own, layout) = (own.into_bytes(), runner.cache_layout().into_bytes());
        let own = [&own[..], &layout];
        let fingerprint = fingerprint(own.into_iter().chain(identity.iter().map(Vec::as_slice)));
        let folder = Folder::open(&folder)?;
        let unusable = |folder: &Folder, why: std::io::Error| DiskCacheError::Unusable {
            folder: folder.path().into(),
            why: why.to_string(),
        };
        let secret = folder.secret().map_err(|why| unusable(&folder, why))?;
        let keys = Keys::new(secret, fingerprint);
        let path = folder.path().to_path_buf();
        let store = RecordStore::open(folder, keys.clone(), shape, bytes, counts.clone())?;
        let (pages, states) = store.counts();
        let states = if pool.has_states() { format!(", and {states} states") } else { String::new() };
        tracing::info!("{}: {pages} pages of {} tokens are on disk{states}", path.display(), shape.tokens);
        let index = store.index().clone();
        let files = Files::start(store, QUEUED)
            .map_err(|why| DiskCacheError::Unusable { folder: path, why: why.to_string() })?;
        pool.record_changes();
        counts.is_on.store(true, Ordering::Relaxed);
        Ok(DiskCache {
            keys,
            shape,
            state_parts,
            index,
            files,
            counts,
            chains: HashMap::new(),
            roots: HashMap::new(),
            unsaved: VecDeque::new(),
            most_unsaved: pool.count() + pool.state_rows(),
            saving: None,
            held: VecDeque::new(),
            loading: None,
            is_broken: false,
        })
    }

    /// Whether it has nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.unsaved.is_empty() && self.saving.is_none()
    }

    /// Whether it holds pages of the KV cache, and may hold a row of the recurrent states.
    pub(crate) fn holds_pages(&self) -> bool {
        self.loading.is_some()
    }

    /// Number of requests held back.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Takes a request whose prefix is on disk, and holds it back until the pages are loaded; returns it otherwise.
    /// `salt`: that of the request.
    pub(crate) fn hold(&mut self, new: NewSeq, salt: Option<&str>, pool: &BlockPool) -> Option<NewSeq> {
        if self.is_broken {
            return Some(new);
        }
        if self.roots.len() >= SALTS {
            // Pages that follow those forgotten here are not saved.
            self.roots.clear();
        }
        self.roots.entry(new.root).or_insert_with(|| self.keys.start(salt));
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
        if !self.is_broken && !self.files.is_alive() {
            self.give_up("its thread has ended");
        }
        let mut ready = Vec::new();
        self.load(runner, pool, running, is_alone, &mut ready);
        // So that pages that were loaded are not taken for unsaved ones later.
        self.note_changes(pool);
        self.save(runner, pool, if is_alone { ALONE } else { BESIDE_STEPS });
        if is_alone && ready.is_empty() && self.loading.is_none() {
            self.wait_for_room();
        }
        ready
    }

    /// If nothing can be saved now, waits for what is written, for a while.
    fn wait_for_room(&self) {
        if let Some(bytes) = self.next_save().filter(|_| self.saving.is_none()) {
            self.files.wait_for_room(bytes, WAIT);
        }
    }

    /// Follows which pages and states were published, and which pages were evicted.
    fn note_changes(&mut self, pool: &mut BlockPool) {
        let changes = pool.take_changes();
        for new in changes.published {
            let root = self.roots.get(&new.after);
            let Some(after) = root.or_else(|| self.chains.get(&new.after)).copied() else { continue };
            let (block, chain, is_first) = (new.block, new.chain, root.is_some());
            let name = self.keys.page_name(after, new.tokens);
            self.chains.insert(chain, name.key);
            self.queue(Unsaved { block, chain, row: None, name, is_first });
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

    fn queue(&mut self, unsaved: Unsaved) {
        if !self.is_broken && self.unsaved.len() < self.most_unsaved {
            self.unsaved.push_back(unsaved);
        }
    }

    /// Goes on without a disk.
    fn give_up(&mut self, why: &str) {
        tracing::error!("the disk cache is not used any more: {why}");
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
        self.note_changes(pool);
        while !self.is_idle() && self.files.is_alive() && Instant::now() < end {
            self.save(runner, pool, ALONE);
            self.wait_for_room();
        }
        if !self.files.close(end.saturating_duration_since(Instant::now())) {
            tracing::warn!("the disk is too slow: the last pages are not saved");
        }
    }
}

#[cfg(test)]
mod tests;
