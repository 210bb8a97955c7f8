//! Process metrics from the operating system, under the names of Prometheus' own clients.

use crate::exposition::Page;

/// Clock ticks per second in `/proc` (`USER_HZ`): the same on all supported platforms.
const TICKS: f64 = 100.0;

/// Writes what is known. `since`: start of serving (Unix time in seconds).
pub(crate) fn write(page: &mut Page, since: u64) {
    let start = "When the process began to serve, in seconds since the start of 1970.";
    page.gauge("process_start_time_seconds", start, since);
    let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    if let Some(ticks) = ticks(&read("stat")) {
        page.counter("process_cpu_seconds", "CPU time of the process.", ticks as f64 / TICKS);
    }
    let status = read("status");
    for (field, name, what) in [
        ("VmRSS:", "process_resident_memory_bytes", "Resident memory size of the process."),
        ("VmSize:", "process_virtual_memory_bytes", "Virtual memory size of the process."),
    ] {
        if let Some(kib) = number(&status, field) {
            page.gauge(name, what, kib * 1024);
        }
    }
    // Does not count the descriptor of the directory itself.
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        page.gauge("process_open_fds", "Open file descriptors.", open.count().saturating_sub(1));
    }
    if let Some(most) = number(&read("limits"), "Max open files") {
        page.gauge("process_max_fds", "Limit of open file descriptors.", most);
    }
}

/// The number after a name at the start of a line.
fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// CPU ticks in user and system mode.
fn ticks(stat: &str) -> Option<u64> {
    // The program's name, in parentheses, may contain anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194304 100 0 0 0 150 25 7 8 20 0 4 0 12345 1000 200";
        assert_eq!(ticks(stat), Some(175));
        assert_eq!(number("VmSize:\t  1000 kB\nVmRSS:\t  12 kB\n", "VmRSS:"), Some(12));
        let limits = "Max open files            1024                 4096                 files\n";
        assert_eq!(number(limits, "Max open files"), Some(1024));
        assert_eq!((ticks(""), number("", "VmRSS:")), (None, None));
    }
}
