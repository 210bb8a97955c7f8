//! [`Buf`]: memory for tensors, given back to a free list when its last user goes.
//!
//! A step asks for the same sizes as the one before, so after the first step nothing is asked of the system, and the
//! same requests in the same order get the same addresses. Weights stay. They lie one after another in large regions,
//! so that huge pages serve all of them and none is filled in part.

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
/// Buffers past this size are not kept for the next step: they are caches, or one request's whim.
const KEPT: usize = 64 << 20;
/// What huge pages are aligned to, on the systems that have them.
const HUGE: usize = 2 << 20;
/// Weights begin at multiples of this: what kernels ask for ahead goes by pages.
const PAGE: usize = 4096;
/// The least that a region for weights has. Where memory is not given page by page they have regions of their own.
const WEIGHT_REGION: usize = if cfg!(unix) { 64 << 20 } else { 0 };

/// A handle to memory. Clones share it.
#[derive(Clone)]
pub struct Buf(Rc<Allocation>);

/// Memory that somebody uses, and whose it is.
struct Allocation {
    start: NonNull<u8>,
    len: usize,
    home: Home,
}

enum Home {
    /// A region that goes back to its arena when it is dropped.
    Arena(Option<Region>, Weak<Arena>),
    /// A part of a region that goes when all of its parts have gone.
    Shelf { _whole: Rc<Region> },
}

impl Buf {
    pub(crate) fn start(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Home::Arena(region, arena) = &mut self.home
            && let (Some(arena), Some(region)) = (arena.upgrade(), region.take())
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
    /// Where the next weight goes: a region, and how much of it is taken.
    shelf: RefCell<(Weak<Region>, usize)>,
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
        let (start, home) = (region.start, Home::Arena(Some(region), Rc::downgrade(self)));
        Some(Buf(Rc::new(Allocation { start, len, home })))
    }

    /// Memory for a weight, which is zero: `bytes` bytes and no more. `None` when the system has no more.
    pub(crate) fn alloc_weights(&self, bytes: usize) -> Option<Buf> {
        let len = bytes.max(1).checked_next_multiple_of(PAGE)?;
        let mut shelf = self.shelf.borrow_mut();
        let open = shelf.0.upgrade().filter(|all| all.len - shelf.1 >= len);
        let (all, at) = match open {
            Some(all) => (all, shelf.1),
            None => (Rc::new(Region::new(len.checked_next_multiple_of(HUGE)?.max(WEIGHT_REGION))?), 0),
        };
        *shelf = (Rc::downgrade(&all), at + len);
        // SAFETY: `at` and `len` bytes after it lie within the region, in a part that nobody else has.
        let start = unsafe { all.start.add(at) };
        Some(Buf(Rc::new(Allocation { start, len, home: Home::Shelf { _whole: all } })))
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
    #[cfg(unix)]
    fn weights_lie_side_by_side_and_go_together() {
        let arena = Arena::default();
        let sizes = [1, 5000, 3 << 20, WEIGHT_REGION - (3 << 20), 2 * WEIGHT_REGION + 1, 100];
        for _ in 0..2 {
            let bufs = sizes.map(|n| arena.alloc_weights(n).unwrap());
            let at = |i: usize| bufs[i].start() as usize;
            assert_eq!((at(1) - at(0), at(2) - at(1)), (PAGE, 2 * PAGE));
            assert_eq!(at(5) - at(4), 2 * WEIGHT_REGION + PAGE);
            for (i, size) in sizes.into_iter().enumerate() {
                assert!((size..size + PAGE).contains(&bufs[i].len()) && at(i).is_multiple_of(PAGE));
                let apart = |k: usize| at(k) + bufs[k].len() <= at(i) || at(i) + bufs[i].len() <= at(k);
                assert!((0..i).all(apart), "two weights share memory");
                // SAFETY: the buffer has that many bytes.
                unsafe { bufs[i].start().add(bufs[i].len() - 1).write(1) };
            }
        }
        assert!(arena.shelf.borrow().0.upgrade().is_none(), "a region without weights is kept");
    }

    #[test]
    fn absurd_sizes_are_refused() {
        let arena = Rc::new(Arena::default());
        assert!(arena.alloc_weights(usize::MAX).is_none());
        assert!(arena.alloc_weights(isize::MAX as usize).is_none());
        assert!(arena.alloc(usize::MAX).is_none());
        assert!(arena.alloc(isize::MAX as usize).is_none());
    }
}
