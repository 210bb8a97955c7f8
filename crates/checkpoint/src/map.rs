//! [`Mapping`]: a memory-mapped model file that tolerates being truncated.
//!
//! Touching a mapped page beyond the end of a truncated file raises SIGBUS, which would end the process. A signal
//! handler maps a zero page there instead and marks the mapping; readers call [`Mapping::intact`] afterwards and report
//! the error.

use std::borrow::Cow;
use std::fs::File;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memmap2::{Mmap, UncheckedAdvice};

use crate::error::{FileError, Result};

/// Contents of a file.
#[derive(Debug)]
pub struct Mapping {
    path: PathBuf,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped {
        map: Mmap,
        guard: Option<&'static Guard>,
    },
    /// In memory: compiled into the binary, or built at runtime.
    Held(Cow<'static, [u8]>),
}

impl Mapping {
    /// Maps a file.
    pub fn open(path: &Path) -> Result<Mapping> {
        let io = |why| FileError::io(path, why);
        super::regular(path)?;
        let file = File::open(path).map_err(io)?;
        // SAFETY: the mapping is private and read-only. Other processes may still change the file under it: bytes may
        // then differ between two reads, which every reader here tolerates (it validates what it has copied out), and a
        // truncated file is caught by the guard.
        let map = unsafe { memmap2::MmapOptions::new().map_copy_read_only(&file) }.map_err(io)?;
        let guard = Guard::watch(map.as_ptr() as usize, map.len());
        Ok(Mapping { path: path.into(), bytes: Bytes::Mapped { map, guard } })
    }

    /// Bytes compiled into the binary.
    pub fn embedded(name: &str, bytes: &'static [u8]) -> Mapping {
        Mapping { path: name.into(), bytes: Bytes::Held(Cow::Borrowed(bytes)) }
    }

    /// Bytes that will be written to a file at `path`.
    pub fn held(path: &Path, bytes: Vec<u8>) -> Mapping {
        Mapping { path: path.into(), bytes: Bytes::Held(Cow::Owned(bytes)) }
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Drops the pages of `range` from this process's resident memory. Neighbouring pages may be dropped too; they are
    /// faulted in again from the page cache on the next read, without disk I/O.
    pub fn release(&self, range: Range<usize>) {
        let Bytes::Mapped { map, .. } = &self.bytes else { return };
        // A page fault maps at least a block of this size (fault-around), so all of it has to be dropped.
        const BLOCK: usize = 64 << 10;
        let base = map.as_ptr() as usize;
        let start = ((base + range.start.min(map.len())) / BLOCK * BLOCK).max(base) - base;
        let end = ((base + range.end.min(map.len())).next_multiple_of(BLOCK) - base).min(map.len());
        if start < end {
            // SAFETY: the mapping is a private one of a file and never written: dropped pages are faulted in again from
            // the file.
            let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
        }
    }

    /// Fails if the file was truncated, so that bytes read so far may not have come from it.
    pub fn intact(&self) -> Result<()> {
        match &self.bytes {
            Bytes::Mapped { guard: Some(guard), .. } if guard.hit.load(Ordering::Acquire) => {
                Err(FileError::bad(
                    &self.path,
                    "its end",
                    "the file was cut short while it was being read; get it again",
                ))
            }
            _ => Ok(()),
        }
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped { map, .. } => map,
            Bytes::Held(bytes) => bytes,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Bytes::Mapped { guard: Some(guard), .. } = &self.bytes {
            guard.start.store(0, Ordering::Release);
        }
    }
}

/// A mapped range that the signal handler watches.
#[derive(Debug)]
struct Guard {
    /// Start address; 0 when the guard is free, 1 while it is being set.
    start: AtomicUsize,
    len: AtomicUsize,
    hit: AtomicBool,
}

/// More than any model has shards; further mappings are unguarded.
static GUARDS: [Guard; 1024] =
    [const { Guard { start: AtomicUsize::new(0), len: AtomicUsize::new(0), hit: AtomicBool::new(false) } };
        1024];

impl Guard {
    fn watch(start: usize, len: usize) -> Option<&'static Guard> {
        handler::install();
        let free = |g: &&Guard| g.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let guard = GUARDS.iter().find(free)?;
        guard.len.store(len, Ordering::Relaxed);
        guard.hit.store(false, Ordering::Relaxed);
        guard.start.store(start, Ordering::Release);
        Some(guard)
    }
}

#[cfg(unix)]
mod handler {
    use std::sync::Once;
    use std::sync::atomic::Ordering;

    use super::GUARDS;

    pub(super) fn install() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the action is fully initialised (zeroed, then handler and flags set), and the handler does only
            // what is allowed in a signal handler: atomic loads and stores, mmap, and resetting the action.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_bus_error as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
                libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
            }
        });
    }

    extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid siginfo to a handler installed with SA_SIGINFO.
        let at = unsafe { (*info).si_addr() } as usize;
        // SAFETY: sysconf has no preconditions, and is async-signal-safe in practice on every libc we run on.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        for guard in &GUARDS {
            let start = guard.start.load(Ordering::Acquire);
            if start > 1 && (start..start + guard.len.load(Ordering::Relaxed)).contains(&at) {
                guard.hit.store(true, Ordering::Release);
                let (prot, flags) =
                    (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
                let hole = (at / page * page) as *mut libc::c_void;
                // SAFETY: the page lies inside one of our read-only mappings and is beyond the end of its file, so
                // nobody can rely on its content any more; mapping zeros there lets the faulting read complete.
                if unsafe { libc::mmap(hole, page, prot, flags, -1, 0) } != libc::MAP_FAILED {
                    return;
                }
            }
        }
        // Not in a guarded range: restore the default action so that the repeated fault ends the process.
        // SAFETY: SIG_DFL is always a valid action.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}

#[cfg(not(unix))]
mod handler {
    /// Other systems do not allow truncating a mapped file.
    pub(super) fn install() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_cut_short_is_an_error_and_not_a_signal() {
        let path = std::env::temp_dir().join(format!("tallow-map-{}", std::process::id()));
        std::fs::write(&path, vec![7u8; 3 * 65536]).unwrap();
        let map = Mapping::open(&path).unwrap();
        assert_eq!(map[100], 7);
        map.intact().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(65536).unwrap();
        map.release(0..map.len());
        assert_eq!((map[100], map[2 * 65536]), (7, 0));
        let message = map.intact().unwrap_err().to_string();
        assert!(message.contains("cut short"), "{message}");
        std::fs::remove_file(&path).unwrap();
    }

    /// Resident KiB of a mapping.
    #[cfg(target_os = "linux")]
    fn held(map: &Mapping) -> usize {
        let name = map.path().to_str().unwrap();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let of = maps.split_once(name).unwrap().1;
        of.lines()
            .find_map(|l| l.strip_prefix("Rss:"))
            .unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap()
    }

    /// Also when the range is not page-aligned and fault-around maps more than was read.
    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_released_is_gone_and_comes_back() {
        let path = std::env::temp_dir().join(format!("tallow-map-release-{}", std::process::id()));
        let content: Vec<u8> = (0..16u32 << 20).map(|i| (i / 1000) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let map = Mapping::open(&path).unwrap();
        assert!(map[..] == content[..]);
        assert!(held(&map) >= 16 << 10, "{} KiB", held(&map));
        map.release(0..map.len());
        assert_eq!(held(&map), 0);
        for start in (0..content.len()).step_by(100_000) {
            let end = content.len().min(start + 100_000);
            assert!(map[start..end] == content[start..end]);
            // Large pages may be mapped whole.
            assert!(held(&map) <= 2 * (100 + 2048), "{} KiB at {start}", held(&map));
            map.release(start..end);
        }
        assert_eq!(held(&map), 0);
        assert!(map[..] == content[..]);
        map.intact().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
