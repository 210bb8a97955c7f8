//! [`Limits`]: what clients may take of the machine, all together.

use crate::table::Table;

/// Descriptors that are left to everything but connections: the model's files, the log, the runtime.
const DESCRIPTORS_KEPT: usize = 64;

/// What clients may take of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that requests may hold together: bodies, what becomes of them, and answers that have not been taken.
    pub memory: usize,
    /// Connections at one time. When there are more, the one that has been idle longest is closed.
    pub connections: usize,
    /// Connections of one address, or of one network of the sixth version.
    pub connections_per_address: usize,
    /// Descriptors that the process may have, if that is known. Connections get what is left of them.
    pub descriptors: Option<usize>,
}

impl Limits {
    /// The least that [`memory`](Limits::memory) may be: one request may need 64 MiB, and small ones have a share.
    pub const LEAST_MEMORY: usize = 128 << 20;
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { memory: 512 << 20, connections: 4096, connections_per_address: 2048, descriptors: None }
    }
}

impl Limits {
    /// Connections that there are descriptors for.
    pub fn most_connections(&self) -> usize {
        let kept = |all: usize| all.saturating_sub(DESCRIPTORS_KEPT).max(all / 2);
        self.descriptors.map_or(self.connections, |all| kept(all).min(self.connections)).max(1)
    }

    pub(crate) fn table(&self) -> Table {
        Table::new(self.most_connections(), self.connections_per_address)
    }
}
