//! `cargo xtask bench-peers`: Tallow beside llama.cpp, alternating on the same machine within the hour.

mod chart;
mod jobs;
mod load;
mod probe;
mod process;
mod results;
mod shape;
mod table;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::SystemTime;

use jobs::{Job, Program, Programs, jobs};
use probe::Probe;
use results::{Group, Id, Machine, Results, Row, Run, Setting};
use shape::Shape;

const HELP: &str = "\
usage: cargo xtask bench-peers --llama DIR --models DIR [OPTION…]
       cargo xtask bench-peers --from FILE

Measures Tallow and llama.cpp in turn, with the machine's own limits beside them, and writes docs/benchmarks.md,
docs/img/speed.svg and README.md. Nothing else should run meanwhile.

  --llama DIR     the folder of llama-bench, llama-batched-bench and llama-server
  --models DIR    the folder of models: qwen3-0.6b-Q4_0.gguf, -Q4_K_M, -Q6_K, -Q8_0, -bf16, llama-3.2-1b-Q8_0.gguf,
                  qwen3-moe-Q8_0.gguf. What is not there is left out
  --only LIST     some of decode,prefill,depth,batch,serve. Earlier results of the others are kept
  --rounds N      how often each pair is measured (5)
  --threads N     threads of both (all cores); rows for one thread have one
  --tallow PATH   the program, built from this checkout (without it, it is built now)
  --save FILE     where results are kept, and earlier ones are found (target/bench-peers.json)
  --from FILE     measures nothing: writes the pages from results that were kept
  --quick         a round of small counts, to see that everything works: its numbers mean nothing, and no page is written

llama.cpp's sources are in vendor/llama.cpp of the source package of llama-cpp-python:
  pip download --no-deps --no-binary llama-cpp-python llama-cpp-python
Unpack it, and build for this very machine, with clang:
  cmake -S vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \\
        -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DLLAMA_BUILD_COMMIT=COMMIT
  cmake --build build --target llama-bench llama-batched-bench llama-server llama-quantize
Then --llama is build/bin. A model can be any GGUF of these shapes, with trained or with random weights: speeds are the
same. The quantised ones are made of the bf16 one: llama-quantize qwen3-0.6b-bf16.gguf qwen3-0.6b-Q4_0.gguf Q4_0";

/// Command line options.
struct Options {
    llama: Option<PathBuf>,
    models: Option<PathBuf>,
    only: Vec<Group>,
    rounds: usize,
    threads: usize,
    tallow: Option<PathBuf>,
    save: Option<PathBuf>,
    from: Option<PathBuf>,
    quick: bool,
}

impl Options {
    fn parse(args: &[&str]) -> Result<Options, String> {
        let all = Group::ALL.map(|(_, group)| group).into();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (llama, models, tallow, save, from) = (None, None, None, None, None);
        let mut options =
            Options { llama, models, only: all, rounds: 5, threads, tallow, save, from, quick: false };
        let mut args = args.iter();
        while let Some(name) = args.next() {
            if *name == "--quick" {
                (options.quick, options.rounds) = (true, 1);
                continue;
            }
            let value = *args.next().ok_or_else(|| format!("{name} has no value"))?;
            let count =
                || value.parse().ok().filter(|n| *n > 0).ok_or_else(|| format!("{name} {value} is no count"));
            let path = || Some(PathBuf::from(value));
            match *name {
                "--llama" => options.llama = path(),
                "--models" => options.models = path(),
                "--tallow" => options.tallow = path(),
                "--save" => options.save = path(),
                "--from" => options.from = path(),
                "--rounds" => options.rounds = count()?,
                "--threads" => options.threads = count()?,
                "--only" => options.only = value.split(',').map(group).collect::<Result<_, _>>()?,
                _ => return Err(format!("there is no {name}")),
            }
        }
        Ok(options)
    }
}

fn group(name: &str) -> Result<Group, String> {
    let found = Group::ALL.iter().find(|(known, _)| *known == name);
    found
        .map(|(_, group)| *group)
        .ok_or_else(|| format!("{name} is not among decode, prefill, depth, batch and serve"))
}

/// Measures, or only rewrites the pages.
pub(crate) fn run(root: &Path, args: &[&str]) -> ExitCode {
    if args.contains(&"--help") || args.is_empty() {
        // A broken pipe (`| head`) is not an error.
        let _ = writeln!(std::io::stdout(), "{HELP}");
        return ExitCode::SUCCESS;
    }
    match Options::parse(args).and_then(|options| try_run(root, &options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench-peers: {why}; --help says more");
            ExitCode::FAILURE
        }
    }
}

fn try_run(root: &Path, options: &Options) -> Result<(), String> {
    if let Some(from) = &options.from {
        return write_pages(root, &Results::read(from)?);
    }
    let (Some(llama), Some(models)) = (options.llama.clone(), options.models.clone()) else {
        return Err("--llama and --models have to be given".into());
    };
    let tallow = match &options.tallow {
        Some(given) => given.clone(),
        None => build(root)?,
    };
    let programs = Programs { tallow, llama, models, threads: options.threads };
    let usual = root.join("target/bench-peers.json");
    let save = options.save.clone().or((!options.quick).then_some(usual));
    let mut results = Results { machine: machine(&programs)?, rows: Vec::new() };
    if let Some(save) = save.as_ref().filter(|save| save.exists()) {
        let earlier = Results::read(save)?;
        if earlier.machine != results.machine {
            let what = "is of another machine, compiler or llama.cpp: name another file with --save";
            return Err(format!("{} {what}", save.display()));
        }
        results = earlier;
    }
    let jobs: Vec<Job> = jobs(options.quick);
    let rows = |job: &Job| job.rows(job.threads(&programs), None);
    let order: Vec<Id> = jobs.iter().flat_map(rows).map(|(id, _)| id).collect();
    let origin = (commit(root)?, date(SystemTime::now()));
    let probe = Probe::new();
    for job in jobs.iter().filter(|job| options.only.contains(&job.group())) {
        match measure(job, &programs, &probe, options.rounds) {
            Ok(rows) => {
                for row in rows {
                    let row = Row { commit: origin.0.clone(), date: origin.1.clone(), ..row };
                    results.take(row, &order);
                }
                save.as_ref().map_or(Ok(()), |save| results.write(save))?;
            }
            Err(why) => eprintln!("skipped: {}: {why}", name(job, &programs)),
        }
    }
    println!("\n{}", table::section(&results));
    if options.quick { Ok(()) } else { write_pages(root, &results) }
}

fn name(job: &Job, programs: &Programs) -> String {
    let row = job.rows(job.threads(programs), None).into_iter().next();
    row.map_or_else(String::new, |(id, _)| format!("{}, {}, {} threads", id.test, id.model, id.threads))
}

/// Measures a job, round by round: the machine, Tallow, llama.cpp.
fn measure(job: &Job, programs: &Programs, probe: &Probe, rounds: usize) -> Result<Vec<Row>, String> {
    let file = job.file(programs);
    if !file.exists() {
        return Err(format!("there is no {}", file.display()));
    }
    let shape = Shape::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let row = |(id, demand)| {
        let (commit, date, limits, tallow, peer) = (String::new(), String::new(), vec![], vec![], vec![]);
        Row { id, commit, date, demand, limits, tallow, peer }
    };
    let threads = job.threads(programs);
    let mut rows: Vec<Row> = job.rows(threads, Some(&shape)).into_iter().map(row).collect();
    for round in 0..rounds {
        let limits = probe.limits(threads, job.peak());
        rows.iter_mut().for_each(|row| row.limits.push(limits));
        let mut said = format!("read {:.1} GB/s", limits.read_gbs);
        for by in job.turns() {
            let runs = process::quiet(|| job.run(by, programs, shape.vocabulary, round))?;
            said += &format!("; {by} {}", values(&runs));
            rows.iter_mut().zip(runs).for_each(|(row, run)| add(row, by, run));
        }
        eprintln!("{}, round {}: {said}", name(job, programs), round + 1);
    }
    Ok(rows)
}

fn values(runs: &[Run]) -> String {
    runs.iter().map(|run| format!("{:.1}", run.value)).collect::<Vec<_>>().join(" ")
}

fn add(row: &mut Row, by: Program, run: Run) {
    let name = match by {
        Program::Tallow => return row.tallow.push(run),
        Program::Llama { flash: true } => "",
        Program::Llama { flash: false } => "no fa",
    };
    match row.peer.iter_mut().find(|setting| setting.name == name) {
        Some(setting) => setting.runs.push(run),
        None => row.peer.push(Setting { name: name.into(), runs: vec![run] }),
    }
}

/// Builds the program.
fn build(root: &Path) -> Result<PathBuf, String> {
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", "-p", "tallow"])
        .current_dir(root)
        .status();
    match status {
        Ok(status) if status.success() => Ok(root.join("target/release/tallow")),
        Ok(status) => Err(format!("Tallow cannot be built: cargo ended with {status}")),
        Err(e) => Err(format!("cargo does not start: {e}")),
    }
}

/// The commit of the sources, and whether they differ from it.
fn commit(root: &Path) -> Result<String, String> {
    let git = |args: &[&str]| {
        process::output(Command::new("git").args(args).current_dir(root)).map(|(text, _)| text)
    };
    let changed = git(&["status", "--porcelain", "--", "crates", "Cargo.toml", "Cargo.lock"])?;
    let commit = git(&["rev-parse", "--short", "HEAD"])?.trim().to_owned();
    Ok(if changed.is_empty() { commit } else { format!("{commit} with changes") })
}

fn machine(programs: &Programs) -> Result<Machine, String> {
    let field = |path: &str, name: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.trim().strip_prefix(':').map(str::to_owned));
        line.map(|value| value.trim().to_owned())
    };
    let kib = field("/proc/meminfo", "MemTotal").and_then(|m| m.split(' ').next()?.parse::<f64>().ok());
    // The version is written to standard error.
    let version = Command::new(programs.llama.join("llama-bench")).arg("--version").output();
    let version = version.map_err(|e| format!("llama-bench does not start: {e}"))?;
    let version = [version.stdout, version.stderr].concat();
    let (peer_commit, peer_compiler) = peer_version(&String::from_utf8_lossy(&version));
    let (rustc, _) = process::output(Command::new("rustc").arg("--version"))?;
    Ok(Machine {
        cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown CPU".into()),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory: kib.map_or(0, |kib| (kib / 1_048_576.0).round() as u64),
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        rustc: rustc.split(" (").next().unwrap_or_default().trim().to_owned(),
        peer_commit,
        peer_compiler,
    })
}

/// The commit and the compiler, from llama.cpp's `--version`.
fn peer_version(text: &str) -> (String, String) {
    let commit =
        text.split_once("commit ").map(|(_, rest)| rest.split([')', '\n']).next().unwrap_or_default());
    let compiler =
        text.split_once("built with ").map(|(_, rest)| rest.split(" for ").next().unwrap_or_default());
    let known = |found: Option<&str>| found.map(str::trim).unwrap_or("unknown").to_owned();
    (known(commit), known(compiler))
}

/// `2026-01-31`
fn date(at: SystemTime) -> String {
    let mut day = at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs() / 86_400);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < days {
            break;
        }
        (day, month) = (day - days, month + 1);
    }
    format!("{year:04}-{month:02}-{:02}", day + 1)
}

/// Rewrites the pages between their markers.
fn write_pages(root: &Path, results: &Results) -> Result<(), String> {
    let picture = root.join("docs/img/speed.svg");
    let wrong = |path: &Path, e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    std::fs::create_dir_all(root.join("docs/img")).map_err(|e| wrong(&picture, &e))?;
    std::fs::write(&picture, chart::svg(results)).map_err(|e| wrong(&picture, &e))?;
    let readme = format!(
        "![Speed of Tallow and llama.cpp as fractions of what the machine allows](docs/img/speed.svg)\n\n{} \
         [All numbers](docs/benchmarks.md#against-llamacpp).",
        table::sentence(results)
    );
    for (page, content) in [("README.md", readme), ("docs/benchmarks.md", table::section(results))] {
        let path = root.join(page);
        let text = std::fs::read_to_string(&path).map_err(|e| wrong(&path, &e))?;
        let text = table::between_markers(&text, &content).map_err(|e| wrong(&path, &e))?;
        std::fs::write(&path, text).map_err(|e| wrong(&path, &e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn options_are_read() {
        let args =
            ["--llama", "l", "--models", "m", "--only", "depth,serve", "--rounds", "3", "--threads", "7"];
        let options = Options::parse(&args).unwrap();
        assert_eq!((options.rounds, options.threads, options.quick), (3, 7, false));
        assert_eq!(options.only, [Group::Depth, Group::Serve]);
        let wrong = |args: &[&str]| Options::parse(args).err().unwrap();
        assert_eq!(wrong(&["--rounds", "0"]), "--rounds 0 is no count");
        assert_eq!(wrong(&["--llama"]), "--llama has no value");
        assert_eq!(wrong(&["--fast", "1"]), "there is no --fast");
        assert!(wrong(&["--only", "decode,speed"]).starts_with("speed is not among"));
    }

    #[test]
    fn days_are_counted() {
        let at = |s| date(SystemTime::UNIX_EPOCH + Duration::from_secs(s));
        assert_eq!(at(0), "1970-01-01");
        assert_eq!(at(951_827_696), "2000-02-29");
        assert_eq!(at(1_735_689_599), "2024-12-31");
        assert_eq!(at(1_735_689_600), "2025-01-01");
    }

    #[test]
    fn the_other_s_version_is_read() {
        let text =
            "version: 0.5.0-dev (build 1, commit 0c1e57098)\nbuilt with Clang 19.1.7 for Linux x86_64\n";
        assert_eq!(peer_version(text), ("0c1e57098".into(), "Clang 19.1.7".into()));
        assert_eq!(peer_version(""), ("unknown".into(), "unknown".into()));
    }
}
