//! [`Files`]: the thread that reads and writes a [`PageStore`], so that no step waits for a disk.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::key::PageName;
use super::store::{PageStore, SharedIndex, lock};

/// How long nothing is saved after a page could not be written: a full disk does not get room by trying again at once.
const PAUSE: Duration = Duration::from_secs(60);

/// A page to write.
#[derive(Debug)]
pub(super) struct Save {
    pub(super) page: PageName,
    pub(super) content: Vec<u8>,
}

/// Pages to read, each after the one before. Their contents are sent in order, up to the first that cannot be had; then the
/// sender is dropped. Nobody reads on once the receiver is.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) pages: Vec<PageName>,
    pub(super) contents: SyncSender<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Queue {
    loads: VecDeque<Load>,
    saves: VecDeque<Save>,
    /// No more comes; the thread ends when all is written.
    closing: bool,
    /// Pages that are left are not written any more.
    abandoned: bool,
    /// The thread has ended.
    ended: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// There is something to do.
    work: Condvar,
    /// Something has been done.
    done: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Files {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Most pages that wait to be written.
    most: usize,
}

impl Files {
    /// Starts the thread. At most `most` pages wait to be written.
    pub(super) fn start(store: PageStore, most: usize) -> io::Result<Files> {
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("tallow-disk-cache".into());
        let thread = thread.spawn(move || {
            let ended = Ended(own);
            serve(&ended.0, store);
        })?;
        Ok(Files { shared, thread: Some(thread), most })
    }

    /// Whether a page may be queued for writing.
    pub(super) fn has_room(&self) -> bool {
        self.shared.lock().saves.len() < self.most
    }

    /// Queues a page for writing.
    pub(super) fn save(&self, save: Save) {
        self.shared.lock().saves.push_back(save);
        self.shared.work.notify_one();
    }

    /// Queues pages for reading, before all that are to be written.
    pub(super) fn load(&self, load: Load) {
        self.shared.lock().loads.push_back(load);
        self.shared.work.notify_one();
    }

    /// Whether the thread is still there.
    pub(super) fn is_alive(&self) -> bool {
        !self.shared.lock().ended
    }

    /// Waits until something has been written, at most so long.
    pub(super) fn wait(&self, most: Duration) {
        let queue = self.shared.lock();
        if queue.saves.len() >= self.most && !queue.ended {
            let _ = self.shared.done.wait_timeout(queue, most);
        }
    }

    /// Has all that is queued written within a time, and ends the thread. Returns whether that was enough. A disk that does
    /// not answer is left alone: what is half written then is noticed when it is read.
    pub(super) fn close(&mut self, within: Duration) -> bool {
        let Some(thread) = self.thread.take() else { return true };
        let end = Instant::now() + within;
        let mut queue = self.shared.lock();
        queue.closing = true;
        self.shared.work.notify_one();
        while !queue.ended && Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            queue = self.shared.done.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.abandoned = true;
        let ended = queue.ended;
        drop(queue);
        if ended {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
        ended
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

/// Says that the thread has ended, also by a panic.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.ended = true;
        // Whoever waits for contents learns that there are none.
        queue.loads.clear();
        drop(queue);
        self.0.done.notify_all();
    }
}

enum Job {
    Load(Load),
    Save(Save),
}

/// The next job; `None` if no more come.
fn next(shared: &Shared) -> Option<Job> {
    let mut queue = shared.lock();
    loop {
        if queue.abandoned {
            return None;
        }
        if let Some(load) = queue.loads.pop_front() {
            return Some(Job::Load(load));
        }
        if let Some(save) = queue.saves.pop_front() {
            return Some(Job::Save(save));
        }
        if queue.closing {
            return None;
        }
        queue = shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}

fn serve(shared: &Shared, mut store: PageStore) {
    let index = store.index().clone();
    let mut paused: Option<Instant> = None;
    while let Some(job) = next(shared) {
        match job {
            Job::Load(Load { pages, contents }) => {
                let mut contents_of = pages.iter().map_while(|page| store.load(page));
                while let Some(content) = contents_of.next()
                    && contents.send(content).is_ok()
                {}
                store.note_use();
            }
            Job::Save(save) if paused.is_none_or(|until| Instant::now() >= until) => {
                if let Err(why) = write(&mut store, &index, &save) {
                    tracing::warn!("{}: {why}; no pages are saved for a minute", store.folder().display());
                    paused = Some(Instant::now() + PAUSE);
                }
            }
            Job::Save(save) => lock(&index).drop_queued(&save.page.key),
        }
        shared.done.notify_all();
    }
    store.note_use();
}

fn write(store: &mut PageStore, index: &SharedIndex, save: &Save) -> io::Result<()> {
    let written = store.save(&save.page, &save.content);
    if written.is_err() {
        lock(index).drop_queued(&save.page.key);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::mpsc::{Receiver, sync_channel};

    use tempfile::TempDir;

    use super::*;
    use crate::disk_cache::folder::{Folder, SegmentFile};
    use crate::disk_cache::key::{Keys, fingerprint};
    use crate::disk_cache::store::PageShape;

    const SHAPE: PageShape = PageShape { tokens: 2, bytes: 8 };

    fn start(dir: &Path) -> (Files, SharedIndex, Vec<PageName>) {
        let folder = Folder::open(dir).unwrap();
        let keys = Keys::new(folder.secret().unwrap(), fingerprint([&b"a model"[..]]));
        let mut after = keys.start(None);
        let page = |i: u32| {
            let tokens: Box<[u32]> = [i, i].into();
            let page = PageName { key: keys.page(&after, &tokens), after, tokens };
            after = page.key;
            page
        };
        let pages = (0..100).map(page).collect();
        let store = PageStore::open(folder, keys, SHAPE, 1 << 20, Arc::default()).unwrap();
        let index = store.index().clone();
        (Files::start(store, 100).unwrap(), index, pages)
    }

    fn save(files: &Files, index: &SharedIndex, page: &PageName) {
        assert!(lock(index).queue_if(page.key, |_| true));
        files.save(Save { page: page.clone(), content: vec![page.tokens[0] as u8; 8] });
    }

    fn load(files: &Files, pages: &[PageName]) -> Receiver<Vec<u8>> {
        let (contents, receiver) = sync_channel(1);
        files.load(Load { pages: pages.to_vec(), contents });
        receiver
    }

    #[test]
    fn all_that_is_queued_is_written_before_the_end() {
        let dir = TempDir::new().unwrap();
        let (mut files, index, pages) = start(dir.path());
        pages.iter().for_each(|page| save(&files, &index, page));
        assert!(files.close(Duration::from_secs(20)) && !files.is_alive());
        let (files, _, pages) = start(dir.path());
        let contents: Vec<Vec<u8>> = load(&files, &pages).iter().collect();
        let want: Vec<Vec<u8>> = (0..100).map(|i| vec![i; 8]).collect();
        assert_eq!(contents, want);
        // Whoever does not want the rest holds up nobody.
        let mut some = load(&files, &pages);
        assert_eq!(some.recv(), Ok(vec![0; 8]));
        some = load(&files, &pages[98..]);
        assert_eq!(some.iter().count(), 2);
        // Contents come up to the first that is not there.
        let missing = PageName { key: pages[0].after, ..pages[1].clone() };
        let asked = [pages[0].clone(), missing, pages[2].clone()];
        assert_eq!(load(&files, &asked).iter().count(), 1);
    }

    /// A disk that is full now is not tried again at once.
    #[test]
    fn after_a_failure_nothing_is_saved_for_a_while() {
        let dir = TempDir::new().unwrap();
        let (mut files, index, pages) = start(dir.path());
        let taken = dir.path().join(SegmentFile::name(&fingerprint([&b"a model"[..]]), 0));
        fs::create_dir(&taken).unwrap();
        save(&files, &index, &pages[0]);
        let begun = Instant::now();
        while lock(&index).has(&pages[0].key) {
            assert!(begun.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(1));
        }
        fs::remove_dir(&taken).unwrap();
        save(&files, &index, &pages[0]);
        assert!(files.close(Duration::from_secs(20)));
        assert!(!lock(&index).has(&pages[0].key) && !taken.exists());
    }
}
