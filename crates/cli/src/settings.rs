//! Settings: flags, the environment, the configuration file and the model's own defaults are resolved into a typed
//! [`EngineConfig`], which every command uses, and which records where each value came from.

mod flags;
mod sources;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tallow_core::DType;
use tallow_engine::sampler::Sampling;
use tallow_text::generation::Generation;

use crate::Failed;
use crate::devices::{Arithmetic, CpuOptions, DeviceChoice, Isa, Numa, cores};

pub(crate) use flags::{DeviceArgs, EngineArgs, Flags, KV, SampleArgs};
pub(crate) use sources::{Seed, Sources, Switch, reason, unreadable};

/// Source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Environment(String),
    /// With the model's name if the value is from that model's table.
    File(PathBuf, Option<String>),
    Model,
    BuiltIn,
    /// Shrunk to fit the memory.
    Memory,
    /// Chosen to fit the prompt.
    Prompt,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => f.write_str("the command line"),
            Origin::Environment(name) => f.write_str(name),
            Origin::File(path, None) => write!(f, "{}", path.display()),
            Origin::File(path, Some(model)) => write!(f, "{} [models.{model:?}]", path.display()),
            Origin::Model => f.write_str("the model"),
            Origin::BuiltIn => f.write_str("built in"),
            Origin::Memory => f.write_str("free memory"),
            Origin::Prompt => f.write_str("the length of the prompt"),
        }
    }
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting<T> {
    pub value: T,
    pub origin: Origin,
}

/// A setting: its name as a flag, from which its variable and its key in the configuration file follow.
pub(crate) struct Known {
    pub name: &'static str,
    pub does: &'static str,
    pub default: &'static str,
}

const fn known(name: &'static str, does: &'static str, default: &'static str) -> Known {
    Known { name, does, default }
}

impl Known {
    /// `TALLOW_MAX_TOKENS` for `max-tokens`
    pub(crate) fn variable(&self) -> String {
        variable(self.name)
    }
}

fn variable(name: &str) -> String {
    format!("TALLOW_{}", name.replace('-', "_").to_uppercase())
}

/// All settings.
pub(crate) static KNOWN: &[Known] = &[
    known("model", "model of `run` and `serve` where none is named", "demo"),
    known("system", "system prompt of `run`", "none"),
    known("lora", "LoRA adapters of `run` (one) and `serve`: a list, in the variable with commas", "none"),
    known("alias", "other names of the model in `serve`: a list, in the variable with commas", "none"),
    known(
        "context",
        "context size: tokens of prompt and answer",
        "what the model was trained for, up to 8192",
    ),
    known(
        "kv",
        "data type of the KV cache: f32, f16, bf16, int8 or fp8",
        "f16; bf16 where isa is amx or avx512bf16; f32 where arithmetic is exact",
    ),
    known("quant", "quantize F32/F16/BF16 weights on load: q4_k_m, q8_0, …", "as they are stored"),
    known("device", "device to run on: auto, cpu, vulkan, vulkan:1, metal, cuda, …", "auto"),
    known("threads", "CPU threads", "the CPU's cores"),
    known(
        "isa",
        "CPU instruction set: scalar, neon, i8mm, avx2, avxvnni, avx512, avx512bf16 or amx",
        "the best there is",
    ),
    known("arithmetic", "Arithmetic: fast, or exact for comparisons", "fast (dump: exact)"),
    known(
        "batch",
        "batch size: most tokens computed in one step",
        "256; fewer while a server decodes answers",
    ),
    known("speculative", "speculative decoding: auto, ngram or off", "auto"),
    known("draft", "draft model of speculative decoding: a smaller one with the same vocabulary", "none"),
    known("slots", "requests computed at once (parallel sequences)", "8"),
    known("queue", "requests that may wait for a slot", "256"),
    known("queue-timeout", "seconds that a request may wait for a slot", "as long as its client does"),
    known("cache-ram", "most that pages evicted from a GPU may take of the host's memory, in MiB", "0"),
    known("swa-full", "sliding-window layers keep K and V of all tokens: true or false", "false"),
    known("cache-disk", "folder in which a server keeps its prefix cache for the next start", "none"),
    known("cache-disk-size", "most that this folder may take, in MiB", "8192"),
    known("max-tokens", "longest answer, in tokens", "as many as fit (`run` without a chat template: 256)"),
    known("temperature", "0 always picks the most likely token (greedy)", "0.8 (server: 1)"),
    known("top-k", "keep only the N most likely tokens; 0 keeps all", "40 (server: 0)"),
    known(
        "top-p",
        "nucleus sampling: keep the most likely tokens up to total probability P",
        "0.95 (server: 1)",
    ),
    known("min-p", "drop tokens below P times the likeliest one's chance", "0.05 (server: 0)"),
    known("typical-p", "locally typical sampling, up to total probability P", "1"),
    known("repetition-penalty", "penalise tokens that have already appeared (1 = off)", "1"),
    known("presence-penalty", "subtracted from the scores of tokens that were generated", "0"),
    known("frequency-penalty", "subtracted from a token's score for each time it was generated", "0"),
    known("seed", "the same seed gives the same answer; -1 is random", "random"),
    known("chat-template", "file of a chat template, in place of the model's own, in `serve`", "none"),
    known("tool-format", "format of tool calls in `serve`", "that which the chat template shows"),
    known("keep-alive", "seconds without a request after which `serve` unloads a model", "never"),
    known("pinned", "true: `serve` does not unload the model to make room for another", "false"),
    known("host", "address to listen on", "127.0.0.1"),
    known("port", "port to listen on", "8080"),
    known("drain", "seconds that answers may take to finish when the server is told to stop", "30"),
    known("max-memory-in-flight", "memory that a server's requests may hold together, in MiB", "512"),
    known(
        "max-connections",
        "a server's connections at one time",
        "4096, or as many as there are descriptors for",
    ),
    known("max-per-address", "connections of one address at one time", "half of max-connections"),
    known("numa", "auto: CPU threads stay on the memory nodes whose weights they read; or off", "auto"),
    known("mmap", "true: the CPU maps packed weights from disk, and packs them there first", "false"),
    known("offline", "true: use only models that are already downloaded", "false"),
];

/// Speculative decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speculative {
    /// Prompt lookup, and the draft model or the model's MTP layer, where a draft is expected to pay.
    Auto,
    /// Prompt lookup alone.
    Ngram,
    /// None.
    Off,
}

impl FromStr for Speculative {
    type Err = String;

    fn from_str(s: &str) -> Result<Speculative, String> {
        match s {
            "auto" => Ok(Speculative::Auto),
            "ngram" => Ok(Speculative::Ngram),
            "off" | "none" => Ok(Speculative::Off),
            _ => Err(format!("{s:?} is no kind of speculative decoding; there are auto, ngram and off")),
        }
    }
}

impl fmt::Display for Speculative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Speculative::Auto => "auto",
            Speculative::Ngram => "ngram",
            Speculative::Off => "off",
        })
    }
}

/// Data type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvType(pub DType);

impl KvType {
    const ALL: [KvType; 5] =
        [KvType(DType::F32), KvType(DType::F16), KvType(DType::BF16), KvType(DType::I8), KvType(DType::F8)];

    /// Name in options and reports.
    pub(crate) const fn name(self) -> &'static str {
        match self.0 {
            DType::I8 => "int8",
            DType::F8 => "fp8",
            other => other.name(),
        }
    }

    /// Default for a device: the 16-bit type that it multiplies fastest, or what rounds nothing.
    pub(crate) fn best(device: DeviceChoice, isa: Isa, arithmetic: Arithmetic) -> KvType {
        match arithmetic {
            Arithmetic::Exact => KvType(DType::F32),
            Arithmetic::Fast if device.may_be_cpu() && isa.multiplies_bf16() => KvType(DType::BF16),
            Arithmetic::Fast => KvType(DType::F16),
        }
    }
}

impl FromStr for KvType {
    type Err = String;

    fn from_str(s: &str) -> Result<KvType, String> {
        // Names of the 8-bit types in llama.cpp and vLLM.
        let name = match s.to_ascii_lowercase() {
            name if name == "q8_0" => "int8".into(),
            name if name == "fp8_e4m3" => "fp8".into(),
            name => name,
        };
        let found = KvType::ALL.into_iter().find(|t| t.name() == name);
        found.ok_or_else(|| {
            format!("{s:?} is no type of the KV cache; there are f32, f16, bf16, int8 and fp8")
        })
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Engine configuration.
#[derive(Clone, Debug)]
pub(crate) struct EngineConfig {
    /// `None`: what model and memory allow.
    pub context: Option<Setting<usize>>,
    pub kv: Setting<KvType>,
    pub device: Setting<DeviceChoice>,
    pub threads: Setting<usize>,
    pub isa: Setting<Isa>,
    pub numa: Setting<Numa>,
    /// Weights are mapped from disk.
    pub mmap: Setting<Switch>,
    pub arithmetic: Setting<Arithmetic>,
    pub batch: Setting<usize>,
    pub speculative: Setting<Speculative>,
    pub slots: Setting<usize>,
    pub queue: Setting<usize>,
    /// Maximum time that requests wait for a slot.
    pub queue_timeout: Option<Duration>,
    pub max_tokens: Option<Setting<usize>>,
    pub temperature: Setting<f32>,
    pub top_k: Setting<usize>,
    pub top_p: Setting<f32>,
    pub min_p: Setting<f32>,
    pub typical_p: Setting<f32>,
    pub repetition_penalty: Setting<f32>,
    pub presence_penalty: Setting<f32>,
    pub frequency_penalty: Setting<f32>,
    pub seed: Option<Setting<u64>>,
    /// Bytes reserved for LoRA adapters.
    pub adapter_room: usize,
    /// Most bytes of the RAM cache.
    pub ram_cache: u64,
    /// True if sliding-window layers keep K and V of all tokens.
    pub swa_full: bool,
    /// Models that share the memory: a default context takes no more than one's share.
    pub models: usize,
}

/// Built-in defaults, where neither the user nor the model says: coherent answers at a terminal; for API clients the
/// API's own defaults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    slots: usize,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
}

impl Defaults {
    pub(crate) const CHAT: Defaults =
        Defaults { slots: 1, temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05 };
    pub(crate) const API: Defaults =
        Defaults { slots: 8, temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

    /// Built-in default of a setting, if it differs between chat and API.
    pub(crate) fn of(&self, name: &str) -> Option<String> {
        match name {
            "temperature" => Some(self.temperature.to_string()),
            "top-k" => Some(self.top_k.to_string()),
            "top-p" => Some(self.top_p.to_string()),
            "min-p" => Some(self.min_p.to_string()),
            _ => None,
        }
    }
}

/// Resolves the engine configuration; the only place where it is decided.
pub(crate) fn resolve(
    sources: &Sources,
    flags: &Flags,
    model: &Generation,
    defaults: Defaults,
) -> Result<EngineConfig, Failed> {
    let (e, s) = (&flags.engine, &flags.sampling);
    let parse = |name: &str, text: &Option<String>| -> Result<Option<KvType>, Failed> {
        let parsed = text.as_ref().map(|t| t.parse::<KvType>());
        parsed.transpose().map_err(|e| Failed::new(format!("--{name}: {e}")))
    };
    let isa = e.isa.as_ref().map(|t| t.parse::<Isa>()).transpose();
    let isa = isa.map_err(|e| Failed::new(format!("--isa: {e}")))?;
    let device = sources.get("device", e.device, DeviceChoice::Auto)?;
    let isa = sources.get("isa", isa, Isa::best())?;
    let arithmetic = sources.get("arithmetic", e.arithmetic, Arithmetic::Fast)?;
    let best = KvType::best(device.value, isa.value, arithmetic.value);
    let kv = sources.get("kv", parse("kv", &e.kv)?, best)?;
    let config = EngineConfig {
        context: sources.find("context", e.context)?,
        kv,
        device,
        threads: sources.get("threads", e.threads, cores())?,
        isa,
        numa: sources.get("numa", e.numa, Numa::Auto)?,
        mmap: sources.get("mmap", e.mmap.then_some(Switch(true)), Switch(false))?,
        arithmetic,
        batch: sources.get("batch", e.batch, 256)?,
        speculative: sources.get("speculative", e.speculative, Speculative::Auto)?,
        slots: sources.get("slots", flags.slots, defaults.slots)?,
        queue: sources.get("queue", flags.queue, 256)?,
        queue_timeout: sources
            .find("queue-timeout", flags.queue_timeout)?
            .map(|seconds| Duration::from_secs(seconds.value)),
        max_tokens: sources.find("max-tokens", s.max_tokens)?,
        temperature: sources.or_model(
            "temperature",
            s.temperature,
            model.temperature,
            defaults.temperature,
        )?,
        top_k: sources.or_model("top-k", s.top_k, model.top_k, defaults.top_k)?,
        top_p: sources.or_model("top-p", s.top_p, model.top_p, defaults.top_p)?,
        min_p: sources.or_model("min-p", s.min_p, model.min_p, defaults.min_p)?,
        typical_p: sources.or_model("typical-p", s.typical_p, model.typical_p, 1.0)?,
        repetition_penalty: sources.or_model(
            "repetition-penalty",
            s.repetition_penalty,
            model.repetition_penalty,
            1.0,
        )?,
        presence_penalty: sources.get("presence-penalty", s.presence_penalty, 0.0)?,
        frequency_penalty: sources.get("frequency-penalty", s.frequency_penalty, 0.0)?,
        seed: sources
            .find("seed", s.seed.map(Seed))?
            .map(|Setting { value: Seed(value), origin }| Setting { value, origin }),
        adapter_room: 0,
        ram_cache: 0,
        swa_full: false,
        models: 1,
    };
    config.check()?;
    Ok(config)
}

impl EngineConfig {
    /// The same with these sampling parameters.
    pub(crate) fn with(mut self, sampling: &Sampling) -> EngineConfig {
        self.temperature.value = sampling.temperature;
        self.top_k.value = sampling.top_k;
        self.top_p.value = sampling.top_p;
        self.min_p.value = sampling.min_p;
        self.typical_p.value = sampling.typical_p;
        self.repetition_penalty.value = sampling.repetition_penalty;
        self.presence_penalty.value = sampling.presence_penalty;
        self.frequency_penalty.value = sampling.frequency_penalty;
        self
    }

    /// True if tokens may be drafted.
    pub(crate) fn may_draft(&self) -> bool {
        self.speculative.value != Speculative::Off
    }

    /// Validates the values.
    pub(crate) fn check(&self) -> Result<(), Failed> {
        let within = |name: &str, x: f32, low: f32, high: f32| match (low..=high).contains(&x) {
            true => Ok(()),
            false => Err(Failed::new(format!("{name} is {x}; {low} to {high} make sense"))),
        };
        let share = |name: &str, x: f32| match x > 0.0 && x <= 1.0 {
            true => Ok(()),
            false => Err(Failed::new(format!("{name} is {x}; more than 0 and up to 1 make sense"))),
        };
        within("temperature", self.temperature.value, 0.0, 100.0)?;
        share("top-p", self.top_p.value)?;
        within("min-p", self.min_p.value, 0.0, 1.0)?;
        share("typical-p", self.typical_p.value)?;
        within("repetition-penalty", self.repetition_penalty.value, 0.01, 100.0)?;
        within("presence-penalty", self.presence_penalty.value, -100.0, 100.0)?;
        within("frequency-penalty", self.frequency_penalty.value, -100.0, 100.0)?;
        let count = |name: &str, n: usize, most: usize| match (1..=most).contains(&n) {
            true => Ok(()),
            false => Err(Failed::new(format!("{name} is {n}; 1 to {most} make sense"))),
        };
        count("threads", self.threads.value, 1024)?;
        count("slots", self.slots.value, 4096)?;
        count("batch", self.batch.value, 1 << 16)?;
        count("queue", self.queue.value, 1 << 20)?;
        let context = self.context.as_ref().map_or(1, |c| c.value);
        count("context", context, 1 << 24)?;
        match self.isa.value.is_available() {
            true => Ok(()),
            false => {
                let (isa, best) = (self.isa.value, Isa::best());
                Err(Failed::new(format!("this CPU does not have {isa}; the best it has is {best}")))
            }
        }
    }

    /// Settings of the CPU.
    pub(crate) fn cpu(&self) -> CpuOptions {
        let (isa, arithmetic, threads) = (self.isa.value, self.arithmetic.value, self.threads.value);
        CpuOptions { isa, arithmetic, threads, numa: self.numa.value, mmap: self.mmap.value.0 }
    }

    /// Sampling parameters.
    pub(crate) fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature.value,
            top_k: self.top_k.value,
            top_p: self.top_p.value,
            min_p: self.min_p.value,
            typical_p: self.typical_p.value,
            repetition_penalty: self.repetition_penalty.value,
            presence_penalty: self.presence_penalty.value,
            frequency_penalty: self.frequency_penalty.value,
            bias: Vec::new(),
            seed: self.seed.as_ref().map_or_else(random, |s| s.value),
            logprobs: None,
        }
    }

    /// All settings with value and origin.
    pub(crate) fn rows(&self) -> Vec<(&'static str, String, String)> {
        fn row<T: fmt::Display>(name: &'static str, s: &Setting<T>) -> (&'static str, String, String) {
            (name, s.value.to_string(), s.origin.to_string())
        }
        fn perhaps<T: fmt::Display>(
            name: &'static str,
            s: &Option<Setting<T>>,
        ) -> (&'static str, String, String) {
            let default = KNOWN.iter().find(|k| k.name == name).map_or("", |k| k.default);
            s.as_ref().map_or_else(|| (name, default.into(), Origin::BuiltIn.to_string()), |s| row(name, s))
        }
        vec![
            perhaps("context", &self.context),
            row("kv", &self.kv),
            row("device", &self.device),
            row("threads", &self.threads),
            row("isa", &self.isa),
            row("arithmetic", &self.arithmetic),
            row("batch", &self.batch),
            row("speculative", &self.speculative),
            row("slots", &self.slots),
            row("queue", &self.queue),
            perhaps("max-tokens", &self.max_tokens),
            row("temperature", &self.temperature),
            row("top-k", &self.top_k),
            row("top-p", &self.top_p),
            row("min-p", &self.min_p),
            row("typical-p", &self.typical_p),
            row("repetition-penalty", &self.repetition_penalty),
            row("presence-penalty", &self.presence_penalty),
            row("frequency-penalty", &self.frequency_penalty),
            perhaps("seed", &self.seed),
        ]
    }
}

/// A random number.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::SystemTime::now())
}
