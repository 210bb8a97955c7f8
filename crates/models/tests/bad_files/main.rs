//! Damaged and malicious model files: each is refused with a message that names the file and the place, and reading it
//! takes no more memory than the file's length.
//!
//! Each test writes its files byte by byte from a small model that loads, with one thing changed. The messages are in
//! the snapshots, to be read as a user would: what is wrong, where, and what to do next.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod configs;
mod folder;
mod gguf;
mod gguf_file;
mod memory;
mod safetensors;
mod sweep;
mod sweep_more;
mod tokenizers;
mod weights;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use tallow_models::{LoadError, Model};

#[global_allocator]
static COUNTED: memory::Counted = memory::Counted;

/// Bytes that opening may allocate beyond the file's length.
const SPARE: usize = 1 << 20;

/// Folder of one test, removed on drop.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("tallow-bad-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir(path.canonicalize().unwrap())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Size in bytes of a file, or of all files in a folder.
fn length(path: &Path) -> usize {
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_file() => meta.len() as usize,
        Ok(meta) if meta.is_dir() => {
            let entries = std::fs::read_dir(path).unwrap();
            entries.map(|entry| entry.unwrap().metadata().map_or(0, |m| m.len() as usize)).sum()
        }
        _ => 0,
    }
}

/// The error messages for the files of a test.
struct Said<'a> {
    dir: &'a Dir,
    text: String,
}

impl<'a> Said<'a> {
    fn new(dir: &'a Dir) -> Said<'a> {
        Said { dir, text: String::new() }
    }

    fn note(&mut self, case: &str, error: LoadError) {
        let message = error.to_string();
        let folder = self.dir.0.to_str().unwrap();
        assert!(message.starts_with(folder), "{case}: the file is not named: {message}");
        let message = message.replace(&format!("{folder}/"), "").replace(folder, "FOLDER");
        writeln!(self.text, "{case}:\n    {message}").unwrap();
    }

    /// Opening `path` is refused, without allocating more than the file's length.
    fn opening(&mut self, case: &str, path: &Path) {
        let len = length(path);
        let (opened, peak) = memory::peak_of(|| Model::open(path).map(drop));
        self.note(case, opened.expect_err(case));
        assert!(peak <= len + SPARE, "{case}: {peak} bytes were taken for a file of {len}");
    }

    /// Opening a GGUF file of these bytes is refused.
    fn gguf(&mut self, case: &str, bytes: &[u8]) {
        let path = self.dir.write("model.gguf", bytes);
        self.opening(case, &path);
    }
}

/// Compares all messages of a test with its snapshot.
macro_rules! snapshot {
    ($said:expr) => {
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "snapshots" }, {
            insta::assert_snapshot!($said.text)
        })
    };
}
use snapshot;
