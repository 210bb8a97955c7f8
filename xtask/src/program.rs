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
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--quiet", "-p", "tallow"]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    let messages = output(cargo.current_dir(root))?;
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut made = messages.filter_map(|m| Some(PathBuf::from(m.get("executable")?.as_str()?)));
    made.next_back().ok_or_else(|| "cargo does not say where the program is".into())
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
