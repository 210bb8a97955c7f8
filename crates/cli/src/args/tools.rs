//! Commands that measure and inspect.

use std::num::NonZero;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tallow_models::recipe::Recipe;

use super::bench_serve::BenchCommand;
use crate::devices::{Arithmetic, DeviceChoice, Numa};
use crate::lora::Lora;
use crate::model_name::DEMO;
use crate::settings::{DeviceArgs, EngineArgs, KV, SampleArgs};

/// Output format of a table.
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
    /// SQL statements
    Sql,
}

/// Prompt and generated tokens that are measured together (`--pg`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PromptAndAnswer(pub usize, pub usize);

impl std::str::FromStr for PromptAndAnswer {
    type Err = String;

    fn from_str(text: &str) -> Result<PromptAndAnswer, String> {
        let both =
            text.split_once(',').and_then(|(p, g)| Some((p.trim().parse().ok()?, g.trim().parse().ok()?)));
        both.map(|(p, g)| PromptAndAnswer(p, g))
            .ok_or_else(|| "two counts are expected, such as 512,128".into())
    }
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// The models [default: demo]
    #[arg(value_name = "MODEL", value_delimiter = ',')]
    pub model: Vec<String>,
    /// Measure random weights in the shape of a config.json
    ///
    /// A config.json of a decoder on the Hugging Face hub, or a folder with one. --quant gives the weights' type [default: bf16].
    /// Weights of one type repeat the same bytes, so that few are made; speed does not depend on their values.
    #[arg(long, value_name = "CONFIG", conflicts_with = "model")]
    pub like: Option<PathBuf>,
    /// Prompt tokens to measure (prefill)
    #[arg(short = 'p', long, value_name = "N", value_delimiter = ',', default_value = "512")]
    pub n_prompt: Vec<usize>,
    /// Tokens to generate and measure (decode)
    #[arg(short = 'n', long, value_name = "N", value_delimiter = ',', default_value = "128")]
    pub n_gen: Vec<usize>,
    /// Prompt and answer measured together: N,N
    ///
    /// May be given several times.
    #[arg(long, value_name = "N,N")]
    pub pg: Vec<PromptAndAnswer>,
    /// Tokens in the KV cache beforehand
    #[arg(short = 'd', long, value_name = "N", value_delimiter = ',', default_value = "0")]
    pub n_depth: Vec<usize>,
    /// Sequences computed side by side, each with so many tokens
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub sequences: Vec<usize>,
    /// Batch size: most tokens computed in one step [default: 512]
    #[arg(short = 'b', long = "batch-size", value_name = "N", value_delimiter = ',')]
    #[arg(aliases = ["batch", "n-batch"])]
    pub n_batch: Vec<usize>,
    /// The same: where both are given, the smaller number counts
    #[arg(long = "ubatch-size", value_name = "N", value_delimiter = ',', aliases = ["ub", "ubatch"])]
    pub n_ubatch: Vec<usize>,
    /// Fused attention, which is always on: 0 is refused
    #[arg(long = "flash-attn", value_name = "SWITCH", alias = "fa")]
    pub flash_attn: Option<String>,
    /// Layers on the GPU: all or none
    ///
    /// There is no partial offload: 0 is --device cpu, as many layers as the model has or more are --device auto.
    #[arg(long = "n-gpu-layers", value_name = "N", aliases = ["ngl", "gpu-layers"])]
    pub gpu_layers: Option<usize>,
    /// auto, cpu, vulkan, vulkan:1, metal, cuda, … [default: auto]
    ///
    /// Device to run on. auto takes the GPU with the most free memory if the model fits there, else the CPU.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,
    /// CPU threads [default: the CPU's cores]
    #[arg(short = 't', long, value_name = "N", value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// Data type of the KV cache: f32, f16, bf16, int8, fp8 [default: f16]
    ///
    /// The default is bf16 where --isa is amx or avx512bf16, and f32 with --arithmetic exact.
    #[arg(long, value_name = "TYPE", value_delimiter = ',', aliases = KV)]
    pub kv: Vec<String>,
    /// Memory nodes: auto or off [default: auto]
    ///
    /// With auto, on machines with several memory nodes (NUMA) each CPU thread stays on one, and reads weights that lie there.
    #[arg(long, value_name = "HOW")]
    pub numa: Option<Numa>,
    /// CPU instruction set [default: the best there is]
    ///
    /// scalar, neon, i8mm, avx2, avxvnni, avx512, avx512bf16 or amx.
    #[arg(long, value_name = "NAME")]
    pub isa: Option<String>,
    /// Arithmetic: fast or exact [default: fast]
    #[arg(long, value_name = "HOW")]
    pub arithmetic: Option<Arithmetic>,
    /// Repetitions of each measurement
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5)]
    pub repetitions: usize,
    /// Output format: md, csv, json, jsonl or sql
    ///
    /// A Markdown table, comma-separated values, one JSON array, one JSON object per line, or SQL statements.
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "md", hide_possible_values = true)]
    pub output: Table,
    /// Measure with a LoRA adapter, too: PATH or PATH:SCALE
    ///
    /// A PEFT folder or a GGUF file. May be given several times; sequences take one each in turn.
    #[arg(long, value_name = "ADAPTER")]
    pub lora: Vec<Lora>,
    /// Show the ops of a step, and which have kernels of their own
    #[arg(long, conflicts_with = "lora")]
    pub explain: bool,
    /// With --explain: where the time of a step goes, op by op
    ///
    /// Also after --n-depth tokens. "One thread": what a single thread computes while the others have nothing to do. "Waiting":
    /// time in which threads wait for others at the end of an op. Not for GPUs, which compute ops after they are launched.
    #[arg(long, requires = "explain")]
    pub time: bool,
    /// Measure the machine, without a model
    ///
    /// Half a minute: read speed, and products of random weights with one row, 8 and 512, on one thread and on all, as parts of
    /// what the machine can do. Says what stands out; the output can be pasted into an issue.
    #[arg(long, conflicts_with_all = ["model", "like", "n_prompt", "n_gen", "pg", "n_depth", "sequences", "n_batch", "n_ubatch"])]
    #[arg(conflicts_with_all = ["gpu_layers", "kv", "output", "lora", "explain", "quant"])]
    pub self_check: bool,
    /// Quantize F32/F16/BF16 weights on load: q4_k_m, q8_0, …
    ///
    /// Weights that are quantized already are left alone.
    #[arg(long, value_name = "TYPE")]
    pub quant: Option<Recipe>,
    /// On the CPU, map packed weights from disk; pack them first
    #[arg(long)]
    pub mmap: bool,
    /// Use only models that are already downloaded
    #[arg(long)]
    pub offline: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Show what running this model would take
    pub model: Option<String>,
    /// Test every op on every device, for a bug report (minutes)
    ///
    /// Prints what to send with a report of a GPU that does something wrong.
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
pub(crate) struct Parse {
    /// Tool-call format: hermes, mistral, … [default: list them]
    ///
    /// The way in which a family of models writes reasoning and tool calls.
    #[arg(long, value_name = "NAME")]
    pub tool_format: Option<String>,
    /// The tools: a JSON file, as in OpenAI's API
    ///
    /// What names none of them is no call, and their types say how arguments are read that are written as plain text.
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// The end of the prompt, which may have opened the reasoning
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// Print the deltas of a stream, N characters at a time
    #[arg(long, value_name = "N")]
    pub stream: Option<NonZero<usize>>,
}

#[derive(Debug, Args)]
pub(crate) struct Schema {
    /// A JSON Schema, a grammar (GBNF, Lark) or a regular expression, in a file
    pub file: PathBuf,
    /// Files of texts to check: would the model be let write them?
    ///
    /// One end of line at the end of a file is no part of its text. - is standard input.
    pub instance: Vec<PathBuf>,
    /// The model whose tokens the texts have
    #[arg(short = 'm', long, value_name = "MODEL", default_value = DEMO)]
    pub model: String,
    /// The kind of the file [default: by its name and its text]
    #[arg(long, value_name = "KIND", value_enum)]
    pub kind: Option<GrammarKind>,
    /// Leave out keywords that cannot be enforced, instead of refusing the schema
    #[arg(long)]
    pub best_effort: bool,
    /// Use only what is on this machine
    #[arg(long)]
    pub offline: bool,
}

/// A notation for what a text may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GrammarKind {
    /// JSON Schema.
    Json,
    /// llama.cpp's notation of grammars.
    Gbnf,
    /// Lark's notation of grammars.
    Lark,
    /// A regular expression.
    Regex,
}

#[derive(Debug, Args)]
pub(crate) struct Tokenize {
    /// The model
    pub model: String,
    /// The text [default: standard input]
    pub text: Vec<String>,
    /// Print only the token ids, as a JSON list
    #[arg(long)]
    pub ids: bool,
    /// Add the tokens that the model expects around a text (BOS, EOS)
    #[arg(long)]
    pub special: bool,
    /// Read special tokens in the text as what they stand for
    #[arg(long)]
    pub parse_special: bool,
    /// Read token ids and show their text
    #[arg(long, short, alias = "detokenize")]
    pub decode: bool,
    /// Use only models that are already downloaded
    #[arg(long)]
    pub offline: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Perplexity {
    /// The model
    pub model: String,
    /// The text file
    pub file: PathBuf,
    /// Chunk size in tokens [default: 512]
    ///
    /// The text is scored in chunks; each chunk starts with an empty context.
    #[arg(short = 'c', long, value_name = "TOKENS", aliases = ["ctx-size", "ctx", "chunk-size"])]
    pub context: Option<usize>,
    /// Most chunks to compute [default: the whole text]
    #[arg(long, value_name = "N")]
    pub chunks: Option<usize>,
    /// Data type of the KV cache: f32, f16, bf16, int8, fp8
    #[arg(long, value_name = "TYPE", default_value = "f32", aliases = KV)]
    pub kv: String,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Imatrix {
    /// The model
    pub model: String,
    /// Calibration text: some 100,000 tokens of what the model is for
    pub file: PathBuf,
    /// GGUF file to write; .dat for the older format
    #[arg(short = 'o', long, value_name = "FILE", default_value = "imatrix.gguf")]
    pub output: PathBuf,
    /// Chunk size in tokens [default: 512]
    ///
    /// Each chunk starts with an empty context; an incomplete last chunk is left out.
    #[arg(short = 'c', long, value_name = "TOKENS", aliases = ["ctx-size", "ctx", "chunk-size"])]
    pub context: Option<usize>,
    /// Most chunks to compute [default: the whole text]
    #[arg(long, value_name = "N", alias = "goes")]
    pub chunks: Option<usize>,
    /// Overwrite the output file if it exists
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Dump {
    /// The model
    pub model: String,
    /// safetensors file with the inputs
    ///
    /// `input_ids`, or several of them as `NAME.input_ids`, and what else a model takes: `attention_mask`,
    /// `token_type_ids`, `pixel_values`, `input_features`, `decoder_input_ids`.
    #[arg(long = "in", value_name = "FILE")]
    pub input: PathBuf,
    /// safetensors file to write
    ///
    /// `logits` of every token, and the hidden states `hidden0`, `hidden1`, …; of encoders their embeddings, scores and
    /// `pooler_output`, too.
    #[arg(long = "out", value_name = "FILE")]
    pub output: PathBuf,
    /// Overwrite the output file if it exists
    #[arg(long)]
    pub force: bool,
    /// Data type of the KV cache; all else is f32
    #[arg(long = "kv", value_name = "TYPE", default_value = "f32", alias = "precision", aliases = KV)]
    pub precision: String,
    /// Leave out the hidden states
    #[arg(long)]
    pub only_logits: bool,
    /// LoRA adapter: PATH or PATH:SCALE, a PEFT folder or a GGUF file
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

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// Files that `tallow serve --receipts` has written, or folders of them
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The model [default: as its receipts name it]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// LoRA adapter: [NAME=]PATH[:SCALE]; may be given several times
    #[arg(long, value_name = "ADAPTER")]
    pub lora: Vec<Lora>,
    /// Write JSON: a line for each answer
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub engine: EngineArgs,
}
