//! [`LoadError`]: why a file did not become a model, in words that name the file and the place in it.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Why a model did not load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be read at all.
    #[error("{}: {}", path.display(), said(why))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        why: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("{}: {field}: {why}", path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// The place in it: a key, a tensor, a byte range.
        field: String,
        /// What is wrong there.
        why: String,
    },
    /// The file is well-formed and asks for something that is not implemented.
    #[error("{}: {what} is not supported: {why}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What it asks for.
        what: String,
        /// Why not, and what to do instead.
        why: String,
    },
    /// Whoever asked for the model does not want it any more.
    #[error("loading was stopped")]
    Stopped,
    /// The device could not take the model.
    #[error("{0}")]
    Device(#[from] tallow_core::Error),
}

impl LoadError {
    /// Something wrong with a place in a file.
    pub fn bad(path: &Path, field: impl Display, why: impl Display) -> LoadError {
        LoadError::Bad { path: path.into(), field: field.to_string(), why: why.to_string() }
    }

    /// Something that is not implemented.
    pub fn unsupported(path: &Path, what: impl Display, why: impl Display) -> LoadError {
        LoadError::Unsupported { path: path.into(), what: what.to_string(), why: why.to_string() }
    }

    /// The system would not let us read.
    pub fn io(path: &Path, why: std::io::Error) -> LoadError {
        LoadError::Io { path: path.into(), why }
    }
}

/// The result of reading model files.
pub(crate) type Result<T> = std::result::Result<T, LoadError>;

/// A system's words, where they are not for people.
fn said(why: &std::io::Error) -> String {
    match why.kind() {
        std::io::ErrorKind::NotFound => "there is no such file or folder".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => why.to_string(),
    }
}
