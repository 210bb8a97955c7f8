//! [`StoreThread`]: the thread that reads and writes a [`Store`], so that no step waits for a disk.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::index::lock;
use super::key::RecordName;
use super::store::Store;

/// Time for which nothing is saved after a failed write: a full disk does not get room by trying again at once.
pub(super) const PAUSE: Duration = Duration::from_secs(60);

/// A record to write.
#[derive(Debug)]
pub(super) struct Save {
    pub(super) name: RecordName,
    pub(super) content: Vec<u8>,
}

/// Records to read, each after the one before. Their contents are sent in order, up to the first that cannot be had; then the
/// sender is dropped. Nobody reads on once the receiver is.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) records: Vec<RecordName>,
    pub(super) contents: SyncSender<Arc<Vec<u8>>>,
}

#[derive(Debug, Default)]
struct Queue {
    loads: VecDeque<Load>,
    saves: VecDeque<Save>,
    /// Bytes of the contents of `saves`, and of the one that is being written.
    unwritten: usize,
    /// No more comes; the thread ends when all is written.
    closing: bool,
    /// Records that are left are not written any more.
    abandoned: bool,
    /// The thread has ended.
    ended: bool,
}

impl Queue {
    /// True if so many more bytes may wait to be written, if `most` may. What is larger must wait alone.
    fn has_room(&self, bytes: usize, most: usize) -> bool {
        self.unwritten == 0 || self.unwritten + bytes <= most
    }
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
pub(super) struct StoreThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Most bytes that wait to be written.
    most: usize,
}

impl StoreThread {
    /// Starts the thread. At most `most` bytes wait to be written, or a single record.
    pub(super) fn start(store: impl Store, most: usize) -> io::Result<StoreThread> {
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("tallow-cache".into());
        let thread = thread.spawn(move || {
            let ended = Ended(own);
            serve(&ended.0, store);
        })?;
        Ok(StoreThread { shared, thread: Some(thread), most })
    }

    /// True if a record with so many bytes may be queued for writing.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.shared.lock().has_room(bytes, self.most)
    }

    /// Queues a record for writing.
    pub(super) fn save(&self, save: Save) {
        let mut queue = self.shared.lock();
        queue.unwritten += save.content.len();
        queue.saves.push_back(save);
        drop(queue);
        self.shared.work.notify_one();
    }

    /// Queues records for reading, before all that are to be written.
    pub(super) fn load(&self, load: Load) {
        let mut queue = self.shared.lock();
        // Otherwise nobody reads them, which whoever waits for the contents is to learn.
        if !queue.ended {
            queue.loads.push_back(load);
        }
        drop(queue);
        self.shared.work.notify_one();
    }

    /// True if the thread is still there.
    pub(super) fn is_alive(&self) -> bool {
        !self.shared.lock().ended
    }

    /// If so many bytes cannot be queued for writing, waits until something has been written, at most so long.
    pub(super) fn wait_for_room(&self, bytes: usize, most: Duration) {
        let queue = self.shared.lock();
        if !queue.has_room(bytes, self.most) && !queue.ended {
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

impl Drop for StoreThread {
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

fn serve(shared: &Shared, mut store: impl Store) {
    let index = store.index().clone();
    let mut paused: Option<Instant> = None;
    while let Some(job) = next(shared) {
        match job {
            Job::Load(Load { records, contents }) => {
                let mut contents_of = records.iter().map_while(|name| store.load(name));
                while let Some(content) = contents_of.next()
                    && contents.send(content).is_ok()
                {}
                store.note_use();
            }
            Job::Save(Save { name, content }) => {
                let pauses = paused.is_some_and(|until| Instant::now() < until);
                let bytes = content.len();
                let written = if pauses { Ok(false) } else { store.save(&name, content).map(|()| true) };
                if !matches!(written, Ok(true)) {
                    lock(&index).drop_queued(&name.key);
                }
                if let Err(why) = written {
                    tracing::warn!("{}: {why}; no pages are saved for a minute", store.label());
                    paused = Some(Instant::now() + PAUSE);
                }
                shared.lock().unwritten -= bytes;
            }
        }
        shared.done.notify_all();
    }
    store.note_use();
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::mpsc::{Receiver, sync_channel};

    use tempfile::TempDir;

    use super::*;
    use crate::cache_tier::folder::{Folder, SegmentFile};
    use crate::cache_tier::index::SharedIndex;
    use crate::cache_tier::key::{Keys, fingerprint};
    use crate::cache_tier::store::{RecordShape, RecordStore};

    const SHAPE: RecordShape = RecordShape { tokens: 2, page: 8, state: None };

    fn start(dir: &Path) -> (StoreThread, SharedIndex, Vec<RecordName>) {
        let folder = Folder::open(dir).unwrap();
        let keys = Keys::new(folder.secret().unwrap(), fingerprint([&b"a model"[..]]));
        let mut after = keys.start(None);
        let page = |i: u32| {
            let tokens: Box<[u32]> = [i, i].into();
            let page = keys.page_name(after, tokens);
            after = page.key;
            page
        };
        let pages = (0..100).map(page).collect();
        let store = RecordStore::open(folder, keys, SHAPE, 1 << 20, Arc::default()).unwrap();
        let index = store.index().clone();
        (StoreThread::start(store, 800).unwrap(), index, pages)
    }

    fn save(thread: &StoreThread, index: &SharedIndex, page: &RecordName) {
        assert!(lock(index).queue_if(page.key, |_| true));
        thread.save(Save { name: page.clone(), content: vec![page.tokens[0] as u8; 8] });
    }

    fn load(thread: &StoreThread, pages: &[RecordName]) -> Receiver<Arc<Vec<u8>>> {
        let (contents, receiver) = sync_channel(1);
        thread.load(Load { records: pages.to_vec(), contents });
        receiver
    }

    #[test]
    fn all_that_is_queued_is_written_before_the_end() {
        let dir = TempDir::new().unwrap();
        let (mut thread, index, pages) = start(dir.path());
        pages.iter().for_each(|page| save(&thread, &index, page));
        assert!(thread.close(Duration::from_secs(20)) && !thread.is_alive());
        let (thread, _, pages) = start(dir.path());
        let contents: Vec<Vec<u8>> = load(&thread, &pages).iter().map(|content| content.to_vec()).collect();
        let want: Vec<Vec<u8>> = (0..100).map(|i| vec![i; 8]).collect();
        assert_eq!(contents, want);
        // Whoever does not want the rest holds up nobody.
        let mut some = load(&thread, &pages);
        assert_eq!(some.recv(), Ok(Arc::new(vec![0; 8])));
        some = load(&thread, &pages[98..]);
        assert_eq!(some.iter().count(), 2);
        // Contents come up to the first that is not there.
        let missing = RecordName { key: pages[0].after, ..pages[1].clone() };
        let asked = [pages[0].clone(), missing, pages[2].clone()];
        assert_eq!(load(&thread, &asked).iter().count(), 1);
    }

    /// Records that wait to be written are bounded by bytes; one that is larger than the bound waits alone.
    #[test]
    fn so_many_bytes_wait_to_be_written() {
        let queue = |unwritten| Queue { unwritten, ..Queue::default() };
        assert!(queue(0).has_room(1000, 100));
        assert!(queue(60).has_room(40, 100) && !queue(61).has_room(40, 100));
        assert!(!queue(1).has_room(1000, 100));
        let dir = TempDir::new().unwrap();
        let (mut thread, index, pages) = start(dir.path());
        pages.iter().for_each(|page| save(&thread, &index, page));
        // Room again once all is written, and not before.
        let begun = Instant::now();
        while !thread.has_room(800) {
            thread.wait_for_room(800, Duration::from_millis(10));
            assert!(begun.elapsed() < Duration::from_secs(20));
        }
        assert!(lock(&index).touch(&pages[99].key, std::time::SystemTime::now()));
        assert!(thread.close(Duration::from_secs(20)));
    }

    /// A disk that is full now is not tried again at once.
    #[test]
    fn after_a_failure_nothing_is_saved_for_a_while() {
        let dir = TempDir::new().unwrap();
        let (mut thread, index, pages) = start(dir.path());
        let taken = dir.path().join(SegmentFile::name(&fingerprint([&b"a model"[..]]), 0));
        fs::create_dir(&taken).unwrap();
        save(&thread, &index, &pages[0]);
        let begun = Instant::now();
        while lock(&index).has(&pages[0].key) {
            assert!(begun.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(1));
        }
        fs::remove_dir(&taken).unwrap();
        save(&thread, &index, &pages[0]);
        assert!(thread.close(Duration::from_secs(20)));
        assert!(!lock(&index).has(&pages[0].key) && !taken.exists());
    }
}
