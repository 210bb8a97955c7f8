//! [`FileError`]: why a model's file could not be used; each message names the file and the place in it.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Why a model's file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file could not be read at all.
    #[error("{}: {}", path.display(), said(why))]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        why: std::io::Error,
    },
    /// The file is malformed.
    #[error("{}: {field}: {why}", path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// The place in it: a key, a tensor, a byte range.
        field: String,
        /// The defect.
        why: String,
    },
    /// The file is well-formed but needs something that is not implemented.
    #[error("{}: {what} is not supported: {why}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The unsupported setting.
        what: String,
        /// Why not, and what to do instead.
        why: String,
    },
}

impl FileError {
    /// A malformed place in a file.
    pub fn bad(path: &Path, field: impl Display, why: impl Display) -> FileError {
        FileError::Bad { path: path.into(), field: field.to_string(), why: why.to_string() }
    }

    /// Something that is not implemented.
    pub fn unsupported(path: &Path, what: impl Display, why: impl Display) -> FileError {
        FileError::Unsupported { path: path.into(), what: what.to_string(), why: why.to_string() }
    }

    /// A file that could not be read.
    pub fn io(path: &Path, why: std::io::Error) -> FileError {
        FileError::Io { path: path.into(), why }
    }
}

/// The result of reading model files.
pub type Result<T> = std::result::Result<T, FileError>;

/// The operating system's message, reworded where it is unclear.
fn said(why: &std::io::Error) -> String {
    match why.kind() {
        std::io::ErrorKind::NotFound => "there is no such file or folder".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => why.to_string(),
    }
}
