//! `tallow bench serve`, in the words of `vllm bench serve`.

use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};

/// Commands of `tallow bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure running servers: throughput, and how long clients wait
    Serve(BenchServe),
}

/// API that is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Api {
    /// /v1/completions
    #[value(alias = "openai")]
    Completions,
    /// /v1/chat/completions
    #[value(alias = "openai-chat")]
    Chat,
}

/// A latency of which requests are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Latency {
    /// From the request to its first token.
    Ttft,
    /// Mean time of a request's further tokens.
    Tpot,
    /// From the request to its end.
    E2el,
}

/// The most milliseconds that a latency of a good request may have (`ttft:500`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Goal(pub Latency, pub f64);

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Goal, String> {
        let wrong = || "a goal is ttft, tpot or e2el, and milliseconds, such as ttft:500".to_owned();
        let (name, milliseconds) = text.split_once(':').ok_or_else(wrong)?;
        let latency = match name {
            "ttft" => Latency::Ttft,
            "tpot" => Latency::Tpot,
            "e2el" => Latency::E2el,
            _ => return Err(wrong()),
        };
        let milliseconds: f64 = milliseconds.parse().map_err(|_| wrong())?;
        if milliseconds > 0.0 { Ok(Goal(latency, milliseconds)) } else { Err(wrong()) }
    }
}

/// A number from 0 on, of `least` or more.
fn from(least: f64, what: &'static str) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| match text.parse::<f64>() {
        Ok(number) if number >= least => Ok(number),
        _ => Err(what.to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct BenchServe {
    /// The server; several take turns [default: http://127.0.0.1:8080]
    ///
    /// Any server with OpenAI's API, without the /v1. TALLOW_API_KEY is its API key.
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub base_url: Vec<String>,
    /// Name of the model [default: the first that the server lists]
    #[arg(short, long, value_name = "NAME")]
    pub model: Option<String>,
    /// API: completions or chat
    #[arg(long, value_name = "API", default_value = "completions", hide_possible_values = true)]
    #[arg(visible_alias = "backend")]
    pub api: Api,
    /// Requests of a round
    #[arg(short = 'n', long, value_name = "N", default_value = "100")]
    pub num_prompts: NonZero<usize>,
    /// Rounds; with several servers each round asks one after the other
    #[arg(long, value_name = "N", default_value = "1")]
    pub rounds: NonZero<usize>,
    /// Tokens of a prompt of random words
    ///
    /// Within a few per cent: how many tokens the words have, the server is asked first.
    #[arg(long, value_name = "N", default_value = "128", visible_alias = "input-len")]
    pub random_input_len: NonZero<usize>,
    /// Tokens of an answer
    #[arg(long, value_name = "N", default_value = "128", visible_alias = "output-len")]
    pub random_output_len: NonZero<usize>,
    /// Part by which both lengths are longer or shorter, at random: 0 to 1
    #[arg(long, value_name = "PART", default_value = "0", value_parser = from(0.0, "a part is a number from 0 to 1"))]
    pub random_range_ratio: f64,
    /// Tokens at the beginning of prompts that are the same in all
    #[arg(long, value_name = "N", default_value = "0")]
    pub random_prefix_len: usize,
    /// Take prompts from a file: JSON objects with "prompt", a line each
    ///
    /// "output_len" in a line is the length of its answer. Lines are used again if there are fewer than requests.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["random_input_len", "random_prefix_len", "random_range_ratio"])]
    pub dataset_path: Option<PathBuf>,
    /// Requests a second, as a Poisson process [default: all at once]
    #[arg(long, value_name = "RATE", value_parser = from(f64::MIN_POSITIVE, "a rate is a number above 0, or inf"))]
    pub request_rate: Option<f64>,
    /// Most requests at a time [default: no limit]
    #[arg(short = 'c', long, value_name = "N")]
    pub max_concurrency: Option<NonZero<usize>>,
    /// Let answers be as long as they should, whatever the model writes
    #[arg(long)]
    pub ignore_eos: bool,
    /// Temperature of answers
    #[arg(long, value_name = "T", default_value = "0", value_parser = from(0.0, "a temperature is a number from 0 on"))]
    pub temperature: f64,
    /// Seed of prompts, lengths and times
    #[arg(long, value_name = "SEED", default_value = "0")]
    pub seed: u64,
    /// Percentiles to show
    #[arg(long, value_name = "P", value_delimiter = ',', default_value = "99")]
    #[arg(value_parser = from(0.0, "a percentile is a number from 0 to 100"))]
    pub metric_percentiles: Vec<f64>,
    /// Count requests that are fast enough: ttft:MS, tpot:MS, e2el:MS
    #[arg(long, value_name = "GOAL", num_args = 1..)]
    pub goodput: Vec<Goal>,
    /// Write the figures as JSON, too
    #[arg(long, value_name = "FILE")]
    pub result_filename: Option<PathBuf>,
}
