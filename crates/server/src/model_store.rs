//! [`ModelStore`]: the models on this machine, where clients may download and remove them.

use std::fmt;
use std::ops::ControlFlow;

/// Downloads models and removes them.
pub trait ModelStore: fmt::Debug + Send + Sync {
    /// Downloads a model, unless it is there. Takes as long as it takes; `watch` is told of the progress, and may end it.
    fn pull(
        &self,
        name: &str,
        watch: &mut dyn FnMut(PullProgress<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreError>;

    /// Removes a model.
    fn delete(&self, name: &str) -> Result<(), StoreError>;
}

/// Progress of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullProgress<'a> {
    /// Bytes of a file.
    File {
        /// Its name.
        file: &'a str,
        /// Those that are here.
        done: u64,
        /// All of them.
        total: u64,
    },
    /// Something that takes time, or went wrong and is tried again.
    Note(&'a str),
}

/// Why a model was not downloaded or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// There is no such model.
    Missing(String),
    /// The name is none, or the model cannot be used or removed.
    Refused(String),
    /// The hub, the network or the disk failed.
    Failed(String),
}
