//! [`Memory`] of the machine and of devices.

use std::path::Path;

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
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Some(of_groups(Path::new(GROUPS), &own).map_or(memory, |limit| memory.least(limit)))
    }
}

/// A field of `/proc/meminfo`, converted from KiB to bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok()?.checked_mul(1024)
}

/// Mount point of control groups (cgroups).
const GROUPS: &str = "/sys/fs/cgroup";

/// Files of a control group, of one version of them.
struct GroupFiles {
    /// In `/proc/self/cgroup`, and the folder in which the groups are.
    controller: &'static str,
    limit: &'static str,
    used: &'static str,
    /// Fields of `memory.stat` that count pages of files.
    of_files: [&'static str; 2],
}

const V2: GroupFiles = GroupFiles {
    controller: "",
    limit: "memory.max",
    used: "memory.current",
    of_files: ["inactive_file ", "active_file "],
};

const V1: GroupFiles = GroupFiles {
    controller: "memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    of_files: ["total_inactive_file ", "total_active_file "],
};

/// Memory of the control group that we run in, of a container or a service, and of those around it; if they have a limit.
fn of_groups(mounted: &Path, own: &str) -> Option<Memory> {
    let mut least: Option<Memory> = None;
    for line in own.lines() {
        // 4:memory:/system.slice/tallow.service, or 0::/system.slice/tallow.service
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let of = |files: &&GroupFiles| controllers.split(',').any(|name| name == files.controller);
        let Some(files) = [&V2, &V1].into_iter().find(of) else { continue };
        let top = mounted.join(files.controller);
        // A container sees the path outside of it, and its own group as the top.
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            if let Some(memory) = files.memory(&top.join(group)) {
                least = Some(least.map_or(memory, |least| least.least(memory)));
            }
        }
    }
    least
}

impl GroupFiles {
    fn memory(&self, group: &Path) -> Option<Memory> {
        let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
        let total: u64 = read(self.limit)?.trim().parse().ok()?;
        let used: u64 = read(self.used)?.trim().parse().ok()?;
        // Pages of files are evicted when memory is short.
        let stat = read("memory.stat").unwrap_or_default();
        let bytes = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok());
        let of_files: u64 = self.of_files.iter().filter_map(|name| bytes(name)).sum();
        Some(Memory { total, free: total.saturating_sub(used.saturating_sub(of_files)) })
    }
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

    /// A container's own group is the top; a service's group lies in others, which may have a lower limit.
    #[test]
    fn limits_of_control_groups_count() {
        let mounted = std::env::temp_dir().join(format!("tallow-cgroup-{}", std::process::id()));
        let group = |path: &str, files: [(&str, &str); 3]| {
            let folder = mounted.join(path);
            std::fs::create_dir_all(&folder).unwrap();
            files.iter().for_each(|(name, text)| std::fs::write(folder.join(name), text).unwrap());
        };
        let v2 = |limit, used| {
            [
                ("memory.max", limit),
                ("memory.current", used),
                ("memory.stat", "inactive_file 30\nactive_file 20\n"),
            ]
        };
        let of = |own: &str| of_groups(&mounted, own);
        assert_eq!(of("0::/a.slice/b.service\n"), None);
        group("a.slice/b.service", v2("max\n", "100\n"));
        assert_eq!(of("0::/a.slice/b.service\n"), None);
        group("a.slice", v2("1000\n", "400\n"));
        assert_eq!(of("0::/a.slice/b.service\n"), Some(Memory { total: 1000, free: 650 }));
        group("a.slice/b.service", v2("900\n", "100\n"));
        assert_eq!(of("0::/a.slice/b.service\n"), Some(Memory { total: 900, free: 650 }));
        let v1 = [
            ("memory.limit_in_bytes", "500\n"),
            ("memory.usage_in_bytes", "200\n"),
            ("memory.stat", "cache 1\ntotal_inactive_file 50\ntotal_active_file 7\n"),
        ];
        group("memory", v1);
        let own = "9:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n1:name=systemd:/docker/1\n";
        assert_eq!(of(own), Some(Memory { total: 500, free: 357 }));
        std::fs::remove_dir_all(&mounted).unwrap();
    }
}
