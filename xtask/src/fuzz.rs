//! `cargo xtask fuzz`: runs each target of `fuzz/` for some seconds with libFuzzer.
//!
//! It needs a C++ compiler. The only unstable feature is the compiler's instrumentation, which RUSTC_BOOTSTRAP enables.

use std::io;
use std::num::NonZero;
use std::path::Path;
use std::process::{Command, ExitCode, Output};

/// The fuzz targets, from the files in `fuzz/fuzz_targets`.
fn targets(fuzz: &Path) -> io::Result<Vec<String>> {
    let entries = std::fs::read_dir(fuzz.join("fuzz_targets"))?;
    let names = entries.filter_map(|e| Some(e.ok()?.file_name().to_str()?.strip_suffix(".rs")?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

/// The flags that cargo-fuzz would set: edge counters, compared values, and AddressSanitizer. How crates are divided into codegen
/// units is in `fuzz/Cargo.toml`.
const FLAGS: [&str; 8] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Zsanitizer=address",
    "-Cforce-frame-pointers",
];
/// In MiB: memory limit of a target, and of a single allocation.
const MEMORY: u32 = 2048;
const AT_ONCE: u32 = 1024;
/// Time limit of one input, in seconds.
const SLOW: u32 = 10;

/// The target whose corpus starts with the quantized folders of the goldens.
const QUANTIZED: &str = "quantized";
/// The target whose corpus starts with the goldens' sound files, one for each container and codec.
const SOUND: &str = "sound";

/// The host's target triple, which has to be given: cargo then does not instrument build scripts.
fn host() -> io::Result<String> {
    let output = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| io::Error::other("rustc -vV names no host"))
}

/// Builds all targets and runs each, or only the one of that name, for `seconds` seconds.
pub(crate) fn run(root: &Path, seconds: &str, only: Option<&str>) -> ExitCode {
    match try_run(root, seconds, only) {
        Ok(failed) if failed.is_empty() => ExitCode::SUCCESS,
        Ok(failed) => {
            // Once more, at the end of a long log, and with the input: a machine of CI keeps no files.
            failed.iter().for_each(|target| eprint!("{}{}", target.told, target.inputs()));
            let names: Vec<&str> = failed.iter().map(|target| &*target.name).collect();
            eprintln!("fuzz: {} failed; the input is under fuzz/artifacts", names.join(", "));
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("fuzz: {e}");
            ExitCode::FAILURE
        }
    }
}

/// A target that found something.
struct Failed {
    name: String,
    /// What libFuzzer printed, each line behind the target's name.
    told: String,
}

impl Failed {
    /// The inputs that libFuzzer says it wrote, in hexadecimal digits (`xxd -r -p` makes a file of them).
    fn inputs(&self) -> String {
        let paths = self.told.lines().filter_map(|line| Some(line.split_once("Test unit written to ")?.1));
        let inputs = paths.filter_map(|path| std::fs::read(path).ok());
        let digits = |input: Vec<u8>| input.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        inputs.map(|input| format!("{}: the input in hexadecimal: {}\n", self.name, digits(input))).collect()
    }
}

fn try_run(root: &Path, seconds: &str, only: Option<&str>) -> io::Result<Vec<Failed>> {
    let fuzz = root.join("fuzz").canonicalize()?;
    let host = host()?;
    let mut build = Command::new("cargo");
    build.current_dir(&fuzz).args(["build", "--release", "--locked", "--bins", "--target", &host]);
    // Instrumentation is unstable; this enables it on a stable compiler, for these programs only.
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
    // A target uses one core.
    let at_once = std::thread::available_parallelism().map_or(1, NonZero::get);
    let programs = fuzz.join("target").join(&host).join("release");
    let targets = Targets { root, fuzz: &fuzz, programs: &programs, seconds };
    let mut failed = Vec::new();
    for names in names.chunks(at_once) {
        println!("fuzz: {} for {seconds} s", names.join(", "));
        let results: Vec<io::Result<Output>> = std::thread::scope(|scope| {
            let threads: Vec<_> = names.iter().map(|name| scope.spawn(|| targets.run(name))).collect();
            let gone = || Err(io::Error::other("the thread that ran a target panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| gone())).collect()
        });
        for (name, result) in names.iter().zip(results) {
            let output = result?;
            let told = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
            let lines = told.iter().flat_map(|text| text.lines()).filter(|line| !line.contains("# Uses: "));
            let told: String = lines.map(|line| format!("{name}: {line}\n")).collect();
            print!("{told}");
            if !output.status.success() {
                failed.push(Failed { name: name.clone(), told });
            }
        }
    }
    Ok(failed)
}

/// Settings that all targets share.
struct Targets<'a> {
    root: &'a Path,
    /// `fuzz/`.
    fuzz: &'a Path,
    /// Folder of the targets' programs.
    programs: &'a Path,
    seconds: &'a str,
}

impl Targets<'_> {
    /// Runs a target.
    fn run(&self, name: &str) -> io::Result<Output> {
        let [seeds, found, artifacts] =
            ["seeds", "corpus", "artifacts"].map(|folder| self.fuzz.join(folder).join(name));
        // Targets write a file for each input, preferably into memory.
        let memory = Path::new("/dev/shm");
        let files = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
        let files = files.join(format!("tallow-fuzz-{}-{name}", std::process::id()));
        [&found, &artifacts, &files].into_iter().try_for_each(std::fs::create_dir_all)?;
        let goldens = match name {
            QUANTIZED => Some(self.root.join("tests/goldens/quant")),
            SOUND => Some(self.root.join("tests/goldens/sound")),
            _ => None,
        };
        let mut target = Command::new(self.programs.join(name));
        target.arg(found).args([seeds].into_iter().chain(goldens).filter(|dir| dir.exists()));
        target.env("TMPDIR", &files);
        target.args([
            format!("-max_total_time={}", self.seconds),
            format!("-rss_limit_mb={MEMORY}"),
            format!("-malloc_limit_mb={AT_ONCE}"),
            format!("-timeout={SLOW}"),
            format!("-artifact_prefix={}/", artifacts.display()),
            "-print_final_stats=1".into(),
            "-verbosity=0".into(),
            "-print_funcs=0".into(),
        ]);
        let done = target.output();
        std::fs::remove_dir_all(&files)?;
        done
    }
}
