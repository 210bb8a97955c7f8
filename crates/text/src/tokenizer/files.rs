//! Files of a folder, read whole.

use std::path::Path;

use tallow_checkpoint::{FileError, Result, regular};

/// Maximum size of a file. The largest real ones have some 40 MB.
const MOST_FILE: u64 = 512 << 20;

/// A file's bytes, if it is not too large.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let size = regular(path)?.len();
    if size > MOST_FILE {
        let why = format!("has {size} bytes; a tokenizer's file of at most {MOST_FILE} is read");
        return Err(FileError::bad(path, "its size", why));
    }
    std::fs::read(path).map_err(|e| FileError::io(path, e))
}
