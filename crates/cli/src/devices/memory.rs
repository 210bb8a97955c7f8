//! [`Memory`] of the machine and of devices.

/// Memory of the machine or of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub total: u64,
    /// Available without evicting anything.
    pub free: u64,
}

impl Memory {
    /// Minimum of each field, where two sources describe the same memory.
    pub(crate) fn least(self, other: Memory) -> Memory {
        Memory { total: self.total.min(other.total), free: self.free.min(other.free) }
    }

    /// Memory that the system reports; `None` where that is not supported.
    pub(crate) fn now() -> Option<Memory> {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let memory = Memory { total: field(&text, "MemTotal:")?, free: field(&text, "MemAvailable:")? };
        Some(container().map_or(memory, |limit| memory.least(limit)))
    }
}

/// A field of `/proc/meminfo`, converted from KiB to bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok()?.checked_mul(1024)
}

/// Memory of the container (cgroup v2) that we run in, if it has a limit.
fn container() -> Option<Memory> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let total: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    // Pages of files are evicted when memory is short.
    let stat = read("memory.stat").unwrap_or_default();
    let files = stat.lines().find_map(|l| l.strip_prefix("inactive_file ")?.parse::<u64>().ok()).unwrap_or(0);
    Some(Memory { total, free: total.saturating_sub(used.saturating_sub(files)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:       24681984 kB\nMemFree:  10 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(field(text, "MemAvailable:"), Some(20_000_000 * 1024));
        assert_eq!(field(text, "SwapTotal:"), None);
    }
}
