//! Flags that are settings, which several commands have.

#![allow(
    rustdoc::broken_intra_doc_links,
    rustdoc::bare_urls,
    reason = "descriptions of options are what help prints"
)]

use clap::Args;
use tallow_models::recipe::Recipe;

use super::Speculative;
use super::sources::{Seed, reason};
use crate::devices::{Arithmetic, DeviceChoice, Numa};

/// Flags that determine the engine configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    pub engine: EngineArgs,
    pub sampling: SampleArgs,
    pub slots: Option<usize>,
    pub queue: Option<usize>,
    pub queue_timeout: Option<u64>,
}

/// Settings of the engine.
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
    /// int8 and fp8 take half the memory. The default is bf16 where --isa is amx or avx512bf16, and f32 with --arithmetic exact.
    #[arg(long, value_name = "TYPE", aliases = KV)]
    pub kv: Option<String>,
    /// auto, cpu, vulkan, vulkan:1, metal, cuda, … [default: auto]
    ///
    /// Device to run on. auto takes the GPU with the most free memory if the model fits there, else the CPU. There is no
    /// partial offload: a model runs on one device.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,
    /// CPU threads [default: the CPU's cores]
    #[arg(short = 't', long, value_name = "N")]
    pub threads: Option<usize>,
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
    /// Arithmetic: fast, or exact for comparisons [default: fast]
    ///
    /// exact multiplies in f32 without rounding the activations to 8 bits, and is several times slower on a CPU. GPUs always do. The
    /// KV cache is f32 then, unless --kv says otherwise.
    #[arg(long, value_name = "HOW")]
    pub arithmetic: Option<Arithmetic>,
    /// Batch size: most tokens computed in one step [default: 256]
    ///
    /// Prompts are computed (prefilled) in steps of this many tokens. A server takes fewer while it decodes answers.
    #[arg(short = 'b', long, value_name = "TOKENS", aliases = BATCH)]
    pub batch: Option<usize>,
    /// Speculative decoding: auto, ngram or off [default: auto]
    ///
    /// Tokens are guessed and computed along with the next one, where that is faster by the measured cost of a step. The
    /// answers are the same. ngram guesses those that followed the same tokens before; auto also asks the draft model, or the
    /// model's own MTP layer if its files have one.
    #[arg(long, value_name = "HOW", aliases = ["spec-type"])]
    pub speculative: Option<Speculative>,
    /// Draft model: smaller, with the same vocabulary
    ///
    /// It guesses tokens, which are computed along with the next one where that is faster by the measured cost of a step.
    /// The answers are the same.
    #[arg(long, value_name = "MODEL", aliases = ["model-draft", "draft-model"])]
    pub draft: Option<String>,
    /// Quantize F32/F16/BF16 weights on load: q4_k_m, q8_0, …
    ///
    /// Weights that are quantized already are left alone.
    #[arg(long, value_name = "TYPE")]
    pub quant: Option<Recipe>,
    /// On the CPU, map packed weights from disk; pack them first
    ///
    /// They are written when they are missing (see `tallow pack`), and take as much of the disk as the model. Loading is instant
    /// then, and a model that is larger than the memory runs, too: mixtures of experts best. For models that generate text.
    #[arg(long)]
    pub mmap: bool,
    /// Use only models that are already downloaded
    #[arg(long)]
    pub offline: bool,
}

/// Aliases of `--context` from other programs.
const CONTEXT: [&str; 7] =
    ["ctx-size", "ctx", "n-ctx", "num-ctx", "context-size", "context-length", "max-model-len"];
/// Aliases of `--kv` from other programs.
pub(crate) const KV: [&str; 5] = ["cache-type-k", "ctk", "cache-type", "kv-cache-dtype", "kv-cache-type"];
/// Aliases of `--batch` from other programs.
const BATCH: [&str; 3] = ["batch-size", "n-batch", "max-num-batched-tokens"];

/// Sampling settings.
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
        text => text.parse().map_err(|why| reason(&why)),
    }
}

/// Parses `--seed`.
fn seed(text: &str) -> Result<u64, String> {
    text.parse().map(|Seed(seed)| seed)
}

/// Device and threads of a command without an engine.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct DeviceArgs {
    /// auto, cpu, vulkan, vulkan:1, metal, cuda, … [default: auto]
    ///
    /// Device to run on. auto takes the GPU with the most free memory if the model fits there, else the CPU.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,
    /// CPU threads [default: the CPU's cores]
    #[arg(short = 't', long, value_name = "N")]
    pub threads: Option<usize>,
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
    /// Arithmetic: fast or exact [default: fast; dump: exact]
    #[arg(long, value_name = "HOW")]
    pub arithmetic: Option<Arithmetic>,
    /// Quantize F32/F16/BF16 weights on load: q4_k_m, q8_0, …
    ///
    /// Weights that are quantized already are left alone.
    #[arg(long, value_name = "TYPE")]
    pub quant: Option<Recipe>,
    /// On the CPU, map packed weights from disk; pack them first
    ///
    /// They are written when they are missing (see `tallow pack`), and take as much of the disk as the model. Loading is instant
    /// then, and a model that is larger than the memory runs, too: mixtures of experts best. For models that generate text.
    #[arg(long)]
    pub mmap: bool,
    /// Use only models that are already downloaded
    #[arg(long)]
    pub offline: bool,
}
