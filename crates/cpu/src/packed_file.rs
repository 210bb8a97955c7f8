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
pub(crate) const VERSION: u32 = 2;
pub(crate) const MAGIC: &[u8; 8] = b"tallowpk";
/// Bytes of the header, and what weights are aligned to: kernels prefetch by pages.
pub(crate) const PAGE: usize = 4096;
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
    /// Places of weights, by their keys.
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

    /// The packed form of the weight with a [`key`], if it is there with at least `bytes` bytes.
    pub(crate) fn find(&self, key: &str, bytes: usize) -> Option<Buf> {
        let range = self.weights.get(key).filter(|range| range.len() >= bytes)?;
        let start = self.file[range.clone()].as_ptr();
        Some(Buf::mapped(std::ptr::NonNull::new(start.cast_mut())?, range.len(), Rc::new(self.file.clone())))
    }

    pub(crate) fn intact(&self) -> std::result::Result<(), String> {
        self.file.intact()
    }
}

/// Key of a weight; `None` if it comes from no tensor.
pub(crate) fn key(weight: &HostWeight<'_>) -> Option<String> {
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
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let add =
        |hash: u64, word| (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3).rotate_left(23);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let all = words.iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| add(hash, *word));
    add(add(all, last), (bytes.len() as u64).to_le_bytes())
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) identity: [u8; 32],
    /// Place of the index.
    pub(crate) index: Range<u64>,
    /// Digest of the index.
    pub(crate) digest: u64,
}

impl Header {
    pub(crate) fn read(file: &[u8]) -> Option<Header> {
        let mut rest = file.strip_prefix(MAGIC)?;
        let version = u32::from_le_bytes(take(&mut rest)?);
        let identity = take(&mut rest)?;
        let [start, end, digest] = [(); 3].map(|()| take(&mut rest).map(u64::from_le_bytes));
        Some(Header { version, identity, index: start?..end?, digest: digest? })
    }

    #[cfg(unix)]
    pub(crate) fn write(&self) -> Vec<u8> {
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
    /// Alignment of windows: the largest pages that systems have.
    const WINDOW_ALIGN: usize = 64 << 10;

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
            let (end, room) = (state.end(), packed.len().max(1).next_multiple_of(PAGE));
            let (window, taken) = match state.open.take() {
                Some((window, taken)) if window.len - taken >= room => (window, taken),
                _ => {
                    let at = end.next_multiple_of(WINDOW_ALIGN);
                    (Rc::new(Window::new(&self.file, at, room.max(WINDOW))?), 0)
                }
            };
            let at = window.at + taken;
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
