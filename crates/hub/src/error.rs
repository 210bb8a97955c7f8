//! Errors. Each message says what happened, why, and what to do next.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::repo::{NameError, RepoName};

pub(crate) type Result<T> = std::result::Result<T, HubError>;

/// Why a model could not be fetched, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The text is not a model name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The family has aliases, but not this one.
    #[error(
        "there is no {given:?} among the short names; there are {have}. Other models are named as org/name"
    )]
    Alias {
        /// The alias.
        given: String,
        /// The family's aliases.
        have: String,
    },
    /// The endpoint, the token or the proxy is invalid.
    #[error("{what} cannot be used: {why}")]
    Setting {
        /// Name of the setting, as the user knows it.
        what: String,
        /// Why it is invalid.
        why: String,
    },
    /// The model does not exist, or is private.
    #[error(
        "there is no model {repo} at {hub}, or it is private. {}; for a private model, set HF_TOKEN to a token that \
         may read it", check(.repo)
    )]
    NoModel {
        /// The model.
        repo: RepoName,
        /// The hub's address.
        hub: String,
    },
    /// The model has no such revision.
    #[error(
        "{repo} has no revision {revision}. Its branches, tags and commits are at {hub}/{repo}/tree/main"
    )]
    NoRevision {
        /// The model.
        repo: RepoName,
        /// The requested branch, tag or commit.
        revision: String,
        /// The hub's address.
        hub: String,
    },
    /// A file that the hub listed is not there.
    #[error(
        "the hub lists {file} in {repo}, but does not have it. Try again; the model may just be changing"
    )]
    NoFile {
        /// The model.
        repo: RepoName,
        /// The file.
        file: String,
    },
    /// The model is gated: its licence has to be accepted first.
    #[error(
        "{repo} is gated: its owner gives access on request. Accept the licence at {hub}/{repo}, create a token at \
         {hub}/settings/tokens and set HF_TOKEN to it"
    )]
    Gated {
        /// The model.
        repo: RepoName,
        /// The hub's address.
        hub: String,
    },
    /// The hub does not accept the token.
    #[error(
        "{hub} does not accept the token. Create a new one at {hub}/settings/tokens and set HF_TOKEN to it"
    )]
    Token {
        /// The hub's address.
        hub: String,
    },
    /// A status that a retry does not change.
    #[error("{host} answered {status} to {what}{}", said(.message))]
    Status {
        /// Host that answered.
        host: String,
        /// HTTP status.
        status: u16,
        /// The requested file or listing.
        what: String,
        /// The server's message, sanitized.
        message: String,
    },
    /// The server could not be reached, or kept failing.
    #[error(
        "cannot get {what}: {why} (tried {}). {}", times(*.tries), then(*.kept)
    )]
    Network {
        /// The requested file or listing.
        what: String,
        /// Why the last attempt failed.
        why: String,
        /// Number of attempts.
        tries: u32,
        /// True if there is a partial download to resume.
        kept: bool,
    },
    /// The server asks for a longer delay than `Timing::longest_wait`.
    #[error(
        "the server refuses {what} for now ({why}): come back in {}. {} HF_TOKEN set the hub allows more",
        seconds(.wait), if *.kept { "What has arrived is kept; with" } else { "With" }
    )]
    Busy {
        /// The requested file or listing.
        what: String,
        /// The server's answer.
        why: String,
        /// Delay that it asks for.
        wait: Duration,
        /// True if there is a partial download to resume.
        kept: bool,
    },
    /// The server's answer is invalid, or unsafe to follow.
    #[error(
        "the answer about {what} cannot be used: {why}. If you set another endpoint, check that it is a hub"
    )]
    Answer {
        /// The requested file or listing.
        what: String,
        /// Defect of the answer.
        why: String,
    },
    /// A file's name is not safe.
    #[error(
        "{repo} has a file named {name:?}, which is refused: {why}. Nothing was written; tell the model's owner"
    )]
    FileName {
        /// The model.
        repo: RepoName,
        /// The file's name, truncated.
        name: String,
        /// Its defect.
        why: &'static str,
    },
    /// No file has the requested quantization.
    #[error("{repo} has no {wanted:?}; it has {have}")]
    NoQuant {
        /// The model.
        repo: RepoName,
        /// The requested quantization.
        wanted: String,
        /// The names that exist.
        have: String,
    },
    /// Several files match.
    #[error(
        "{repo} has several files that would do. Say which, as in {repo}:NAME, where NAME is one of {have}"
    )]
    Ambiguous {
        /// The model.
        repo: RepoName,
        /// Names that distinguish them.
        have: String,
    },
    /// A split model has missing parts.
    #[error("{file} has {of} parts, but {repo} has only {have} of them. Try another quantization")]
    MissingPart {
        /// The model.
        repo: RepoName,
        /// Name shared by the parts.
        file: String,
        /// Number of parts present.
        have: usize,
        /// Number of parts of the complete model.
        of: usize,
    },
    /// No tokenizer in a supported format.
    #[error(
        "{repo} has no tokenizer that can be read: none of tokenizer.json, tokenizer.model, spiece.model, tekken.json, a tiktoken \
         file, vocab.txt, or vocab.json with merges.txt. Nothing was downloaded; look for a copy of the model that has one, or for GGUF \
         files"
    )]
    NoTokenizer {
        /// The model.
        repo: RepoName,
    },
    /// The weights are pickled: loading them could run arbitrary code.
    #[error(
        "{repo} has its weights only as {file}: loading such files can run any program hidden in them, so they are \
         refused. Look for a copy with safetensors or GGUF files"
    )]
    Pickle {
        /// The model.
        repo: RepoName,
        /// A pickled file of the repository.
        file: String,
    },
    /// The repository has no supported weights.
    #[error("{repo} has neither safetensors nor GGUF files, so there is nothing to load. Check the name")]
    NoWeights {
        /// The model.
        repo: RepoName,
    },
    /// A file's length differs from the announced one.
    #[error(
        "{file} should have {want} bytes, but {got}. It was removed; run the same command to fetch it again"
    )]
    WrongLength {
        /// The file.
        file: String,
        /// The announced length.
        want: u64,
        /// The bytes received.
        got: String,
    },
    /// A file's hash differs from the announced one.
    #[error(
        "{file} is damaged: its {kind} is {got}, not {want}. It was removed; run the same command to fetch it again. \
         If that does not help, something between here and the hub changes it: a proxy, a mirror or the disk"
    )]
    WrongHash {
        /// The file.
        file: String,
        /// Kind of hash.
        kind: &'static str,
        /// Hash that the hub announced.
        want: String,
        /// Hash of the downloaded bytes.
        got: String,
    },
    /// Not enough disk space.
    #[error(
        "the disk is full: {} more are needed at {}, where {} are free. What has arrived is kept; make room (`tallow \
         rm`) and run the same command to go on", bytes(*.needed), .path.display(), bytes(*.free)
    )]
    DiskFull {
        /// The folder.
        path: PathBuf,
        /// Bytes still to download.
        needed: u64,
        /// Free bytes.
        free: u64,
    },
    /// A path in the cache leads out of it.
    #[error("{} leads out of the model cache at {}. It was left alone; remove it by hand", .path.display(), .cache.display())]
    Outside {
        /// The path.
        path: PathBuf,
        /// The cache.
        cache: PathBuf,
    },
    /// Whoever watched the pull ended it.
    #[error("the pull was stopped. What has arrived is kept; pull it again to go on")]
    Stopped,
    /// The model is not in the cache.
    #[error("{name} is not in the cache. `tallow list` shows what is")]
    NotCached {
        /// The model.
        name: String,
    },
    /// A file system error.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl HubError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HubError {
        move |source| HubError::Io { doing, path: path.to_owned(), source }
    }

    /// The same error, with the note that a partial download is kept.
    pub(crate) fn with_kept(mut self) -> HubError {
        if let HubError::Network { kept, .. } | HubError::Busy { kept, .. } = &mut self {
            *kept = true;
        }
        self
    }

    /// True if this is a network error: a better connection might help.
    pub fn is_network(&self) -> bool {
        matches!(self, HubError::Network { .. } | HubError::Busy { .. })
    }
}

/// Advice for an unknown model name.
fn check(repo: &RepoName) -> String {
    match repo.as_str().contains('/') {
        true => "Check the spelling".to_owned(),
        false => {
            format!("Most names there look like org/name, and `tallow search {repo}` looks for short ones")
        }
    }
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

fn times(n: u32) -> String {
    if n == 1 { "once".to_owned() } else { format!("{n} times") }
}

/// Advice after a network error.
fn then(kept: bool) -> &'static str {
    match kept {
        true => "What has arrived is kept; run the same command to go on",
        false => "Nothing was downloaded; check the connection and run the same command again",
    }
}

fn seconds(wait: &Duration) -> String {
    format!("{} s", wait.as_secs())
}

/// A human-readable size.
pub(crate) fn bytes(n: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut size = n as f64;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < units.len() {
        size /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} bytes") } else { format!("{size:.1} {}", units[unit]) }
}
