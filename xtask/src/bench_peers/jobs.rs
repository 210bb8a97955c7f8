//! [`Job`]: what is measured, and each program's command line for it.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::load::{self, Load};
use super::process::{self, Watch};
use super::results::{Demand, Group, Id, Peak, Unit};
use super::shape::Shape;

/// A benchmark of one model that both programs run in turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub model: &'static str,
    /// Always on one thread, whatever was asked for.
    one_thread: bool,
    work: Work,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    Prefill { prompt: usize },
    Decode { generated: usize, depth: usize },
    Batch { generated: usize, depth: usize, sequences: &'static [usize] },
    Serve { load: Load, alone: usize },
}

/// Paths and settings of all programs.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    pub tallow: PathBuf,
    /// The folder of llama.cpp's programs.
    pub llama: PathBuf,
    pub models: PathBuf,
    pub threads: usize,
}

/// The program that runs a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Tallow,
    Llama {
        /// Whether flash attention is on (`-fa`).
        flash: bool,
    },
}

/// A run's values, one per row of its job, and the CPU share that other processes used.
pub(super) type Measured = Result<(Vec<f64>, Option<f64>), String>;

const MODELS: [&str; 5] =
    ["qwen3-0.6b-Q4_0", "qwen3-0.6b-Q4_K_M", "qwen3-0.6b-Q6_K", "qwen3-0.6b-Q8_0", "qwen3-0.6b-bf16"];
const USUAL: &str = "qwen3-0.6b-Q4_K_M";
const LARGER: &str = "llama-3.2-1b-Q8_0";
const EXPERTS: &str = "qwen3-moe-Q8_0";
/// Repetitions in a process. It warms up before.
const TIMES: &str = "2";
/// Tokens of context per client of a server.
const CONTEXT: usize = 512;

/// All jobs, in the order of the tables. `quick` makes them small, to check that everything works.
pub(super) fn jobs(quick: bool) -> Vec<Job> {
    let n = |full: usize| if quick { full.div_ceil(32).max(8) } else { full };
    let job = |model, work| Job { model, one_thread: false, work };
    let decode = |model, generated| job(model, Work::Decode { generated: n(generated), depth: 0 });
    let prefill = |model, prompt| job(model, Work::Prefill { prompt: n(prompt) });
    let mut jobs: Vec<Job> = MODELS.map(|model| decode(model, 128)).into();
    jobs.extend([decode(LARGER, 64), decode(EXPERTS, 64)]);
    let alone = ["qwen3-0.6b-Q8_0", "qwen3-0.6b-Q4_0", USUAL];
    jobs.extend(alone.map(|model| Job { one_thread: true, ..decode(model, 64) }));
    jobs.extend(MODELS.map(|model| prefill(model, 512)));
    jobs.extend([prefill(USUAL, 2048), prefill(LARGER, 512), prefill(EXPERTS, 512)]);
    let sequences = &[2, 4, 8];
    let load = Load { clients: 8, requests: if quick { 8 } else { 24 }, prompt: n(128), generated: n(128) };
    jobs.extend([
        job(USUAL, Work::Decode { generated: n(64), depth: n(4096) }),
        job(USUAL, Work::Batch { generated: n(64), depth: n(128), sequences }),
        job(USUAL, Work::Serve { load, alone: if quick { 1 } else { 3 } }),
    ]);
    jobs
}

impl Job {
    pub(super) fn group(&self) -> Group {
        match self.work {
            Work::Prefill { .. } => Group::Prefill,
            Work::Decode { depth: 0, .. } => Group::Decode,
            Work::Decode { .. } => Group::Depth,
            Work::Batch { .. } => Group::Batch,
            Work::Serve { .. } => Group::Serve,
        }
    }

    pub(super) fn threads(&self, programs: &Programs) -> usize {
        if self.one_thread { 1 } else { programs.threads }
    }

    /// The kind of multiplications that limits the model.
    pub(super) fn peak(&self) -> Peak {
        if self.model.ends_with("bf16") { Peak::Bf16 } else { Peak::Int8 }
    }

    pub(super) fn file(&self, programs: &Programs) -> PathBuf {
        programs.models.join(format!("{}.gguf", self.model))
    }

    /// The programs, in turn. Where flash attention matters llama.cpp runs with and without it, and the better result
    /// counts.
    pub(super) fn turns(&self) -> Vec<Program> {
        let mut turns = vec![Program::Tallow, Program::Llama { flash: true }];
        if matches!(self.group(), Group::Prefill | Group::Depth) {
            turns.push(Program::Llama { flash: false });
        }
        turns
    }

    /// The job's rows, and each row's demand for the roofline.
    pub(super) fn rows(&self, threads: usize, shape: Option<&Shape>) -> Vec<(Id, Option<Demand>)> {
        let id =
            |test: String, unit| Id { group: self.group(), test, model: self.model.into(), threads, unit };
        let speed = |test| id(test, Unit::TokensPerSecond);
        match self.work {
            Work::Prefill { prompt } => {
                vec![(speed(format!("pp{prompt}")), shape.map(|s| s.prefill(prompt as f64)))]
            }
            Work::Decode { generated, depth } => {
                let test =
                    if depth > 0 { format!("tg{generated} @ d{depth}") } else { format!("tg{generated}") };
                let middle = depth as f64 + generated as f64 / 2.0;
                vec![(speed(test), shape.map(|s| s.decode(middle, 1.0)))]
            }
            Work::Batch { generated, depth, sequences } => {
                let middle = depth as f64 + generated as f64 / 2.0;
                let row = |n: &usize| {
                    (speed(format!("tg{generated} x {n}")), shape.map(|s| s.decode(middle, *n as f64)))
                };
                sequences.iter().map(row).collect()
            }
            Work::Serve { load, .. } => {
                let n = load.clients;
                let rows = [
                    speed(format!("serve {n} clients")),
                    id(format!("serve {n} clients, first token, median"), Unit::Milliseconds),
                    id(format!("serve {n} clients, first token, 95 of 100"), Unit::Milliseconds),
                    speed("serve 1 client".into()),
                    id("serve 1 client, first token, median".into(), Unit::Milliseconds),
                ];
                rows.map(|id| (id, None)).into()
            }
        }
    }

    /// Runs it once.
    pub(super) fn run(&self, by: Program, programs: &Programs, vocabulary: u32, round: usize) -> Measured {
        let Work::Serve { load, alone } = self.work else {
            let (text, others) = process::output(&mut self.command(by, programs))?;
            let count = self.rows(1, None).len();
            let values = match (by, self.work) {
                (Program::Llama { .. }, Work::Batch { .. }) => batch_speeds(&text),
                _ => speeds(&text),
            };
            return match values? {
                values if values.len() == count => Ok((values, others)),
                values => Err(format!("{by} gave {} results, not {count}", values.len())),
            };
        };
        let server = Server::start(self.command(by, programs), load, self.threads(programs), by)?;
        let drive =
            |load, part: usize| load::drive(server.address, load, vocabulary, (round * 4 + part) as u64);
        drive(Load { clients: 2, requests: 2, ..load }, 0)?;
        let watch = Watch::start(Some(server.process.id()));
        let one = drive(Load { clients: 1, requests: alone, ..load }, 1)?;
        let many = drive(load, 2)?;
        let values =
            vec![many.tokens_per_second, many.first, many.first_95, one.tokens_per_second, one.first];
        Ok((values, watch.others()))
    }

    /// The command line. Servers get their address in addition.
    fn command(&self, by: Program, programs: &Programs) -> Command {
        let (model, threads) = (self.file(programs), self.threads(programs).to_string());
        let tallow = |name: &str| {
            let mut command = Command::new(&programs.tallow);
            command.arg(name).args(["--device", "cpu", "--offline", "-t", &threads]);
            command
        };
        let llama = |name: &str, flash: &str| {
            let mut command = Command::new(programs.llama.join(name));
            command.arg("-m").arg(&model).args(["-t", &threads, "-fa", flash]);
            command
        };
        let bench = |prompt: usize, generated: usize, depth: usize| {
            let mut command = match by {
                Program::Tallow => tallow("bench"),
                Program::Llama { flash } => llama("llama-bench", if flash { "1" } else { "0" }),
            };
            if by == Program::Tallow {
                command.arg("-m").arg(&model);
            }
            let [p, n, d] = [prompt, generated, depth].map(|n| n.to_string());
            command.args(["-p", &p, "-n", &n, "-d", &d, "-o", "json"]);
            command
        };
        let mut command = match (self.work, by) {
            (Work::Prefill { prompt }, _) => bench(prompt, 0, 0),
            (Work::Decode { generated, depth }, _) => bench(0, generated, depth),
            (Work::Batch { generated, depth, sequences }, Program::Tallow) => {
                let mut command = bench(0, generated, depth);
                command.args(["--sequences", &list(sequences), "-r", "1"]);
                return command;
            }
            (Work::Batch { generated, depth, sequences }, Program::Llama { .. }) => {
                let mut command = llama("llama-batched-bench", "on");
                let context = (generated + depth) * sequences.iter().max().unwrap_or(&1);
                let [c, p, n] = [context, depth, generated].map(|n| n.to_string());
                command.args(["-c", &c, "-npp", &p, "-ntg", &n, "-npl", &list(sequences)]);
                command.args(["--output-format", "jsonl"]);
                return command;
            }
            (Work::Serve { load, .. }, Program::Tallow) => {
                let mut command = tallow("serve");
                command.arg(&model).args(["--slots", &load.clients.to_string()]);
                command.args(["--context", &CONTEXT.to_string()]);
                return command;
            }
            (Work::Serve { load, .. }, Program::Llama { .. }) => {
                let mut command = llama("llama-server", "on");
                let [clients, context] = [load.clients, load.clients * CONTEXT].map(|n| n.to_string());
                command.args(["-np", &clients, "-c", &context, "--cache-ram", "0"]);
                return command;
            }
        };
        command.args(["-r", TIMES]);
        command
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Program::Tallow => "Tallow",
            Program::Llama { flash: true } => "llama.cpp",
            Program::Llama { flash: false } => "llama.cpp without flash attention",
        })
    }
}

fn list(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Tokens per second, from the JSON that both programs' `bench` write.
fn speeds(text: &str) -> Result<Vec<f64>, String> {
    let rows: Vec<Value> =
        serde_json::from_str(text).map_err(|e| format!("what it wrote is no list: {e}"))?;
    rows.iter().map(|row| field(row, "avg_ts")).collect()
}

/// Tokens per second of all sequences together, from the JSON lines in llama-batched-bench's output.
fn batch_speeds(text: &str) -> Result<Vec<f64>, String> {
    let rows = text.lines().filter(|line| line.starts_with('{'));
    let row = |line| serde_json::from_str(line).map_err(|e| format!("what it wrote is no row: {e}"));
    rows.map(|line| field(&row(line)?, "speed_tg")).collect()
}

fn field(row: &Value, name: &str) -> Result<f64, String> {
    let value = row[name].as_f64().filter(|value| value.is_finite() && *value > 0.0);
    value.ok_or_else(|| format!("a result has no {name}"))
}

/// A server process, killed on drop.
struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts it, and waits until it is ready.
    fn start(mut command: Command, load: Load, threads: usize, by: Program) -> Result<Server, String> {
        if load.prompt + load.generated > CONTEXT {
            return Err(format!("a request would have more than {CONTEXT} tokens"));
        }
        // The port is free now; a race with another process is unlikely.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|l| l.local_addr());
        let address = address.map_err(|e| format!("no port is free: {e}"))?;
        command.args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
        if by != Program::Tallow {
            command.args(["-tb", &threads.to_string()]);
        }
        let shown = format!("{command:?}");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process =
            command.spawn().map_err(|e| format!("{} does not start: {e}", process::name(&command)))?;
        let mut server = Server { process, address };
        let begun = Instant::now();
        while !load::is_ready(address) {
            let ended = server.process.try_wait().map_err(|e| e.to_string())?;
            if ended.is_some() || begun.elapsed() > Duration::from_secs(300) {
                return Err(format!("the server did not become ready; see what it says: {shown}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_programs_results_are_read() {
        let json = "[\n  {\"n_prompt\": 512, \"avg_ts\": 337.159436, \"samples_ts\": [ 337.159 ]},\n {\"avg_ts\": 2}\n]\n";
        assert_eq!(speeds(json), Ok(vec![337.159436, 2.0]));
        assert!(speeds("ggml_init: no\n").is_err());
        assert!(speeds("[{\"avg_ns\": 1}]").unwrap_err().contains("avg_ts"));
        let lines = "main: n_kv_max = 4096\n{\"pl\": 2, \"speed_pp\": 9.5, \"speed_tg\": 61.25}\n{\"speed_tg\": 80}\n\n";
        assert_eq!(batch_speeds(lines), Ok(vec![61.25, 80.0]));
        assert!(batch_speeds("{\"speed_tg\": 0}").is_err());
    }

    #[test]
    fn rows_are_told_apart() {
        let ids = |quick| -> Vec<Id> {
            jobs(quick)
                .iter()
                .flat_map(|job| job.rows(if job.one_thread { 1 } else { 2 }, None))
                .map(|r| r.0)
                .collect()
        };
        let (full, quick) = (ids(false), ids(true));
        assert_eq!(full.len(), quick.len());
        for (i, id) in full.iter().enumerate() {
            assert!(!full[..i].contains(id), "{id:?} is there twice");
        }
        for (_, group) in Group::ALL {
            assert!(full.iter().any(|id| id.group == group), "{group:?}");
        }
    }

    #[test]
    fn commands_say_what_is_wanted() {
        let programs = Programs { tallow: "t".into(), llama: "l".into(), models: "m".into(), threads: 3 };
        let words = |job: &Job, by| {
            let command = job.command(by, &programs);
            let words = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
            words.collect::<Vec<_>>().join(" ")
        };
        let job = Job { model: "a", one_thread: true, work: Work::Decode { generated: 64, depth: 4096 } };
        assert_eq!(
            words(&job, Program::Tallow),
            "bench --device cpu --offline -t 1 -m m/a.gguf -p 0 -n 64 -d 4096 -o json -r 2"
        );
        assert_eq!(
            words(&job, Program::Llama { flash: false }),
            "-m m/a.gguf -t 1 -fa 0 -p 0 -n 64 -d 4096 -o json -r 2"
        );
        assert_eq!(job.turns().len(), 3);
        let job = Job {
            work: Work::Batch { generated: 8, depth: 16, sequences: &[2, 4] },
            one_thread: false,
            ..job
        };
        assert_eq!(
            words(&job, Program::Llama { flash: true }),
            "-m m/a.gguf -t 3 -fa on -c 96 -npp 16 -ntg 8 -npl 2,4 --output-format jsonl"
        );
        assert!(words(&job, Program::Tallow).ends_with("-d 16 -o json --sequences 2,4 -r 1"));
    }
}
