//! `cargo xtask fuzz`: each target of `fuzz/` for some seconds, by libFuzzer.
//!
//! It needs a C++ compiler, and nothing that is not stable but the compiler's own instruments, which a switch allows.

use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};

/// What is fuzzed, by the files in `fuzz/fuzz_targets`.
fn targets(fuzz: &Path) -> io::Result<Vec<String>> {
    let entries = std::fs::read_dir(fuzz.join("fuzz_targets"))?;
    let names = entries.filter_map(|e| Some(e.ok()?.file_name().to_str()?.strip_suffix(".rs")?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

/// What cargo-fuzz would set: counters at each edge, compared values, and checks of every address.
const FLAGS: [&str; 9] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Zsanitizer=address",
    "-Ccodegen-units=1",
    "-Cforce-frame-pointers",
];
/// In MiB: what a target may hold, and what it may ask for at once.
const MEMORY: u32 = 2048;
const AT_ONCE: u32 = 1024;
/// Seconds that one input may take.
const SLOW: u32 = 10;

/// The target that begins with the quantized folders of the goldens.
const QUANTIZED: &str = "quantized";
/// The target that begins with the goldens' sound files, one for each container and codec.
const SOUND: &str = "sound";

/// The machine that is compiled for, which has to be named: build scripts are then left without instruments.
fn host() -> io::Result<String> {
    let output = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| io::Error::other("rustc -vV names no host"))
}

/// Builds all targets and runs each for so many seconds, or the one of that name.
pub(crate) fn run(root: &Path, seconds: &str, only: Option<&str>) -> ExitCode {
    match try_run(root, seconds, only) {
        Ok(failed) if failed.is_empty() => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("fuzz: {} failed; the input is under fuzz/artifacts", failed.join(", "));
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("fuzz: {e}");
            ExitCode::FAILURE
        }
    }
}

fn try_run(root: &Path, seconds: &str, only: Option<&str>) -> io::Result<Vec<String>> {
    let fuzz = root.join("fuzz").canonicalize()?;
    let host = host()?;
    let mut build = Command::new("cargo");
    build.current_dir(&fuzz).args(["build", "--release", "--locked", "--bins", "--target", &host]);
    // The instruments are unstable on every compiler; this lets a stable one have them, for these programs alone.
    build.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS.join(" "));
    if !build.status()?.success() {
        return Err(io::Error::other(
            "the targets cannot be built; the compiler says why above. They need a C++ compiler. If fuzz/Cargo.lock is behind \
             the crates, bring it up to date: cargo update --workspace --manifest-path fuzz/Cargo.toml",
        ));
    }
    let chosen = |name: &String| only.is_none_or(|only| only == name);
    let names: Vec<String> = targets(&fuzz)?.into_iter().filter(chosen).collect();
    if names.is_empty() {
        return Err(io::Error::other("there is no such target in fuzz/fuzz_targets"));
    }
    // Targets write a file for each input, best into memory.
    let memory = Path::new("/dev/shm");
    let files = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
    let files = files.join(format!("tallow-fuzz-{}", std::process::id()));
    let mut failed = Vec::new();
    for name in names {
        let (seeds, found) = (fuzz.join("seeds").join(&name), fuzz.join("corpus").join(&name));
        let artifacts = fuzz.join("artifacts").join(&name);
        [&found, &artifacts].into_iter().try_for_each(std::fs::create_dir_all)?;
        println!("fuzz: {name} for {seconds} s");
        std::fs::create_dir_all(&files)?;
        let mut target = Command::new(fuzz.join("target").join(&host).join("release").join(&name));
        let goldens = match name.as_str() {
            QUANTIZED => Some(root.join("tests/goldens/quant")),
            SOUND => Some(root.join("tests/goldens/sound")),
            _ => None,
        };
        target.arg(found).args([seeds].into_iter().chain(goldens).filter(|dir| dir.exists()));
        target.env("TMPDIR", &files);
        target.args([
            format!("-max_total_time={seconds}"),
            format!("-rss_limit_mb={MEMORY}"),
            format!("-malloc_limit_mb={AT_ONCE}"),
            format!("-timeout={SLOW}"),
            format!("-artifact_prefix={}/", artifacts.display()),
            "-print_final_stats=1".into(),
            "-verbosity=0".into(),
            "-print_funcs=0".into(),
        ]);
        let done = target.status();
        std::fs::remove_dir_all(&files)?;
        if !done?.success() {
            failed.push(name);
        }
    }
    Ok(failed)
}
