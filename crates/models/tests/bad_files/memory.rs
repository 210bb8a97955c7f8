//! An allocator that counts the bytes each thread holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system allocator, counted.
pub(crate) struct Counted;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    let held = HELD.get() + change;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

// SAFETY: every call is forwarded to the system allocator; counting neither allocates nor panics.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller upholds `GlobalAlloc::alloc`'s contract, which is `System.alloc`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller upholds the contract: `at` came from this allocator, so from `System`, with this `layout`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller upholds `GlobalAlloc::alloc_zeroed`'s contract, which is `System.alloc_zeroed`'s.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller upholds the contract: `at` came from this allocator, so from `System`, with this `layout`.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// The result of `work`, and this thread's peak of allocated bytes during it, relative to before.
pub(crate) fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let made = work();
    (made, (PEAK.get() - before) as usize)
}

#[test]
fn the_peak_is_counted() {
    let (sum, peak) = peak_of(|| {
        let twice = vec![1u8; 1 << 20];
        drop(twice);
        vec![2u8; 3 << 20].iter().map(|x| u64::from(*x)).sum::<u64>()
    });
    assert_eq!((sum, peak), (6 << 20, 3 << 20));
}
