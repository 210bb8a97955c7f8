//! Options of llama.cpp, Ollama and vLLM that none of our commands has, and what to do instead.
//!
//! Options that have an equivalent of ours are aliases of it, and not listed here.

/// The option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    Nothing,
    Value,
    /// Optionally `on`, `off` or the like.
    Switch,
}

/// Handling of the option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// Accepted, with a note why it is not needed.
    Needless(&'static str),
    /// Refused, with what to do instead.
    Instead(&'static str),
}

/// An option of other programs.
#[derive(Debug)]
pub(super) struct Foreign {
    /// Names as typed.
    pub names: &'static [&'static str],
    pub takes: Takes,
    pub means: Means,
}

const fn needless(names: &'static [&'static str], takes: Takes, why: &'static str) -> Foreign {
    Foreign { names, takes, means: Means::Needless(why) }
}

const fn instead(names: &'static [&'static str], takes: Takes, what: &'static str) -> Foreign {
    Foreign { names, takes, means: Means::Instead(what) }
}

use Takes::{Nothing, Switch, Value};

/// All foreign options.
pub(super) static FOREIGN: &[Foreign] = &[
    needless(
        &["-ngl", "--n-gpu-layers", "--gpu-layers", "--num-gpu"],
        Value,
        "a model runs on one device, whole; --device says which (cpu, vulkan, metal, cuda)",
    ),
    needless(&["--jinja"], Nothing, "the model's chat template is always used; --raw leaves it out"),
    needless(&["-fa", "--flash-attn"], Switch, "attention is always computed that way"),
    needless(
        &["-i", "--interactive", "-cnv", "--conversation", "-if", "--interactive-first"],
        Nothing,
        "without a prompt, `tallow run` chats",
    ),
    needless(
        &["-st", "--single-turn", "-no-cnv", "--no-interactive"],
        Nothing,
        "with a prompt, `tallow run` answers it and ends",
    ),
    needless(
        &["-ub", "--ubatch-size"],
        Value,
        "a batch is computed in one piece; --batch says how large it is",
    ),
    needless(&["-ctv", "--cache-type-v"], Value, "keys and values have one type; --kv sets it"),
    needless(&["-cb", "--cont-batching"], Nothing, "requests are always batched continuously"),
    needless(
        &["--cache-prompt", "--enable-prefix-caching", "--kv-unified", "-kvu"],
        Nothing,
        "prompts that begin alike always share the KV cache",
    ),
    needless(
        &["--mlock", "--no-mmap", "--no-warmup", "--warmup", "--no-repack"],
        Nothing,
        "files are mapped, and read once while the weights are packed",
    ),
    needless(&["--metrics", "--props"], Nothing, "the server always has /metrics"),
    needless(&["--trust-remote-code"], Nothing, "code that comes with models is never run"),
    needless(
        &["--log-disable", "--no-perf", "--simple-io"],
        Nothing,
        "standard output has the answer and nothing else",
    ),
    needless(&["--embedding", "--embeddings", "--rerank", "--reranking"], Nothing, "the model decides that"),
    needless(&["-tb", "--threads-batch", "--threads-http"], Value, "--threads is for prompts and answers"),
    instead(
        &["-np", "--parallel"],
        Value,
        "this command computes one conversation; `tallow serve --slots N` computes several at once",
    ),
    instead(&["--format"], Value, "use --json-schema SCHEMA, where {} is any JSON"),
    instead(&["--json"], Nothing, "the answer is written as text; `tallow serve` answers in JSON"),
    instead(
        &["--api-key"],
        Value,
        "use --api-key-file FILE, or set TALLOW_API_KEY: command lines can be read by others",
    ),
    instead(&["-hff", "--hf-file"], Value, "name the file with the model, as org/name:FILE"),
    instead(&["-hft", "--hf-token"], Value, "set HF_TOKEN: command lines can be read by others"),
    instead(&["-mu", "--model-url"], Value, "give the model's page or name on the hub in place of MODEL"),
    instead(&["-md", "-hfd"], Value, "use --draft MODEL"),
    instead(
        &["--draft-max", "--draft-min", "--draft-n", "--draft-p-min"],
        Value,
        "drafts are as long as measured costs and guesses that were right allow; leave it out",
    ),
    instead(
        &["-mm", "--mmproj", "--image", "--audio"],
        Value,
        "images and sounds in prompts are not supported yet; `tallow embed --image` and `tallow transcribe` are",
    ),
    instead(&["-sysf", "--system-prompt-file"], Value, "use --system \"$(cat FILE)\""),
    instead(
        &[
            "--rope-scaling",
            "--rope-scale",
            "--rope-freq-base",
            "--rope-freq-scale",
            "--yarn-orig-ctx",
            "--yarn-ext-factor",
            "--yarn-attn-factor",
            "--yarn-beta-slow",
            "--yarn-beta-fast",
        ],
        Value,
        "rotary embeddings are as the model's file says; --context says how many tokens of them are used",
    ),
    instead(
        &[
            "--mirostat",
            "--mirostat-lr",
            "--mirostat-ent",
            "--dry-multiplier",
            "--dry-base",
            "--dry-allowed-length",
            "--dry-penalty-last-n",
            "--xtc-probability",
            "--xtc-threshold",
            "--dynatemp-range",
            "--dynatemp-exp",
            "--top-nsigma",
            "--top-n-sigma",
            "--repeat-last-n",
            "--samplers",
            "--sampling-seq",
            "--tfs",
        ],
        Value,
        "this sampler is not there; there are --temperature, --top-k, --top-p, --min-p, --typical-p and the penalties",
    ),
    instead(&["-l", "--logit-bias"], Value, "the API has logit_bias; `tallow run` has not"),
    instead(
        &["--ignore-eos"],
        Nothing,
        "answers end where the model ends them, at a --stop text, or at --max-tokens",
    ),
    instead(
        &[
            "-sm",
            "--split-mode",
            "-ts",
            "--tensor-split",
            "-tp",
            "--tensor-parallel-size",
            "--pipeline-parallel-size",
        ],
        Value,
        "a model runs on one device; --device says which",
    ),
    instead(&["-mg", "--main-gpu", "-dev"], Value, "use --device vulkan:N"),
    instead(
        &["-ot", "--override-tensor", "-ncmoe", "--n-cpu-moe"],
        Value,
        "there is no partial offload; --device cpu runs all on the CPU",
    ),
    instead(
        &["-cmoe", "--cpu-moe"],
        Nothing,
        "there is no partial offload; --device cpu runs all on the CPU",
    ),
    instead(
        &["--gpu-memory-utilization", "--swap-space", "--cpu-offload-gb"],
        Value,
        "memory is planned from --context and --slots; `tallow doctor MODEL` shows the plan",
    ),
    instead(
        &["--dtype"],
        Value,
        "weights are used as they are stored; --quant q8_0 and the like quantize them on load",
    ),
    instead(
        &["--quantization"],
        Value,
        "quantized weights are recognized; --quant q4_k_m and the like quantize others on load",
    ),
    instead(
        &["--keepalive"],
        Value,
        "`tallow run` keeps the model until it ends; `tallow serve` keeps it for many requests",
    ),
    instead(&["--multiline-input", "-mli"], Nothing, "in a chat, text between two \"\"\" has many lines"),
    instead(
        &["--verbosity", "-lv", "--log-verbosity"],
        Value,
        "-q and -v, or --log-level, say how much is logged",
    ),
    instead(
        &["--keep", "--n-keep", "--grp-attn-n", "-gan", "--grp-attn-w", "-gaw"],
        Value,
        "the system prompt is always kept; --context sets the context",
    ),
    needless(&["--enable-auto-tool-choice"], Nothing, "the model chooses where a request has tools"),
    instead(&["--reasoning-parser"], Value, "the chat template shows how reasoning is marked; leave it out"),
];

/// The option of this name, as typed.
pub(super) fn find(name: &str) -> Option<&'static Foreign> {
    FOREIGN.iter().find(|f| f.names.contains(&name))
}
