//! `DiskCache`: pages of the prefix cache that outlive the process, in files.
//!
//! Pages are saved once they are published, oldest first, and only while they are in the KV cache: the engine copies them
//! from the device between steps, a few at a time, and a thread writes them. A request whose prefix is on disk is held back
//! while that thread reads it; its pages are put in the KV cache and published as if they had been computed here. Then the
//! scheduler gets the request, and finds them as it finds all others.
//!
//! A page is found by a digest of the tokens up to its end, of the request's salt, and of all that its content depends on.
//! So pages of another model, device or program are not found, and what is found is compared and checked before it is
//! used (`PageStore`). Pages of requests with an adapter or an encoder are not saved.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use tallow_core::Backend;

use crate::block_pool::{BlockId, BlockPool, Chain, Published};
use crate::runner::Runner;
use crate::scheduler::{NewSeq, Scheduler, SeqId};

mod files;
mod folder;
mod key;
mod store;

use files::{Files, Load, Save};
use folder::Folder;
use key::{Keys, PageKey, PageName, fingerprint};
use store::{Index, PageShape, PageStore, SharedIndex, lock};

/// Most bytes copied from or to the device between two steps while sequences run, so that their steps hardly take longer.
const BESIDE_STEPS: usize = 4 << 20;
/// Most bytes copied at once while none runs, before messages are handled again.
const ALONE: usize = 16 << 20;
/// Most bytes that wait to be written, and as many that are read ahead.
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
    /// Hardly a page fits.
    #[error("{limit} bytes are too few for this model's pages; {least} are the least")]
    TooSmall {
        /// Bytes that it may take.
        limit: u64,
        /// Bytes that it needs.
        least: u64,
    },
    /// The model keeps more of sequences than pages.
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

/// A published page, not saved yet.
#[derive(Debug)]
struct Unsaved {
    block: BlockId,
    chain: Chain,
    page: PageName,
    /// Whether a sequence begins with it.
    is_first: bool,
}

/// Pages on their way from the disk, for the first of the requests held back.
#[derive(Debug)]
struct Loading {
    /// Pages that are still to come, in order.
    pages: VecDeque<PageName>,
    contents: Receiver<Vec<u8>>,
    /// Chain of the next page.
    after: Chain,
    /// Pages of the request so far. They are held until all are there, so that none is evicted meanwhile.
    blocks: Vec<BlockId>,
    /// When the last page came.
    progress: Instant,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct DiskCache {
    keys: Keys,
    shape: PageShape,
    index: SharedIndex,
    files: Files,
    counts: Arc<DiskCounts>,
    /// Key of what follows each published page.
    chains: HashMap<Chain, PageKey>,
    /// Key of what sequences of each salt begin with.
    roots: HashMap<Chain, PageKey>,
    unsaved: VecDeque<Unsaved>,
    /// Most pages in `unsaved`.
    most_unsaved: usize,
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
        // Angles of RoPE may depend on the context.
        let (context, pool) = (scheduler.limits().context, scheduler.pool_mut());
        if pool.has_states() {
            let why = "the model has recurrent state, which is not saved; leave the disk cache out";
            return Err(DiskCacheError::Unsupported(why));
        }
        if runner.has_encoder() {
            let why = "the model has an encoder, whose pages are not saved; leave the disk cache out";
            return Err(DiskCacheError::Unsupported(why));
        }
        let shape = PageShape { tokens: pool.page_len(), bytes: runner.page_bytes() };
        let layout = runner.page_layout();
        let own = format!("{} {} {context}", runner.backend().label(), shape.tokens);
        let own = [own.as_bytes(), layout.as_bytes()];
        let fingerprint = fingerprint(own.into_iter().chain(identity.iter().map(Vec::as_slice)));
        let folder = Folder::open(&folder)?;
        let unusable = |folder: &Folder, why: std::io::Error| DiskCacheError::Unusable {
            folder: folder.path().into(),
            why: why.to_string(),
        };
        let secret = folder.secret().map_err(|why| unusable(&folder, why))?;
        let keys = Keys::new(secret, fingerprint);
        let path = folder.path().to_path_buf();
        let store = PageStore::open(folder, keys.clone(), shape, bytes, counts.clone())?;
        tracing::info!("{}: {} pages of {} tokens are on disk", path.display(), store.pages(), shape.tokens);
        let index = store.index().clone();
        let most = (QUEUED / shape.bytes.max(1)).max(2);
        let files = Files::start(store, most)
            .map_err(|why| DiskCacheError::Unusable { folder: path, why: why.to_string() })?;
        pool.record_changes();
        counts.is_on.store(true, Ordering::Relaxed);
        Ok(DiskCache {
            keys,
            shape,
            index,
            files,
            counts,
            chains: HashMap::new(),
            roots: HashMap::new(),
            unsaved: VecDeque::new(),
            most_unsaved: pool.count(),
            held: VecDeque::new(),
            loading: None,
            is_broken: false,
        })
    }

    /// Whether it has nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.unsaved.is_empty()
    }

    /// Whether it holds pages of the KV cache.
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
        let (found, asked) = self.find(&new, pool);
        self.counts.queries.fetch_add(asked as u64, Ordering::Relaxed);
        if found.is_empty() {
            return Some(new);
        }
        self.held.push_back(new);
        None
    }

    /// Tokens of a request's whole pages that may be cached. The last token is always computed.
    fn usable<'a>(&self, new: &'a NewSeq) -> &'a [u32] {
        let page_len = self.shape.tokens;
        &new.tokens[..new.tokens.len().saturating_sub(1) / page_len * page_len]
    }

    /// Pages of a request's prompt that are on disk and follow those in the KV cache, and the tokens that were looked up.
    fn find(&self, new: &NewSeq, pool: &BlockPool) -> (VecDeque<PageName>, usize) {
        let (mut found, page_len) = (VecDeque::new(), self.shape.tokens);
        let usable = self.usable(new);
        let Some(mut after) = self.roots.get(&new.root).copied().filter(|_| !new.all_logits) else {
            return (found, 0);
        };
        let cached = pool.find(new.root, usable).blocks.len();
        let (mut index, now) = (lock(&self.index), SystemTime::now());
        for (i, tokens) in usable.chunks_exact(page_len).enumerate() {
            let key = self.keys.page(&after, tokens);
            // Pages in the KV cache are used, too: they are to stay on disk.
            let is_saved = index.touch(&key, now);
            match (i < cached, is_saved) {
                (true, _) => {}
                (false, true) => found.push_back(PageName { key, after, tokens: tokens.into() }),
                (false, false) => break,
            }
            after = key;
        }
        (found, usable.len() - cached * page_len)
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
        if is_alone && ready.is_empty() && self.loading.is_none() && !self.unsaved.is_empty() {
            self.files.wait(WAIT);
        }
        ready
    }

    /// Follows which pages were published and evicted.
    fn note_changes(&mut self, pool: &mut BlockPool) {
        let changes = pool.take_changes();
        for new in changes.published {
            let root = self.roots.get(&new.after);
            let Some(after) = root.or_else(|| self.chains.get(&new.after)).copied() else { continue };
            let (block, chain, is_first) = (new.block, new.chain, root.is_some());
            let page = PageName { key: self.keys.page(&after, &new.tokens), after, tokens: new.tokens };
            self.chains.insert(chain, page.key);
            if !self.is_broken && self.unsaved.len() < self.most_unsaved {
                self.unsaved.push_back(Unsaved { block, chain, page, is_first });
            }
        }
        for chain in changes.evicted {
            self.chains.remove(&chain);
        }
    }

    /// Loads pages for the requests held back, one request at a time: the next may need the same.
    fn load<B: Backend>(
        &mut self,
        runner: &Runner<B>,
        pool: &mut BlockPool,
        running: usize,
        is_alone: bool,
        ready: &mut Vec<NewSeq>,
    ) {
        let mut budget = if is_alone { ALONE } else { BESIDE_STEPS };
        while !self.held.is_empty() {
            if self.loading.is_none() && !self.begin_load(pool, running) {
                ready.extend(self.held.pop_front());
                continue;
            }
            // Waits only where no sequence runs and none is about to.
            let wait = is_alone && ready.is_empty();
            if !self.take_loaded(runner, pool, &mut budget, wait) {
                return;
            }
            self.end_load(pool);
            ready.extend(self.held.pop_front());
        }
    }

    /// Has the pages of the first request held back read. Returns whether there are any to be read.
    fn begin_load(&mut self, pool: &mut BlockPool, running: usize) -> bool {
        let Some(new) = self.held.front().filter(|_| !self.is_broken) else { return false };
        let (mut pages, _) = self.find(new, pool);
        let prefix = pool.find(new.root, self.usable(new));
        // Running sequences will need a page each.
        let idle = pool.idle_among(&prefix.blocks);
        pages.truncate(pool.available().saturating_sub(idle + running + 1));
        if pages.is_empty() {
            return false;
        }
        prefix.blocks.iter().for_each(|block| pool.lend(*block));
        let (to, contents) = sync_channel((QUEUED / self.shape.bytes.max(1)).clamp(2, 256));
        self.files.load(Load { pages: pages.iter().cloned().collect(), contents: to });
        let after = prefix.end.unwrap_or(new.root);
        let (blocks, progress) = (prefix.blocks, Instant::now());
        self.loading = Some(Loading { pages, contents, after, blocks, progress });
        true
    }

    /// Puts pages that were read in the KV cache. Returns whether no more come.
    fn take_loaded<B: Backend>(
        &mut self,
        runner: &Runner<B>,
        pool: &mut BlockPool,
        budget: &mut usize,
        wait: bool,
    ) -> bool {
        let Some(loading) = &mut self.loading else { return true };
        while !loading.pages.is_empty() {
            if *budget == 0 {
                return false;
            }
            let content = match loading.contents.try_recv() {
                Err(TryRecvError::Empty) if wait => match loading.contents.recv_timeout(WAIT) {
                    Err(RecvTimeoutError::Disconnected) => return true,
                    received => received.ok(),
                },
                Err(TryRecvError::Disconnected) => return true,
                received => received.ok(),
            };
            let Some(content) = content else {
                let stalls = loading.progress.elapsed() >= STALL;
                if stalls {
                    self.give_up("the disk does not answer");
                }
                return stalls;
            };
            let (Some(page), Some(block)) = (loading.pages.pop_front(), pool.take()) else { return true };
            if let Err(why) = runner.write_page(block, &content) {
                pool.give_back(&[block]);
                self.give_up(&why.to_string());
                return true;
            }
            let Published { chain, .. } = pool.publish(block, loading.after, &page.tokens);
            loading.blocks.push(block);
            (loading.after, loading.progress) = (chain, Instant::now());
            self.counts.hits.fetch_add(page.tokens.len() as u64, Ordering::Relaxed);
            *budget = budget.saturating_sub(content.len());
        }
        true
    }

    /// Gives back the pages that were held for a request: now the scheduler finds them.
    fn end_load(&mut self, pool: &mut BlockPool) {
        if let Some(loading) = self.loading.take() {
            pool.give_back(&loading.blocks);
        }
    }

    /// Copies pages from the device, up to so many bytes, and has them written.
    fn save<B: Backend>(&mut self, runner: &Runner<B>, pool: &BlockPool, mut budget: usize) {
        while budget > 0
            && !self.is_broken
            && self.files.has_room()
            && let Some(Unsaved { block, chain, page, is_first }) = self.unsaved.pop_front()
        {
            // A page without the one before it would never be found.
            let is_new = |index: &Index| !index.has(&page.key) && (is_first || index.has(&page.after));
            if !pool.holds(block, chain) || !lock(&self.index).queue_if(page.key, is_new) {
                continue;
            }
            let mut content = vec![0; self.shape.bytes];
            if let Err(why) = runner.read_page(block, &mut content) {
                lock(&self.index).drop_queued(&page.key);
                return self.give_up(&why.to_string());
            }
            budget = budget.saturating_sub(content.len());
            self.files.save(Save { page, content });
        }
    }

    /// Goes on without a disk.
    fn give_up(&mut self, why: &str) {
        tracing::error!("the disk cache is not used any more: {why}");
        self.is_broken = true;
        self.unsaved.clear();
        self.counts.is_on.store(false, Ordering::Relaxed);
    }

    /// Saves what is left, for a while, as the engine ends.
    pub(crate) fn close<B: Backend>(&mut self, runner: &Runner<B>, pool: &mut BlockPool) {
        let end = Instant::now() + FLUSH;
        self.end_load(pool);
        self.held.clear();
        self.note_changes(pool);
        while !self.unsaved.is_empty() && self.files.is_alive() && Instant::now() < end {
            self.save(runner, pool, ALONE);
            self.files.wait(WAIT);
        }
        if !self.files.close(end.saturating_duration_since(Instant::now())) {
            tracing::warn!("the disk is too slow: the last pages are not saved");
        }
    }
}
