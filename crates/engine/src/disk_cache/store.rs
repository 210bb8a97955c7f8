//! [`PageStore`]: pages in files.
//!
//! Files are *segments*: pages are appended to the newest, and the least recently used segment is removed as a whole when
//! there is no more room. All records of a segment have the same length, which follows from the model; so no length is
//! ever read from a file. Nothing that a file says is believed: its head is checked when it is opened, the head of each
//! record (which page it is) too, and a page's content when it is read. A file with anything wrong in it is removed.
//!
//! ```text
//! segment:  magic, version, tokens and bytes of a page, fingerprint | checksum | record, record, …
//! record:   key, key of the page before, tokens                     | checksum | content | checksum
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::folder::{Folder, SegmentFile};
use super::key::{Keys, PageKey, PageName, token_bytes};
use super::{DiskCacheError, DiskCounts};

const MAGIC: [u8; 8] = *b"tallowKV";
/// Version of the files' layout.
const VERSION: u32 = 1;
/// Bytes of a digest.
const DIGEST: usize = 32;
/// Bytes of a segment before its checksum.
const HEAD: usize = MAGIC.len() + 4 + 4 + 8 + DIGEST;
/// Bytes of a segment before its records.
pub(super) const START: usize = HEAD + DIGEST;
/// Segments that the room is divided into: what is removed at once, when it is full.
const SEGMENTS: u64 = 16;
/// Most bytes of a segment.
const MAX_SEGMENT: u64 = 256 << 20;
/// Most pages: each takes some hundred bytes of memory.
const MAX_PAGES: u64 = 1 << 20;

/// Size of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageShape {
    /// Tokens of a page.
    pub(super) tokens: usize,
    /// Bytes of its content.
    pub(super) bytes: usize,
}

impl PageShape {
    /// Bytes of a record before its first checksum.
    fn head(self) -> usize {
        2 * DIGEST + 4 * self.tokens
    }

    /// Bytes of a record before its content.
    fn before(self) -> usize {
        self.head() + DIGEST
    }

    /// Bytes of a record.
    pub(super) fn record(self) -> usize {
        self.before() + self.bytes + DIGEST
    }
}

/// State of a page: queued for writing, or a record of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On its way to a file.
    Queued,
    /// Record of a segment.
    Record { segment: u32, number: u32 },
}

/// Index of the stored pages. Shared by the store, which reads and writes them, and the engine, which looks them up.
#[derive(Debug, Default)]
pub(super) struct Index {
    pages: HashMap<PageKey, Place>,
    /// When a page of a segment was last used.
    used: BTreeMap<u32, SystemTime>,
}

impl Index {
    /// Whether a page is in a file, or on its way to one.
    pub(super) fn has(&self, key: &PageKey) -> bool {
        self.pages.contains_key(key)
    }

    /// Whether a page is in a file; if so it is used now.
    pub(super) fn touch(&mut self, key: &PageKey, now: SystemTime) -> bool {
        match self.pages.get(key) {
            Some(Place::Record { segment, .. }) => {
                self.used.insert(*segment, now);
                true
            }
            Some(Place::Queued) | None => false,
        }
    }

    /// Marks a page as on its way to a file, on a condition. Returns whether that was met.
    pub(super) fn queue_if(&mut self, key: PageKey, condition: impl Fn(&Index) -> bool) -> bool {
        let may = condition(self);
        if may {
            self.pages.insert(key, Place::Queued);
        }
        may
    }

    /// A page that was on its way to a file will not get there.
    pub(super) fn drop_queued(&mut self, key: &PageKey) {
        if self.pages.get(key) == Some(&Place::Queued) {
            self.pages.remove(key);
        }
    }
}

/// The index, shared.
pub(super) type SharedIndex = Arc<Mutex<Index>>;

/// Locks the index. It is whole after each of its methods, so a panic elsewhere spoils nothing.
pub(super) fn lock(index: &SharedIndex) -> MutexGuard<'_, Index> {
    index.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A segment of this model.
#[derive(Debug)]
struct Segment {
    file: File,
    name: String,
    bytes: u64,
    /// Pages, by their number.
    pages: Vec<PageKey>,
    /// The time that its file has as that of its last use.
    used: SystemTime,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct PageStore {
    folder: Folder,
    keys: Keys,
    shape: PageShape,
    index: SharedIndex,
    segments: BTreeMap<u32, Segment>,
    /// Segments of other models.
    others: Vec<SegmentFile>,
    /// Most bytes of all segments.
    limit: u64,
    /// Most bytes of a segment.
    segment_limit: u64,
    counts: Arc<DiskCounts>,
}

impl PageStore {
    /// Opens the segments of a folder, which are to take `limit` bytes at most.
    pub(super) fn open(
        folder: Folder,
        keys: Keys,
        shape: PageShape,
        limit: u64,
        counts: Arc<DiskCounts>,
    ) -> Result<PageStore, DiskCacheError> {
        let record = shape.record() as u64;
        let least = SEGMENTS * (START as u64 + record);
        if limit < least {
            return Err(DiskCacheError::TooSmall { limit, least });
        }
        let limit = limit.min(MAX_PAGES.saturating_mul(record));
        let segment_limit = (limit / SEGMENTS).min(MAX_SEGMENT).max(START as u64 + record);
        let unusable =
            |why: io::Error| DiskCacheError::Unusable { folder: folder.path().into(), why: why.to_string() };
        let mut all = folder.segments().map_err(unusable)?;
        all.sort_by_key(|file| file.number);
        let (own, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|file| file.is_of(keys.fingerprint()));
        let (segments, index) = (BTreeMap::new(), SharedIndex::default());
        let mut store =
            PageStore { folder, keys, shape, index, segments, others, limit, segment_limit, counts };
        own.into_iter().for_each(|file| store.adopt(file));
        store.make_room(0).map_err(|why| DiskCacheError::Unusable {
            folder: store.folder.path().into(),
            why: why.to_string(),
        })?;
        Ok(store)
    }

    /// Index of the stored pages.
    pub(super) fn index(&self) -> &SharedIndex {
        &self.index
    }

    /// The folder.
    pub(super) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Number of pages.
    pub(super) fn pages(&self) -> usize {
        self.segments.values().map(|segment| segment.pages.len()).sum()
    }

    /// Takes the pages of a segment's file, or removes it if anything is wrong with it.
    fn adopt(&mut self, file: SegmentFile) {
        match self.scan(&file) {
            Ok(segment) => {
                let mut index = lock(&self.index);
                for (number, key) in (0..).zip(&segment.pages) {
                    index.pages.entry(*key).or_insert(Place::Record { segment: file.number, number });
                }
                index.used.insert(file.number, file.used);
                drop(index);
                self.segments.insert(file.number, segment);
            }
            Err(why) => self.refuse(&file.name, file.bytes, &why),
        }
    }

    /// Reads the heads of a segment and its records. What a process that was killed left of a record is cut off.
    fn scan(&self, found: &SegmentFile) -> io::Result<Segment> {
        let mut file = self.folder.open_segment(&found.name)?;
        let bytes = file.metadata()?.len();
        let mut start = [0; START];
        file.read_exact(&mut start)?;
        if start != *self.segment_start() {
            return Err(damaged("its beginning"));
        }
        let (record, shape) = (self.shape.record() as u64, self.shape);
        let records = (bytes - START as u64) / record;
        let whole = START as u64 + records * record;
        if records > MAX_PAGES {
            return Err(io::Error::other("it is too long"));
        }
        if whole < bytes {
            tracing::debug!("{}: the last {} bytes are no whole page", found.name, bytes - whole);
            file.set_len(whole)?;
        }
        let (mut pages, mut head) = (Vec::with_capacity(records as usize), vec![0; shape.before()]);
        for number in 0..records {
            file.seek(SeekFrom::Start(START as u64 + number * record))?;
            file.read_exact(&mut head)?;
            let (named, check) = head.split_at(shape.head());
            if check != self.keys.record_head(named) {
                return Err(damaged(&format!("the head of page {number}")));
            }
            pages.push(key_of(named));
        }
        Ok(Segment { file, name: found.name.clone(), bytes: whole, pages, used: found.used })
    }

    /// Header of a segment.
    fn segment_start(&self) -> Box<[u8; START]> {
        let mut start = Box::new([0; START]);
        let (tokens, bytes) = (self.shape.tokens as u32, self.shape.bytes as u64);
        let parts: [&[u8]; 5] = [
            &MAGIC,
            &VERSION.to_le_bytes(),
            &tokens.to_le_bytes(),
            &bytes.to_le_bytes(),
            self.keys.fingerprint(),
        ];
        start[..HEAD].copy_from_slice(&parts.concat());
        let check = self.keys.segment_head(&start[..HEAD]);
        start[HEAD..].copy_from_slice(&check);
        start
    }

    /// Header of a page's record.
    fn record_start(&self, page: &PageName) -> Vec<u8> {
        let mut start = [&page.key.0[..], &page.after.0, &token_bytes(&page.tokens)].concat();
        start.extend(self.keys.record_head(&start));
        start
    }

    /// Appends a page.
    pub(super) fn save(&mut self, page: &PageName, content: &[u8]) -> io::Result<()> {
        if page.tokens.len() != self.shape.tokens || content.len() != self.shape.bytes {
            return Err(io::Error::other("the page has another size"));
        }
        let place = lock(&self.index).pages.get(&page.key).copied();
        if matches!(place, Some(Place::Record { .. })) {
            return Ok(());
        }
        let mut record = self.record_start(page);
        let check = self.keys.content(&record, content);
        record.extend(content);
        record.extend(check);
        let number = self.writable(record.len() as u64)?;
        let Some(segment) = self.segments.get_mut(&number) else {
            return Err(io::Error::other("the newest segment is gone"));
        };
        let end = segment.bytes;
        segment.file.seek(SeekFrom::Start(end))?;
        if let Err(why) = segment.file.write_all(&record) {
            // So that the next page begins where this one did.
            segment.file.set_len(end)?;
            return Err(why);
        }
        segment.bytes = end + record.len() as u64;
        segment.pages.push(page.key);
        segment.used = SystemTime::now();
        let place = Place::Record { segment: number, number: segment.pages.len() as u32 - 1 };
        let mut index = lock(&self.index);
        index.pages.insert(page.key, place);
        index.used.insert(number, segment.used);
        drop(index);
        self.counts.saved_bytes.fetch_add(record.len() as u64, Ordering::Relaxed);
        self.count_bytes();
        Ok(())
    }

    /// The segment to append `more` bytes to: the newest, or a new one. Makes room for them.
    fn writable(&mut self, more: u64) -> io::Result<u32> {
        if let Some((number, segment)) = self.segments.last_key_value()
            && segment.bytes + more <= self.segment_limit
        {
            let number = *number;
            self.make_room_beside(more, Some(number))?;
            return Ok(number);
        }
        self.make_room(START as u64 + more)?;
        let number = self.segments.last_key_value().map_or(Some(0), |(number, _)| number.checked_add(1));
        let number = number.ok_or_else(|| io::Error::other("there have been too many segments"))?;
        let name = SegmentFile::name(self.keys.fingerprint(), number);
        let mut file = self.folder.create(&name)?;
        if let Err(why) = file.write_all(&*self.segment_start()) {
            self.folder.remove(&name)?;
            return Err(why);
        }
        let (bytes, pages, used) = (START as u64, Vec::new(), SystemTime::now());
        self.segments.insert(number, Segment { file, name, bytes, pages, used });
        Ok(number)
    }

    /// Bytes of all segments.
    fn bytes(&self) -> u64 {
        let own = self.segments.values().map(|segment| segment.bytes);
        own.chain(self.others.iter().map(|file| file.bytes)).sum()
    }

    fn count_bytes(&self) {
        self.counts.bytes.store(self.bytes(), Ordering::Relaxed);
    }

    fn make_room(&mut self, more: u64) -> io::Result<()> {
        self.make_room_beside(more, None)
    }

    /// Removes segments, the least recently used first, until `more` bytes fit; never the one that is `kept`.
    fn make_room_beside(&mut self, more: u64, kept: Option<u32>) -> io::Result<()> {
        while self.bytes().saturating_add(more) > self.limit {
            let index = lock(&self.index);
            let own = self.segments.keys().filter(|number| Some(**number) != kept);
            let own = own.map(|number| (index.used.get(number).copied(), Some(*number)));
            let oldest_own = own.min();
            drop(index);
            let others = self.others.iter().enumerate().map(|(at, file)| (Some(file.used), at));
            match (oldest_own, others.min()) {
                (own, Some((used, at))) if own.is_none_or(|own| used <= own.0) => {
                    self.folder.remove(&self.others[at].name)?;
                    self.others.remove(at);
                }
                (Some((_, Some(number))), _) => {
                    if let Some(segment) = self.forget(number) {
                        self.folder.remove(&segment.name)?;
                    }
                }
                _ => return Err(io::Error::other("the pages take more room than they may")),
            }
        }
        self.count_bytes();
        Ok(())
    }

    /// Takes a segment and its pages out of the index.
    fn forget(&mut self, number: u32) -> Option<Segment> {
        let segment = self.segments.remove(&number)?;
        let mut index = lock(&self.index);
        for key in &segment.pages {
            // A page that was saved twice stays where it is found.
            if matches!(index.pages.get(key), Some(Place::Record { segment, .. }) if *segment == number) {
                index.pages.remove(key);
            }
        }
        index.used.remove(&number);
        Some(segment)
    }

    /// A page's content. If anything is wrong with its file, the file is removed, and there is none.
    pub(super) fn load(&mut self, page: &PageName) -> Option<Vec<u8>> {
        let Some(Place::Record { segment: at, number }) = lock(&self.index).pages.get(&page.key).copied()
        else {
            return None;
        };
        match self.read(at, number, page) {
            Ok(content) => {
                self.counts.loaded_bytes.fetch_add(self.shape.record() as u64, Ordering::Relaxed);
                Some(content)
            }
            Err(why) => {
                if let Some(segment) = self.forget(at) {
                    self.refuse(&segment.name, segment.bytes, &why);
                    self.count_bytes();
                }
                None
            }
        }
    }

    /// Reads a page's record and compares all of it but the content, which is checked.
    fn read(&mut self, segment: u32, number: u32, page: &PageName) -> io::Result<Vec<u8>> {
        let Some(segment) = self.segments.get_mut(&segment) else {
            return Err(io::Error::other("the segment is gone"));
        };
        let mut record = vec![0; self.shape.record()];
        segment.file.seek(SeekFrom::Start(START as u64 + u64::from(number) * record.len() as u64))?;
        segment.file.read_exact(&mut record)?;
        let start = self.record_start(page);
        let (head, rest) = record.split_at(start.len());
        if head != start {
            return Err(damaged(&format!("the head of page {number}")));
        }
        let (content, check) = rest.split_at(self.shape.bytes);
        if check != self.keys.content(head, content) {
            return Err(damaged(&format!("the content of page {number}")));
        }
        record.truncate(start.len() + self.shape.bytes);
        record.drain(..start.len());
        Ok(record)
    }

    /// Removes a file with something wrong in it.
    fn refuse(&self, name: &str, bytes: u64, why: &io::Error) {
        self.counts.refused_bytes.fetch_add(bytes, Ordering::Relaxed);
        let path = self.folder.path().join(name);
        tracing::warn!("{}: {why}; the file is removed, and its pages are computed again", path.display());
        if let Err(why) = self.folder.remove(name) {
            tracing::warn!("{} cannot be removed: {why}", path.display());
        }
    }

    /// Has the files keep when they were last used, for the next time that they are opened.
    pub(super) fn note_use(&mut self) {
        let index = lock(&self.index);
        for (number, segment) in &mut self.segments {
            if let Some(used) = index.used.get(number).filter(|used| **used != segment.used) {
                // It matters to nothing but which pages are removed first.
                let _ = segment.file.set_modified(*used);
                segment.used = *used;
            }
        }
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::other(format!("{what} is damaged, or of another version"))
}

/// The key at the beginning of a record.
fn key_of(head: &[u8]) -> PageKey {
    let mut key = [0; DIGEST];
    key.copy_from_slice(&head[..DIGEST]);
    PageKey(key)
}

#[cfg(test)]
mod tests;
