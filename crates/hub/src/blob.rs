//! [`Blob`]: a file's content on disk, complete or not, verified against the announced size and hash.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{HubError, Result};
use crate::name::is_hex;

/// Bytes that are read or received at a time.
pub(crate) const CHUNK: usize = 256 << 10;
/// Bytes that count as progress between two failures; less does not reset the retries, so a server cannot keep a pull
/// busy forever.
pub(crate) const PROGRESS: u64 = 1 << 20;

/// A file's content, as announced by the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blob {
    /// Name of the file in the repository.
    pub(crate) file: String,
    /// ETag, which names the blob; usually its hash.
    pub(crate) etag: String,
    /// Size in bytes.
    pub(crate) size: u64,
}

/// An ETag without quotes; `None` if it is not safe as a file name.
pub(crate) fn clean_etag(raw: &str) -> Option<String> {
    let etag = raw.trim().trim_start_matches("W/").trim_matches('"');
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let ok = (1..=128).contains(&etag.len()) && etag.bytes().all(plain) && !etag.starts_with('.');
    // Would collide with a download in progress.
    (ok && !etag.ends_with(".incomplete")).then(|| etag.to_owned())
}

/// Hasher for the kind of hash that the ETag is.
enum Hash {
    /// Large files (LFS): SHA-256 of the content.
    Sha256(Sha256),
    /// Small files: git's blob hash (SHA-1).
    Git(sha1::Sha1),
    /// The ETag is not a hash.
    Unknown,
}

impl Hash {
    fn new(blob: &Blob) -> Hash {
        if is_hex(&blob.etag, 64) {
            Hash::Sha256(Sha256::new())
        } else if is_hex(&blob.etag, 40) {
            Hash::Git(sha1::Sha1::new_with_prefix(format!("blob {}\0", blob.size)))
        } else {
            Hash::Unknown
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Hash::Sha256(h) => h.update(bytes),
            Hash::Git(h) => h.update(bytes),
            Hash::Unknown => {}
        }
    }

    /// Kind of hash, and the hash in hexadecimal.
    fn finish(self) -> Option<(&'static str, String)> {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect();
        match self {
            Hash::Sha256(h) => Some(("SHA-256", hex(&h.finalize()))),
            Hash::Git(h) => Some(("git SHA-1", hex(&h.finalize()))),
            Hash::Unknown => None,
        }
    }
}

/// Exclusive lock on one blob among threads and processes, held until dropped. The kernel releases it when the process
/// ends.
pub(crate) struct BlobLock(#[expect(dead_code, reason = "closing the file gives the lock back")] File);

impl BlobLock {
    /// Takes the lock. `waiting` is called first if it is held elsewhere.
    pub(crate) fn take(path: &Path, waiting: impl FnOnce() -> Result<()>) -> Result<BlobLock> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(HubError::io("create", folder))?;
        }
        let file = File::options().create(true).truncate(false).write(true).open(path);
        let file = file.map_err(HubError::io("open", path))?;
        let locked = match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                waiting()?;
                file.lock()
            }
            Err(TryLockError::Error(e)) => Err(e),
            Ok(()) => Ok(()),
        };
        match locked {
            Ok(()) => Ok(BlobLock(file)),
            // Some network file systems have no locks. Two downloads then write the same bytes to the same offsets.
            Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(BlobLock(file)),
            Err(e) => Err(HubError::io("lock", path)(e)),
        }
    }
}

/// A download in progress: the `.incomplete` file, its length so far, and the hash of that.
pub(crate) struct Partial<'a> {
    pub(crate) blob: &'a Blob,
    file: File,
    path: PathBuf,
    pub(crate) done: u64,
    hash: Hash,
}

impl<'a> Partial<'a> {
    pub(crate) fn open(path: PathBuf, blob: &'a Blob) -> Result<Partial<'a>> {
        let file = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let file = file.map_err(HubError::io("open", &path))?;
        let mut partial = Partial { blob, file, path, done: 0, hash: Hash::new(blob) };
        let have = partial.file.metadata().map_err(HubError::io("read", &partial.path))?.len();
        if have > blob.size {
            partial.restart()?;
            return Ok(partial);
        }
        let mut chunk = vec![0; CHUNK];
        while partial.done < have {
            let n = partial.file.read(&mut chunk).map_err(HubError::io("read", &partial.path))?;
            if n == 0 {
                break;
            }
            partial.hash.update(&chunk[..n]);
            partial.done += n as u64;
        }
        Ok(partial)
    }

    pub(crate) fn restart(&mut self) -> Result<()> {
        self.file.set_len(0).map_err(HubError::io("empty", &self.path))?;
        (self.done, self.hash) = (0, Hash::new(self.blob));
        Ok(())
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, self.done).map_err(|e| match e.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                let folder = self.path.parent().unwrap_or(&self.path);
                let (needed, free) = (self.blob.size - self.done, free_space(folder).unwrap_or(0));
                HubError::DiskFull { path: folder.to_owned(), needed, free }
            }
            _ => HubError::io("write", &self.path)(e),
        })?;
        self.hash.update(bytes);
        self.done += bytes.len() as u64;
        Ok(())
    }

    pub(crate) fn wrong_length(&self, got: String) -> HubError {
        // The next pull starts over either way, so a failure here changes nothing.
        let _ = fs::remove_file(&self.path);
        HubError::WrongLength { file: self.blob.file.clone(), want: self.blob.size, got }
    }

    /// Verifies the hash and renames the file to its final name, after syncing the content to disk.
    pub(crate) fn finish(self, blob_path: &Path) -> Result<()> {
        if let Some((kind, got)) = self.hash.finish()
            && !got.eq_ignore_ascii_case(&self.blob.etag)
        {
            let _ = fs::remove_file(&self.path);
            let (file, want) = (self.blob.file.clone(), self.blob.etag.clone());
            return Err(HubError::WrongHash { file, kind, want, got });
        }
        self.file.sync_all().map_err(HubError::io("write", &self.path))?;
        match fs::rename(&self.path, blob_path) {
            // Only where locks are not supported: another download finished first.
            Err(e) if e.kind() == io::ErrorKind::NotFound && has_length(blob_path, self.blob.size) => {}
            renamed => renamed.map_err(HubError::io("rename", &self.path))?,
        }
        sync_folder(blob_path);
        Ok(())
    }
}

/// Path of a blob while it is incomplete.
pub(crate) fn incomplete(blob_path: &Path) -> PathBuf {
    let mut name = blob_path.as_os_str().to_owned();
    name.push(".incomplete");
    name.into()
}

/// True if there is a file of that length.
pub(crate) fn has_length(path: &Path, size: u64) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == size)
}

/// Bytes that this user may still write below `folder`.
pub(crate) fn free_space(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Syncs a file's folder, so that a new name survives a power failure. Best effort: if it fails, only the name may be
/// lost.
pub(crate) fn sync_folder(file: &Path) {
    let _ = file.parent().map(|folder| File::open(folder).and_then(|f| f.sync_all()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_become_file_names() {
        assert_eq!(clean_etag("\"abc\"").as_deref(), Some("abc"));
        assert_eq!(clean_etag("W/\"a-64\"").as_deref(), Some("a-64"));
        for bad in ["", "\"\"", "../x", "a/b", "..", ".x", "a\0", "x.incomplete", &"a".repeat(129)] {
            assert_eq!(clean_etag(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn hashes_are_those_of_the_tools() {
        // From `printf hello | sha256sum` and `printf hello | git hash-object --stdin`.
        let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        let git = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
        for etag in [sha256, git] {
            let blob = Blob { file: String::new(), etag: etag.to_owned(), size: 5 };
            let mut hash = Hash::new(&blob);
            hash.update(b"hel");
            hash.update(b"lo");
            assert_eq!(hash.finish().unwrap().1, etag);
        }
    }
}
