//! Layering: dependencies between crates go one way.

use super::Finding;
use super::source::{DEVICES, File, backends};

/// A crate, and those of ours that it may depend on. `cli` may depend on all.
const LAYERS: [(&str, &[&str]); 11] = [
    ("quant", &[]),
    ("core", &["quant"]),
    ("checkpoint", &["quant"]),
    ("text", &["checkpoint"]),
    ("constraint", &["text"]),
    ("media", &["checkpoint"]),
    ("models", &["checkpoint", "core", "media", "quant", "text"]),
    ("convert", &["checkpoint", "core", "models", "quant", "text"]),
    ("engine", &["checkpoint", "core", "media", "models", "text"]),
    ("server", &["constraint", "engine", "media", "models", "text"]),
    ("hub", &[]),
];
/// Our crates that a backend may depend on.
const BACKEND: &[&str] = &["core", "quant"];
const TOP: &str = "cli";

/// The non-dev dependencies of a manifest, and their lines.
fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (i, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            let build = section.ends_with("dependencies") && !section.ends_with("dev-dependencies");
            inside = build;
            // A section of its own: [dependencies.name]
            if let Some((_, name)) =
                section.split_once("dependencies.").filter(|(kind, _)| !kind.ends_with("dev-"))
            {
                found.push((i + 1, name));
            }
        } else if inside && !line.starts_with('#') {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if !name.is_empty() {
                found.push((i + 1, name));
            }
        }
    }
    found
}

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let (mut found, backends) = (Vec::new(), backends(files));
    for file in files {
        let Some(member) = file.member().filter(|m| file.path == format!("crates/{m}/Cargo.toml")) else {
            continue;
        };
        if member == TOP {
            continue;
        }
        let layer = LAYERS.iter().find(|(name, _)| *name == member).map(|(_, below)| *below);
        let Some(below) = layer.or_else(|| backends.contains(&member).then_some(BACKEND)) else {
            let what = format!(
                "the crate {member} has no place: give it one in xtask/src/tidy/layers.rs, or a file in {DEVICES} if it \
                 is a backend"
            );
            found.push(Finding::new(file, 1, what));
            continue;
        };
        for (line, name) in dependencies(&file.text) {
            if let Some(other) = name.strip_prefix("tallow-")
                && !below.contains(&other)
            {
                let known = if below.is_empty() { "none of ours".into() } else { below.join(", ") };
                let what = format!("{member} must not know {other}: it may build on {known}");
                found.push(Finding::new(file, line, what));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn found(member: &str, manifest: &str) -> Vec<usize> {
        let file = File::new(&format!("crates/{member}/Cargo.toml"), manifest);
        let device = File::new("crates/cli/src/devices/cpu.rs", "");
        check(&[file, device]).into_iter().map(|f| f.line).collect()
    }

    #[test]
    fn the_wrong_way_is_found() {
        let manifest =
            "[dependencies]\ntallow-core.workspace = true\ntallow-models = { path = \"../models\" }\n";
        assert_eq!(found("engine", manifest), NONE);
        assert_eq!(found("core", manifest), [2, 3]);
        assert_eq!(found("cpu", manifest), [3]);
        assert_eq!(found("cli", manifest), NONE);
        assert_eq!(found("hub", "[target.'cfg(unix)'.dependencies]\ntallow-core.workspace = true"), [2]);
        assert_eq!(found("hub", "[dependencies.tallow-core]\nworkspace = true"), [1]);
        assert_eq!(found("server", "[build-dependencies]\n# none\n\ntallow-cpu = \"1\""), [4]);
    }

    #[test]
    fn tests_may_cross() {
        assert_eq!(found("models", "[dev-dependencies]\ntallow-cpu.workspace = true"), NONE);
        assert_eq!(found("models", "[dev-dependencies.tallow-cpu]\nworkspace = true"), NONE);
    }

    #[test]
    fn a_new_crate_needs_a_place() {
        assert_eq!(found("utils", "[dependencies]\n"), [1]);
        assert_eq!(found("wgpu", "[dependencies]\n"), [1]);
    }
}
