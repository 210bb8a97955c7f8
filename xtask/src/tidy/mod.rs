//! `cargo xtask tidy`: layers, circles of imports, words, environment, `unsafe`, the journey's stops, leftovers.
//!
//! The rules read text, not syntax trees: only comments and strings are told from Rust's code. A broken rule is
//! reported with its place and what to do.

mod circles;
mod imports;
mod journey;
mod layers;
mod safety;
mod source;
mod words;

use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use source::File;

/// A broken rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    /// The violation, and what to do.
    what: String,
}

impl Finding {
    fn new(file: &File, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: file.path.clone(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// Files with more lines than this are listed.
const LONG: usize = 500;

/// All findings, sorted by place.
fn findings(files: &[File]) -> Vec<Finding> {
    let rules = [layers::check, circles::check, words::check, safety::check, journey::check];
    let mut found: Vec<Finding> = rules.iter().flat_map(|rule| rule(files)).collect();
    found.sort();
    found
}

/// Prints the findings and the long files.
pub(crate) fn run(root: &Path) -> ExitCode {
    let checked = read(root).map(|(files, found)| (lengths(&files), found));
    let (notes, found) = match checked {
        Ok(checked) => checked,
        Err(e) => {
            eprintln!("tidy: {e}");
            return ExitCode::from(2);
        }
    };
    notes.iter().for_each(|note| println!("note: {note}"));
    found.iter().for_each(|finding| eprintln!("error: {finding}"));
    match found.len() {
        0 => {
            println!("tidy: all rules are kept");
            ExitCode::SUCCESS
        }
        n => {
            eprintln!("tidy: {n} places break a rule");
            ExitCode::FAILURE
        }
    }
}

/// The repository's files, and the findings of reading them.
fn read(root: &Path) -> io::Result<(Vec<File>, Vec<Finding>)> {
    let (files, mut found) = source::read(root)?;
    found.extend(findings(&files));
    found.sort();
    Ok((files, found))
}

/// Long source files, longest first.
fn lengths(files: &[File]) -> Vec<String> {
    let long = |f: &&File| f.is_rust() && f.text.lines().count() > LONG;
    let mut long: Vec<(usize, &str)> =
        files.iter().filter(long).map(|f| (f.text.lines().count(), f.path.as_str())).collect();
    long.sort_unstable_by(|a, b| b.cmp(a));
    long.into_iter()
        .map(|(lines, path)| format!("{path} has {lines} lines; past {LONG} a split may help"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The repository passes its own rules.
    #[test]
    fn the_repository_is_tidy() {
        let (files, found) = read(&crate::root()).unwrap();
        assert!(files.len() > 100, "only {} files were found", files.len());
        let found: Vec<String> = found.iter().map(Finding::to_string).collect();
        assert!(found.is_empty(), "\n{}\n", found.join("\n"));
    }

    #[test]
    fn long_files_are_noted_and_no_more() {
        let file = File::new("crates/core/src/a.rs", &"\n".repeat(LONG + 1));
        assert_eq!(lengths(std::slice::from_ref(&file)).len(), 1);
        assert_eq!(lengths(&[File::new("a.rs", &"\n".repeat(LONG))]).len(), 0);
    }
}
