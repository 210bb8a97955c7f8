//! The command line.
//!
//! The first paragraph of an option's text is what `-h` shows, on one line; `--help` shows all of it. What depends on
//! other modules (defaults, variables, `--model`) is added in [`help`].

#![allow(
    rustdoc::broken_intra_doc_links,
    rustdoc::bare_urls,
    reason = "descriptions of options are what help prints"
)]

mod bench_serve;
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

use crate::build;
use crate::chat::flags::ChatArgs;
use crate::log::LogArgs;
use crate::lora::Lora;
use crate::settings::{EngineArgs, Flags, SampleArgs};

pub(crate) use bench_serve::*;
pub(crate) use encoders::*;
pub(crate) use help::command;
pub(crate) use models::*;
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
    /// Show the models of a running server
    Ps(Ps),
    /// Unload a model of a running server
    Stop(Stop),
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
    /// Pack a model's weights for the CPU once, so that it loads at once
    Pack(Pack),
    /// Show devices, what a model would take, and where each setting comes from
    Doctor(Doctor),
    /// Measure speed: prefill and decode, in tokens per second
    #[command(alias = "benchmark")]
    Bench(Bench),
    /// Repeat answers of a server from their receipts, and compare them
    Replay(Replay),
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
    /// Take a model's output apart: reasoning, content and tool calls, as JSON
    Parse(Parse),
    /// Check what of a JSON Schema or a grammar is enforced, and texts against it
    Schema(Schema),
    /// Measure perplexity: how well a model predicts a text
    Perplexity(Perplexity),
    /// Compute an importance matrix (imatrix) from a calibration text, for `convert`
    Imatrix(Imatrix),
    /// Write the logits and hidden states of one forward pass, for comparisons
    Dump(Dump),
    /// Print a completion script for a shell
    Completions(Completions),
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
    /// Hold the answer to a JSON Schema: a file, or the schema itself
    ///
    /// {} is any JSON. A keyword that cannot be enforced is an error.
    #[arg(short = 'j', long, value_name = "SCHEMA", aliases = ["json-schema-file", "jf"])]
    #[arg(conflicts_with_all = ["grammar", "regex"])]
    pub json_schema: Option<String>,
    /// Hold the answer to a grammar: a file, or the grammar itself
    ///
    /// In llama.cpp's notation (GBNF) or in that of Lark.
    #[arg(long, value_name = "GRAMMAR", alias = "grammar-file", conflicts_with = "regex")]
    pub grammar: Option<String>,
    /// Hold the answer to a regular expression
    #[arg(long, value_name = "REGEX")]
    pub regex: Option<String>,
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

#[derive(Clone, Debug, Args)]
pub(crate) struct Serve {
    /// The model, or several [default: demo]
    ///
    /// Several are loaded as far as they fit into the memory together. The others are loaded when a request names them, in
    /// place of those that have not been used for the longest time.
    #[arg(value_name = "MODEL")]
    pub model: Vec<String>,
    /// File of models to serve, with settings for each
    ///
    /// In TOML, like the configuration file: a table [models."NAME"] for each, with `model` where NAME is one of your own,
    /// `context`, `slots`, `pinned` and so on.
    #[arg(long = "models", value_name = "FILE", conflicts_with = "model")]
    pub models_file: Option<PathBuf>,
    /// Load any downloaded model that a request names
    #[arg(long)]
    pub on_demand: bool,
    /// Unload models that are idle for so long, in seconds
    ///
    /// They are loaded again for the next request that needs them.
    #[arg(long, value_name = "SECONDS")]
    pub keep_alive: Option<u64>,
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
    /// Keep the prefix cache in this folder, for the next start
    ///
    /// What was computed of prompts and answers is saved there, and found again after a restart with the same model,
    /// program and settings. The folder is made if it is not there. It holds what clients have asked, readable by nobody
    /// else; one server at a time uses it.
    #[arg(long, value_name = "DIR")]
    pub cache_disk: Option<String>,
    /// Most that this folder may take, in MiB [default: 8192]
    ///
    /// What was not used for the longest time is removed first.
    #[arg(long, value_name = "MIB")]
    pub cache_disk_size: Option<u64>,
    /// Host memory for pages that a GPU evicts, in MiB
    ///
    /// They are loaded from there in place of being computed again. On the CPU the cache is in that memory already, and this is
    /// ignored with a warning. With --cache-disk it comes first.
    #[arg(long, value_name = "MIB", alias = "cram")]
    pub cache_ram: Option<u64>,
    /// Sliding-window layers keep K and V of all tokens
    ///
    /// Else they keep those that their windows can still reach, and some more for prompts with a common beginning, in a part
    /// of the memory. Then a prompt that leaves an earlier one far from its end is computed again from its start. Always so
    /// with --cache-ram and --cache-disk.
    #[arg(long)]
    pub swa_full: bool,
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
    /// Write what repeats each answer to a file in this folder
    ///
    /// A line of JSON for each: model, program, tokens of the prompt, seed and settings, and the answer. `tallow replay` repeats
    /// them. They have all that was asked and answered.
    #[arg(long, value_name = "DIR")]
    pub receipts: Option<PathBuf>,
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
    /// File of a chat template, in place of the model's own
    ///
    /// In Jinja, as models have it.
    #[arg(long, value_name = "FILE", alias = "chat-template-file")]
    pub chat_template: Option<PathBuf>,
    /// Format of tool calls: hermes, mistral, …
    ///
    /// Otherwise it is that which the chat template shows. `tallow parse` lists them.
    #[arg(long, value_name = "NAME", alias = "tool-call-parser")]
    pub tool_format: Option<String>,
    /// Let clients download and remove models
    ///
    /// By Ollama's /api/pull and /api/delete: from the hub, to the cache that other programs that use it share.
    #[arg(long)]
    pub allow_pull: bool,
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

impl Serve {
    /// Flags that determine its engine configuration.
    pub(crate) fn flags(&self) -> Flags {
        let (engine, sampling) = (self.engine.clone(), self.sampling.clone());
        let (slots, queue, queue_timeout) = (self.slots, self.queue, self.queue_timeout);
        Flags { engine, sampling, slots, queue, queue_timeout }
    }
}
