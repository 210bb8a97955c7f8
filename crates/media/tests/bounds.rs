//! Memory and time for files whose headers promise more than there is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use tallow_media::audio::{Audio, RATE};

/// The system allocator; counts the bytes that this thread holds.
struct Counted;

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
}

#[global_allocator]
static COUNTED: Counted = Counted;

/// Bytes that reading a small file may allocate, whatever its header says.
const MOST: isize = 24 << 20;
/// Time limit for opening it and reading ten minutes of it.
const LONGEST: Duration = Duration::from_secs(5);

fn read(file: &[u8], what: &dyn std::fmt::Display) {
    let before = HELD.get();
    PEAK.set(before);
    let begun = Instant::now();
    if let Ok(mut sound) = Audio::bytes(file.to_vec()) {
        for _ in 0..600 {
            match sound.read(RATE as usize) {
                Ok(samples) if !samples.is_empty() => {}
                _ => break,
            }
        }
    }
    let (took, peak) = (begun.elapsed(), PEAK.get() - before);
    assert!(peak <= MOST, "{what}: {} MiB", peak >> 20);
    assert!(took <= LONGEST, "{what}: {took:?}");
}

macro_rules! sounds {
    ($($name:literal),*) => {
        [$(($name, &include_bytes!(concat!("../../../tests/goldens/sound/", $name))[..])),*]
    };
}

#[test]
fn numbers_in_headers_cost_nothing() {
    // Panics inside the decoder crates are caught; their messages are suppressed here.
    std::panic::set_hook(Box::new(|info| {
        if !info.location().is_some_and(|at| at.file().contains("registry")) {
            eprintln!("{info}");
        }
    }));
    let files = sounds!(
        "tone.m4a",
        "fragments.mp4",
        "lossless.m4a",
        "tone.aac",
        "vorbis.ogg",
        "voice.opus",
        "live.webm",
        "opus.mp4",
        "tone.mp3"
    );
    for (name, file) in files {
        read(file, &name);
        // Headers are at the start and, in MP4 files, at the end.
        let ends = (0..file.len().min(400)).chain(file.len().saturating_sub(500).max(400)..file.len());
        for at in ends.filter(|at| at + 8 <= file.len()) {
            for (width, byte) in [(4, 0xff), (8, 0x7f)] {
                let mut bad = file.to_vec();
                bad[at..at + width].fill(byte);
                read(&bad, &format_args!("{name}, {width} bytes {byte:#x} at {at}"));
            }
        }
    }
}

/// Long files without sound: empty boxes, elements and pages, and sample tables without data.
#[test]
fn long_files_without_sound_end() {
    let boxes = [&b"\0\0\0\x10ftypM4A \0\0\0\0"[..], &b"\0\0\0\x08free".repeat(1 << 17)].concat();
    read(&boxes, &"boxes");
    let elements = [&b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\xff"[..], &b"\xec\x80".repeat(1 << 19)].concat();
    read(&elements, &"elements");
    let page = [&b"OggS\0\x02"[..], &[0; 20], &[0]].concat();
    read(&page.repeat(1 << 15), &"pages");
    // Four billion samples of zero bytes each.
    let file = include_bytes!("../../../tests/goldens/sound/tone.m4a");
    let at = |name: &[u8; 4]| file.windows(4).position(|four| four == name).unwrap() + 8;
    let mut bad = file.to_vec();
    bad[at(b"stts") + 4..at(b"stts") + 8].fill(0xff);
    read(&bad, &"times of too many samples");
    bad[at(b"stsz")..at(b"stsz") + 4].copy_from_slice(&1u32.to_be_bytes());
    bad[at(b"stsz") + 4..at(b"stsz") + 8].fill(0xff);
    read(&bad, &"too many samples");
    bad[at(b"stsc") + 8..at(b"stsc") + 12].fill(0xff);
    read(&bad, &"too many samples in a chunk");
}
