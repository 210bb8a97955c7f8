//! [`RecordStore`]: pages in files, and snapshots of recurrent states.
//!
//! StoreThread are *segments*: records are appended to the newest, and the least recently used segment is removed as a whole when
//! there is no more room. A record is a page or a state, and all of a kind have the same length, which follows from the model;
//! so no length is ever read from a file. Nothing that a file says is believed: its head is checked when it is opened, the head
//! of each record (what it is) too, and the content when it is read. A file with anything wrong in it is removed.
//!
//! ```text
//! segment:  magic, version, tokens of a page, bytes of a page and of a state, fingerprint | checksum | record, record, …
//! record:   kind, key, key of the page before, tokens | checksum | content | checksum
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use super::folder::{Folder, SegmentFile};
use super::index::{Place, SharedIndex, lock};
use super::key::{Keys, Kind, RecordKey, RecordName, token_bytes};
use super::{TierCounts, TierError};

const MAGIC: [u8; 8] = *b"tallowKV";
/// Version of the files' layout.
const VERSION: u32 = 2;
/// Bytes of a digest.
const DIGEST: usize = 32;
/// Bytes of a segment before its checksum.
const HEAD: usize = MAGIC.len() + 4 + 4 + 8 + 8 + DIGEST;
/// Bytes of a segment before its records.
pub(super) const START: usize = HEAD + DIGEST;
/// Segments that the room is divided into: what is removed at once, when it is full.
const SEGMENTS: u64 = 16;
/// Most bytes of a segment.
const MAX_SEGMENT: u64 = 256 << 20;
/// Most records: each takes some hundred bytes of memory.
const MAX_RECORDS: u64 = 1 << 20;

/// A place for records: [files](RecordStore) or [memory](super::memory::MemoryStore).
pub(super) trait Store: Send + 'static {
    /// Index of the records.
    fn index(&self) -> &SharedIndex;

    /// Name for the log.
    fn label(&self) -> String;

    /// Keeps a record.
    fn save(&mut self, name: &RecordName, content: Vec<u8>) -> io::Result<()>;

    /// A record's content. What cannot be had is not found again.
    fn load(&mut self, name: &RecordName) -> Option<Arc<Vec<u8>>>;

    /// Keeps when records were last used, for the next time that they are opened.
    fn note_use(&mut self) {}
}

/// Sizes of pages and states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordShape {
    /// Tokens of a page.
    pub(super) tokens: usize,
    /// Bytes of a page.
    pub(super) page: usize,
    /// Bytes of a recurrent state; `None` in a model without.
    pub(super) state: Option<usize>,
}

impl RecordShape {
    /// Bytes of the content of a record.
    pub(super) fn content(self, kind: Kind) -> usize {
        match kind {
            Kind::Page => self.page,
            Kind::State => self.state.unwrap_or(0),
        }
    }

    /// Bytes of a record before its first checksum.
    fn head(self) -> usize {
        1 + 2 * DIGEST + 4 * self.tokens
    }

    /// Bytes of a record before its content.
    fn before(self) -> usize {
        self.head() + DIGEST
    }

    /// Bytes of a record.
    pub(super) fn record(self, kind: Kind) -> usize {
        self.before() + self.content(kind) + DIGEST
    }

    /// Kinds of records that there are.
    pub(super) fn kinds(self) -> impl Iterator<Item = Kind> {
        Kind::ALL.into_iter().filter(move |kind| *kind == Kind::Page || self.state.is_some())
    }

    /// Bytes of the shortest record.
    fn shortest(self) -> u64 {
        self.kinds().map(|kind| self.record(kind) as u64).fold(u64::MAX, u64::min)
    }

    /// Bytes of a page with all that it takes to go on after it.
    fn usable(self) -> u64 {
        self.kinds().map(|kind| self.record(kind) as u64).sum()
    }
}

/// A segment of this model.
#[derive(Debug)]
struct Segment {
    file: File,
    name: String,
    bytes: u64,
    /// Its records.
    records: Vec<RecordKey>,
    /// Number of pages among them.
    pages: usize,
    /// The time that its file has as that of its last use.
    used: SystemTime,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct RecordStore {
    folder: Folder,
    keys: Keys,
    shape: RecordShape,
    index: SharedIndex,
    segments: BTreeMap<u32, Segment>,
    /// Segments of other models.
    others: Vec<SegmentFile>,
    /// Most bytes of all segments.
    limit: u64,
    /// Most bytes of a segment.
    segment_limit: u64,
    counts: Arc<TierCounts>,
}

impl Store for RecordStore {
    fn index(&self) -> &SharedIndex {
        RecordStore::index(self)
    }

    fn label(&self) -> String {
        self.folder.path().display().to_string()
    }

    fn save(&mut self, name: &RecordName, content: Vec<u8>) -> io::Result<()> {
        RecordStore::save(self, name, &content)
    }

    fn load(&mut self, name: &RecordName) -> Option<Arc<Vec<u8>>> {
        RecordStore::load(self, name).map(Arc::new)
    }

    fn note_use(&mut self) {
        RecordStore::note_use(self);
    }
}

impl RecordStore {
    /// Opens the segments of a folder, which are to take `limit` bytes at most.
    pub(super) fn open(
        folder: Folder,
        keys: Keys,
        shape: RecordShape,
        limit: u64,
        counts: Arc<TierCounts>,
    ) -> Result<RecordStore, TierError> {
        // A segment has room for a page with the state after it, which are of no use without each other.
        let segment = START as u64 + shape.usable();
        let least = SEGMENTS * segment;
        if limit < least {
            return Err(TierError::TooSmall { limit, least });
        }
        let limit = limit.min(MAX_RECORDS.saturating_mul(shape.shortest())).max(least);
        let segment_limit = (limit / SEGMENTS).min(MAX_SEGMENT).max(segment);
        let unusable =
            |why: io::Error| TierError::Unusable { folder: folder.path().into(), why: why.to_string() };
        let mut all = folder.segments().map_err(unusable)?;
        all.sort_by_key(|file| file.number);
        let (own, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|file| file.is_of(keys.fingerprint()));
        let (segments, index) = (BTreeMap::new(), SharedIndex::default());
        let mut store =
            RecordStore { folder, keys, shape, index, segments, others, limit, segment_limit, counts };
        own.into_iter().for_each(|file| store.adopt(file));
        store.make_room(0).map_err(|why| TierError::Unusable {
            folder: store.folder.path().into(),
            why: why.to_string(),
        })?;
        Ok(store)
    }

    /// Index of the records.
    pub(super) fn index(&self) -> &SharedIndex {
        &self.index
    }

    /// Number of pages, and of states.
    pub(super) fn counts(&self) -> (usize, usize) {
        let pages = self.segments.values().map(|segment| segment.pages).sum();
        let records: usize = self.segments.values().map(|segment| segment.records.len()).sum();
        (pages, records - pages)
    }

    /// Takes the records of a segment's file, or removes it if anything is wrong with it.
    fn adopt(&mut self, file: SegmentFile) {
        match self.scan(&file) {
            Ok((segment, places)) => {
                let mut index = lock(&self.index);
                for (key, at) in segment.records.iter().zip(places) {
                    index.places.entry(*key).or_insert(Place::Record { segment: file.number, at });
                }
                index.used.insert(file.number, file.used);
                drop(index);
                self.segments.insert(file.number, segment);
            }
            Err(why) => self.refuse(&file.name, file.bytes, &why),
        }
    }

    /// Reads the heads of a segment and its records, and returns where these begin. What a process that was killed left of a
    /// record is cut off.
    fn scan(&self, found: &SegmentFile) -> io::Result<(Segment, Vec<u64>)> {
        let mut file = self.folder.open_segment(&found.name)?;
        let bytes = file.metadata()?.len();
        let mut start = [0; START];
        file.read_exact(&mut start)?;
        if start != *self.segment_start() {
            return Err(damaged("its beginning"));
        }
        let shape = self.shape;
        let (mut places, mut records, mut pages, mut end) = (Vec::new(), Vec::new(), 0, START as u64);
        let mut head = vec![0; shape.before()];
        while bytes.saturating_sub(end) >= shape.shortest() {
            file.seek(SeekFrom::Start(end))?;
            file.read_exact(&mut head)?;
            let (named, check) = head.split_at(shape.head());
            // Only then its first byte, which its length follows from, is one that was written here.
            let kind = shape.kinds().find(|kind| kind.byte() == named[0]);
            let Some(kind) = kind.filter(|_| check == self.keys.record_head(named)) else {
                return Err(damaged(&format!("the head of the record at byte {end}")));
            };
            let length = shape.record(kind) as u64;
            if bytes - end < length {
                break;
            }
            if records.len() as u64 >= MAX_RECORDS {
                return Err(io::Error::other("it is too long"));
            }
            places.push(end);
            records.push(key_of(named));
            pages += usize::from(kind == Kind::Page);
            end += length;
        }
        if end < bytes {
            tracing::debug!("{}: the last {} bytes are no whole record", found.name, bytes - end);
            file.set_len(end)?;
        }
        let (name, used) = (found.name.clone(), found.used);
        Ok((Segment { file, name, bytes: end, records, pages, used }, places))
    }

    /// Header of a segment.
    fn segment_start(&self) -> Box<[u8; START]> {
        let mut start = Box::new([0; START]);
        let RecordShape { tokens, page, state } = self.shape;
        let parts: [&[u8]; 6] = [
            &MAGIC,
            &VERSION.to_le_bytes(),
            &(tokens as u32).to_le_bytes(),
            &(page as u64).to_le_bytes(),
            &(state.unwrap_or(0) as u64).to_le_bytes(),
            self.keys.fingerprint(),
        ];
        start[..HEAD].copy_from_slice(&parts.concat());
        let check = self.keys.segment_head(&start[..HEAD]);
        start[HEAD..].copy_from_slice(&check);
        start
    }

    /// Header of a record.
    fn record_start(&self, name: &RecordName) -> Vec<u8> {
        let tokens = token_bytes(&name.tokens);
        let mut start = [&[name.kind.byte()][..], &name.key.0, &name.after.0, &tokens].concat();
        start.extend(self.keys.record_head(&start));
        start
    }

    /// Appends a record.
    pub(super) fn save(&mut self, name: &RecordName, content: &[u8]) -> io::Result<()> {
        if name.tokens.len() != self.shape.tokens || content.len() != self.shape.content(name.kind) {
            return Err(io::Error::other("the page or state has another size"));
        }
        let place = lock(&self.index).places.get(&name.key).copied();
        if matches!(place, Some(Place::Record { .. })) {
            return Ok(());
        }
        let start = self.record_start(name);
        let check = self.keys.content(&start, content);
        let record = self.shape.record(name.kind) as u64;
        let number = self.writable(record)?;
        let Some(segment) = self.segments.get_mut(&number) else {
            return Err(io::Error::other("the newest segment is gone"));
        };
        let end = segment.bytes;
        segment.file.seek(SeekFrom::Start(end))?;
        let mut parts = [&start, content, &check[..]].into_iter();
        if let Err(why) = parts.try_for_each(|part| segment.file.write_all(part)) {
            // So that the next record begins where this one did.
            segment.file.set_len(end)?;
            return Err(why);
        }
        segment.bytes = end + record;
        segment.records.push(name.key);
        segment.pages += usize::from(name.kind == Kind::Page);
        segment.used = SystemTime::now();
        let mut index = lock(&self.index);
        index.places.insert(name.key, Place::Record { segment: number, at: end });
        index.used.insert(number, segment.used);
        drop(index);
        self.counts.saved_bytes.fetch_add(record, Ordering::Relaxed);
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
        let (bytes, records, used) = (START as u64, Vec::new(), SystemTime::now());
        self.segments.insert(number, Segment { file, name, bytes, records, pages: 0, used });
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

    /// Takes a segment and its records out of the index.
    fn forget(&mut self, number: u32) -> Option<Segment> {
        let segment = self.segments.remove(&number)?;
        let mut index = lock(&self.index);
        for key in &segment.records {
            // A record that was saved twice stays where it is found.
            if matches!(index.places.get(key), Some(Place::Record { segment, .. }) if *segment == number) {
                index.places.remove(key);
            }
        }
        index.used.remove(&number);
        Some(segment)
    }

    /// A record's content. If anything is wrong with its file, the file is removed, and there is none.
    pub(super) fn load(&mut self, name: &RecordName) -> Option<Vec<u8>> {
        let Some(Place::Record { segment: number, at }) = lock(&self.index).places.get(&name.key).copied()
        else {
            return None;
        };
        match self.read(number, at, name) {
            Ok(content) => {
                let bytes = self.shape.record(name.kind) as u64;
                self.counts.loaded_bytes.fetch_add(bytes, Ordering::Relaxed);
                Some(content)
            }
            Err(why) => {
                if let Some(segment) = self.forget(number) {
                    self.refuse(&segment.name, segment.bytes, &why);
                    self.count_bytes();
                }
                // Whatever was wrong, it is not tried again.
                lock(&self.index).places.remove(&name.key);
                None
            }
        }
    }

    /// Reads a record and compares all of it but the content, which is checked.
    fn read(&mut self, segment: u32, at: u64, name: &RecordName) -> io::Result<Vec<u8>> {
        let Some(segment) = self.segments.get_mut(&segment) else {
            return Err(io::Error::other("the segment is gone"));
        };
        let bytes = self.shape.content(name.kind);
        let mut record = vec![0; self.shape.record(name.kind)];
        segment.file.seek(SeekFrom::Start(at))?;
        segment.file.read_exact(&mut record)?;
        let start = self.record_start(name);
        let (head, rest) = record.split_at(start.len());
        if head != start {
            return Err(damaged(&format!("the head of the record at byte {at}")));
        }
        let (content, check) = rest.split_at(bytes);
        if check != self.keys.content(head, content) {
            return Err(damaged(&format!("the content of the record at byte {at}")));
        }
        record.truncate(start.len() + bytes);
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

/// The key in the head of a record.
fn key_of(head: &[u8]) -> RecordKey {
    let mut key = [0; DIGEST];
    key.copy_from_slice(&head[1..=DIGEST]);
    RecordKey(key)
}

#[cfg(test)]
mod tests;
