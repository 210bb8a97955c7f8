//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use tallow_cpu::Arithmetic;
use tallow_models::recipe::Recipe;

use crate::build;
use crate::device::Asked;
use crate::log::LogArgs;
use crate::lora::Lora;

/// Runs and serves language models, on whatever hardware there is.
#[derive(Debug, Parser)]
#[command(name = "tallow", version = build::VERSION, about, max_term_width = 100, arg_required_else_help = true)]
#[command(
    after_help = "MODEL is a path (a GGUF file or a Hugging Face folder), a name on the hub (org/name or \
    org/name:quant), an alias (see `tallow list --aliases`), or `demo`, which is part of the program."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// The configuration file [default: tallow/config.toml in the configuration folder]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Chat with a model, or have it answer one prompt
    Run(Run),
    /// Serve a model over HTTP, as OpenAI's API
    Serve(Serve),
    /// Measure how fast a model runs
    Bench(Bench),
    /// Download a model
    Pull(Pull),
    /// List the models that are on this machine
    List(List),
    /// Remove a downloaded model
    Rm(Rm),
    /// Show what a model is
    Show(Show),
    /// Write a model as a GGUF file, perhaps quantized
    Convert(Convert),
    /// Show what this machine has, and where each setting comes from
    Doctor(Doctor),
    /// Make vectors of texts
    Embed(Embed),
    /// Sort documents by how well they answer a query
    Rerank(Rerank),
    /// Write what is said in a sound file
    Transcribe(Transcribe),
    /// Show the tokens of a text
    Tokenize(Tokenize),
    /// Measure how well a model predicts a text
    Perplexity(Perplexity),
    /// Measure on a text which inputs of a model's layers are large, for `convert --imatrix`
    Imatrix(Imatrix),
    /// Run one forward pass on given inputs and write down what comes out
    Dump(Dump),
    /// Print a script that completes commands in a shell
    Completions(Completions),
}

/// How the engine is set up.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Tokens of a conversation, prompt and answer [default: what the model was made for, up to 8192]
    #[arg(short = 'c', long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// What keys and values are kept as: f32, f16, bf16, int8 or fp8 [default: bf16 on a CPU with amx, else f16]
    #[arg(long, value_name = "TYPE")]
    pub kv: Option<String>,
    /// Where to run: auto, cpu, vulkan, vulkan:1, metal, … [default: auto: the best GPU with room, else the CPU]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<Asked>,
    /// Threads of the CPU [default: the CPU's cores]
    #[arg(short = 't', long, value_name = "N")]
    pub threads: Option<usize>,
    /// The CPU's instruction set to use: scalar, neon, avx2, avxvnni, avx512 or amx [default: the best]
    #[arg(long, value_name = "NAME")]
    pub isa: Option<String>,
    /// How the CPU multiplies: fast, or exact for comparisons, which is several times slower [default: fast]
    #[arg(long, value_name = "HOW")]
    pub arithmetic: Option<Arithmetic>,
    /// Tokens computed in a step [default: 256, fewer while a server's answers are under way]
    #[arg(long, value_name = "TOKENS")]
    pub batch: Option<usize>,
    /// Quantize plain weights while they are loaded: q4_k_m, q8_0, … [default: leave them as they are]
    #[arg(long, value_name = "TYPE")]
    pub quant: Option<Recipe>,
    /// Never ask the hub
    #[arg(long)]
    pub offline: bool,
}

/// How tokens are chosen.
#[derive(Debug, Clone, Default, PartialEq, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SampleArgs {
    /// Tokens of an answer at most [default: as many as fit]
    #[arg(short = 'n', long, value_name = "TOKENS")]
    pub max_tokens: Option<usize>,
    /// 0 takes the most likely token always [default: the model's, else 0.8]
    #[arg(long, value_name = "X")]
    pub temperature: Option<f32>,
    /// Only the so many most likely tokens; 0 for all [default: the model's, else 40]
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Only the most likely tokens that together have this much [default: the model's, else 0.95]
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Only tokens at least this likely in proportion to the most likely [default: the model's, else 0.05]
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Only tokens of usual surprise that together have this much [default: the model's, else 1: all]
    #[arg(long, value_name = "P")]
    pub typical_p: Option<f32>,
    /// Makes tokens that were there less likely [default: the model's, else 1: it does not]
    #[arg(long, value_name = "X")]
    pub repetition_penalty: Option<f32>,
    /// Taken from tokens that were generated [default: 0]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub presence_penalty: Option<f32>,
    /// Taken from tokens for each time they were generated [default: 0]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub frequency_penalty: Option<f32>,
    /// The same seed gives the same answer [default: another each time]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The model [default: demo]
    pub model: Option<String>,
    /// What to say to it. Without it: a chat on a terminal, else what comes through standard input
    pub prompt: Vec<String>,
    /// What the model is told before anything else
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Give the model the prompt as it is, without the chat template
    #[arg(long)]
    pub raw: bool,
    /// Show how fast it went: `-v`, which every command has.
    #[arg(skip)]
    pub verbose: bool,
    /// An adapter of the model: a folder that PEFT wrote or a GGUF file, as PATH or PATH:SCALE
    #[arg(long, value_name = "ADAPTER")]
    pub lora: Option<Lora>,
    #[command(flatten)]
    pub sampling: SampleArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The model [default: demo]
    pub model: Option<String>,
    /// The address to listen on; 0.0.0.0 for all of the machine's [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
    /// The port; 0 for any that is free [default: 8080]
    #[arg(short, long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Requests served at once [default: 8]
    #[arg(long, value_name = "N")]
    pub slots: Option<usize>,
    /// Requests that may wait for a slot [default: 256]
    #[arg(long, value_name = "N")]
    pub queue: Option<usize>,
    /// Another name for the model; may be given several times
    #[arg(long, value_name = "NAME")]
    pub alias: Vec<String>,
    /// An adapter that requests may name in place of the model: a folder that PEFT wrote or a GGUF file, as PATH,
    /// NAME=PATH or NAME=PATH:SCALE; may be given several times
    #[arg(long, value_name = "ADAPTER")]
    pub lora: Vec<Lora>,
    /// Let clients load and unload adapters that lie beneath this folder
    #[arg(long, value_name = "DIR")]
    pub lora_dir: Option<PathBuf>,
    /// Memory that adapters loaded by clients may take, in MiB [default: 512 with --lora-dir]
    #[arg(long, value_name = "MIB", requires = "lora_dir")]
    pub lora_memory: Option<usize>,
    /// A file with the keys that clients must give, one a line
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// A name by which clients may reach this server, besides localhost; may be given several times
    #[arg(long, value_name = "HOST")]
    pub allow_host: Vec<String>,
    /// A web origin whose pages may use this server; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    pub allow_origin: Vec<String>,
    /// Let requests pass arguments to the chat template
    #[arg(long)]
    pub allow_template_kwargs: bool,
    /// Ask for a key on /health and /ready too, which are open otherwise
    #[arg(long)]
    pub private_health: bool,
    /// Memory that all requests may hold together, in MiB: bodies, prompts and answers that are not sent yet [default: 512]
    #[arg(long, value_name = "MIB")]
    pub max_memory_in_flight: Option<usize>,
    /// Connections at one time; for more, the one that has been idle longest is closed [default: 4096]
    #[arg(long, value_name = "N")]
    pub max_connections: Option<usize>,
    /// Connections of one address at one time [default: half of --max-connections]
    #[arg(long, value_name = "N")]
    pub max_connections_per_address: Option<usize>,
    /// Seconds that answers may take to finish when the server is told to stop [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub drain: Option<u64>,
    #[command(flatten)]
    pub sampling: SampleArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// How a table is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Table {
    /// Markdown
    Md,
    /// Comma-separated values
    Csv,
    /// One array
    Json,
    /// One object a line
    Jsonl,
}

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// The model; may be given several times [default: demo]
    #[arg(short = 'm', long = "model", value_name = "MODEL", value_delimiter = ',')]
    pub model: Vec<String>,
    /// Tokens of a prompt to measure
    #[arg(short = 'p', long, value_name = "N", value_delimiter = ',', default_value = "512")]
    pub n_prompt: Vec<usize>,
    /// Tokens to generate and measure
    #[arg(short = 'n', long, value_name = "N", value_delimiter = ',', default_value = "128")]
    pub n_gen: Vec<usize>,
    /// Tokens that the cache holds before it begins
    #[arg(short = 'd', long, value_name = "N", value_delimiter = ',', default_value = "0")]
    pub n_depth: Vec<usize>,
    /// Sequences that are computed side by side, each with so many tokens
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub sequences: Vec<usize>,
    /// Tokens computed in a step
    #[arg(short = 'b', long = "batch-size", value_name = "N", value_delimiter = ',', default_value = "512")]
    pub n_batch: Vec<usize>,
    /// Where to run: auto, cpu, vulkan, vulkan:1, metal, … [default: auto: the best GPU with room, else the CPU]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<Asked>,
    /// Threads of the CPU [default: the CPU's cores]
    #[arg(short = 't', long, value_name = "N", value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// What keys, and values, are kept as: f32, f16, bf16, int8 or fp8 [default: bf16 on a CPU with amx, else f16]
    #[arg(long = "cache-type-k", visible_alias = "kv", value_name = "TYPE")]
    pub kv: Option<String>,
    /// The CPU's instruction set to use [default: the best]
    #[arg(long, value_name = "NAME")]
    pub isa: Option<String>,
    /// How the CPU multiplies: fast or exact [default: fast]
    #[arg(long, value_name = "HOW")]
    pub arithmetic: Option<Arithmetic>,
    /// How often to measure
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5)]
    pub repetitions: usize,
    /// How to write the results
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "md")]
    pub output: Table,
    /// Measure with an adapter too: a folder that PEFT wrote or a GGUF file, as PATH or PATH:SCALE. Of several,
    /// sequences take one each in turn
    #[arg(long, value_name = "ADAPTER")]
    pub lora: Vec<Lora>,
    /// Show the ops that a step is made of, and which of them the device has kernels for
    #[arg(long, conflicts_with = "lora")]
    pub explain: bool,
    /// Quantize plain weights while they are loaded: q4_k_m, q8_0, … [default: leave them as they are]
    #[arg(long, value_name = "TYPE")]
    pub quant: Option<Recipe>,
    /// Never ask the hub
    #[arg(long)]
    pub offline: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Pull {
    /// org/name, org/name:quant, org/name@revision, or an alias
    pub model: String,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// List the short names instead
    #[arg(long)]
    pub aliases: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// As `tallow list` shows it
    pub model: String,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The model
    pub model: String,
    /// The chat template, in full
    #[arg(long)]
    pub template: bool,
    /// Every tensor
    #[arg(long)]
    pub tensors: bool,
    /// Every key of the metadata
    #[arg(long)]
    pub metadata: bool,
    /// Never ask the hub
    #[arg(long)]
    pub offline: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Convert {
    /// The model: a Hugging Face folder or a GGUF file
    #[arg(value_name = "IN")]
    pub model: String,
    /// The GGUF file to write
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// Quantize plain weights: q4_k_m, q8_0, … [default: leave them as they are]
    #[arg(long, value_name = "TYPE")]
    pub quant: Option<Recipe>,
    /// What `tallow imatrix` or another program measured of the model's inputs: what multiplies large ones is kept more exactly
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Replace a file that is there already
    #[arg(long)]
    pub force: bool,
    /// Never ask the hub
    #[arg(long)]
    pub offline: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Show what running this model would take
    pub model: Option<String>,
    /// Test every op on every device, and print what to send with a report of how that went (takes minutes)
    #[arg(long)]
    pub report: bool,
    /// Print every command, flag, setting and variable, as Markdown
    #[arg(long, exclusive = true)]
    pub reference: bool,
    #[command(flatten)]
    pub sampling: SampleArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Tokenize {
    /// The model
    pub model: String,
    /// The text [default: what comes through standard input]
    pub text: Vec<String>,
    /// Only the numbers, as a JSON list
    #[arg(long)]
    pub ids: bool,
    /// Add the tokens that the model expects around a text
    #[arg(long)]
    pub special: bool,
    /// Read special tokens that are written in the text as what they stand for
    #[arg(long)]
    pub parse_special: bool,
    /// Read numbers and show the text they stand for
    #[arg(long, short)]
    pub decode: bool,
    /// Never ask the hub
    #[arg(long)]
    pub offline: bool,
}

/// What a command without an engine runs on.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct DeviceArgs {
    /// Where to run: auto, cpu, vulkan, vulkan:1, metal, … [default: auto: the best GPU with room, else the CPU]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<Asked>,
    /// Threads of the CPU [default: the CPU's cores]
    #[arg(short = 't', long, value_name = "N")]
    pub threads: Option<usize>,
    /// The CPU's instruction set to use [default: the best]
    #[arg(long, value_name = "NAME")]
    pub isa: Option<String>,
    /// How the CPU multiplies: fast or exact [default: fast; dump: exact]
    #[arg(long, value_name = "HOW")]
    pub arithmetic: Option<Arithmetic>,
    /// Quantize plain weights while they are loaded: q4_k_m, q8_0, … [default: leave them as they are]
    #[arg(long, value_name = "TYPE")]
    pub quant: Option<Recipe>,
    /// Never ask the hub
    #[arg(long)]
    pub offline: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Embed {
    /// The model: an encoder
    #[arg(short, long, value_name = "MODEL")]
    pub model: String,
    /// The texts [default: the lines of standard input, unless there are images]
    pub text: Vec<String>,
    /// An image file, for models that see images; may be given several times. Images come behind the texts
    #[arg(short, long = "image", value_name = "FILE")]
    pub images: Vec<PathBuf>,
    /// How well each text goes with each image, in place of vectors, by models that were trained for it
    #[arg(long = "match", requires = "images", conflicts_with = "dimensions")]
    pub matching: bool,
    /// Only the first so many numbers of each vector, for models that were trained for it
    #[arg(long, value_name = "N")]
    pub dimensions: Option<usize>,
    /// Leave out the end of texts that are too long
    #[arg(long)]
    pub truncate: bool,
    /// As JSON: an object a line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Rerank {
    /// The model: a reranker
    #[arg(short, long, value_name = "MODEL")]
    pub model: String,
    /// What is asked
    pub query: String,
    /// The documents [default: the lines of standard input]
    pub documents: Vec<String>,
    /// Only the best so many
    #[arg(short = 'n', long, value_name = "N")]
    pub top_n: Option<usize>,
    /// Refuse documents that are too long, rather than leaving out their end
    #[arg(long)]
    pub no_truncate: bool,
    /// As JSON: an object a line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// How what was said is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transcript {
    /// The words alone
    Text,
    /// The words in an object
    Json,
    /// All that is known of each piece
    VerboseJson,
    /// Subtitles
    Srt,
    /// Subtitles for the web
    Vtt,
}

/// What is written of what was said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wanted {
    /// What was said, as it was said
    Transcribe,
    /// What was said, in English
    Translate,
}

#[derive(Debug, Args)]
pub(crate) struct Transcribe {
    /// The model: one of speech
    #[arg(short, long, value_name = "MODEL")]
    pub model: String,
    /// The sound: WAV, FLAC or MP3
    pub file: PathBuf,
    /// The language that is spoken: en, de, german, … [default: what the model hears in the first half minute]
    #[arg(long, value_name = "NAME")]
    pub language: Option<String>,
    /// What to write
    #[arg(long, value_name = "TASK", default_value = "transcribe")]
    pub task: Wanted,
    /// How to write it
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Transcript,
    /// With --format text: write when each piece was said
    #[arg(long)]
    pub timestamps: bool,
    /// A text that could have come before, with names as they are to be written
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prompt: String,
    /// 0 takes the most likely token unless that goes wrong; above, tokens are drawn
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub temperature: f32,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Perplexity {
    /// The model
    pub model: String,
    /// The text
    pub file: PathBuf,
    /// Tokens that are scored in a go; each go begins anew
    #[arg(short = 'c', long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// What keys and values are kept as
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub kv: String,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Imatrix {
    /// The model
    pub model: String,
    /// The text: some hundred thousand tokens of what the model is for
    pub file: PathBuf,
    /// The file to write: a GGUF file, or one of the older kind if it ends with .dat
    #[arg(short = 'o', long, value_name = "FILE", default_value = "imatrix.gguf")]
    pub output: PathBuf,
    /// Tokens that the model looks at in a go; each go begins anew, and what is left over is left out
    #[arg(short = 'c', long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// How many goes at most [default: the whole text]
    #[arg(long, value_name = "N")]
    pub goes: Option<usize>,
    /// Replace a file that is there already
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Dump {
    /// The model
    pub model: String,
    /// safetensors file with `input_ids`, or with several of them as `NAME.input_ids`, and what else a model takes:
    /// `attention_mask`, `token_type_ids`, `pixel_values`, `input_features`, `decoder_input_ids`
    #[arg(long = "in", value_name = "FILE")]
    pub input: PathBuf,
    /// safetensors file to write: `logits` of every token, `hidden0`, `hidden1`, …; of encoders their vectors, too
    #[arg(long = "out", value_name = "FILE")]
    pub output: PathBuf,
    /// What keys and values are kept as; everything else is f32
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub precision: String,
    /// Leave out the hidden states
    #[arg(long)]
    pub only_logits: bool,
    /// An adapter of the model: a folder that PEFT wrote or a GGUF file, as PATH or PATH:SCALE
    #[arg(long, value_name = "ADAPTER")]
    pub lora: Option<Lora>,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}
