//! [`LoadError`]: why a model did not load.

use std::fmt::Display;
use std::path::Path;

use tallow_checkpoint::FileError;

/// Why a model did not load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is missing, malformed, or needs something that is not implemented.
    #[error(transparent)]
    File(#[from] FileError),
    /// Loading was cancelled.
    #[error("loading was stopped")]
    Stopped,
    /// The device refused the model.
    #[error("{0}")]
    Device(#[from] tallow_core::Error),
}

impl LoadError {
    /// A malformed place in a file.
    pub fn bad(path: &Path, field: impl Display, why: impl Display) -> LoadError {
        LoadError::File(FileError::bad(path, field, why))
    }

    /// Something that is not implemented.
    pub fn unsupported(path: &Path, what: impl Display, why: impl Display) -> LoadError {
        LoadError::File(FileError::unsupported(path, what, why))
    }

    /// A file that could not be read.
    pub fn io(path: &Path, why: std::io::Error) -> LoadError {
        LoadError::File(FileError::io(path, why))
    }
}

/// The result of loading a model.
pub type Result<T> = std::result::Result<T, LoadError>;
