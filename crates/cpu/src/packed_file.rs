//! Packed weights in a file, which later loads map instead of packing again: [`PackedFile`] and [`PackedFileWriter`].
//!
//! ```text
//!   header  | weights, each from a new page on | index: the key of each weight, where it lies, its length
//! ```
//!
//! The layout of a packed weight is the same for every instruction set and number of threads, so a file serves them all. A
//! weight is found by the checkpoint tensor that it comes from, its shape and its format, and by its bytes, or some of them: a
//! loader that transposes a tensor, or reads it otherwise than the one that wrote the file, does not find it, and packs.
//! Whether the file was made of this very checkpoint is for the caller to say, by a digest (`identity`).

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::{Deref, Range};
use std::rc::Rc;
use std::sync::Arc;

use tallow_core::{Error, HostWeight, Result};

use crate::memory::Buf;

pub use writer::PackedFileWriter;

/// Version of this layout and that of packed weights: raised when either changes, which a test notices.
const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"tallowpk";
/// Bytes of the header, and what weights are aligned to: kernels prefetch by pages.
const PAGE: usize = 4096;
/// Bytes of a stored weight that its key depends on, in each of a few places.
const SAMPLE: usize = 64;

/// A mapped file.
pub trait MappedFile: Deref<Target = [u8]> + fmt::Debug + Send + Sync {
    /// Fails if what was read may not have come from the file, since it was cut short or could not be read.
    fn intact(&self) -> std::result::Result<(), String>;
}

/// Weights packed by an earlier load, in a mapped file.
#[derive(Debug)]
pub struct PackedFile {
    file: Arc<dyn MappedFile>,
    /// Where weights lie, by their keys.
    weights: HashMap<String, Range<usize>>,
}

impl PackedFile {
    /// Opens a file, if it was written by [`PackedFileWriter`] with this `identity`.
    pub fn open(file: Arc<dyn MappedFile>, identity: &[u8; 32]) -> io::Result<PackedFile> {
        let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
        let header = Header::read(&file).ok_or_else(|| bad("it is no file of packed weights"))?;
        if header.version != VERSION {
            return Err(bad("it was written by another version of this program"));
        }
        if header.identity != *identity {
            return Err(bad("it was made of another model, or of another version of it"));
        }
        let index = usize::try_from(header.index.start).ok().zip(usize::try_from(header.index.end).ok());
        let index = index.and_then(|(start, end)| file.get(start..end));
        let index = index.filter(|index| digest(index) == header.digest);
        let weights = index.and_then(|index| read_index(index, file.len()));
        let weights = weights.ok_or_else(|| bad("it is damaged"))?;
        // Weights are read in place, by vector loads and prefetches of pages.
        if !(file.as_ptr() as usize).is_multiple_of(PAGE) {
            return Err(bad("it is not mapped to whole pages"));
        }
        Ok(PackedFile { file, weights })
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> usize {
        self.file.len()
    }

    /// The packed form of a weight, if it is there with at least `bytes` bytes.
    pub(crate) fn find(&self, weight: &HostWeight<'_>, bytes: usize) -> Option<Buf> {
        let range = self.weights.get(&key(weight)?).filter(|range| range.len() >= bytes)?;
        let start = self.file[range.clone()].as_ptr();
        Some(Buf::mapped(std::ptr::NonNull::new(start.cast_mut())?, range.len(), Rc::new(self.file.clone())))
    }

    pub(crate) fn intact(&self) -> std::result::Result<(), String> {
        self.file.intact()
    }
}

/// Key of a weight; `None` if it comes from no tensor.
fn key(weight: &HostWeight<'_>) -> Option<String> {
    let (id, HostWeight { format, rows, cols, bytes, as_stored, .. }) = (weight.tensor?, *weight);
    // Several weights may be made of one matrix; they differ in their bytes. A matrix as it is stored is told by its name, and read
    // from the disk for its bytes: of many matrices only the first and the last are.
    let digest = match as_stored {
        false => digest(bytes),
        true if id.matrix == 0 || id.matrix + 1 == id.of => {
            let last = bytes.len().saturating_sub(SAMPLE);
            digest(&[0, last / 2, last].map(|at| &bytes[at..bytes.len().min(at + SAMPLE)]).concat())
        }
        true => 0,
    };
    Some(format!("{} {}/{} {rows}x{cols} {format} {as_stored} {digest:x}", id.tensor, id.matrix, id.of))
}

/// A digest of eight bytes at a time, after FNV-1a.
fn digest(bytes: &[u8]) -> u64 {
    let add =
        |hash: u64, word| (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3).rotate_left(23);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let all = words.iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| add(hash, *word));
    add(add(all, last), (bytes.len() as u64).to_le_bytes())
}

#[derive(Debug, PartialEq, Eq)]
struct Header {
    version: u32,
    identity: [u8; 32],
    /// Place of the index.
    index: Range<u64>,
    /// Of the index.
    digest: u64,
}

impl Header {
    fn read(file: &[u8]) -> Option<Header> {
        let mut rest = file.strip_prefix(MAGIC)?;
        let version = u32::from_le_bytes(take(&mut rest)?);
        let identity = take(&mut rest)?;
        let [start, end, digest] = [(); 3].map(|()| take(&mut rest).map(u64::from_le_bytes));
        Some(Header { version, identity, index: start?..end?, digest: digest? })
    }

    #[cfg(unix)]
    fn write(&self) -> Vec<u8> {
        let numbers = [self.index.start, self.index.end, self.digest].map(u64::to_le_bytes);
        let parts = [&MAGIC[..], &self.version.to_le_bytes(), &self.identity, numbers.as_flattened()];
        parts.concat()
    }
}

/// Removes the first `N` bytes.
fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(*first)
}

/// An index: for each weight the length of its key, the key, and its place; of a file of `len` bytes.
fn read_index(mut index: &[u8], len: usize) -> Option<HashMap<String, Range<usize>>> {
    let mut weights = HashMap::new();
    while !index.is_empty() {
        let key = u32::from_le_bytes(take(&mut index)?) as usize;
        let (key, rest) = index.split_at_checked(key)?;
        index = rest;
        let [start, end] = [(); 2].map(|()| take(&mut index).map(u64::from_le_bytes));
        let (start, end) = (usize::try_from(start?).ok()?, usize::try_from(end?).ok()?);
        if start > end || end > len || !start.is_multiple_of(PAGE) {
            return None;
        }
        weights.insert(std::str::from_utf8(key).ok()?.to_owned(), start..end);
    }
    Some(weights)
}

#[cfg(unix)]
mod writer {
    use std::cell::RefCell;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::ptr::NonNull;

    use super::*;

    /// Least bytes that are mapped at once.
    const WINDOW: usize = 256 << 20;

    /// A file that weights are packed into. What it has of a model stays on the disk, so that a model that is larger than the
    /// memory is packed, too.
    #[derive(Debug)]
    pub struct PackedFileWriter {
        file: File,
        identity: [u8; 32],
        state: RefCell<State>,
    }

    #[derive(Debug, Default)]
    struct State {
        /// The window that the next weight goes into, and how many of its bytes are taken.
        open: Option<(Rc<Window>, usize)>,
        index: Vec<u8>,
        /// Why a weight could not be written.
        failed: Option<io::Error>,
    }

    impl State {
        /// Position of the next weight.
        fn end(&self) -> usize {
            self.open.as_ref().map_or(PAGE, |(window, taken)| window.at + taken)
        }
    }

    /// A mapped part of the file, to be read.
    #[derive(Debug)]
    struct Window {
        start: NonNull<u8>,
        len: usize,
        /// Position in the file.
        at: usize,
    }

    impl Drop for Window {
        fn drop(&mut self) {
            // SAFETY: the range was mapped by `Window::new`, and its last user is being dropped.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
        }
    }

    impl Window {
        /// Maps `len` bytes of the file from `at` on, which become part of it.
        fn new(file: &File, at: usize, len: usize) -> io::Result<Window> {
            file.set_len((at + len) as u64)?;
            let offset = libc::off_t::try_from(at).map_err(io::Error::other)?;
            // SAFETY: a new mapping, at an address of the system's choice, of a file that this process has just made.
            let start = unsafe {
                let (prot, flags) = (libc::PROT_READ, libc::MAP_SHARED);
                libc::mmap(std::ptr::null_mut(), len, prot, flags, file.as_raw_fd(), offset)
            };
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
            Ok(Window { start, len, at })
        }
    }

    impl PackedFileWriter {
        /// Begins a file, which has been made for this and is empty.
        pub fn new(file: File, identity: [u8; 32]) -> PackedFileWriter {
            PackedFileWriter { file, identity, state: RefCell::default() }
        }

        /// Writes a weight's packed form, and returns it as it is mapped. Fails if the weight comes from no tensor, so that it would
        /// not be found, or if it cannot be written; then [`finish`](Self::finish) says why, too.
        pub(crate) fn add(&self, weight: &HostWeight<'_>, packed: &[u8]) -> Result<Buf> {
            let (state, key) = (&mut *self.state.borrow_mut(), key(weight));
            let key = key.ok_or_else(|| io::Error::other("a weight without a tensor"));
            key.and_then(|key| self.write(state, &key, packed)).map_err(|why| {
                let error = Error::Device { device: "cpu".into(), why: format!("packed weights: {why}") };
                state.failed.get_or_insert(why);
                error
            })
        }

        fn write(&self, state: &mut State, key: &str, packed: &[u8]) -> io::Result<Buf> {
            let (at, room) = (state.end(), packed.len().max(1).next_multiple_of(PAGE));
            let (window, taken) = match state.open.take() {
                Some((window, taken)) if window.len - taken >= room => (window, taken),
                _ => (Rc::new(Window::new(&self.file, at, room.max(WINDOW))?), 0),
            };
            self.file.write_all_at(packed, at as u64)?;
            state.index.extend((key.len() as u32).to_le_bytes());
            state.index.extend(key.as_bytes());
            state.index.extend((at as u64).to_le_bytes());
            state.index.extend(((at + packed.len()) as u64).to_le_bytes());
            // SAFETY: the room lies within the window.
            let start = unsafe { window.start.add(taken) };
            let buf = Buf::mapped(start, room, window.clone());
            state.open = Some((window, taken + room));
            Ok(buf)
        }

        /// Writes the index and the header, and waits until all is on the disk. Returns the bytes of the file, or why a
        /// weight could not be written.
        pub(crate) fn finish(&self) -> io::Result<u64> {
            let state = &mut *self.state.borrow_mut();
            if let Some(why) = state.failed.take() {
                return Err(why);
            }
            let start = state.end() as u64;
            let index = start..start + state.index.len() as u64;
            let digest = digest(&state.index);
            self.file.write_all_at(&state.index, index.start)?;
            self.file.set_len(index.end)?;
            // The header comes last: without it this is no file of packed weights.
            self.file.sync_all()?;
            let header = Header { version: VERSION, identity: self.identity, index: index.clone(), digest };
            self.file.write_all_at(&header.write(), 0)?;
            self.file.sync_all()?;
            Ok(index.end)
        }
    }
}

#[cfg(not(unix))]
mod writer {
    use super::*;

    /// A file that weights are packed into: on Unix systems only.
    #[derive(Debug)]
    pub enum PackedFileWriter {}

    impl PackedFileWriter {
        pub(crate) fn add(&self, _: &HostWeight<'_>, _: &[u8]) -> Result<Buf> {
            match *self {}
        }

        pub(crate) fn finish(&self) -> io::Result<u64> {
            match *self {}
        }
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs::File;
    use std::path::PathBuf;

    use tallow_core::{Backend, Format, TensorId, Weight};

    use super::*;
    use crate::{Cpu, Isa};

    /// Outputs and inputs of the weights: the last panels and chunks are partial ones.
    const SHAPE: (usize, usize) = (70, 512 + 256 + 128);
    const IDENTITY: [u8; 32] = [7; 32];

    /// Bytes at an address as that of a mapping.
    #[derive(Debug)]
    struct Held {
        bytes: Vec<u8>,
        skip: usize,
        intact: bool,
    }

    impl Held {
        fn new(content: &[u8]) -> Held {
            let mut bytes = vec![0; content.len() + PAGE];
            let skip = bytes.as_ptr().align_offset(PAGE);
            bytes[skip..skip + content.len()].copy_from_slice(content);
            bytes.truncate(skip + content.len());
            Held { bytes, skip, intact: true }
        }
    }

    impl Deref for Held {
        type Target = [u8];
        fn deref(&self) -> &[u8] {
            &self.bytes[self.skip..]
        }
    }

    impl MappedFile for Held {
        fn intact(&self) -> std::result::Result<(), String> {
            if self.intact { Ok(()) } else { Err("cut short".into()) }
        }
    }

    /// Rows of a weight in some format, whatever they mean.
    fn rows(format: Format, seed: u64) -> Vec<u8> {
        let len = SHAPE.0 * HostWeight::row_bytes(format, SHAPE.1).unwrap();
        let next =
            |x: &u64| Some(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        std::iter::successors(next(&seed), next).map(|x| (x >> 56) as u8).take(len).collect()
    }

    /// Formats whose blocks divide the rows.
    fn formats() -> impl Iterator<Item = Format> {
        Format::ALL.iter().copied().filter(|format| HostWeight::row_bytes(*format, SHAPE.1).is_some())
    }

    fn id(format: Format, matrix: usize) -> TensorId {
        TensorId { tensor: format!("blk.0.{format}.weight").into(), matrix, of: 3, cols: SHAPE.1 }
    }

    fn weight<'a>(format: Format, bytes: &'a [u8], id: &'a TensorId) -> HostWeight<'a> {
        HostWeight { tensor: Some(id), as_stored: true, ..HostWeight::new(format, SHAPE.0, SHAPE.1, bytes) }
    }

    fn bytes_of(weight: &Weight<Cpu>) -> Vec<u8> {
        let Weight::Blocks { data, .. } = weight else { panic!("{weight:?}") };
        // SAFETY: the buffer has that many bytes, and nobody writes them.
        unsafe { std::slice::from_raw_parts(data.buf().start(), data.bytes()) }.to_vec()
    }

    fn cpu() -> Cpu {
        Cpu::new(Isa::Scalar, 2).unwrap()
    }

    /// A file with three matrices of each format; the path is of this test alone.
    fn written(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("tallow-packed-{name}-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        let b = cpu().packing_into(PackedFileWriter::new(file, IDENTITY));
        for format in formats() {
            for matrix in 0..3 {
                let (bytes, id) = (rows(format, matrix as u64), id(format, matrix));
                let packed = b.prepare(weight(format, &bytes, &id)).unwrap();
                assert_eq!(bytes_of(&packed), bytes_of(&cpu().prepare(weight(format, &bytes, &id)).unwrap()));
            }
        }
        // What comes from no tensor is packed into memory.
        b.prepare(HostWeight::new(Format::F32, 1, 32, &[0; 128])).unwrap();
        assert_eq!(b.finish_packing().unwrap(), std::fs::metadata(&path).unwrap().len());
        path
    }

    fn opened(content: &[u8]) -> io::Result<PackedFile> {
        PackedFile::open(Arc::new(Held::new(content)), &IDENTITY)
    }

    #[test]
    fn weights_are_found_as_they_were_packed() {
        let path = written("found");
        let content = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let b = cpu().with_packed(vec![opened(&content).unwrap()], true);
        for format in formats() {
            for matrix in 0..3 {
                let (bytes, id) = (rows(format, matrix as u64), id(format, matrix));
                let there = weight(format, &bytes, &id);
                let found = b.find_packed(&there).unwrap();
                assert_eq!(bytes_of(&found), bytes_of(&cpu().prepare(there).unwrap()), "{format} {matrix}");
                let other = TensorId { tensor: "blk.1".into(), ..id.clone() };
                assert!(b.find_packed(&weight(format, &bytes, &other)).is_none());
                assert!(b.find_packed(&HostWeight { tensor: None, ..there }).is_none());
                assert!(b.find_packed(&HostWeight { rows: SHAPE.0 - 1, ..there }).is_none());
            }
            // The loader reads other bytes for this tensor than the one that packed it did.
            let (bytes, id) = (rows(format, 9), id(format, 0));
            assert!(b.find_packed(&weight(format, &bytes, &id)).is_none());
            let packed = b.prepare(weight(format, &bytes, &id)).unwrap();
            assert_eq!(bytes_of(&packed), bytes_of(&cpu().prepare(weight(format, &bytes, &id)).unwrap()));
        }
    }

    /// As gate and up are, where a file has their rows in turn.
    #[test]
    fn weights_that_are_made_of_one_matrix_are_told_apart() {
        let path = std::env::temp_dir().join(format!("tallow-packed-parts-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        let b = cpu().packing_into(PackedFileWriter::new(file, IDENTITY));
        let id = id(Format::Q8_0, 1);
        let mut parts = vec![rows(Format::Q8_0, 1); 3];
        let middle = parts[0].len() / 2 + 3;
        parts[1][middle] ^= 1;
        parts[2][middle] ^= 2;
        let part = |bytes| HostWeight { as_stored: false, ..weight(Format::Q8_0, bytes, &id) };
        parts[..2].iter().for_each(|bytes| drop(b.prepare(part(bytes)).unwrap()));
        b.finish_packing().unwrap();
        let content = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let b = cpu().with_packed(vec![opened(&content).unwrap()], false);
        for bytes in &parts[..2] {
            assert_eq!(
                bytes_of(&b.find_packed(&part(bytes)).unwrap()),
                bytes_of(&cpu().prepare(part(bytes)).unwrap())
            );
        }
        assert!(b.find_packed(&part(&parts[2])).is_none());
        assert!(b.find_packed(&weight(Format::Q8_0, &parts[0], &id)).is_none());
    }

    #[test]
    fn other_files_and_damaged_ones_are_refused() {
        let path = written("refused");
        let content = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let refused = |content: &[u8]| opened(content).unwrap_err().to_string();
        let other = PackedFile::open(Arc::new(Held::new(&content)), &[8; 32]).unwrap_err();
        assert_eq!(other.to_string(), "it was made of another model, or of another version of it");
        assert_eq!(refused(b""), "it is no file of packed weights");
        assert_eq!(refused(&[0; 8192]), "it is no file of packed weights");
        let mut newer = content.clone();
        newer[MAGIC.len()] += 1;
        assert_eq!(refused(&newer), "it was written by another version of this program");
        for cut in [content.len() - 1, content.len() / 2, PAGE, 100] {
            assert_eq!(refused(&content[..cut]), "it is damaged");
        }
        let index = Header::read(&content).unwrap().index.start as usize;
        for at in [index, index + 4, content.len() - 1] {
            let mut damaged = content.clone();
            damaged[at] ^= 0x40;
            assert_eq!(refused(&damaged), "it is damaged");
        }
        // An index whose digest is right and whose places are not.
        for (start, end) in [(1u64, 2), (PAGE as u64, u64::MAX), (2 * PAGE as u64, PAGE as u64)] {
            let index = [&1u32.to_le_bytes()[..], b"k", &start.to_le_bytes(), &end.to_le_bytes()].concat();
            let at = PAGE as u64..(PAGE + index.len()) as u64;
            let header = Header { version: VERSION, identity: IDENTITY, digest: digest(&index), index: at };
            let mut file = header.write();
            file.resize(PAGE, 0);
            assert_eq!(refused(&[file, index].concat()), "it is damaged");
        }
    }

    #[test]
    fn a_file_that_is_cut_short_later_fails_the_step() {
        use tallow_core::Memory;
        let path = written("cut");
        let file = Held { intact: false, ..Held::new(&std::fs::read(&path).unwrap()) };
        std::fs::remove_file(&path).unwrap();
        let b = cpu().with_packed(vec![PackedFile::open(Arc::new(file), &IDENTITY).unwrap()], false);
        let t = b.alloc(tallow_core::DType::F32, 1, 1).unwrap();
        assert!(b.fetch(&[&t]).unwrap_err().to_string().contains("cut short"));
    }

    #[test]
    fn what_could_not_be_written_is_said_at_the_end() {
        let path = std::env::temp_dir().join(format!("tallow-packed-readonly-{}", std::process::id()));
        std::fs::write(&path, b"").unwrap();
        let b = cpu().packing_into(PackedFileWriter::new(File::open(&path).unwrap(), IDENTITY));
        let (bytes, id) = (rows(Format::Q8_0, 1), id(Format::Q8_0, 0));
        assert!(b.prepare(weight(Format::Q8_0, &bytes, &id)).is_err());
        assert!(b.finish_packing().is_err());
        std::fs::remove_file(&path).unwrap();
    }

    /// A file of packed weights is used for as long as [`VERSION`] is the same.
    #[test]
    fn the_version_is_that_of_the_layout() {
        let packed = formats().map(|format| {
            let (bytes, id) = (rows(format, 5), id(format, 0));
            digest(&bytes_of(&cpu().prepare(weight(format, &bytes, &id)).unwrap())).to_le_bytes()
        });
        let all = digest(packed.collect::<Vec<_>>().as_flattened());
        assert_eq!(
            (VERSION, all),
            (1, 3_958_867_756_378_497_113),
            "packed weights have another layout: raise VERSION, and note the digest here"
        );
    }
}
