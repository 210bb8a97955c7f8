//! `cargo xtask attack`: a server under attack, with a healthy stream and small requests at the same time.
//!
//! For each attack it reports whether the stream is the same as without, its longest pause, how long small requests
//! took, and the server's peak memory. It fails if one of these is not as promised.

mod cases;
mod server;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cases::{CASES, Case};
use server::{Client, Server, Streamed, streamed};

const USAGE: &str = "usage: cargo xtask attack [--program PROGRAM] [--slow FACTOR] [NAME...]
  --program PROGRAM  the server's program (target/release/tallow, which must have been built)
  --slow FACTOR      allow so many times longer, for builds without optimisation
  NAME               only the attacks whose names contain one of these";

/// Time limit of a small request.
const SMALL_WITHIN: Duration = Duration::from_secs(1);
/// MiB that all requests together may hold (`--max-memory-in-flight`).
const IN_FLIGHT: u64 = 512;
/// MiB that one request may take besides its answer.
const ONE: u64 = 64;
/// MiB that allocators and threads may take besides what is counted.
const SLACK: u64 = 48;
/// The stream that must not change: as long as the model's context allows.
const STREAM: &str =
    r#"{"prompt":"Once upon a time","max_tokens":400,"temperature":0,"ignore_eos":true,"stream":true}"#;
const SMALL: &str = r#"{"prompt":"Once upon","max_tokens":4,"temperature":0}"#;

/// Marks that this process has been restarted with more descriptors.
const MARK: &str = "--with-descriptors";

/// Observations during an attack.
#[derive(Debug, Default)]
struct Seen {
    streams: usize,
    different: usize,
    gap: Duration,
    small: Duration,
    smalls: usize,
    failed: Vec<String>,
}

struct Options {
    program: PathBuf,
    slow: u32,
    names: Vec<String>,
}

pub(crate) fn run(root: &Path, args: &[&str]) -> ExitCode {
    let Some(options) = options(root, args) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if cfg!(not(target_os = "linux")) {
        eprintln!("the attacks read the server's memory from /proc, and run on Linux only");
        return ExitCode::FAILURE;
    }
    match with_descriptors() {
        Some(code) => code,
        None => match attack_all(&options) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(e) => {
                eprintln!("error: {e}");
                ExitCode::FAILURE
            }
        },
    }
}

fn options(root: &Path, args: &[&str]) -> Option<Options> {
    let mut options = Options { program: root.join("target/release/tallow"), slow: 1, names: Vec::new() };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match *arg {
            "--program" => options.program = PathBuf::from(args.next()?),
            "--slow" => options.slow = args.next()?.parse().ok()?,
            MARK => {}
            name if name.starts_with('-') => return None,
            name => options.names.push(name.to_owned()),
        }
    }
    Some(options)
}

/// Ten thousand connections need as many descriptors here, too. If there are too few, restarts this program with more
/// and returns its exit code.
fn with_descriptors() -> Option<ExitCode> {
    let mut args: Vec<String> = std::env::args().collect();
    if args.iter().any(|arg| arg == MARK) || std::fs::File::open("/proc/self/limits").is_err() {
        return None;
    }
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    let soft: u64 = line.split_whitespace().nth(3)?.parse().ok()?;
    if soft > 12_000 {
        return None;
    }
    args.remove(0);
    args.push(MARK.to_owned());
    let script = "ulimit -n \"$(ulimit -Hn)\" 2>/dev/null; exec \"$0\" \"$@\"";
    let program = std::env::current_exe().ok()?;
    let status = Command::new("sh").args(["-c", script]).arg(program).args(args).status().ok()?;
    Some(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn attack_all(options: &Options) -> io::Result<bool> {
    if !options.program.exists() {
        return Err(io::Error::other(format!("there is no {}; build it first", options.program.display())));
    }
    println!(
        "| attack | streams | same | worst gap | small requests | worst | memory before, peak, bound (MiB) | |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let chosen = |case: &&Case| {
        options.names.is_empty() || options.names.iter().any(|name| case.name.contains(name.as_str()))
    };
    let mut all_well = true;
    for case in CASES.iter().filter(chosen) {
        all_well &= attack(case, options)?;
    }
    Ok(all_well)
}

/// Runs one attack on a server of its own. Returns whether everything is as promised.
fn attack(case: &Case, options: &Options) -> io::Result<bool> {
    let flags = ["--max-memory-in-flight", "512", "--slots", "16"];
    let mut server = Server::start(&options.program, &flags, case.log, case.space)?;
    let (attacker, healthy) = (server.attacker(), server.healthy());
    let expected = streamed(healthy, STREAM)?;
    // Whatever is loaded lazily must not count for the attack.
    healthy.post("/tokenize", r#"{"prompt":"a"}"#)?;
    let before = server.resident();
    server.reset_peak();
    let over = AtomicBool::new(false);
    let mut answer = 0;
    let seen = std::thread::scope(|threads| {
        let beside = [
            threads.spawn(|| follow(healthy, &expected, &over)),
            threads.spawn(|| ask_small(healthy, &over)),
        ];
        answer = (case.run)(&attacker).unwrap_or_else(|e| {
            eprintln!("{}: {e}", case.name);
            0
        });
        over.store(true, Ordering::Relaxed);
        beside.map(|thread| thread.join().unwrap_or_else(|_| broken("a thread of the test failed")))
    });
    let [streams, smalls] = seen;
    let bound = case.bound(before, (answer >> 20) as u64);
    let peak = server.peak();
    let within = SMALL_WITHIN * options.slow;
    let faults: Vec<String> = [
        (!server.lives()).then(|| "the server has died".to_owned()),
        (streams.different > 0).then(|| format!("{} streams are not the same", streams.different)),
        (streams.streams == 0).then(|| "no stream has ended".to_owned()),
        (smalls.small > within).then(|| format!("a small request took {} ms", smalls.small.as_millis())),
        (peak > bound).then(|| format!("{peak} MiB are more than {bound}")),
    ]
    .into_iter()
    .flatten()
    .chain(streams.failed.into_iter().chain(smalls.failed).take(3))
    .collect();
    println!(
        "| {} | {} | {} | {} ms | {} | {} ms | {before}, {peak}, {bound} | {} |",
        case.name,
        streams.streams,
        streams.streams - streams.different,
        streams.gap.as_millis(),
        smalls.smalls,
        smalls.small.as_millis(),
        if faults.is_empty() { "as promised".to_owned() } else { format!("**{}**", faults.join("; ")) },
    );
    Ok(faults.is_empty())
}

impl Case {
    /// Upper bound of the server's memory, in MiB.
    fn bound(&self, before: u64, answer: u64) -> u64 {
        before + SLACK + if self.one { ONE + answer } else { IN_FLIGHT }
    }
}

fn broken(why: &str) -> Seen {
    Seen { failed: vec![why.to_owned()], ..Seen::default() }
}

/// Requests the same stream again and again.
fn follow(server: Client, expected: &Streamed, over: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    loop {
        match streamed(server, STREAM) {
            Ok(got) => {
                seen.streams += 1;
                seen.different += usize::from(got.said != expected.said);
                seen.gap = seen.gap.max(got.gap);
            }
            Err(e) => seen.failed.push(format!("a stream: {e}")),
        }
        if over.load(Ordering::Relaxed) || seen.failed.len() > 10 {
            return seen;
        }
    }
}

/// Requests a few tokens again and again.
fn ask_small(server: Client, over: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    while !over.load(Ordering::Relaxed) && seen.failed.len() <= 10 {
        let begun = Instant::now();
        match server.post("/v1/completions", SMALL) {
            Ok((200, _)) => seen.smalls += 1,
            Ok((status, _)) => seen.failed.push(format!("a small request: {status}")),
            Err(e) => seen.failed.push(format!("a small request: {e}")),
        }
        seen.small = seen.small.max(begun.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    seen
}
