//! How many descriptors the process may have.

/// As many as are ever asked for, whatever the system would allow.
#[cfg(unix)]
const MOST: libc::rlim_t = if cfg!(target_os = "macos") { 10_240 } else { 1 << 20 };

/// Raises the soft limit on descriptors to the hard one, and says what it is then, if that is known. It is the soft one
/// that shells and service managers set low, for programs that cannot deal with many.
#[cfg(unix)]
pub(crate) fn raise_limit() -> Option<usize> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a struct of that type, which is written to and not kept.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return None;
    }
    let wanted = libc::rlimit { rlim_cur: limit.rlim_max.min(MOST), ..limit };
    // SAFETY: the pointer is to a struct of that type, which is read and not kept.
    let set = || unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const wanted) } == 0;
    if wanted.rlim_cur > limit.rlim_cur && set() {
        limit = wanted;
    }
    usize::try_from(limit.rlim_cur).ok()
}

/// Elsewhere there is no such limit.
#[cfg(not(unix))]
pub(crate) fn raise_limit() -> Option<usize> {
    None
}
