//! What this program was built of.

/// The commit of its source, if it was built in a repository.
pub(crate) const COMMIT: Option<&str> =
    if env!("TALLOW_COMMIT").is_empty() { None } else { Some(env!("TALLOW_COMMIT")) };

/// Its version, with the commit if that is known.
pub(crate) const VERSION: &str = env!("TALLOW_VERSION");
