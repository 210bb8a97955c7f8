//! The machine's processors: which of them are one core, and which share a memory node (NUMA).

use std::collections::HashSet;
use std::path::Path;
use std::sync::OnceLock;

/// Linux's description of them. Elsewhere each processor counts as a core, and there is one node.
const SYSTEM: &str = "/sys/devices/system";
/// More than any system has; lists that name others are not believed.
const MOST: usize = 1 << 16;

/// Processors that a device's threads run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Wherever the system puts them.
    #[default]
    Anywhere,
    /// On a machine with several memory nodes each thread stays on one. A thread packs what it multiplies later, and so its
    /// part of each weight lies in the memory of its node.
    Nodes,
}

/// Cores that this process may use: its processors, of those that share a core one, and no more than its share of their time.
///
/// Threads of one core share its units and its way to memory: a second one gains little, and every op waits for it.
pub fn cores() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    match distinct_cores(Path::new(SYSTEM), allowed()) {
        0 => processors,
        cores => processors.min(cores),
    }
}

/// Processors that this process may run on: those of its first thread when that was first asked, since a device may keep that
/// thread on some of them later.
fn allowed() -> &'static [usize] {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        list.map(processors).unwrap_or_default()
    })
}

/// The processors in a list such as `0-3,8`.
fn processors(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first <= last && last < MOST).then_some(first..=last)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// Number of cores that some processors are.
fn distinct_cores(system: &Path, allowed: &[usize]) -> usize {
    let core = |processor: &usize| {
        let topology = system.join(format!("cpu/cpu{processor}/topology"));
        // The second name is that of older systems.
        let lists = ["core_cpus_list", "thread_siblings_list"].into_iter();
        let list = lists.filter_map(|name| std::fs::read_to_string(topology.join(name)).ok()).next();
        list.map_or(vec![*processor], |list| processors(&list))
    };
    allowed.iter().map(core).collect::<HashSet<_>>().len()
}

/// Memory nodes, by the processors of each that this process may run on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes(Vec<Vec<usize>>);

impl Nodes {
    pub(crate) fn of_machine() -> Nodes {
        Nodes::read(Path::new(SYSTEM), allowed())
    }

    fn read(system: &Path, allowed: &[usize]) -> Nodes {
        let mut nodes = Vec::new();
        for entry in std::fs::read_dir(system.join("node")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse::<usize>().ok());
            let list = std::fs::read_to_string(entry.path().join("cpulist"));
            if let (Some(number), Ok(list)) = (number, list) {
                nodes.push((number, processors(&list)));
            }
        }
        nodes.sort_unstable();
        let usable = |(_, mut all): (usize, Vec<usize>)| {
            all.retain(|processor| allowed.contains(processor));
            Some(all).filter(|all| !all.is_empty())
        };
        Nodes(nodes.into_iter().filter_map(usable).collect())
    }

    /// Processors of the node of one of `threads` threads; adjacent threads are on one node, as adjacent rows are. None if there
    /// is but one.
    fn of(&self, thread: usize, threads: usize) -> Option<&[usize]> {
        if self.0.len() < 2 {
            return None;
        }
        let all: usize = self.0.iter().map(Vec::len).sum();
        let mut at = thread * all / threads.max(1);
        self.0.iter().map(Vec::as_slice).find(|node| {
            let is_there = at < node.len();
            at = at.saturating_sub(node.len());
            is_there
        })
    }

    /// Keeps the calling thread, one of `threads`, on its node. It is a wish: where it is refused, the thread goes on anywhere.
    pub(crate) fn keep(&self, thread: usize, threads: usize) {
        if let Some(node) = self.of(thread, threads) {
            stay_on(node);
        }
    }
}

#[cfg(target_os = "linux")]
fn stay_on(processors: &[usize]) {
    // SAFETY: the set is plain bits, for which zeros are valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for processor in processors.iter().filter(|processor| **processor < libc::CPU_SETSIZE as usize) {
        // SAFETY: the number is less than the set has bits.
        unsafe { libc::CPU_SET(*processor, &mut set) };
    }
    // SAFETY: the set lives for the call, and has the size that is named; 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
}

#[cfg(not(target_os = "linux"))]
fn stay_on(_: &[usize]) {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system with these files.
    fn system(name: &str, files: &[(&str, &str)]) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("tallow-topology-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn lists_of_processors() {
        assert_eq!(processors("\t0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(processors("5"), [5]);
        for none in ["", "\n", "x", "3-1", "0-99999999999", "-"] {
            assert!(processors(none).is_empty(), "{none:?}");
        }
    }

    /// Four cores of two threads each, and two without (as hybrid processors have).
    #[test]
    fn threads_of_one_core_count_once() {
        let names: Vec<String> = (0..10).map(|i| format!("cpu/cpu{i}/topology/core_cpus_list")).collect();
        let lists = ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7", "8", "9"];
        let files: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(lists).collect();
        let root = system("cores", &files);
        let all: Vec<usize> = (0..10).collect();
        assert_eq!(distinct_cores(&root, &all), 6);
        assert_eq!(distinct_cores(&root, &[0, 4, 8]), 2);
        assert_eq!(distinct_cores(&root, &[0, 1, 20]), 3, "one that is not described is a core");
        assert_eq!(distinct_cores(&root, &[]), 0);
        std::fs::remove_dir_all(root).unwrap();
        assert!((1..=std::thread::available_parallelism().unwrap().get()).contains(&cores()));
    }

    #[test]
    fn threads_are_spread_over_nodes_by_their_processors() {
        let files = [
            ("node/node0/cpulist", "0-3\n"),
            ("node/node1/cpulist", "4-7\n"),
            // Memory alone.
            ("node/node2/cpulist", "\n"),
            ("node/node10/cpulist", "8-15\n"),
            ("node/possible", "0-10\n"),
        ];
        let root = system("nodes", &files);
        let all: Vec<usize> = (0..16).collect();
        let nodes = Nodes::read(&root, &all);
        assert_eq!(nodes.0, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], (8..16).collect()]);
        let places = |threads: usize| -> Vec<usize> {
            (0..threads).map(|t| nodes.of(t, threads).unwrap()[0]).collect()
        };
        assert_eq!(places(4), [0, 4, 8, 8]);
        assert_eq!(places(8), [0, 0, 4, 4, 8, 8, 8, 8]);
        assert_eq!(places(1), [0]);
        assert_eq!(places(64).iter().filter(|first| **first == 8).count(), 32);
        // A process that may use a part of one node.
        let few = Nodes::read(&root, &[5, 6]);
        assert_eq!(few.0, [[5, 6]]);
        assert_eq!(few.of(0, 2), None);
        assert_eq!(Nodes::read(Path::new("/no/such/folder"), &all).of(0, 1), None);
        std::fs::remove_dir_all(root).unwrap();
    }

    fn list_of_process() -> String {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().to_owned()
    }

    /// A thread that is kept on processors is told so by the system.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_stays_where_it_is_put() {
        let all = allowed();
        let Some(last) = all.last().copied() else { return };
        let of_thread = std::thread::spawn(move || {
            stay_on(&[last]);
            std::fs::read_to_string("/proc/thread-self/status").unwrap()
        });
        let status = of_thread.join().unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(processors(list), [last]);
        let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        assert!(
            own.contains(&format!("Cpus_allowed_list:{}", list_of_process())),
            "others are where they were"
        );
    }
}
