//! `tallow bench serve`: load on running servers, as `vllm bench serve` makes it.

mod client;
mod figures;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tallow_engine::sampler::uniform;

use super::super::{print, text_file};
use crate::args::BenchServe;
use crate::remote::Remote;
use crate::{Failed, terminal};
use client::{Ask, How};
use figures::{Figures, Round, table};

/// Most requests at a time: each has a thread.
const MAX_THREADS: usize = 2048;
/// A thread of a client needs little.
const STACK: usize = 256 << 10;
/// Words of random prompts: short and frequent, so that tokenizers have a token for most.
const WORDS: [&str; 32] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not",
    "he", "his", "but", "at", "are", "this", "have", "from", "or", "had", "an", "they", "which", "one",
    "you", "were",
];

/// Source of the prompts.
enum Prompts {
    /// Words at random, and how many of them make a token with this server's tokenizer.
    Random { words_per_token: f64 },
    /// Those of a file.
    Given(Vec<Ask>),
}

/// A server under load.
struct Target {
    server: Remote,
    how: How,
    prompts: Prompts,
    rounds: Vec<Round>,
}

pub(super) fn bench_serve(args: &BenchServe) -> Result<(), Failed> {
    if args.random_range_ratio > 1.0 || args.metric_percentiles.iter().any(|p| *p > 100.0) {
        return Err(Failed::new("--random-range-ratio is 1 at most, and --metric-percentiles 100"));
    }
    let threads = args.max_concurrency.unwrap_or(args.num_prompts).min(args.num_prompts).get();
    if threads > MAX_THREADS {
        return Err(Failed::new(format!(
            "{threads} requests at a time are more than the {MAX_THREADS} that one machine can measure: give --max-concurrency"
        )));
    }
    let given = args.dataset_path.as_deref().map(|path| read_prompts(path, args)).transpose()?;
    let default = ["http://127.0.0.1:8080".to_owned()];
    let addresses = if args.base_url.is_empty() { &default[..] } else { &args.base_url[..] };
    let mut targets = Vec::new();
    for address in addresses {
        targets.push(Target::new(address, args, given.as_deref())?);
    }
    let all = targets.len() * args.rounds.get() * args.num_prompts.get();
    let bar = terminal::count_bar(all as u64, "requests");
    for round in 0..args.rounds.get() {
        for target in &mut targets {
            let asks: Vec<Ask> = (0..args.num_prompts.get())
                .map(|i| target.ask(round * args.num_prompts.get() + i, args))
                .collect();
            let due = arrivals(args, round);
            let done = load(&target.server, &target.how, &asks, &due, threads, &|| bar.inc(1))?;
            target.rounds.push(done);
        }
    }
    bar.finish_and_clear();
    let all: Vec<Figures> = targets.into_iter().map(Target::figures).collect();
    for figures in &all {
        for (n, why) in figures.reasons().into_iter().take(5) {
            terminal::tell(&format!("{}: {} failed: {why}", figures.server, terminal::counted(n, "request")));
        }
    }
    if let Some(file) = &args.result_filename {
        let results: Vec<Value> = all.iter().map(|figures| figures.json(args)).collect();
        let result = if let [one] = &results[..] { one.clone() } else { Value::Array(results) };
        std::fs::write(file, format!("{result:#}\n"))
            .map_err(|e| Failed::new(format!("{} cannot be written: {e}", file.display())))?;
    }
    print(&table(&all, args))?;
    match all.iter().all(|figures| figures.rounds.iter().all(|round| round.answered.is_empty())) {
        true => Err(Failed::new("no request was answered")),
        false => Ok(()),
    }
}

/// The requests of a file.
fn read_prompts(path: &Path, args: &BenchServe) -> Result<Vec<Ask>, Failed> {
    let name = path.display();
    let text = text_file(path)?;
    let mut asks = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |why: String| Failed::new(format!("{name}, line {}: {why}", at + 1));
        let value: Value = serde_json::from_str(line).map_err(|e| wrong(e.to_string()))?;
        let prompt = value["prompt"].as_str().ok_or_else(|| wrong("it has no text \"prompt\"".into()))?;
        let max_tokens = match &value["output_len"] {
            Value::Null => args.random_output_len.get(),
            n => n.as_u64().filter(|n| *n > 0).ok_or_else(|| wrong("output_len is a count".into()))? as usize,
        };
        asks.push(Ask { prompt: prompt.to_owned(), max_tokens });
    }
    if asks.is_empty() { Err(Failed::new(format!("{name} has no prompts"))) } else { Ok(asks) }
}

/// Arrival times of the requests, from the beginning of a round.
fn arrivals(args: &BenchServe, round: usize) -> Vec<Duration> {
    let mut at = 0.0;
    let next = |i: usize| {
        let Some(rate) = args.request_rate.filter(|rate| rate.is_finite()) else { return Duration::ZERO };
        let due = Duration::from_secs_f64(at);
        at += -(1.0 - uniform(args.seed ^ 0xA5, round * args.num_prompts.get() + i)).ln() / rate;
        due
    };
    (0..args.num_prompts.get()).map(next).collect()
}

/// Sends requests when they are due, on so many threads, and waits for all.
fn load(
    server: &Remote,
    how: &How,
    asks: &[Ask],
    due: &[Duration],
    threads: usize,
    done: &(dyn Fn() + Sync),
) -> Result<Round, Failed> {
    let (next, round) = (AtomicUsize::new(0), Mutex::new(Round::default()));
    let begun = Instant::now();
    let client = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let (Some(ask), Some(due)) = (asks.get(at), due.get(at)) else { return };
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
            let answer = how.send(server, ask);
            let mut round = round.lock().unwrap_or_else(PoisonError::into_inner);
            match answer {
                Ok(answer) => round.answered.push(answer),
                Err(why) => round.failed.push(why),
            }
            done();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, client)?;
        }
        Ok::<(), std::io::Error>(())
    })
    .map_err(|e| Failed::new(format!("{threads} threads cannot be started: {e}; give --max-concurrency")))?;
    let round = round.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Round { took: begun.elapsed(), ..round })
}

/// So many words at random.
fn words(n: usize, seed: u64) -> impl Iterator<Item = &'static str> {
    (0..n).map(move |i| WORDS[(uniform(seed, i) * WORDS.len() as f64) as usize])
}

impl Target {
    fn new(address: &str, args: &BenchServe, given: Option<&[Ask]>) -> Result<Target, Failed> {
        let address = address.trim_end_matches('/').trim_end_matches("/v1");
        if !address.starts_with("http://") && !address.starts_with("https://") {
            return Err(Failed::new(format!(
                "--base-url {}: an address begins with http:// or https://",
                terminal::sanitized(address)
            )));
        }
        let server = Remote::at(address.to_owned(), "--base-url says");
        let model = match &args.model {
            Some(model) => model.clone(),
            None => {
                let models = server.get("/v1/models")?;
                let first = models["data"][0]["id"]
                    .as_str()
                    .ok_or_else(|| Failed::new(format!("{address} lists no model: name one with --model")))?;
                first.to_owned()
            }
        };
        let how = How { model, api: args.api, temperature: args.temperature, ignore_eos: args.ignore_eos };
        let prompts = match given {
            Some(asks) => Prompts::Given(asks.to_vec()),
            None => Prompts::Random { words_per_token: words_per_token(&server, &how, args)? },
        };
        Ok(Target { server, how, prompts, rounds: Vec::new() })
    }

    /// A request by its number.
    fn ask(&self, at: usize, args: &BenchServe) -> Ask {
        let words_per_token = match &self.prompts {
            Prompts::Given(asks) => return asks[at % asks.len()].clone(),
            Prompts::Random { words_per_token } => *words_per_token,
        };
        let length = |tokens: usize, of: u64| {
            let change = args.random_range_ratio * (2.0 * uniform(args.seed ^ of, at) - 1.0);
            ((tokens as f64 * (1.0 + change)).round() as usize).max(1)
        };
        let count = |tokens: usize| (tokens as f64 * words_per_token).round() as usize;
        let prefix = words(count(args.random_prefix_len), args.seed);
        let own = words(
            count(length(args.random_input_len.get(), 0xC3)).max(1),
            args.seed.wrapping_add(at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15),
        );
        let prompt = prefix.chain(own).collect::<Vec<_>>().join(" ");
        Ask { prompt, max_tokens: length(args.random_output_len.get(), 0x3C) }
    }

    fn figures(self) -> Figures {
        Figures { server: self.server.address, model: self.how.model, rounds: self.rounds }
    }
}

/// Words per token, from two prompts whose tokens the server counts.
fn words_per_token(server: &Remote, how: &How, args: &BenchServe) -> Result<f64, Failed> {
    let (short, long) = (1, 64);
    let count = |n: usize| {
        let prompt = words(n, args.seed ^ 0xFF).collect::<Vec<_>>().join(" ");
        let how = How { ignore_eos: false, ..how.clone() };
        let answer = how.send(server, &Ask { prompt, max_tokens: 2 });
        let answer = answer.map_err(|why| Failed::new(format!("{}: {why}", server.address)))?;
        Ok::<f64, Failed>(answer.prompt_tokens as f64)
    };
    let (few, many) = (count(short)?, count(long)?);
    if many <= few {
        let why = format!(
            "{} does not tell how many tokens a prompt has: give prompts with --dataset-path",
            server.address
        );
        return Err(Failed::new(why));
    }
    Ok((long - short) as f64 / (many - few))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Api;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchServe,
    }

    fn args(line: &[&str]) -> BenchServe {
        Line::parse_from([&["x"], line].concat()).args
    }

    #[test]
    fn requests_come_at_their_rate() {
        let at_once = arrivals(&args(&["-n", "5"]), 0);
        assert_eq!(at_once, [Duration::ZERO; 5]);
        let args = args(&["-n", "4000", "--request-rate", "50"]);
        let due = arrivals(&args, 0);
        assert!(due.is_sorted() && due[0] == Duration::ZERO);
        let mean = due[3999].as_secs_f64() / 3999.0;
        assert!((mean - 0.02).abs() < 0.001, "{mean}");
        // Gaps of a Poisson process vary as much as they last.
        let gaps: Vec<f64> = due.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.1, "{variance}");
        assert_ne!(due, arrivals(&args, 1));
    }

    #[test]
    fn prompts_are_as_long_as_they_should_and_all_different() {
        let of = |line: &[&str]| {
            let args = args(line);
            let server = Remote::at("http://x".into(), "");
            let how = How { model: "m".into(), api: Api::Chat, temperature: 0.0, ignore_eos: true };
            let target =
                Target { server, how, prompts: Prompts::Random { words_per_token: 0.5 }, rounds: Vec::new() };
            (0..50).map(|at| target.ask(at, &args)).collect::<Vec<_>>()
        };
        let count = |ask: &Ask| ask.prompt.split(' ').count();
        let asks = of(&["--random-input-len", "40", "--random-prefix-len", "20"]);
        assert!(asks.iter().all(|ask| count(ask) == 30 && ask.max_tokens == 128));
        let prefix = |ask: &Ask| ask.prompt.split(' ').take(10).collect::<Vec<_>>().join(" ");
        assert!(asks.iter().all(|ask| prefix(ask) == prefix(&asks[0])));
        let different: std::collections::HashSet<&str> = asks.iter().map(|ask| ask.prompt.as_str()).collect();
        assert_eq!(different.len(), 50);
        let asks =
            of(&["--random-input-len", "40", "--random-range-ratio", "0.5", "--random-output-len", "10"]);
        assert!(asks.iter().all(|ask| (10..=30).contains(&count(ask)) && (5..=15).contains(&ask.max_tokens)));
        assert!(asks.iter().any(|ask| count(ask) < 15) && asks.iter().any(|ask| count(ask) > 25));
    }
}
