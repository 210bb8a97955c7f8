//! [`Folder`]: the folder of a disk cache, which is ours alone.
//!
//! Nobody else may write in it, one process at a time uses it, and only regular files are opened: never what a link
//! leads to.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::TierError;
use super::key::{Fingerprint, Secret, hex};

const LOCK: &str = "tallow.lock";
const SECRET: &str = "tallow.secret";
/// File name extension of segments.
const SEGMENT: &str = ".pages";

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// User that files in it are of: the one that this process runs as.
    owner: u32,
    /// Locked as long as it is open.
    _lock: File,
}

/// A segment's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentFile {
    pub(super) name: String,
    /// Beginning of the fingerprint of the pages in it, in digits.
    model: String,
    pub(super) number: u32,
    pub(super) bytes: u64,
    /// When a page of it was last written or read.
    pub(super) used: SystemTime,
}

impl SegmentFile {
    /// Name of a model's segment.
    pub(super) fn name(fingerprint: &Fingerprint, number: u32) -> String {
        format!("{}-{number:08}{SEGMENT}", Self::model(fingerprint))
    }

    fn model(fingerprint: &Fingerprint) -> String {
        hex(&fingerprint[..16])
    }

    /// True if its pages are of this fingerprint, by its name.
    pub(super) fn is_of(&self, fingerprint: &Fingerprint) -> bool {
        self.model == Self::model(fingerprint)
    }

    /// The segment with a file's name; `None` if the name is no segment's.
    fn of(name: &str, meta: &Metadata) -> Option<SegmentFile> {
        let (model, number) = name.strip_suffix(SEGMENT)?.split_once('-')?;
        let is_ours = model.len() == 32 && model.bytes().all(|b| b.is_ascii_hexdigit()) && number.len() >= 8;
        let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let (model, number) = (model.to_owned(), number.parse().ok().filter(|_| is_ours)?);
        Some(SegmentFile { name: name.to_owned(), model, number, bytes: meta.len(), used })
    }
}

impl Folder {
    /// Opens a folder, or makes it, and locks it.
    pub(super) fn open(path: &Path) -> Result<Folder, TierError> {
        let unusable = |why: String| TierError::Unusable { folder: path.into(), why };
        let io = |why: io::Error| unusable(why.to_string());
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(path).map_err(io)?;
        // As it is now: later on the working folder or a link may be another.
        let path = path.canonicalize().map_err(io)?;
        let owner = ours(&path).map_err(unusable)?;
        let lock = path.join(LOCK);
        let lock = match open(&lock, owner) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                create(&lock).or_else(|_| open(&lock, owner))
            }
            opened => opened,
        };
        let lock = lock.map_err(io)?;
        match lock.try_lock() {
            Ok(()) => Ok(Folder { path, owner, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(TierError::InUse(path)),
            Err(TryLockError::Error(why)) => Err(io(why)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder's secret: the one in its file, or a new one, with which all older pages are lost.
    pub(super) fn secret(&self) -> io::Result<Secret> {
        let path = self.path.join(SECRET);
        match self.old_secret(&path) {
            Ok(secret) => return Ok(secret),
            Err(why) if why.kind() == io::ErrorKind::NotFound => {}
            Err(why) => tracing::warn!("{}: {why}; the pages that were saved are lost", path.display()),
        }
        let secret = random()?;
        // Renamed when it is complete, so that a process that is killed leaves none or a whole one.
        let new = self.path.join(format!("{SECRET}.new"));
        let _ = fs::remove_file(&new);
        let mut file = create(&new)?;
        file.write_all(&secret)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        Ok(secret)
    }

    fn old_secret(&self, path: &Path) -> io::Result<Secret> {
        let mut file = open(path, self.owner)?;
        let mut secret = [0; 32];
        let meta = file.metadata()?;
        if meta.len() != secret.len() as u64 {
            return Err(io::Error::other("it is not a secret of ours"));
        }
        if is_shared(&meta, 0o077) {
            return Err(io::Error::other("others may have read it"));
        }
        file.read_exact(&mut secret)?;
        Ok(secret)
    }

    /// All segments, of this model and of others.
    pub(super) fn segments(&self) -> io::Result<Vec<SegmentFile>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            // Of the entry itself: links are not followed.
            let Ok(meta) = entry.metadata() else { continue };
            let segment = entry.file_name().to_str().and_then(|name| SegmentFile::of(name, &meta));
            all.extend(segment.filter(|_| meta.is_file()));
        }
        Ok(all)
    }

    pub(super) fn create(&self, name: &str) -> io::Result<File> {
        create(&self.path.join(name))
    }

    pub(super) fn open_segment(&self, name: &str) -> io::Result<File> {
        open(&self.path.join(name), self.owner)
    }

    /// Removes a file; one that is gone already is fine.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
            _ => Ok(()),
        }
    }
}

/// Makes a file that only its owner can read. There must be none of that name.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Opens a regular file of this user's, and nothing that a link leads to. Nobody else can exchange the file in between.
fn open(path: &Path, owner: u32) -> io::Result<File> {
    let wrong = |why: &str| io::Error::other(format!("{} {why}", path.display()));
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(wrong("is not a regular file"));
    }
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let meta = file.metadata()?;
    match self::owner(&meta) != owner || is_shared(&meta, 0o022) {
        true => Err(wrong("may have been written by others")),
        false => Ok(file),
    }
}

/// Checks that a folder is this user's, and nobody else can write in it. Returns the user.
fn ours(path: &Path) -> Result<u32, String> {
    let meta = path.metadata().map_err(|why| why.to_string())?;
    if is_shared(&meta, 0o022) {
        return Err("others can write in it; take a folder of your own, or `chmod go-w` this one".into());
    }
    // A new file is this user's.
    let probe = path.join(format!("tallow.probe-{}", std::process::id()));
    let _ = fs::remove_file(&probe);
    let made = create(&probe).and_then(|file| file.metadata());
    let _ = fs::remove_file(&probe);
    let user = owner(&made.map_err(|why| why.to_string())?);
    if owner(&meta) != user { Err("it is another user's".into()) } else { Ok(user) }
}

/// User that a file or folder is of.
#[cfg(unix)]
fn owner(meta: &Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::uid(meta)
}

/// Other systems have no such numbers.
#[cfg(not(unix))]
fn owner(_: &Metadata) -> u32 {
    0
}

/// True if others have any of these permissions.
#[cfg(unix)]
fn is_shared(meta: &Metadata, mode: u32) -> bool {
    std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & mode != 0
}

/// Other systems have no such permissions.
#[cfg(not(unix))]
fn is_shared(_: &Metadata, _: u32) -> bool {
    false
}

/// Random bytes from the operating system.
fn random() -> io::Result<Secret> {
    let mut secret = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut secret)?;
    Ok(secret)
}
