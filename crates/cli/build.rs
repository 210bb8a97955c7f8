//! Finds out which commit is built, so that bug reports can name it. Only the repository of this very source counts:
//! what is built from an archive has none, even if a repository of something else lies around it.

use std::path::{Path, PathBuf};

/// Digits of a commit that are enough to tell it from others.
const DIGITS: usize = 10;

fn main() {
    // Cargo sets both. Without a manifest there is no folder to look in.
    let root = std::env::var_os("CARGO_MANIFEST_DIR").map(|dir| PathBuf::from(dir).join("../.."));
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo:rerun-if-changed=build.rs");
    // None is empty.
    let commit = root.and_then(|root| commit(&root)).unwrap_or_default();
    let beside = if commit.is_empty() { String::new() } else { format!(" ({commit})") };
    println!("cargo:rustc-env=TALLOW_COMMIT={commit}");
    println!("cargo:rustc-env=TALLOW_VERSION={version}{beside}");
}

/// The commit that is checked out, and has cargo look again when it changes.
fn commit(root: &Path) -> Option<String> {
    let dot = root.join(".git");
    // In a work tree outside the repository it is a file that says where its own folder is.
    let own = match std::fs::read_to_string(&dot) {
        Ok(text) => root.join(text.strip_prefix("gitdir:")?.trim()),
        Err(_) => dot,
    };
    let head = read(&own.join("HEAD"))?;
    // Branches are shared by all work trees.
    let shared = match std::fs::read_to_string(own.join("commondir")) {
        Ok(text) => own.join(text.trim()),
        Err(_) => own.clone(),
    };
    let commit = match head.trim().strip_prefix("ref:").map(str::trim) {
        None => head.trim().to_owned(),
        Some(name) => {
            let packed = || packed(&read(&shared.join("packed-refs"))?, name);
            // A branch that is packed is a file again after its next commit, which is seen in the folder.
            let branch = shared.join(name);
            branch.parent().filter(|dir| dir.is_dir()).into_iter().for_each(watch);
            if branch.is_file() { read(&branch)?.trim().to_owned() } else { packed()? }
        }
    };
    let is_hash = commit.len() >= DIGITS && commit.bytes().all(|b| b.is_ascii_hexdigit());
    is_hash.then(|| commit[..DIGITS].to_owned())
}

/// A file's text; cargo looks again when it changes. One that is not there would have it look each time.
fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    watch(path);
    Some(text)
}

fn watch(path: &Path) {
    println!("cargo:rerun-if-changed={}", path.display());
}

/// The commit of a branch in `packed-refs`.
fn packed(text: &str, name: &str) -> Option<String> {
    let line = |line: &str| Some(line.split_once(' ').filter(|(_, known)| *known == name)?.0.to_owned());
    text.lines().find_map(line)
}
