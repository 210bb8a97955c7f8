//! Version and commit of this build.

/// Source commit, if built in a git repository.
pub(crate) const COMMIT: Option<&str> =
    if env!("TALLOW_COMMIT").is_empty() { None } else { Some(env!("TALLOW_COMMIT")) };

/// Version, with the commit if that is known.
pub(crate) const VERSION: &str = env!("TALLOW_VERSION");
