//! The command line.
//!
//! The first paragraph of an option's text is what `-h` shows, on one line; `--help` shows all of it. What depends on
//! other modules (defaults, variables, `--model`) is added in [`help`].

#![allow(
    rustdoc::broken_intra_doc_links,
    rustdoc::bare_urls,
    reason = "descriptions of options are what help prints"
)]

mod encoders;
mod foreign;
mod help;
mod models;
mod parse;
mod rewrite;
mod settle;
mod tools;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use tallow_models::recipe::Recipe;

use crate::build;
use crate::chat_args::ChatArgs;
use crate::devices::{Arithmetic, DeviceChoice};
use crate::log::LogArgs;
use crate::lora::Lora;

pub(crate) use encoders::*;
pub(crate) use help::command;
pub(crate) use models::*;
use parse::is_model;
pub(crate) use parse::parse;
pub(crate) use tools::*;

/// Runs and serves language models, on whatever hardware there is.
#[derive(Debug, Parser)]
#[command(name = "tallow", version = build::VERSION, about, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Configuration file [default: ~/.config/tallow/config.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Chat with a model, or have it answer one prompt
    #[command(alias = "chat")]
    Run(Run),
    /// Serve a model over HTTP with the OpenAI API
    #[command(alias = "server")]
    Serve(Serve),
    /// Download a model into the cache
    #[command(alias = "download")]
    Pull(Pull),
    /// Find models by name, with their sizes
    Search(Search),
    /// List the downloaded models in the cache
    #[command(alias = "ls")]
    List(List),
    /// Remove a downloaded model from the cache
    #[command(alias = "remove")]
    Rm(Rm),
    /// Show a model's architecture, sizes, types and chat template
    Show(Show),
    /// Write a model as a GGUF file, optionally quantized
    #[command(alias = "quantize")]
    Convert(Convert),
    /// Show devices, what a model would take, and where each setting comes from
    Doctor(Doctor),
    /// Measure speed: prefill and decode, in tokens per second
    #[command(alias = "benchmark")]
    Bench(Bench),
    /// Compute text and image embeddings
    #[command(alias = "embedding")]
    Embed(Embed),
    /// Sort documents by relevance to a query, with a reranker
    Rerank(Rerank),
    /// Classify texts with a sequence classifier
    Classify(Classify),
    /// Transcribe speech from a sound file (Whisper)
    Transcribe(Transcribe),
    /// Show the tokens of a text
    Tokenize(Tokenize),
    /// Measure perplexity: how well a model predicts a text
    Perplexity(Perplexity),
    /// Compute an importance matrix (imatrix) from a calibration text, for `convert`
    Imatrix(Imatrix),
    /// Write the logits and hidden states of one forward pass, for comparisons
    Dump(Dump),
    /// Print a completion script for a shell
    Completions(Completions),
}

/// How the engine is set up.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Context size: tokens of prompt and answer [default: up to 8192]
    ///
    /// The default is what the model was trained for, up to 8192, or less where memory is short.
    #[arg(short = 'c', long, value_name = "TOKENS", aliases = CONTEXT)]
    pub context: Option<usize>,
    /// Data type of the KV cache: f32, f16, bf16, int8, fp8 [default: f16]
    ///
    /// int8 and fp8 take half the memory. The default is bf16 on a CPU with AMX.
    #[arg(long, value_name = "TYPE", aliases = KV)]
    pub kv: Option<String>,
    /// auto, cpu, vulkan, vulkan:1, metal, … [default: auto]
    ///
    /// Device to run on. auto takes the GPU with the most free memory if the model fits there, else the CPU. There is no
    /// partial offload: a model runs on one device.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,
    /// CPU threads [default: the CPU's cores]
    #[arg(short = 't', long, value_name = "N")]
    pub threads: Option<usize>,
    /// CPU instruction set [default: the best there is]
    ///
    /// scalar, neon, avx2, avxvnni, avx512 or amx.
    #[arg(long, value_name = "NAME")]
    pub isa: Option<String>,
    /// CPU arithmetic: fast, or exact for comparisons [default: fast]
    ///
    /// exact multiplies in f32 without rounding the activations to 8 bits, and is several times slower.
    #[arg(long, value_name = "HOW")]
    pub arithmetic: Option<Arithmetic>,
    /// Batch size: most tokens computed in one step [default: 256]
    ///
    /// Prompts are computed (prefilled) in steps of this many tokens. A server takes fewer while it decodes answers.
    #[arg(short = 'b', long, value_name = "TOKENS", aliases = BATCH)]
    pub batch: Option<usize>,
    /// Quantize F32/F16/BF16 weights on load: q4_k_m, q8_0, …
    ///
    /// Weights that are quantized already are left alone.
    #[arg(long, value_name = "TYPE")]
    pub quant: Option<Recipe>,
    /// Use only models that are already downloaded
    #[arg(long)]
    pub offline: bool,
}

/// Aliases of `--context` from other programs.
pub(crate) const CONTEXT: [&str; 7] =
    ["ctx-size", "ctx", "n-ctx", "num-ctx", "context-size", "context-length", "max-model-len"];
/// Aliases of `--kv` from other programs.
pub(crate) const KV: [&str; 5] = ["cache-type-k", "ctk", "cache-type", "kv-cache-dtype", "kv-cache-type"];
/// Aliases of `--batch` from other programs.
pub(crate) const BATCH: [&str; 3] = ["batch-size", "n-batch", "max-num-batched-tokens"];

/// How tokens are chosen.
#[derive(Debug, Clone, Default, PartialEq, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SampleArgs {
    /// Longest answer, in tokens; -1 = as long as fits
    ///
    /// The default is as many tokens as fit the context; for models without a chat template, `run` stops after 256.
    #[arg(short = 'n', long, value_name = "TOKENS", value_parser = most_tokens, aliases = MAX_TOKENS)]
    pub max_tokens: Option<usize>,
    /// 0 always picks the most likely token (greedy)
    ///
    /// Higher temperatures make answers more varied.
    #[arg(long, value_name = "X", alias = "temp")]
    pub temperature: Option<f32>,
    /// Keep only the N most likely tokens; 0 keeps all
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Nucleus sampling: keep tokens up to probability P
    ///
    /// Keeps the most likely tokens up to total probability P; 1 keeps all.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Drop tokens below P times the likeliest one's chance
    ///
    /// 0 keeps all.
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Locally typical sampling, up to total probability P [default: 1]
    ///
    /// 1 keeps all tokens.
    #[arg(long, value_name = "P", alias = "typical")]
    pub typical_p: Option<f32>,
    /// Penalise tokens that have already appeared [default: 1 = off]
    ///
    /// Scores of tokens that occur in the prompt or the answer are divided by X, or multiplied where they are negative.
    #[arg(long, value_name = "X", aliases = ["repeat-penalty", "rep-pen"])]
    pub repetition_penalty: Option<f32>,
    /// Subtract X from scores of tokens already generated [default: 0]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub presence_penalty: Option<f32>,
    /// Subtract X each time a token was generated [default: 0]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub frequency_penalty: Option<f32>,
    /// The same seed gives the same answer; -1 = random [default: random]
    #[arg(short = 's', long, value_name = "N", value_parser = seed)]
    pub seed: Option<u64>,
}

/// Aliases of `--max-tokens` from other programs.
const MAX_TOKENS: [&str; 5] =
    ["n-predict", "predict", "num-predict", "max-new-tokens", "max-completion-tokens"];

/// Parses `--max-tokens`: llama.cpp's -1 (as many as fit) and -2 (until the context is full) mean no limit.
fn most_tokens(text: &str) -> Result<usize, String> {
    match text.trim() {
        "-1" | "-2" => Ok(usize::MAX),
        text => text.parse().map_err(|why| crate::settings::reason(&why)),
    }
}

/// Parses `--seed`.
fn seed(text: &str) -> Result<u64, String> {
    text.parse().map(|crate::settings::Seed(seed)| seed)
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The model [default: demo]
    pub model: Option<String>,
    /// The prompt [default: chat on a terminal, else standard input]
    pub prompt: Vec<String>,
    /// The prompt, as an option
    #[arg(short = 'p', long = "prompt", value_name = "TEXT", conflicts_with = "prompt")]
    pub text: Option<String>,
    /// Read the prompt from a file; PROMPT words follow it
    #[arg(short = 'f', long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// System prompt
    ///
    /// What the model is told before the conversation, such as its role and the form of its answers.
    #[arg(long, value_name = "TEXT", aliases = ["system-prompt", "sys"])]
    pub system: Option<String>,
    /// End the answer at this text; may be given several times
    ///
    /// A stop string (reverse prompt). It is not part of the answer.
    #[arg(short = 'r', long, value_name = "TEXT", aliases = ["reverse-prompt", "stop-string"])]
    pub stop: Vec<String>,
    /// Give the model the prompt as it is, without the chat template
    #[arg(long, aliases = ["no-chat-template", "no-conversation", "no-cnv"])]
    pub raw: bool,
    /// Show how fast it went: `-v`, which every command has.
    #[arg(skip)]
    pub verbose: bool,
    /// LoRA adapter: PATH or PATH:SCALE, a PEFT folder or a GGUF file
    #[arg(long, value_name = "ADAPTER")]
    pub lora: Option<Lora>,
    #[command(flatten)]
    pub chat: ChatArgs,
    #[command(flatten)]
    pub sampling: SampleArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The model [default: demo]
    pub model: Option<String>,
    /// Address to listen on; 0.0.0.0 = all [default: 127.0.0.1]
    ///
    /// By default the server is reachable from this machine alone.
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
    /// Port to listen on; 0 = any free one [default: 8080]
    #[arg(short, long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Requests computed at once (parallel sequences) [default: 8]
    #[arg(long, value_name = "N", aliases = ["parallel", "np", "max-num-seqs"])]
    pub slots: Option<usize>,
    /// Requests that may wait for a slot; more get 429 [default: 256]
    #[arg(long, value_name = "N")]
    pub queue: Option<usize>,
    /// Longest wait for a slot, then 408 [default: none]
    ///
    /// In seconds. Without it a request waits as long as its client does.
    #[arg(long, value_name = "SECONDS")]
    pub queue_timeout: Option<u64>,
    /// Another name for the model; may be given several times
    #[arg(short = 'a', long, value_name = "NAME", alias = "served-model-name")]
    pub alias: Vec<String>,
    /// LoRA adapter: [NAME=]PATH[:SCALE]; may be given several times
    ///
    /// A PEFT folder or a GGUF file. Requests ask for it by its name, in place of the model's.
    #[arg(long, value_name = "ADAPTER", aliases = ["lora-modules", "lora-scaled"])]
    pub lora: Vec<Lora>,
    /// Let clients load and unload LoRA adapters beneath this folder
    #[arg(long, value_name = "DIR")]
    pub lora_dir: Option<PathBuf>,
    /// Memory for adapters that clients load, in MiB [default: 512]
    #[arg(long, value_name = "MIB", requires = "lora_dir")]
    pub lora_memory: Option<usize>,
    /// File of API keys that clients must send, one a line
    ///
    /// Keys can also be in the variable TALLOW_API_KEY. There is no option for a key itself: other users of the machine
    /// can read the command line.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Host name that clients may use, besides localhost
    ///
    /// Requests whose Host header is none of these are refused. May be given several times.
    #[arg(long, value_name = "HOST")]
    pub allow_host: Vec<String>,
    /// Web origin whose pages may use this server (CORS)
    ///
    /// Such as https://chat.example. May be given several times.
    #[arg(long, value_name = "ORIGIN")]
    pub allow_origin: Vec<String>,
    /// Let requests pass values to the chat template
    #[arg(long)]
    pub allow_template_kwargs: bool,
    /// Ask for an API key on /health and /ready too
    ///
    /// They are open otherwise, since liveness probes and load balancers seldom have a key.
    #[arg(long)]
    pub private_health: bool,
    /// Memory for requests under way, in MiB [default: 512]
    ///
    /// Bodies, prompts and answers that are not sent yet. A request for which there is no room waits, or is refused.
    #[arg(long, value_name = "MIB")]
    pub max_memory_in_flight: Option<usize>,
    /// Connections at one time [default: 4096]
    ///
    /// For one more, the connection that has been idle longest is closed. Fewer where the system gives fewer descriptors.
    #[arg(long, value_name = "N")]
    pub max_connections: Option<usize>,
    /// Connections from one address [default: half of the above]
    #[arg(long, value_name = "N")]
    pub max_per_address: Option<usize>,
    /// Seconds for open answers when told to stop [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub drain: Option<u64>,
    #[command(flatten)]
    pub sampling: SampleArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// What a command without an engine runs on.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct DeviceArgs {
    /// auto, cpu, vulkan, vulkan:1, metal, … [default: auto]
    ///
    /// Device to run on. auto takes the GPU with the most free memory if the model fits there, else the CPU.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,
    /// CPU threads [default: the CPU's cores]
    #[arg(short = 't', long, value_name = "N")]
    pub threads: Option<usize>,
    /// CPU instruction set [default: the best there is]
    ///
    /// scalar, neon, avx2, avxvnni, avx512 or amx.
    #[arg(long, value_name = "NAME")]
    pub isa: Option<String>,
    /// CPU arithmetic: fast or exact [default: fast; dump: exact]
    #[arg(long, value_name = "HOW")]
    pub arithmetic: Option<Arithmetic>,
    /// Quantize F32/F16/BF16 weights on load: q4_k_m, q8_0, …
    ///
    /// Weights that are quantized already are left alone.
    #[arg(long, value_name = "TYPE")]
    pub quant: Option<Recipe>,
    /// Use only models that are already downloaded
    #[arg(long)]
    pub offline: bool,
}
