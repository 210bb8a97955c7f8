//! [`unix_time`], [`rfc3339`].

use std::time::{Duration, SystemTime};

use tallow_text::template::Now;

/// Unix time in seconds.
pub(crate) fn unix_time() -> u64 {
    since_1970().as_secs()
}

/// The time as RFC 3339 has it, in UTC: `2026-11-30T08:15:00.123456Z`.
pub(crate) fn rfc3339() -> String {
    let now = since_1970();
    format!("{}.{:06}Z", Now::from_unix(now.as_secs() as i64).iso(), now.subsec_micros())
}

/// A Unix time as RFC 3339 has it, in UTC.
pub(crate) fn rfc3339_of(seconds: u64) -> String {
    format!("{}Z", Now::from_unix(seconds as i64).iso())
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
