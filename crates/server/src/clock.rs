//! [`unix_time`].

use std::time::SystemTime;

/// Unix time in seconds.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
