//! Words that must not occur where they would tie a layer to one above or below it, and words that must not occur
//! anywhere.

use super::Finding;
use super::source::{self, File, backends};

/// Model families. Code below `models` must not depend on any of them; comments may cite one.
const FAMILIES: [&str; 17] = [
    "llama",
    "mistral",
    "mixtral",
    "ministral",
    "qwen",
    "smollm",
    "olmo",
    "granite",
    "gemma",
    "deepseek",
    "gpt2",
    "neox",
    "gpt-oss",
    "phimoe",
    "cohere",
    "stablelm",
    "starcoder",
];
/// The crates below `models`, other than the backends.
const BELOW_MODELS: [&str; 2] = ["quant", "core"];

/// Devices, in addition to the names of the backends. Layers above the backends use the trait only, and so does `cli`
/// except its folder of devices.
const DEVICES: [&str; 6] = ["cuda", "metal", "vulkan", "avx", "neon", "nvidia"];
const ABOVE_BACKENDS: [&str; 8] =
    ["checkpoint", "text", "media", "models", "convert", "engine", "server", "hub"];

/// Crates that read files of models, which are JSON among others.
const READ_FILES: [&str; 5] = ["checkpoint", "text", "media", "models", "convert"];

/// Wire formats, and the crates below `server`. `hub` is a client.
const WIRES: [&str; 6] = ["serde_json", "axum", "hyper", "ureq", "reqwest", "http::"];
const BELOW_SERVER: [&str; 4] = ["quant", "core", "cpu", "engine"];

/// Ways to read or change the environment.
const ENVIRONMENT: [&str; 9] = [
    "env::var",
    "env::{",
    "env::*",
    "var_os",
    "option_env!",
    "env::set_var",
    "env::remove_var",
    "from_default_env",
    "from_env",
];
/// The one file that may.
const READS_ENVIRONMENT: &str = "crates/cli/src/env.rs";

/// Paths of one machine, split so that this file contains none.
const MACHINES: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];
/// Leftovers of development.
const LEFTOVERS: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX"), concat!("db", "g!")];

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let backends = backends(files);
    files.iter().flat_map(|file| in_file(file, &backends)).collect()
}

fn in_file(file: &File, backends: &[&str]) -> Vec<Finding> {
    let mut found = device_in_cli(file, backends);
    // The CPU is no name of a device: there is one wherever a program runs.
    let devices: Vec<&str> =
        DEVICES.into_iter().chain(backends.iter().copied().filter(|b| *b != "cpu")).collect();
    let member = file.member().unwrap_or_default();
    let in_crate = |members: &[&str]| members.contains(&member) && file.is_program();
    for (line, text) in file.lines() {
        let lower = text.to_lowercase();
        if in_crate(&BELOW_MODELS) || in_crate(backends) {
            let what = "names a model in code below the models crate: say what is different instead";
            let comment = file.comments.get(line - 1).map_or(String::new(), |comment| comment.to_lowercase());
            let outside = |word: &&&str| lower.matches(**word).count() > comment.matches(**word).count();
            let named = FAMILIES.iter().find(outside);
            found.extend(named.map(|word| Finding::new(file, line, format!("{word:?} {what}"))));
        }
        if in_crate(&ABOVE_BACKENDS) {
            let what = "names a device above the backends: only cli chooses devices; ask the trait instead";
            found.extend(named(file, line, &lower, &devices, what));
        }
        if in_crate(&BELOW_SERVER) || (in_crate(&READ_FILES) && !lower.contains("serde_json")) {
            let what = "is about a wire format below the server: hand over types instead";
            let code = file.code.get(line - 1).map_or("", String::as_str);
            found.extend(named(file, line, code, &WIRES, what));
        }
        found.extend(named(
            file,
            line,
            text,
            &MACHINES,
            "is a path of one machine: use one from the repository's root",
        ));
        found.extend(leftover(file, line, text));
    }
    found.extend(environment(file));
    found.extend(wire_dependencies(file));
    found
}

fn named(file: &File, line: usize, text: &str, words: &[&str], what: &str) -> Option<Finding> {
    let word = words.iter().find(|word| text.contains(**word))?;
    Some(Finding::new(file, line, format!("{word:?} {what}")))
}

/// Devices that the code of `cli` names outside of their folder: by a backend's crate, or by a feature.
fn device_in_cli(file: &File, backends: &[&str]) -> Vec<Finding> {
    let inside = file.path.starts_with(source::DEVICES);
    if inside || file.member() != Some("cli") || !file.is_program() {
        return Vec::new();
    }
    let mut words: Vec<String> = backends.iter().map(|backend| format!("tallow_{backend}")).collect();
    words.extend(DEVICES.map(str::to_owned));
    words.extend(["feature =".to_owned()]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let what = format!(
        "names a device outside of {}: make it a `Task`, or a method of `DeviceInfo`",
        source::DEVICES
    );
    file.code_lines()
        .filter_map(|(line, code)| named(file, line, &code.to_lowercase(), &words, &what))
        .collect()
}

fn leftover(file: &File, line: usize, text: &str) -> Option<Finding> {
    let words = || text.split(|c: char| !(c.is_alphanumeric() || c == '!' || c == '_'));
    let word = LEFTOVERS.iter().find(|left| words().any(|word| word == **left))?;
    Some(Finding::new(file, line, format!("{word} is left over: do it now, or write down what is missing")))
}

fn environment(file: &File) -> Vec<Finding> {
    if !file.is_program() || file.path == READS_ENVIRONMENT {
        return Vec::new();
    }
    let found = file.code_lines().filter_map(|(line, code)| {
        let way = ENVIRONMENT.iter().find(|way| code.contains(**way))?;
        let what =
            format!("{way} reads the environment: {READS_ENVIRONMENT} does that, and hands over values");
        Some(Finding::new(file, line, what))
    });
    found.collect()
}

/// Dependencies on wire formats, and clap's feature that reads the environment.
fn wire_dependencies(file: &File) -> Vec<Finding> {
    let member = file.member().unwrap_or_default();
    if file.path != format!("crates/{member}/Cargo.toml") {
        return Vec::new();
    }
    let program = file.text.split("[dev-dependencies]").next().unwrap_or_default();
    let mut found = Vec::new();
    for (i, line) in program.lines().enumerate() {
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if BELOW_SERVER.contains(&member) && WIRES.contains(&name) {
            found.push(Finding::new(file, i + 1, format!("{name} is a wire format below the server")));
        }
        if name == "clap" && line.contains("\"env\"") {
            let what = format!("clap would read the environment: {READS_ENVIRONMENT} does that");
            found.push(Finding::new(file, i + 1, what));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let mut lines: Vec<usize> = check(&[File::new(path, text)]).into_iter().map(|f| f.line).collect();
        lines.sort_unstable();
        lines
    }

    #[test]
    fn families_stay_in_models() {
        let text = "fn f() {}\n// as Llama does\nfn qwen3() {} // qwen\nlet s = \"gemma\"; // as Llama\n";
        assert_eq!(lines("crates/core/src/a.rs", text), [3, 4]);
        assert_eq!(lines("crates/models/src/a.rs", text), NONE);
        assert_eq!(lines("crates/cpu/tests/a.rs", text), NONE);
    }

    #[test]
    fn devices_stay_below() {
        let text = "fn f() {}\nif b.is_cuda() {}\nenum D { Vulkan }\n";
        assert_eq!(lines("crates/engine/src/a.rs", text), [2, 3]);
        assert_eq!(lines("crates/cli/src/a.rs", text), [2, 3]);
        assert_eq!(lines("crates/cli/src/devices/a.rs", text), NONE);
        // In `cli`, only code is looked at: the help names devices.
        let text =
            "/// vulkan, metal\nlet s = \"vulkan\";\n#[cfg(feature = \"a\")]\nuse tallow_npu::Npu;\nnpu();\n";
        assert_eq!(lines("crates/cli/src/a.rs", text), [3]);
        assert_eq!(lines("crates/cli/tests/a.rs", text), NONE);
        // A crate with a file among the devices is a backend.
        let found = |path: &str| {
            let backend =
                ["crates/cli/src/devices/npu.rs", "crates/npu/Cargo.toml"].map(|path| File::new(path, ""));
            let found = check(&[&backend[..], &[File::new(path, text)]].concat());
            found.into_iter().map(|f| f.line).collect::<Vec<_>>()
        };
        assert_eq!(found("crates/cli/src/a.rs"), [3, 4]);
        assert_eq!(found("crates/engine/src/a.rs"), [1, 2, 4, 5]);
    }

    #[test]
    fn wires_stay_above() {
        let text = "use serde_json::Value;\n// serde_json is not used here\nuse axum::Router;\n";
        assert_eq!(lines("crates/engine/src/a.rs", text), [1, 3]);
        assert_eq!(lines("crates/models/src/a.rs", text), [3]);
        assert_eq!(lines("crates/server/src/a.rs", text), NONE);
        assert_eq!(lines("crates/engine/Cargo.toml", "[dependencies]\nserde_json.workspace = true\n"), [2]);
        assert_eq!(
            lines("crates/engine/Cargo.toml", "[dev-dependencies]\nserde_json.workspace = true\n"),
            NONE
        );
    }

    #[test]
    fn the_environment_is_read_in_one_file() {
        let text = "let a = std::env::var(\"A\");\nlet b = env!(\"B\");\nlet c = option_env!(\"C\");\n\
                    use std::env::{self};\nlet d = \"env::var\"; // env::var\nlet e = std::env::temp_dir();\n";
        assert_eq!(lines("crates/hub/src/a.rs", text), [1, 3, 4]);
        assert_eq!(lines("crates/cli/src/main.rs", text), [1, 3, 4]);
        assert_eq!(lines(READS_ENVIRONMENT, text), NONE);
        assert_eq!(lines("crates/hub/tests/a.rs", text), NONE);
        let manifest = "[dependencies]\nclap = { version = \"4\", features = [\"env\"] }\n";
        assert_eq!(lines("crates/cli/Cargo.toml", manifest), [2]);
    }

    #[test]
    fn nothing_is_left_over() {
        for word in LEFTOVERS {
            assert_eq!(lines("docs/a.md", &format!("fine\n{word}: later\n")), [2]);
            assert_eq!(lines("docs/a.md", &format!("a{word}a\n")), NONE);
        }
        for path in MACHINES {
            assert_eq!(lines("crates/cli/src/a.rs", &format!("\nlet a = \"{path}x\";\n")), [2]);
        }
    }
}
