//! The program that a task drives: the one that is named, or the release build of this checkout.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Path of the program: `given`, or the release build, which costs nothing if it is up to date.
pub(crate) fn program(root: &Path, given: Option<&Path>) -> Result<PathBuf, String> {
    given.map_or_else(
        || build(root),
        |path| path.canonicalize().map_err(|e| format!("{}: {e}", path.display())),
    )
}

/// Builds the program. Returns its path.
fn build(root: &Path) -> Result<PathBuf, String> {
    let made = made(root, "tallow")?;
    let mut programs = made.iter().filter_map(|m| Some(PathBuf::from(m.get("executable")?.as_str()?)));
    programs.next_back().ok_or_else(|| "cargo does not say where the program is".into())
}

/// Builds the driver that interprets kernels. Returns the path of its library.
pub(crate) fn library(root: &Path) -> Result<PathBuf, String> {
    let made = made(root, "tallow-ptx-library")?;
    let files = made.iter().filter_map(|m| m.get("filenames")?.as_array()).flatten();
    let mut libraries = files.filter_map(|file| Some(PathBuf::from(file.as_str()?)));
    let library = libraries.rfind(|path| path.ends_with("libtallow_ptx_library.so"));
    library.ok_or_else(|| "cargo does not say where the driver is".into())
}

/// Cargo's messages about what it builds of a package.
fn made(root: &Path, package: &str) -> Result<Vec<serde_json::Value>, String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--quiet", "-p", package]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    let messages = output(cargo.current_dir(root))?;
    Ok(messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// A command's standard output, if it succeeds.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|e| format!("{command:?} does not start: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{command:?} ended with {}", output.status)),
    }
}
