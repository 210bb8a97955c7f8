//! The on-disk cache. The layout is the hub's own; other programs read and write it at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use crate::blob::{Blob, has_length, incomplete, sync_folder};
use crate::error::{HubError, Result};
use crate::name::{ModelRef, check_path, is_commit};
use crate::pick::{self, Choice};
use crate::repo::RepoName;

/// Limits on what is read from the cache, since others write to it.
const DEEPEST: usize = 8;
const MOST_FILES: usize = 10_000;
const LONGEST_INDEX: u64 = 64 << 20;

/// The cache folder: `HF_HUB_CACHE`, by default `~/.cache/huggingface/hub`.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

/// A complete model in the cache, ready to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Name of the model.
    pub repo: RepoName,
    /// Commit hash.
    pub commit: String,
    /// Path to load: the (first) GGUF file, or the folder with `config.json` and the weights.
    pub path: PathBuf,
    /// All files of the model.
    pub files: Vec<PathBuf>,
}

/// A row of the list of cached models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedModel {
    /// Name to load it by: `org/name`, or `org/name:quant`.
    pub name: String,
    /// Quantization, if it is a GGUF model.
    pub quant: Option<String>,
    /// Number of files.
    pub files: usize,
    /// Size on disk.
    pub bytes: u64,
    /// Time of the newest file.
    pub modified: SystemTime,
    /// The file or folder.
    pub path: PathBuf,
    /// True if all weights are there. If not, a pull resumes the download.
    pub complete: bool,
}

/// Number and size of removed files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    /// Number of files.
    pub files: usize,
    /// Bytes freed on disk.
    pub bytes: u64,
}

/// A file of a snapshot.
struct Entry {
    name: String,
    /// The file itself, or the target of its link.
    blob: PathBuf,
    bytes: u64,
    modified: SystemTime,
}

impl Cache {
    /// A cache in this folder, which need not exist yet.
    pub fn at(root: impl Into<PathBuf>) -> Cache {
        Cache { root: root.into() }
    }

    /// Looks a model up offline, at the requested revision or `main`. `None` unless all its weights are there.
    pub fn find(&self, model: &ModelRef) -> Result<Option<Snapshot>> {
        let Some(commit) = self.commit(&model.repo, model.revision()) else { return Ok(None) };
        let folder = self.snapshot_folder(&model.repo, &commit);
        let mut files: Vec<_> = entries(&folder).into_iter().map(|e| e.name).collect();
        let partial: BTreeSet<_> =
            pick::variants(&files).into_iter().filter(|v| !v.is_whole()).flat_map(|v| v.files).collect();
        files.retain(|f| !partial.contains(f));
        let choice = match pick::pick(&model.repo, &files, model.quant.as_deref()) {
            Ok(choice) => choice,
            Err(e @ HubError::Ambiguous { .. }) => return Err(e),
            Err(_) => return Ok(None),
        };
        if !choice.gguf && !is_whole(&folder, &choice) {
            return Ok(None);
        }
        for file in &choice.files {
            if !self.has(&model.repo, &commit, file)? {
                return Ok(None);
            }
        }
        Ok(Some(self.snapshot(&model.repo, &commit, &choice)))
    }

    /// All models in the cache, by name.
    pub fn list(&self) -> Result<Vec<CachedModel>> {
        let folders = match fs::read_dir(&self.root) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            folders => folders.map_err(HubError::io("read", &self.root))?,
        };
        let names = folders.flatten().filter_map(|f| RepoName::from_folder(f.file_name().to_str()?));
        let repos: BTreeSet<_> = names.collect();
        Ok(repos.iter().flat_map(|repo| self.list_repo(repo)).collect())
    }

    /// Removes a model, or one of its quantizations or revisions, with all blobs that nothing else uses.
    pub fn remove(&self, model: &ModelRef) -> Result<Removed> {
        let folder = self.folder(&model.repo);
        if !folder.is_dir() {
            return Err(HubError::NotCached { name: model.to_string() });
        }
        if !self.is_inside(&model.repo, &folder)
            || fs::symlink_metadata(&folder).is_ok_and(|m| m.is_symlink())
        {
            return Err(HubError::Outside { path: folder, cache: self.root.clone() });
        }
        if model.quant.is_none() && model.revision.is_none() {
            return remove_all(&folder);
        }
        let only = model.revision.as_ref().map(|revision| self.commit(&model.repo, revision));
        let (mut doomed, mut kept) = (Vec::new(), BTreeSet::new());
        for (commit, snapshot) in self.snapshots(&model.repo) {
            let entries = entries(&snapshot);
            let names: Vec<_> = entries.iter().map(|e| e.name.clone()).collect();
            let in_question = only.as_ref().is_none_or(|c| c.as_ref() == Some(&commit));
            let wanted: BTreeSet<String> = match &model.quant {
                _ if !in_question => BTreeSet::new(),
                None => names.into_iter().collect(),
                Some(quant) => gguf_files(&model.repo, &names, quant)?,
            };
            for entry in entries {
                if wanted.contains(&entry.name) {
                    doomed.push((snapshot.join(&entry.name), entry));
                } else {
                    kept.insert(entry.blob);
                }
            }
        }
        if doomed.is_empty() {
            return Err(HubError::NotCached { name: model.to_string() });
        }
        self.remove_entries(&model.repo, doomed, &kept)
    }

    /// Removes links, then the blobs that no link needs, then snapshots that are left empty.
    fn remove_entries(
        &self,
        repo: &RepoName,
        doomed: Vec<(PathBuf, Entry)>,
        kept: &BTreeSet<PathBuf>,
    ) -> Result<Removed> {
        let mut removed = Removed::default();
        let mut remove = |path: &Path| -> Result<()> {
            let meta = fs::symlink_metadata(path).map_err(HubError::io("read", path))?;
            fs::remove_file(path).map_err(HubError::io("remove", path))?;
            // Links take no space; neither does a blob that is itself a link to content shared by several models.
            if meta.is_file() {
                removed.files += 1;
                removed.bytes += meta.len();
            }
            Ok(())
        };
        for (link, _) in &doomed {
            remove(link)?;
        }
        let own = self.blobs(repo);
        let blobs: BTreeSet<_> = doomed.iter().map(|(_, e)| &e.blob).filter(|b| !kept.contains(*b)).collect();
        for blob in blobs.into_iter().filter(|b| b.parent() == Some(&own)) {
            remove(blob)?;
        }
        for (commit, snapshot) in self.snapshots(repo) {
            if doomed.iter().any(|(link, _)| link.starts_with(&snapshot)) && entries(&snapshot).is_empty() {
                self.remove_refs(repo, &commit)?;
                fs::remove_dir_all(&snapshot).map_err(HubError::io("remove", &snapshot))?;
            }
        }
        Ok(removed)
    }

    /// Removes the refs to a removed commit, since other programs report dangling refs as corruption.
    fn remove_refs(&self, repo: &RepoName, commit: &str) -> Result<()> {
        let folder = self.folder(repo).join("refs");
        for entry in entries(&folder) {
            if read_short(&folder.join(&entry.name)).as_deref() == Some(commit) {
                let path = folder.join(&entry.name);
                fs::remove_file(&path).map_err(HubError::io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// The rows of one model: one per GGUF variant, and one for everything else, including interrupted downloads.
    fn list_repo(&self, repo: &RepoName) -> Vec<CachedModel> {
        // By name of the row: the row and its blobs.
        let mut rows: BTreeMap<String, (CachedModel, BTreeSet<PathBuf>)> = BTreeMap::new();
        let mut add = |row: CachedModel, entries: Vec<&Entry>| {
            let (old, blobs) = rows.entry(row.name.clone()).or_insert_with(|| (row.clone(), BTreeSet::new()));
            if row.complete && !old.complete {
                (old.complete, old.path) = (true, row.path);
            }
            for entry in entries {
                old.modified = old.modified.max(entry.modified);
                if blobs.insert(entry.blob.clone()) {
                    old.files += 1;
                    old.bytes += entry.bytes;
                }
            }
        };
        let row = |name: String, quant: Option<String>, path: PathBuf, complete: bool| CachedModel {
            name,
            quant,
            path,
            complete,
            files: 0,
            bytes: 0,
            modified: SystemTime::UNIX_EPOCH,
        };
        for (_, folder) in self.snapshots(repo) {
            let entries = entries(&folder);
            let names: Vec<_> = entries.iter().map(|e| e.name.clone()).collect();
            let variants = pick::variants(&names);
            let labels: Vec<_> = variants.iter().map(|v| v.label.clone()).collect();
            for variant in &variants {
                let unique = labels.iter().filter(|l| **l == variant.label).count() == 1;
                let quant = variant.label.clone().filter(|_| unique).unwrap_or_else(|| variant.stem.clone());
                let path = folder.join(variant.files.first().unwrap_or(&variant.stem));
                let of_variant = entries.iter().filter(|e| variant.files.contains(&e.name)).collect();
                add(row(format!("{repo}:{quant}"), Some(quant), path, variant.is_whole()), of_variant);
            }
            let ggufs: BTreeSet<_> = variants.iter().flat_map(|v| &v.files).collect();
            let others: Vec<_> = entries.iter().filter(|e| !ggufs.contains(&e.name)).collect();
            let safetensors = names.iter().any(|n| n.ends_with(".safetensors"));
            if !others.is_empty() && (variants.is_empty() || safetensors) {
                let complete = pick::pick(repo, &names, None).is_ok_and(|c| !c.gguf && is_whole(&folder, &c));
                add(row(repo.to_string(), None, folder, complete), others);
            }
        }
        let blobs = self.blobs(repo);
        let cut_off: Vec<_> =
            entries(&blobs).into_iter().filter(|e| e.name.ends_with(".incomplete")).collect();
        if !cut_off.is_empty() {
            add(row(repo.to_string(), None, blobs, false), cut_off.iter().collect());
        }
        rows.into_values().map(|(row, _)| row).collect()
    }

    /// Creates a model's folders.
    pub(crate) fn prepare(&self, repo: &RepoName, commit: &str) -> Result<()> {
        for folder in [self.blobs(repo), self.snapshot_folder(repo, commit), self.folder(repo).join("refs")] {
            fs::create_dir_all(&folder).map_err(HubError::io("create", &folder))?;
        }
        Ok(())
    }

    /// True if the file is cached. A file whose content is outside the cache is an error.
    pub(crate) fn has(&self, repo: &RepoName, commit: &str, file: &str) -> Result<bool> {
        let path = self.snapshot_folder(repo, commit).join(file);
        if !path.is_file() {
            return Ok(false);
        }
        if !self.is_inside(repo, &path) {
            return Err(HubError::Outside { path, cache: self.root.clone() });
        }
        Ok(true)
    }

    /// Links a blob into a snapshot. The link appears atomically.
    pub(crate) fn link(&self, repo: &RepoName, commit: &str, blob: &Blob) -> Result<()> {
        let folder = self.snapshot_folder(repo, commit);
        let link = folder.join(&blob.file);
        let mut parent = folder;
        let mut up = String::from("../../");
        for part in blob.file.split('/').rev().skip(1).collect::<Vec<_>>().into_iter().rev() {
            parent.push(part);
            up += "../";
            match fs::create_dir(&parent) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                made => made.map_err(HubError::io("create", &parent))?,
            }
            // A folder that is a link would place the file outside the cache.
            if fs::symlink_metadata(&parent).map_err(HubError::io("read", &parent))?.is_symlink() {
                return Err(HubError::Outside { path: parent, cache: self.root.clone() });
            }
        }
        let content = PathBuf::from(format!("{up}blobs/{}", blob.etag));
        match symlink(&content, &link) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                if fs::read_link(&link).is_ok_and(|old| old == content) {
                    return Ok(());
                }
                let fresh = self.temporary(repo, &blob.etag);
                symlink(&content, &fresh).map_err(HubError::io("create", &fresh))?;
                fs::rename(&fresh, &link).map_err(HubError::io("replace", &link))?;
            }
            made => made.map_err(HubError::io("create", &link))?,
        }
        sync_folder(&link);
        Ok(())
    }

    /// Records the commit of a branch or tag.
    pub(crate) fn write_ref(&self, repo: &RepoName, revision: &str, commit: &str) -> Result<()> {
        let path = self.folder(repo).join("refs").join(revision);
        if read_short(&path).as_deref() == Some(commit) {
            return Ok(());
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(HubError::io("create", folder))?;
        }
        let fresh = self.temporary(repo, commit);
        // No newline: other programs compare the whole content.
        fs::write(&fresh, commit).map_err(HubError::io("write", &fresh))?;
        fs::rename(&fresh, &path).map_err(HubError::io("write", &path))?;
        sync_folder(&path);
        Ok(())
    }

    /// Paths of a model's files, and the one to load.
    pub(crate) fn snapshot(&self, repo: &RepoName, commit: &str, choice: &Choice) -> Snapshot {
        let folder = self.snapshot_folder(repo, commit);
        let files: Vec<_> = choice.files.iter().map(|f| folder.join(f)).collect();
        let path = files.first().filter(|_| choice.gguf).cloned().unwrap_or(folder);
        Snapshot { repo: repo.clone(), commit: commit.to_owned(), path, files }
    }

    /// Bytes of a blob that are still to be downloaded.
    pub(crate) fn missing_bytes(&self, repo: &RepoName, blob: &Blob) -> u64 {
        let path = self.blobs(repo).join(&blob.etag);
        let so_far = || fs::metadata(incomplete(&path)).map_or(0, |m| m.len());
        if has_length(&path, blob.size) { 0 } else { blob.size.saturating_sub(so_far()) }
    }

    pub(crate) fn blobs(&self, repo: &RepoName) -> PathBuf {
        self.folder(repo).join("blobs")
    }

    pub(crate) fn lock(&self, repo: &RepoName, etag: &str) -> PathBuf {
        self.root.join(".locks").join(repo.folder()).join(format!("{etag}.lock"))
    }

    fn folder(&self, repo: &RepoName) -> PathBuf {
        self.root.join(repo.folder())
    }

    fn snapshot_folder(&self, repo: &RepoName, commit: &str) -> PathBuf {
        self.folder(repo).join("snapshots").join(commit)
    }

    /// A unique temporary name next to the blobs: on the same file system, and not listed by other programs.
    fn temporary(&self, repo: &RepoName, name: &str) -> PathBuf {
        let thread = format!("{:?}", std::thread::current().id());
        let thread = thread.replace(|c: char| !c.is_ascii_digit(), "");
        self.blobs(repo).join(format!("{name}.{}-{thread}.tmp", std::process::id()))
    }

    /// The commit of a revision, as far as the cache knows.
    fn commit(&self, repo: &RepoName, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_ascii_lowercase());
        }
        read_short(&self.folder(repo).join("refs").join(revision)).filter(|c| is_commit(c))
    }

    /// The commits of a model, and their folders.
    fn snapshots(&self, repo: &RepoName) -> Vec<(String, PathBuf)> {
        let all = fs::read_dir(self.folder(repo).join("snapshots"));
        let folders = all.into_iter().flatten().flatten().filter(|f| f.file_type().is_ok_and(|t| t.is_dir()));
        folders.filter_map(|f| Some((f.file_name().into_string().ok()?, f.path()))).collect()
    }

    /// True if the path, with all links resolved, is in the cache. A model's folder may itself be a link to another
    /// disk.
    fn is_inside(&self, repo: &RepoName, path: &Path) -> bool {
        let real = |p: &Path| fs::canonicalize(p).ok();
        let (root, folder) = (real(&self.root), real(&self.folder(repo)));
        real(path).is_some_and(|p| [root, folder].into_iter().flatten().any(|home| p.starts_with(home)))
    }
}

/// The GGUF files of one quantization; empty if there is none.
fn gguf_files(repo: &RepoName, files: &[String], quant: &str) -> Result<BTreeSet<String>> {
    match pick::pick(repo, files, Some(quant)) {
        Ok(choice) => Ok(choice.files.into_iter().collect()),
        // Incomplete variants can be removed too.
        Err(HubError::MissingPart { file, .. }) => {
            let variants = pick::variants(files).into_iter().filter(|v| v.stem == file);
            Ok(variants.flat_map(|v| v.files).collect())
        }
        Err(e @ HubError::Ambiguous { .. }) => Err(e),
        Err(_) => Ok(BTreeSet::new()),
    }
}

/// True if all weights of a safetensors model are there.
fn is_whole(folder: &Path, choice: &Choice) -> bool {
    let index = pick::index(&choice.files).map(|file| {
        let mut text = Vec::new();
        let read =
            fs::File::open(folder.join(file)).and_then(|f| f.take(LONGEST_INDEX).read_to_end(&mut text));
        // If the index cannot be read it counts as empty, which makes the model incomplete.
        read.map_or(Vec::new(), |_| text)
    });
    pick::is_whole(&choice.files, index.as_deref())
}

/// Removes a whole model, refs and snapshots first, so that an interruption leaves nothing that looks complete.
fn remove_all(folder: &Path) -> Result<Removed> {
    // Where links are not supported, snapshots hold the content itself; links to elsewhere take no space.
    let [blobs, snapshots] = ["blobs", "snapshots"].map(|part| entries(&folder.join(part)));
    let files = blobs.iter().chain(&snapshots).map(|e| &e.blob).filter(|b| b.starts_with(folder));
    let files: BTreeSet<_> = files.collect();
    let own = files.into_iter().filter_map(|f| fs::symlink_metadata(f).ok()).filter(fs::Metadata::is_file);
    let sizes: Vec<_> = own.map(|meta| meta.len()).collect();
    for part in ["refs", "snapshots", ""] {
        match fs::remove_dir_all(folder.join(part)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            removed => removed.map_err(HubError::io("remove", folder))?,
        }
    }
    Ok(Removed { files: sizes.len(), bytes: sizes.into_iter().sum() })
}

/// The files below a folder, and the targets of their links. Skips folders that are links, and names that `check_path`
/// refuses.
fn entries(folder: &Path) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut folders = vec![(folder.to_owned(), String::new(), 0)];
    while let Some((path, prefix, depth)) = folders.pop() {
        for file in fs::read_dir(&path).into_iter().flatten().flatten() {
            let (Ok(kind), Some(name)) =
                (file.file_type(), file.file_name().to_str().map(|n| format!("{prefix}{n}")))
            else {
                continue;
            };
            if kind.is_dir() && depth < DEEPEST {
                folders.push((file.path(), format!("{name}/"), depth + 1));
                continue;
            }
            let blob = fs::read_link(file.path()).map_or_else(|_| file.path(), |to| follow(&path, &to));
            let Ok(meta) = fs::metadata(file.path()) else { continue };
            if meta.is_file() && check_path(&name).is_ok() && found.len() < MOST_FILES {
                let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                found.push(Entry { name, blob, bytes: meta.len(), modified });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Target of a link in `folder`. Links from different folders to one blob give equal paths.
fn follow(folder: &Path, link: &Path) -> PathBuf {
    let mut path = folder.to_owned();
    for part in link.components() {
        match part {
            Component::ParentDir => _ = path.pop(),
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

/// The trimmed content of a small file.
fn read_short(path: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(path).ok()?.take(1000).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}
