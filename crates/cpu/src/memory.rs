//! [`Buf`]: memory for tensors, given back to a free list when its last user goes.
//!
//! A step asks for the same sizes as the one before, so after the first step nothing is asked of the system, and the
//! same requests in the same order get the same addresses.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

/// Vectors are loaded from addresses that are a multiple of this.
const ALIGN: usize = 64;
/// From this size on, memory comes in pages straight from the system: zero and untouched until somebody uses it.
const PAGED: usize = 1 << 20;
/// Buffers past this size are not kept for the next step: they are weights and caches, or one request's whim.
const KEPT: usize = 64 << 20;

/// A handle to memory. Clones share it.
#[derive(Clone)]
pub struct Buf(Rc<Lent>);

/// A region that goes back to its arena when it is dropped.
struct Lent {
    region: Option<Region>,
    home: Weak<Arena>,
}

impl Buf {
    pub(crate) fn start(&self) -> *mut u8 {
        self.0.region.as_ref().map_or(std::ptr::null_mut(), |r| r.start.as_ptr())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.region.as_ref().map_or(0, |r| r.len)
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(arena), Some(region)) = (self.home.upgrade(), self.region.take())
            && region.len <= KEPT
        {
            arena.free.borrow_mut().entry(region.len).or_default().push(region);
        }
    }
}

/// Memory that nobody uses at the moment, by size.
#[derive(Default)]
pub(crate) struct Arena {
    free: RefCell<BTreeMap<usize, Vec<Region>>>,
}

impl Arena {
    /// At least `bytes` bytes, or `None` when the system has no more. Fresh memory is zero; reused memory holds what it
    /// held, or NaN in debug builds so that whoever reads before writing is found out.
    pub(crate) fn alloc(self: &Rc<Arena>, bytes: usize) -> Option<Buf> {
        let len = rounded(bytes)?;
        let kept = self.free.borrow_mut().get_mut(&len).and_then(Vec::pop);
        let region = match kept {
            Some(region) => {
                if cfg!(debug_assertions) {
                    // SAFETY: the region has that many bytes and nobody else has it.
                    unsafe { region.start.as_ptr().write_bytes(0xFF, len) };
                }
                region
            }
            None => Region::new(len)?,
        };
        Some(Buf(Rc::new(Lent { region: Some(region), home: Rc::downgrade(self) })))
    }
}

/// Sizes are rounded so that steps of nearly the same size can share: to an eighth of a power of two, and less where
/// that would waste much.
fn rounded(bytes: usize) -> Option<usize> {
    let grain = (bytes.max(1).checked_next_power_of_two()? / 8).clamp(ALIGN, PAGED);
    bytes.max(1).checked_next_multiple_of(grain)
}

/// Memory of our own.
struct Region {
    start: NonNull<u8>,
    len: usize,
}

#[cfg(unix)]
impl Region {
    fn new(len: usize) -> Option<Region> {
        if len < PAGED {
            return Region::heap(len);
        }
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping at an address of the system's choice touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        #[cfg(target_os = "linux")]
        // Large pages spare translation misses on scattered reads. A refusal costs nothing.
        // SAFETY: the range is the one just mapped; the advice changes no contents.
        unsafe {
            libc::madvise(start, len, libc::MADV_HUGEPAGE)
        };
        Some(Region { start: NonNull::new(start.cast())?, len })
    }
}

#[cfg(not(unix))]
impl Region {
    fn new(len: usize) -> Option<Region> {
        Region::heap(len)
    }
}

impl Region {
    fn heap(len: usize) -> Option<Region> {
        let layout = Layout::from_size_align(len, ALIGN).ok()?;
        // SAFETY: the size is not zero.
        Some(Region { start: NonNull::new(unsafe { alloc_zeroed(layout) })?, len })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        #[cfg(unix)]
        if self.len >= PAGED {
            // SAFETY: the range was mapped by `new`, and its owner is going.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
            return;
        }
        if let Ok(layout) = Layout::from_size_align(self.len, ALIGN) {
            // SAFETY: allocated by `heap` with this layout, and its owner is going.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_requests_get_the_same_addresses() {
        let arena = Rc::new(Arena::default());
        let step = || {
            let bufs: Vec<Buf> = [100, 5000, 100, 3 << 20].iter().map(|n| arena.alloc(*n).unwrap()).collect();
            let mut at: Vec<usize> = bufs.iter().map(|b| b.start() as usize).collect();
            at.sort_unstable();
            at.dedup();
            assert_eq!(at.len(), 4, "two buffers share memory");
            at
        };
        assert_eq!(step(), step());
    }

    #[test]
    fn absurd_sizes_are_refused() {
        let arena = Rc::new(Arena::default());
        assert!(arena.alloc(usize::MAX).is_none());
        assert!(arena.alloc(isize::MAX as usize).is_none());
    }
}
