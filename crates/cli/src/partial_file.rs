//! [`PartialFile`]: an output file until it is complete.

use std::fs::{File, TryLockError};
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

/// An output file that is incomplete, beside where it will be. It is removed on drop unless it is finished.
pub(crate) struct PartialFile {
    path: PathBuf,
    pub file: File,
}

impl PartialFile {
    /// Creates the file, or takes over what a program that was ended has left, and reserves its space, before hours of work
    /// go into it.
    pub(crate) fn create(out: &Path, size: u64) -> std::io::Result<PartialFile> {
        let mut path = out.as_os_str().to_owned();
        path.push(".part");
        let path = PathBuf::from(path);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
        // Some file systems have no locks: two programs that write one file at a time are rare enough there.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            let why = "another program writes this file just now; wait until it is done";
            return Err(Error::new(ErrorKind::WouldBlock, why));
        }
        file.set_len(0)?;
        let part = PartialFile { path, file };
        reserve(&part.file, size)?;
        Ok(part)
    }

    /// Waits until all is on the disk, and moves the file to its place.
    pub(crate) fn finish(&self, out: &Path) -> std::io::Result<()> {
        self.file.sync_all()?;
        std::fs::rename(&self.path, out)
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // Once it is finished there is no file of that name.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(target_os = "linux")]
fn reserve(file: &File, size: u64) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    let size = libc::off_t::try_from(size).unwrap_or(libc::off_t::MAX);
    // SAFETY: the descriptor is open for as long as `file` lives, and no pointers are passed.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size) } {
        0 => Ok(()),
        _ => match Error::last_os_error() {
            // Not supported by some file systems: there a full disk shows while writing.
            e if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
            e => Err(e),
        },
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(_: &File, _: u64) -> std::io::Result<()> {
    Ok(())
}
