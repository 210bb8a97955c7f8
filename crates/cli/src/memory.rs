//! How much memory there is, and what a model would take of it.

use std::fmt;

use tallow_core::DType;
use tallow_engine::kv_cache::KvShape;
use tallow_engine::seq2seq::SlotLimits;
use tallow_models::Model;
use tallow_models::encoder::{self, EncoderModel};
use tallow_models::seq2seq::Seq2SeqModel;
use tallow_models::spec::{ExpertsSpec, GatedDeltaSpec, LayerSpec};

use crate::Failed;
use crate::device::Device;
use crate::settings::{EngineConfig, KvType, Origin, Setting};

/// Memory of the machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub total: u64,
    /// What can be had without anything being pushed out.
    pub free: u64,
}

impl Memory {
    /// What is left where two accounts of the same memory differ.
    pub(crate) fn least(self, other: Memory) -> Memory {
        Memory { total: self.total.min(other.total), free: self.free.min(other.free) }
    }

    /// What the system says; `None` where we do not know how to ask.
    pub(crate) fn now() -> Option<Memory> {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let memory = Memory { total: field(&text, "MemTotal:")?, free: field(&text, "MemAvailable:")? };
        Some(container().map_or(memory, |limit| memory.least(limit)))
    }
}

/// A line of /proc/meminfo, which counts in KiB.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok()?.checked_mul(1024)
}

/// What the container that we run in may use, if there is a limit.
fn container() -> Option<Memory> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let total: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    // Pages of files are given up when memory is short.
    let stat = read("memory.stat").unwrap_or_default();
    let files = stat.lines().find_map(|l| l.strip_prefix("inactive_file ")?.parse::<u64>().ok()).unwrap_or(0);
    Some(Memory { total, free: total.saturating_sub(used.saturating_sub(files)) })
}

/// A number of bytes as people write it.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut x = bytes as f64;
    let mut unit = 0;
    while x >= 1024.0 && unit + 1 < UNITS.len() {
        x /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if x < 10.0 => format!("{x:.2} {}", UNITS[unit]),
        _ if x < 100.0 => format!("{x:.1} {}", UNITS[unit]),
        _ => format!("{x:.0} {}", UNITS[unit]),
    }
}

/// What running a model takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub weights: u64,
    /// Room for adapters.
    pub adapters: u64,
    pub kv: u64,
    pub workspace: u64,
    pub context: Setting<usize>,
    /// Tokens that the model was made for.
    pub made_for: usize,
    pub slots: usize,
    pub shape: KvShape,
    /// Whose memory it is.
    pub device: String,
    pub memory: Option<Memory>,
}

/// Tokens in a page of the cache.
pub(crate) const PAGE: usize = 16;
/// The longest context that is set up unless somebody asks for more.
const USUAL_CONTEXT: usize = 8192;
/// The shortest that is still of use; below that a model is refused.
const LEAST_CONTEXT: usize = 512;
/// The shortest that makes a GPU worth having where the CPU has room for more.
const USEFUL_CONTEXT: usize = 2048;
/// Free memory is left to the rest of the machine: this share of it.
const HEADROOM: f64 = 0.05;

/// The context that is set up for a model unless somebody asks for another, or memory is short.
pub(crate) fn usual_context(model: &Model) -> usize {
    model.spec.trained_context().min(USUAL_CONTEXT)
}

impl Plan {
    /// Plans for a model. A context that nobody asked for is made smaller until it fits.
    pub(crate) fn new(model: &Model, config: &EngineConfig, device: &Device) -> Plan {
        let memory = device.memory();
        let usual = usual_context(model);
        let asked = config.context.clone();
        let mut context = asked.clone().unwrap_or(Setting { value: usual, origin: Origin::BuiltIn });
        loop {
            let plan =
                Plan { device: device.to_string(), ..Plan::of(model, config, context.clone(), memory) };
            if asked.is_some() || plan.fits() || context.value / 2 < LEAST_CONTEXT {
                return plan;
            }
            context = Setting { value: context.value / 2, origin: Origin::Memory };
        }
    }

    fn of(model: &Model, config: &EngineConfig, context: Setting<usize>, memory: Option<Memory>) -> Plan {
        let slots = config.slots.value;
        let pages = slots.saturating_mul(context.value.div_ceil(PAGE));
        let shape = KvShape { dtype: config.kv.value.0, page_len: PAGE, pages, sequences: slots };
        let batch = config.batch.value;
        let step = Step { tokens: batch.max(2 * slots), logits: scored(batch).max(slots) + slots };
        let workspace = workspace(model, step, context.value);
        let weights = model.weight_bytes() as u64;
        let (kv, made_for) = (shape.bytes(&model.spec) as u64, model.spec.context);
        let (adapters, device) = (config.adapter_room as u64, String::new());
        Plan { weights, adapters, kv, workspace, context, made_for, slots, shape, device, memory }
    }

    /// Is the context long enough for this device to be taken where others could be?
    pub(crate) fn is_roomy(&self) -> bool {
        self.context.origin != Origin::Memory || self.context.value >= USEFUL_CONTEXT.min(self.made_for)
    }

    /// For one sequence alone, whose length is settled.
    pub(crate) fn alone(model: &Model, shape: KvShape, step: Step, device: &Device) -> Plan {
        let context = Setting { value: shape.pages * shape.page_len, origin: Origin::Flag };
        let workspace = workspace(model, step, context.value);
        let (weights, kv) = (model.weight_bytes() as u64, shape.bytes(&model.spec) as u64);
        // The last page may reach past what the sequence may have.
        let made_for = context.value;
        let (name, memory) = (device.to_string(), device.memory());
        let (adapters, slots) = (0, 1);
        Plan { weights, adapters, kv, workspace, context, made_for, slots, shape, device: name, memory }
    }

    /// For an encoder whose steps have up to so many tokens, or one text if that has more. One beside it computes after
    /// it, and has its room.
    pub(crate) fn of_encoder(model: &EncoderModel, batch: usize, device: &Device) -> Plan {
        let plan = Plan::of_one_encoder(model, batch, device);
        let Some(beside) = &model.beside else { return plan };
        let other = Plan::of_one_encoder(beside, batch, device);
        Plan { kv: plan.kv.max(other.kv), workspace: plan.workspace.max(other.workspace), ..plan }
    }

    fn of_one_encoder(model: &EncoderModel, batch: usize, device: &Device) -> Plan {
        let (spec, made_for) = (&model.spec, model.context());
        let tokens = batch.max(made_for);
        // A text of one token takes a page.
        let shape = KvShape { dtype: DType::F32, page_len: encoder::PAGE, pages: tokens, sequences: 0 };
        let cols = spec.layers.iter().map(|l| l.mixer.heads.kv_cols()).max().unwrap_or(0);
        let kv = (2 * tokens * encoder::PAGE * cols * DType::F32.size()) as u64;
        let tables: usize = spec.ropes.iter().map(|r| r.table_len(made_for)).sum();
        let workspace = (tokens * activations(&spec.layers, spec.dim) + tables) * DType::F32.size();
        let context = Setting { value: made_for, origin: Origin::Model };
        Plan {
            weights: model.weight_bytes() as u64,
            adapters: 0,
            kv,
            workspace: workspace as u64,
            context,
            made_for,
            slots: 1,
            shape,
            device: device.to_string(),
            memory: device.memory(),
        }
    }

    /// For a model that takes in all of something, and then writes.
    pub(crate) fn of_seq2seq(model: &Seq2SeqModel, desk: SlotLimits, device: &Device) -> Plan {
        let (encoder, decoder) = (&model.spec.encoder, &model.spec.decoder);
        let [own, given] = desk.shapes();
        let frames = if model.hears() { 4 * desk.encoder_tokens } else { 0 };
        let read = (desk.encoder_tokens + frames) * activations(&encoder.layers, encoder.dim);
        let written = desk.decoder_tokens * activations(&decoder.layers, decoder.dim);
        let logits = 2 * desk.slots * decoder.vocab;
        let context = Setting { value: desk.decoder_tokens, origin: Origin::Model };
        Plan {
            weights: model.weight_bytes() as u64,
            adapters: 0,
            kv: (own.bytes(decoder).saturating_add(given.bytes(decoder))) as u64,
            workspace: ((read + written + logits) * DType::F32.size()) as u64,
            context,
            made_for: desk.decoder_tokens,
            slots: desk.slots,
            shape: own,
            device: device.to_string(),
            memory: device.memory(),
        }
    }

    /// All of it.
    pub(crate) fn total(&self) -> u64 {
        self.weights.saturating_add(self.adapters).saturating_add(self.kv).saturating_add(self.workspace)
    }

    /// Is there room? Where nobody knows how much memory there is, it is assumed so.
    pub(crate) fn fits(&self) -> bool {
        self.memory.is_none_or(|m| (self.total() as f64) <= m.free as f64 * (1.0 - HEADROOM))
    }

    /// An error with the numbers if there is no room, or if the model was not made for so much.
    pub(crate) fn check(&self) -> Result<(), Failed> {
        let (asked, made_for) = (self.context.value, self.made_for);
        if asked > made_for {
            return Err(Failed::new(format!(
                "a context of {asked} tokens is asked for ({}), and the model was made for {made_for}: past that its \
                 answers make no sense. Take --context {made_for} or less",
                self.context.origin
            )));
        }
        let Some(memory) = self.memory.filter(|_| !self.fits()) else { return Ok(()) };
        let smaller = match self.slots {
            1 => "a smaller --context".to_owned(),
            n => format!("a smaller --context or fewer --slots than {n}"),
        };
        let (needs, free) = (size(self.total()), size(memory.free));
        let smaller = match self.context.origin {
            Origin::Prompt => {
                format!("a shorter prompt (a context of {asked} tokens was chosen for this one)")
            }
            _ => smaller,
        };
        Err(Failed::new(format!(
            "the model does not fit: it needs {needs}, and {free} of memory are free on {}\n{self}\n\
             Take {smaller}, a smaller quantization of the model, or end other programs.",
            self.device
        )))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (context, slots) = (self.context.value, self.slots);
        let kv = match slots {
            1 => format!("{context} tokens of {}", KvType(self.shape.dtype)),
            n => format!("{n} x {context} tokens of {}", KvType(self.shape.dtype)),
        };
        let adapters = match self.adapters {
            0 => String::new(),
            bytes => format!("adapters {} + ", size(bytes)),
        };
        let free = self.memory.map_or(String::new(), |m| format!(", {} free", size(m.free)));
        write!(
            f,
            "{}: weights {} + {adapters}cache {} ({kv}) + workspace {} = {}{free}",
            self.device,
            size(self.weights),
            size(self.kv),
            size(self.workspace),
            size(self.total())
        )
    }
}

/// The most that a step has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub tokens: usize,
    /// Tokens whose logits are wanted.
    pub logits: usize,
}

/// Of the tokens of a step, how many may be of prompts that are scored. Each of them brings a row of logits; a few at
/// a time keep that small.
pub(crate) fn scored(batch: usize) -> usize {
    (batch / 8).clamp(1, 64)
}

/// What a step needs besides weights and cache, from above.
fn workspace(model: &Model, step: Step, context: usize) -> u64 {
    let spec = &model.spec;
    let activations = step.tokens as u64 * activations(&spec.layers, spec.dim) as u64;
    // On the device, and as they are read from it.
    let logits = 2 * step.logits as u64 * spec.vocab as u64;
    let tables: usize = spec.ropes.iter().map(|r| r.table_len(context)).sum();
    (activations + logits + tables as u64) * DType::F32.size() as u64
}

/// Numbers of a token that a step has at one time, from above.
fn activations(layers: &[LayerSpec], dim: usize) -> usize {
    let widest = |f: &dyn Fn(&LayerSpec) -> usize| layers.iter().map(f).max().unwrap_or(0);
    let latent =
        |l: &LayerSpec| l.mla.map_or(0, |a| l.mixer.heads.q * (a.qk_nope_dim + a.qk_rope_dim + a.v_dim));
    let attention = |l: &LayerSpec| {
        let heads = l.mixer.heads;
        heads.qkv_cols() + (2 + 2 * usize::from(l.mixer.gated)) * heads.q_cols() + latent(l)
    };
    // What is projected, what comes of the convolution, and of the heads, three times.
    let recalled = |d: GatedDeltaSpec| 3 * d.heads.cols() + 5 * d.heads.value_cols() + 4 * d.heads.values;
    let qkv = widest(&|l| l.gated_delta.map_or_else(|| attention(l), recalled));
    // Where experts work, each token is copied for each of its experts, and what they make of it is kept apart.
    let sorted = |e: ExpertsSpec| 2 * e.top_k * dim + 4 * e.count;
    let ffn = widest(&|l| 3 * l.active_ffn_width() + l.experts.map_or(0, sorted));
    4 * dim + qkv.max(ffn)
}

/// Gives memory that is free back to the system, where the allocator keeps it otherwise.
pub(crate) fn trim() {
    // SAFETY: it may be called at any time; it takes the allocator's own locks.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        let sizes = [0, 1023, 1024, 1536, 10 << 20, 4 << 30, 150 << 30].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "10.0 MiB", "4.00 GiB", "150 GiB"]);
    }

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:       24681984 kB\nMemFree:  10 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(field(text, "MemAvailable:"), Some(20_000_000 * 1024));
        assert_eq!(field(text, "SwapTotal:"), None);
    }
}
