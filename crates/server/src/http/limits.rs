//! [`Limits`]: limits on what all clients together may use.

use crate::http::connection_table::ConnectionTable;

/// File descriptors reserved for everything but connections: the model's files, the log, the runtime.
const RESERVED_DESCRIPTORS: usize = 64;

/// Limits on memory and connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that requests may hold together: bodies, prompts made from them, and unread answers.
    pub memory: usize,
    /// Concurrent connections. Beyond that the one that has been idle longest is closed.
    pub connections: usize,
    /// Concurrent connections per IPv4 address or IPv6 network (/64).
    pub connections_per_address: usize,
    /// File descriptors the process may have, if known. Connections get those that are not reserved.
    pub descriptors: Option<usize>,
}

impl Limits {
    /// Lower bound of [`memory`](Limits::memory): one request may need 64 MiB, and small ones have a share of their
    /// own.
    pub const LEAST_MEMORY: usize = 128 << 20;
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { memory: 512 << 20, connections: 4096, connections_per_address: 2048, descriptors: None }
    }
}

impl Limits {
    /// Connections that there are file descriptors for.
    pub fn most_connections(&self) -> usize {
        let kept = |all: usize| all.saturating_sub(RESERVED_DESCRIPTORS).max(all / 2);
        self.descriptors.map_or(self.connections, |all| kept(all).min(self.connections)).max(1)
    }

    pub(crate) fn connection_table(&self) -> ConnectionTable {
        ConnectionTable::new(self.most_connections(), self.connections_per_address)
    }
}
