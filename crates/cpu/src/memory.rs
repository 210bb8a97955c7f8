//! [`Buf`]: memory for tensors, returned to a free list when the last handle is dropped.
//!
//! A step allocates the same sizes as the one before, so after the first step nothing is allocated from the system,
//! and the same requests in the same order get the same addresses. Weights are permanent. They are allocated one
//! after another in large regions, so that huge pages cover all of them and none is partly filled.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

/// Alignment of buffers, for vector loads.
const ALIGN: usize = 64;
/// Regions of at least this size are mapped from the system: zeroed, and not committed until they are touched.
const PAGED: usize = 1 << 20;
/// Larger buffers are not kept for the next step: they are KV caches, or belong to one unusual request.
const KEPT: usize = 64 << 20;
/// Alignment of huge pages, where the system has them.
pub(crate) const HUGE: usize = 2 << 20;
/// Regions of at least this size begin anywhere in a huge page, each elsewhere. The KV caches of all layers are filled alike:
/// would they begin at the same place, a step would have to wait now and then for a new huge page in every one of them.
const STAGGERED: usize = 4 * HUGE;
/// Places of regions in huge pages: multiples of the golden ratio spread evenly, however many there are.
const STAGGER: usize = 316 * PAGE;
/// Bytes of a KV cache behind those in use that are touched before they are needed.
const AHEAD: usize = 2 * HUGE;
/// Alignment of weights: kernels prefetch by pages.
const PAGE: usize = 4096;
/// Least size of a region for weights. Where memory is not mapped by pages, each weight has its own region.
const WEIGHT_REGION: usize = if cfg!(unix) { 64 << 20 } else { 0 };

/// A reference-counted buffer. Clones share it.
#[derive(Clone)]
pub struct Buf(Rc<Allocation>);

/// Memory in use, and where it is returned to.
struct Allocation {
    start: NonNull<u8>,
    len: usize,
    home: Home,
    /// Bytes from the start that have been touched ahead of use.
    ahead: Cell<usize>,
}

enum Home {
    /// A whole region, returned to its arena when dropped.
    Arena(Option<Region>, Weak<Arena>),
    /// A part of a region, which is freed with the last of its parts.
    Shelf { _whole: Rc<Region> },
    /// A part of a mapped file, which stays mapped as long as this.
    File { _map: Rc<dyn Any> },
}

impl Buf {
    /// A part of a mapped file.
    pub(crate) fn mapped(start: NonNull<u8>, len: usize, map: Rc<dyn Any>) -> Buf {
        Buf(Rc::new(Allocation { start, len, home: Home::File { _map: map }, ahead: Cell::new(0) }))
    }

    /// Has the system read it from the disk without waiting for that, if it is a part of a mapped file.
    pub(crate) fn fetch(&self) {
        #[cfg(unix)]
        if let Home::File { .. } = self.0.home {
            let page = page_size();
            let skipped = self.start().addr() % page;
            let start = self.start().wrapping_sub(skipped);
            // SAFETY: the pages of the range are mapped, as it is; the advice changes no contents.
            unsafe { libc::madvise(start.cast(), self.len() + skipped, libc::MADV_WILLNEED) };
        }
    }

    /// Touches the next huge page of a large buffer that is filled from its start, of which `used` bytes are in use, if less
    /// than [`AHEAD`] behind these has been. True if there was one to touch.
    pub(crate) fn touch_ahead(&self, used: usize) -> bool {
        let (all, first) = (&self.0, self.start().addr() % HUGE);
        if !matches!(all.home, Home::Arena(..)) || all.len < STAGGERED {
            return false;
        }
        // What is in use has been touched, and with it the huge page that it ends in.
        let huge_end = |bytes: usize| ((first + bytes).next_multiple_of(HUGE) - first).min(all.len);
        let done = all.ahead.get().max(huge_end(used));
        if done >= used.saturating_add(AHEAD).min(all.len) {
            return false;
        }
        let end = huge_end(done + 1);
        #[cfg(target_os = "linux")]
        // SAFETY: the range is a part of this buffer's mapping; touching it changes no contents. Before Linux 5.14 it is
        // refused, and the pages are touched when they are needed.
        unsafe {
            libc::madvise(self.start().wrapping_add(done).cast(), end - done, libc::MADV_POPULATE_WRITE)
        };
        all.ahead.set(end);
        true
    }

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

/// Free memory, by size.
#[derive(Default)]
pub(crate) struct Arena {
    free: RefCell<BTreeMap<usize, Vec<Region>>>,
    /// Number of staggered regions so far.
    staggered: Cell<usize>,
    /// Position of the next weight: a region, and how many of its bytes are taken.
    shelf: RefCell<(Weak<Region>, usize)>,
}

impl Arena {
    /// Allocates at least `bytes` bytes; `None` if the system is out of memory. Fresh memory is zero; reused memory
    /// has its old content, or NaN in debug builds, to expose reads before the first write.
    pub(crate) fn alloc(self: &Rc<Arena>, bytes: usize) -> Option<Buf> {
        let len = rounded(bytes)?;
        let kept = self.free.borrow_mut().get_mut(&len).and_then(Vec::pop);
        let region = match kept {
            Some(region) => {
                if cfg!(debug_assertions) {
                    // SAFETY: the region has `len` bytes, and came from the free list, so nobody else uses it.
                    unsafe { region.start.as_ptr().write_bytes(0xFF, len) };
                }
                region
            }
            None if len >= STAGGERED => {
                let nth = self.staggered.replace(self.staggered.get() + 1);
                Region::staggered(len, nth.wrapping_mul(STAGGER) % HUGE)?
            }
            None => Region::new(len)?,
        };
        let (start, home) = (region.start, Home::Arena(Some(region), Rc::downgrade(self)));
        Some(Buf(Rc::new(Allocation { start, len, home, ahead: Cell::new(0) })))
    }

    /// Allocates zeroed memory.
    pub(crate) fn alloc_zeroed(self: &Rc<Arena>, bytes: usize) -> Option<Buf> {
        let buf = self.alloc(bytes)?;
        // SAFETY: the buffer is fresh, and has that many bytes.
        unsafe { buf.start().write_bytes(0, buf.len()) };
        Some(buf)
    }

    /// Allocates zeroed memory for a weight: `bytes` rounded up to pages. `None` if the system is out of memory.
    pub(crate) fn alloc_weights(&self, bytes: usize) -> Option<Buf> {
        let len = bytes.max(1).checked_next_multiple_of(PAGE)?;
        let mut shelf = self.shelf.borrow_mut();
        let open = shelf.0.upgrade().filter(|all| all.len - shelf.1 >= len);
        let (all, at) = match open {
            Some(all) => (all, shelf.1),
            None => (Rc::new(Region::new(len.checked_next_multiple_of(HUGE)?.max(WEIGHT_REGION))?), 0),
        };
        *shelf = (Rc::downgrade(&all), at + len);
        // SAFETY: `at..at + len` lies within the region, in a part that no other weight has.
        let start = unsafe { all.start.add(at) };
        Some(Buf(Rc::new(Allocation { start, len, home: Home::Shelf { _whole: all }, ahead: Cell::new(0) })))
    }
}

/// Rounds sizes so that steps of nearly the same size share buffers: to an eighth of a power of two, or less where
/// that would waste much.
fn rounded(bytes: usize) -> Option<usize> {
    let grain = (bytes.max(1).checked_next_power_of_two()? / 8).clamp(ALIGN, PAGED);
    bytes.max(1).checked_next_multiple_of(grain)
}

/// Memory owned by this device, from the heap or mapped.
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
        // Huge pages save TLB misses on scattered reads. A refusal does no harm.
        // SAFETY: the range is the one just mapped; the advice changes no contents.
        unsafe {
            libc::madvise(start, len, libc::MADV_HUGEPAGE)
        };
        Some(Region { start: NonNull::new(start.cast())?, len })
    }

    /// A region that begins `place` bytes, a number of whole pages, behind the start of a huge page. What comes before its
    /// first whole huge page has small pages, so that no memory is lost.
    fn staggered(len: usize, place: usize) -> Option<Region> {
        // Unmapping asks for whole pages, whose size is 4 KiB or a multiple.
        let page = page_size();
        let (len, place) = (len.checked_next_multiple_of(page)?, place - place % page);
        let mut all = Region::new(len.checked_add(2 * HUGE)?)?;
        let before = all.start.addr().get().next_multiple_of(HUGE) + place - all.start.addr().get();
        let (first, end) = (all.start, before + len);
        // SAFETY: `before + len` is less than what is mapped.
        let (start, rest) = unsafe { (first.add(before), first.add(end)) };
        for (from, len) in [(first, before), (rest, all.len - end)] {
            if len > 0 {
                // SAFETY: these whole pages were mapped just now, and lie outside of what the region keeps.
                unsafe { libc::munmap(from.as_ptr().cast(), len) };
            }
        }
        (all.start, all.len) = (start, len);
        Some(all)
    }
}

/// Bytes of a page of the system.
#[cfg(unix)]
fn page_size() -> usize {
    // SAFETY: it is a question without arguments in memory.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE).max(1)
}

#[cfg(not(unix))]
impl Region {
    fn new(len: usize) -> Option<Region> {
        Region::heap(len)
    }

    fn staggered(len: usize, _: usize) -> Option<Region> {
        Region::heap(len)
    }
}

impl Region {
    fn heap(len: usize) -> Option<Region> {
        let layout = Layout::from_size_align(len, ALIGN).ok()?;
        // SAFETY: `len` is at least `ALIGN`: callers round it up to a multiple of that or more.
        Some(Region { start: NonNull::new(unsafe { alloc_zeroed(layout) })?, len })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        #[cfg(unix)]
        if self.len >= PAGED {
            // SAFETY: the range was mapped by `new`, and its owner is being dropped.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
            return;
        }
        if let Ok(layout) = Layout::from_size_align(self.len, ALIGN) {
            // SAFETY: allocated by `heap` with this layout, and its owner is being dropped.
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
    #[cfg(unix)]
    fn large_regions_begin_at_different_places_of_huge_pages() {
        let arena = Rc::new(Arena::default());
        let bufs: Vec<Buf> = (0..56).map(|_| arena.alloc(STAGGERED + 1).unwrap()).collect();
        let mut in_part = [0; 16];
        bufs.iter().for_each(|b| in_part[b.start().addr() % HUGE / (HUGE / 16)] += 1);
        // Evenly would be 3.5 in each sixteenth.
        assert!(in_part.iter().all(|count| (2..=5).contains(count)), "{in_part:?}");
        for buf in &bufs {
            assert!(buf.len() > STAGGERED && buf.start().addr().is_multiple_of(PAGE));
            // SAFETY: the buffer has that many bytes.
            unsafe {
                assert_eq!(*buf.start() + *buf.start().add(buf.len() - 1), 0);
                buf.start().write(1);
                buf.start().add(buf.len() - 1).write(1);
            }
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_buffer_is_touched_ahead_piece_by_piece() {
        let arena = Rc::new(Arena::default());
        let buf = arena.alloc(STAGGERED).unwrap();
        let first = HUGE - buf.start().addr() % HUGE;
        // The first huge page, whole or not, and those behind it.
        assert!(buf.touch_ahead(1));
        assert_eq!(buf.0.ahead.get(), first + HUGE);
        while buf.touch_ahead(1) {}
        assert!((1 + AHEAD..1 + AHEAD + HUGE).contains(&buf.0.ahead.get()));
        assert!(buf.touch_ahead(AHEAD));
        while buf.touch_ahead(STAGGERED) {}
        assert_eq!(buf.0.ahead.get(), STAGGERED);
        // SAFETY: the buffer has that many bytes, and nobody else uses it.
        assert!(unsafe { std::slice::from_raw_parts(buf.start(), buf.len()) }.iter().all(|x| *x == 0));
        // Small ones and weights are none of its business.
        assert!(!arena.alloc(STAGGERED / 2).unwrap().touch_ahead(1));
        assert!(!arena.alloc_weights(STAGGERED).unwrap().touch_ahead(1));
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
