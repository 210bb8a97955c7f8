//! Timestamps as in RFC 3339, in UTC.

use std::time::SystemTime;

/// `2026-01-31T12:00:00Z`
pub(crate) fn seconds(at: SystemTime) -> String {
    format!("{}Z", without_zone(at))
}

/// `2026-01-31T12:00:00.123Z`
pub(crate) fn milliseconds(at: SystemTime) -> String {
    let rest = at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.subsec_millis());
    format!("{}.{rest:03}Z", without_zone(at))
}

fn without_zone(at: SystemTime) -> String {
    let seconds = at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March, so that the leap day comes last.
    let z = day + 719_468;
    let era = z / 146_097;
    let of_era = z % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let date = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02}T{h:02}:{m:02}:{s:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_written_as_the_standard_says() {
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        assert_eq!(seconds(at(0)), "1970-01-01T00:00:00Z");
        assert_eq!(seconds(at(951_827_696_000)), "2000-02-29T12:34:56Z");
        assert_eq!(seconds(at(1_741_529_100_999)), "2025-03-09T14:05:00Z");
        assert_eq!(milliseconds(at(951_827_696_007)), "2000-02-29T12:34:56.007Z");
    }
}
