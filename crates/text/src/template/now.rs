//! [`Now`]: the time that a template sees (`strftime_now`), and its formatting.

use std::fmt::Write;

/// A calendar date and a time of day, without a time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Days since 1 January 1970.
    days: i64,
    /// Seconds since midnight.
    seconds: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
/// First and last day of the years 1 to 9999.
const FIRST: i64 = -719_162;
const LAST: i64 = 2_932_896;

impl Now {
    /// The time `seconds` after the start of 1970, in UTC.
    pub fn from_unix(seconds: i64) -> Now {
        let days = seconds.div_euclid(86_400).clamp(FIRST, LAST);
        Now { days, seconds: seconds.rem_euclid(86_400) as u32 }
    }

    /// The time `seconds` after the start of 1970, in the time zone of this machine. Templates see local time, as in
    /// `transformers`.
    pub fn local(seconds: i64) -> Now {
        Now::from_unix(seconds.saturating_add(offset(seconds)))
    }

    /// The time in ISO 8601, as RFC 3339 has it, without a time zone: `2026-11-30T08:15:00`.
    pub fn iso(self) -> String {
        let (year, month, day) = self.date();
        let (hour, minute, second) = (self.seconds / 3600, self.seconds / 60 % 60, self.seconds % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
    }

    /// Year, month from 1, and day from 1.
    fn date(self) -> (i64, usize, i64) {
        // Years that begin in March end with the leap day; 400 of them are 146097 days.
        let days = self.days + 719_468;
        let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
        (year + era * 400, month as usize, day)
    }

    /// Day of the year, from 0.
    fn day_of_year(self) -> i64 {
        let (year, month, day) = self.date();
        let leap = i64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month - 1];
        before + day - 1 + if month > 2 { leap } else { 0 }
    }

    /// The time in `format`, as `strftime` writes it in the C locale.
    pub(super) fn format(self, format: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut code = chars.next();
            let bare = code == Some('-');
            if bare {
                code = chars.next();
            }
            let code = code.ok_or("the time's format ends with %")?;
            let written = self
                .field(code)
                .ok_or_else(|| format!("the time's format has %{code}, which is not known"))?;
            let trimmed = written.trim_start_matches(['0', ' ']);
            out.push_str(match (bare, trimmed) {
                (false, _) => &written,
                (true, "") => "0",
                (true, trimmed) => trimmed,
            });
        }
        Ok(out)
    }

    fn field(self, code: char) -> Option<String> {
        let (year, month, day) = self.date();
        let (hour, minute, second) = (self.seconds / 3600, self.seconds / 60 % 60, self.seconds % 60);
        let weekday = (self.days + 3).rem_euclid(7) as usize;
        let (hour12, half) = ((hour + 11) % 12 + 1, if hour < 12 { "AM" } else { "PM" });
        let (month_name, day_name) = (MONTHS[month - 1], DAYS[weekday]);
        let year_day = self.day_of_year();
        let mut out = String::new();
        let _ = match code {
            'Y' => write!(out, "{year}"),
            'C' => write!(out, "{:02}", year / 100),
            'y' => write!(out, "{:02}", year % 100),
            'm' => write!(out, "{month:02}"),
            'd' => write!(out, "{day:02}"),
            'e' => write!(out, "{day:2}"),
            'H' => write!(out, "{hour:02}"),
            'k' => write!(out, "{hour:2}"),
            'I' => write!(out, "{hour12:02}"),
            'l' => write!(out, "{hour12:2}"),
            'M' => write!(out, "{minute:02}"),
            'S' => write!(out, "{second:02}"),
            'f' => write!(out, "000000"),
            'p' => write!(out, "{half}"),
            'P' => write!(out, "{}", half.to_lowercase()),
            'B' => write!(out, "{month_name}"),
            'b' | 'h' => write!(out, "{}", &month_name[..3]),
            'A' => write!(out, "{day_name}"),
            'a' => write!(out, "{}", &day_name[..3]),
            'j' => write!(out, "{:03}", year_day + 1),
            'u' => write!(out, "{}", weekday + 1),
            'w' => write!(out, "{}", (weekday + 1) % 7),
            'U' => write!(out, "{:02}", (year_day + 7 - (weekday as i64 + 1) % 7) / 7),
            'W' => write!(out, "{:02}", (year_day + 7 - weekday as i64) / 7),
            's' => write!(out, "{}", self.days * 86_400 + i64::from(self.seconds)),
            // The time has no zone.
            'z' | 'Z' => Ok(()),
            'F' => return self.format("%Y-%m-%d").ok(),
            'D' | 'x' => return self.format("%m/%d/%y").ok(),
            'T' | 'X' => return self.format("%H:%M:%S").ok(),
            'R' => return self.format("%H:%M").ok(),
            'r' => return self.format("%I:%M:%S %p").ok(),
            'c' => return self.format("%a %b %e %H:%M:%S %Y").ok(),
            'n' => writeln!(out),
            't' => write!(out, "\t"),
            '%' => write!(out, "%"),
            _ => return None,
        };
        Some(out)
    }
}

/// UTC offset of this machine's time zone at that time, in seconds. 0 where it cannot be determined.
#[cfg(unix)]
fn offset(seconds: i64) -> i64 {
    let time = seconds as libc::time_t;
    let mut local = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are to valid values of their types that outlive the call, and no other reference to `local`
    // exists.
    let found = unsafe { libc::localtime_r(&time, local.as_mut_ptr()) };
    if found.is_null() {
        return 0;
    }
    // SAFETY: an all-zero `tm` is valid, and `localtime_r` has filled it in.
    let local = unsafe { local.assume_init() };
    #[allow(clippy::useless_conversion, reason = "it is 32 bits wide on some systems")]
    i64::from(local.tm_gmtoff)
}

#[cfg(not(unix))]
fn offset(_: i64) -> i64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW_YEAR: i64 = 1_735_689_600;

    /// The time zone belongs to the process, so the test runs itself again in processes with other zones.
    #[test]
    fn local_time_is_that_of_the_zone() {
        let here = Now::local(NEW_YEAR).format("%F %T").unwrap();
        let Some(zone) = std::env::args().find_map(|arg| arg.strip_prefix("--skip=zone:").map(str::to_owned))
        else {
            for zone in ["XYZ-9", "XYZ3:30", "UTC0"] {
                let test = std::process::Command::new(std::env::current_exe().unwrap())
                    .args(["local_time_is_that_of_the_zone", "--nocapture"])
                    .arg(format!("--skip=zone:{zone}"))
                    .env("TZ", zone)
                    .output()
                    .unwrap();
                assert!(test.status.success(), "{zone}: {}", String::from_utf8_lossy(&test.stdout));
                assert!(String::from_utf8_lossy(&test.stdout).contains("1 passed"), "{zone}");
            }
            return;
        };
        let want = match zone.as_str() {
            "XYZ-9" => "2025-01-01 09:00:00",
            "XYZ3:30" => "2024-12-31 20:30:00",
            _ => "2025-01-01 00:00:00",
        };
        assert_eq!(here, want, "{zone}");
    }

    #[test]
    fn times_are_written_as_c_writes_them() {
        // 9 March 2025, 14:05:07, a Sunday.
        let now = Now::from_unix(1_741_529_107);
        for (format, text) in [
            ("%Y-%m-%dT%H:%M:%S", "2025-03-09T14:05:07"),
            ("%d %b %Y, %A", "09 Mar 2025, Sunday"),
            ("%-d %B %y %I:%M %p %a", "9 March 25 02:05 PM Sun"),
            ("%-I %-M %e %j %u %w %%", "2 5  9 068 7 0 %"),
            ("%F %T %D %c", "2025-03-09 14:05:07 03/09/25 Sun Mar  9 14:05:07 2025"),
            ("%U %W %s", "10 09 1741529107"),
        ] {
            assert_eq!(now.format(format).unwrap(), text, "{format}");
        }
        assert!(now.format("%Q").unwrap_err().contains("%Q"));
        assert!(now.format("100%").is_err());
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = Now::from_unix(-86_400 * 800_000).date();
        for days in FIRST + 1..FIRST + 300_000 {
            let now = Now { days, seconds: 0 };
            let (year, month, day) = now.date();
            if days > FIRST + 1 {
                let next = day == before.2 + 1 && (year, month) == (before.0, before.1)
                    || day == 1
                        && (month == before.1 + 1 && year == before.0 || month == 1 && year == before.0 + 1);
                assert!(next, "{before:?} {:?}", now.date());
                assert!(now.day_of_year() == 0 || day > 1 || month > 1);
            }
            before = (year, month, day);
        }
        assert_eq!(Now::from_unix(951_782_400).date(), (2000, 2, 29));
        for extreme in [i64::MIN, i64::MAX] {
            assert_eq!(
                Now::from_unix(extreme).format("%Y").unwrap().trim_start_matches('-').len().min(4),
                4.min(Now::from_unix(extreme).format("%Y").unwrap().len())
            );
        }
    }
}
