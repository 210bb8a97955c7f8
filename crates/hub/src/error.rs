//! What can go wrong: each error says what happened, why, and what to do next.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::name::RepoName;

pub(crate) type Result<T> = std::result::Result<T, HubError>;

/// Why a model could not be fetched, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The text names no model.
    #[error(
        "{given:?} is not a model name: {why}. Names look like org/name, org/name:Q4_K_M or org/name@revision; \
         `tallow search TEXT` finds short ones"
    )]
    Name {
        /// What was given, cut short.
        given: String,
        /// What is wrong with it.
        why: String,
    },
    /// The family has aliases, but not this one.
    #[error(
        "there is no {given:?} among the short names; there are {have}. Other models are named as org/name"
    )]
    Alias {
        /// What was given.
        given: String,
        /// The family's aliases.
        have: String,
    },
    /// The endpoint, the token or the proxy cannot be used.
    #[error("{what} cannot be used: {why}")]
    Setting {
        /// Which setting, by the name that its user knows.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The hub knows no such model, or hides it.
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
        /// The branch, tag or commit that was asked for.
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
    /// The model's owner wants a licence accepted first.
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
    /// An answer that retrying does not change.
    #[error("{host} answered {status} to {what}{}", said(.message))]
    Status {
        /// Who answered.
        host: String,
        /// The HTTP status.
        status: u16,
        /// What was asked for.
        what: String,
        /// The server's own words, made safe to print.
        message: String,
    },
    /// The server could not be reached, or kept failing.
    #[error(
        "cannot get {what}: {why} (tried {}). {}", times(*.tries), then(*.kept)
    )]
    Network {
        /// What was asked for.
        what: String,
        /// What happened at the last try.
        why: String,
        /// How often it was tried.
        tries: u32,
        /// Is there something to go on from?
        kept: bool,
    },
    /// The server wants a longer pause than is sensible.
    #[error(
        "the server refuses {what} for now ({why}): come back in {}. {} HF_TOKEN set the hub allows more",
        seconds(.wait), if *.kept { "What has arrived is kept; with" } else { "With" }
    )]
    Busy {
        /// What was asked for.
        what: String,
        /// What the server answered.
        why: String,
        /// How long it asks to wait.
        wait: Duration,
        /// Is there something to go on from?
        kept: bool,
    },
    /// The server's answer makes no sense, or is not safe to follow.
    #[error(
        "the answer about {what} cannot be used: {why}. If you set another endpoint, check that it is a hub"
    )]
    Answer {
        /// What was asked for.
        what: String,
        /// What is wrong with the answer.
        why: String,
    },
    /// A file's name is not safe.
    #[error(
        "{repo} has a file named {name:?}, which is refused: {why}. Nothing was written; tell the model's owner"
    )]
    FileName {
        /// The model.
        repo: RepoName,
        /// The file's name, cut short.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// No file has the quantization that was asked for.
    #[error("{repo} has no {wanted:?}; it has {have}")]
    NoQuant {
        /// The model.
        repo: RepoName,
        /// What was asked for.
        wanted: String,
        /// What there is.
        have: String,
    },
    /// Several files would do.
    #[error(
        "{repo} has several files that would do. Say which, as in {repo}:NAME, where NAME is one of {have}"
    )]
    Ambiguous {
        /// The model.
        repo: RepoName,
        /// The names that tell them apart.
        have: String,
    },
    /// A split model lacks a part.
    #[error("{file} has {of} parts, but {repo} has only {have} of them. Try another quantization")]
    MissingPart {
        /// The model.
        repo: RepoName,
        /// The name that the parts share.
        file: String,
        /// How many parts there are.
        have: usize,
        /// How many there should be.
        of: usize,
    },
    /// The model's tokenizer is in no file that can be read.
    #[error(
        "{repo} has no tokenizer that can be read: none of tokenizer.json, tokenizer.model, spiece.model, tekken.json, a tiktoken \
         file, vocab.txt, or vocab.json with merges.txt. Nothing was downloaded; look for a copy of the model that has one, or for GGUF \
         files"
    )]
    NoTokenizer {
        /// The model.
        repo: RepoName,
    },
    /// The weights are pickled, which means running them.
    #[error(
        "{repo} has its weights only as {file}: loading such files can run any program hidden in them, so they are \
         refused. Look for a copy with safetensors or GGUF files"
    )]
    Pickle {
        /// The model.
        repo: RepoName,
        /// One of its files.
        file: String,
    },
    /// There is nothing to load.
    #[error("{repo} has neither safetensors nor GGUF files, so there is nothing to load. Check the name")]
    NoWeights {
        /// The model.
        repo: RepoName,
    },
    /// A file's length is not what the hub announced.
    #[error(
        "{file} should have {want} bytes, but {got}. It was removed; run the same command to fetch it again"
    )]
    WrongLength {
        /// The file.
        file: String,
        /// What the hub announced.
        want: u64,
        /// What came instead.
        got: String,
    },
    /// A file's content is not what the hub announced.
    #[error(
        "{file} is damaged: its {kind} is {got}, not {want}. It was removed; run the same command to fetch it again. \
         If that does not help, something between here and the hub changes it: a proxy, a mirror or the disk"
    )]
    WrongHash {
        /// The file.
        file: String,
        /// Which hash.
        kind: &'static str,
        /// What the hub announced.
        want: String,
        /// What came instead.
        got: String,
    },
    /// The disk has not enough room.
    #[error(
        "the disk is full: {} more are needed at {}, where {} are free. What has arrived is kept; make room (`tallow \
         rm`) and run the same command to go on", bytes(*.needed), .path.display(), bytes(*.free)
    )]
    DiskFull {
        /// The folder.
        path: PathBuf,
        /// Bytes that are still missing.
        needed: u64,
        /// Bytes that are free.
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
    /// The cache has no such model.
    #[error("{name} is not in the cache. `tallow list` shows what is")]
    NotCached {
        /// The model.
        name: String,
    },
    /// The file system refused.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl HubError {
    pub(crate) fn name(given: &str, why: &str) -> HubError {
        HubError::Name { given: given.chars().take(80).collect(), why: why.to_owned() }
    }

    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HubError {
        move |source| HubError::Io { doing, path: path.to_owned(), source }
    }

    /// The same error; what has arrived until then is kept.
    pub(crate) fn with_kept(mut self) -> HubError {
        if let HubError::Network { kept, .. } | HubError::Busy { kept, .. } = &mut self {
            *kept = true;
        }
        self
    }

    /// Might it be different with a better connection?
    pub fn is_network(&self) -> bool {
        matches!(self, HubError::Network { .. } | HubError::Busy { .. })
    }
}

/// What to look at in a name that is not known.
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

/// What to do after a connection failed.
fn then(kept: bool) -> &'static str {
    match kept {
        true => "What has arrived is kept; run the same command to go on",
        false => "Nothing was downloaded; check the connection and run the same command again",
    }
}

fn seconds(wait: &Duration) -> String {
    format!("{} s", wait.as_secs())
}

/// A size as people read it.
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
