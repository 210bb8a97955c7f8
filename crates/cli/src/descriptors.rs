//! Limit on the process's file descriptors.

/// The most that is asked for, whatever the system would allow.
#[cfg(unix)]
const MAX_DESCRIPTORS: libc::rlim_t = if cfg!(target_os = "macos") { 10_240 } else { 1 << 20 };

/// Raises the soft limit on descriptors to the hard one and returns the limit, if known. Shells and service managers
/// set the soft one low, for programs that cannot handle many.
#[cfg(unix)]
pub(crate) fn raise_limit() -> Option<usize> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live `rlimit`, which the call writes and does not keep.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return None;
    }
    let wanted = libc::rlimit { rlim_cur: limit.rlim_max.min(MAX_DESCRIPTORS), ..limit };
    // SAFETY: the pointer is to a live `rlimit`, which the call reads and does not keep.
    let set = || unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const wanted) } == 0;
    if wanted.rlim_cur > limit.rlim_cur && set() {
        limit = wanted;
    }
    usize::try_from(limit.rlim_cur).ok()
}

/// Other systems have no limit on open files.
#[cfg(not(unix))]
pub(crate) fn raise_limit() -> Option<usize> {
    None
}
