//! [`Plan`]: what a model would take of the memory of a device.

use std::fmt;

use tallow_core::DType;
use tallow_engine::block_pool::SlidingWindow;
use tallow_engine::kv_cache::KvShape;
use tallow_engine::runner::MOST_REPLAYED_ROWS;
use tallow_engine::scheduler::MOST_DRAFTED;
use tallow_models::Model;
use tallow_models::encoder::{self, EncoderModel};
use tallow_models::seq2seq::Seq2SeqModel;
use tallow_models::spec::{DecoderSpec, LayerSpec, Mixer, MoeSpec};

use crate::Failed;
use crate::devices::{CpuOptions, Device, Memory, WeightsIn};
use crate::settings::{EngineConfig, KvType, Origin, Setting};

/// Bytes in a readable unit.
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

/// Memory plan of a model, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub weights: u64,
    /// Draft model: its weights, KV cache and workspace.
    pub draft: u64,
    /// Reserved for LoRA adapters.
    pub adapters: u64,
    pub kv: u64,
    pub workspace: u64,
    pub context: Setting<usize>,
    /// Longest context that the model supports, in tokens.
    pub made_for: usize,
    pub slots: usize,
    pub shape: KvShape,
    /// Name of the device.
    pub device: String,
    pub memory: Option<Memory>,
    /// RAM cache: pages evicted from the device, in the host's memory.
    pub ram_cache: u64,
    /// True if the device's memory is that of the host.
    pub shares_memory: bool,
    pub weights_in: WeightsIn,
}

/// Tokens per page of the KV cache.
pub(crate) const PAGE: usize = 16;
/// Longest default context.
const USUAL_CONTEXT: usize = 8192;
/// Shortest default context; a model that has no room even for that is refused.
const LEAST_CONTEXT: usize = 512;
/// Shortest context at which a GPU is preferred to a CPU with room for more.
const USEFUL_CONTEXT: usize = 2048;
/// Snapshots of recurrent states that are enough for the prefixes of the longest chats.
const MOST_SNAPSHOTS: usize = 256;
/// Share of the free memory that is left to the rest of the machine.
const HEADROOM: f64 = 0.05;

/// Default context of a model, where memory is not short.
pub(crate) fn usual_context(model: &Model) -> usize {
    model.spec.trained_context().min(USUAL_CONTEXT)
}

impl Plan {
    /// Plan for a decoder model and its draft model. A default context is halved until the plan fits.
    pub(crate) fn new(model: &Model, draft: Option<&Model>, config: &EngineConfig, device: &Device) -> Plan {
        let memory = device.info().memory();
        let usual = usual_context(model);
        let asked = config.context.clone();
        let weights_in = device.weights_in(model, config.cpu());
        let mut context = asked.clone().unwrap_or(Setting { value: usual, origin: Origin::BuiltIn });
        loop {
            let plan = Plan::of(model, config, context.clone(), memory);
            let plan = plan.running_ahead(model, device).capturing(model, device);
            let plan = plan.caching(config.ram_cache, device);
            let plan = if model.mtp { plan.with_mtp(model, config.batch.value) } else { plan };
            let draft = draft.map_or(0, |draft| plan.of_draft(draft, config.batch.value));
            let plan = Plan { device: device.to_string(), draft, weights_in, ..plan };
            if asked.is_some() || plan.fits_among(config.models) || context.value / 2 < LEAST_CONTEXT {
                return plan;
            }
            context = Setting { value: context.value / 2, origin: Origin::Memory };
        }
    }

    fn of(model: &Model, config: &EngineConfig, context: Setting<usize>, memory: Option<Memory>) -> Plan {
        let slots = config.slots.value;
        let pages = slots.saturating_mul(context.value.div_ceil(PAGE));
        let shape = KvShape { dtype: config.kv.value.0, page_len: PAGE, pages, swa_pages: 0, state_rows: 0 };
        let batch = config.batch.value;
        let step = Step { tokens: batch.max(2 * slots), logits: scored(batch).max(slots) + slots };
        let step = if config.may_draft() { step.drafting(slots) } else { step };
        let swa_pages = match config.swa_full {
            true => 0,
            false => swa_pages(&model.spec, shape, slots, step),
        };
        let shape = KvShape { swa_pages, ..shape };
        let shape = KvShape { state_rows: state_rows(&model.spec, shape, slots), ..shape };
        let workspace = workspace(model, step, context.value);
        let weights = model.weight_bytes() as u64;
        let (kv, made_for) = (shape.bytes(&model.spec) as u64, model.spec.context);
        let (adapters, device) = (config.adapter_room as u64, String::new());
        let (draft, ram_cache, shares_memory) = (0, 0, false);
        Plan {
            weights,
            draft,
            adapters,
            kv,
            workspace,
            context,
            made_for,
            slots,
            shape,
            device,
            memory,
            ram_cache,
            shares_memory,
            weights_in: WeightsIn::Memory,
        }
    }

    /// Adds a RAM cache of so many bytes, which the CPU has no use for: its KV cache is in the same memory.
    fn caching(self, bytes: u64, device: &Device) -> Plan {
        let ram_cache = if device.is_cpu() { 0 } else { bytes };
        Plan { ram_cache, shares_memory: device.info().traits().shares_memory, ..self }
    }

    /// Adds a row of recurrent states for each slot, on a device that computes while the host goes on: a step that is launched
    /// ahead writes it.
    fn running_ahead(self, model: &Model, device: &Device) -> Plan {
        if device.is_cpu() || self.shape.state_rows == 0 {
            return self;
        }
        let shape = KvShape { state_rows: self.shape.state_rows + self.slots, ..self.shape };
        Plan { shape, kv: shape.bytes(&model.spec) as u64, ..self }
    }

    /// Adds the memory of captured decode steps, on a device that captures them: small steps use that of large ones where it
    /// fits, and all of them a scratch page.
    fn capturing(self, model: &Model, device: &Device) -> Plan {
        if !device.info().traits().captures {
            return self;
        }
        let (spec, rows) = (&model.spec, 2 * MOST_REPLAYED_ROWS.min(self.slots));
        let elements = rows.saturating_mul(activations(&spec.layers, spec.dim));
        let scratch = self.shape.with_scratch().bytes(spec) - self.shape.bytes(spec);
        let captured = elements.saturating_mul(DType::F32.size()).saturating_add(scratch) as u64;
        Plan { workspace: self.workspace.saturating_add(captured), ..self }
    }

    /// Adds the MTP layer's KV cache, which has as many pages, the hidden states that it is to read, and what it makes of them
    /// beside what a layer takes.
    fn with_mtp(self, model: &Model, batch: usize) -> Plan {
        let layers = model.spec.mtp_layer().into_iter().collect();
        let kv = self.shape.of_draft_model().bytes(&DecoderSpec { layers, ..model.spec.clone() }) as u64;
        let hidden = batch.max(2 * self.slots).saturating_mul(8 * model.spec.dim * DType::F32.size()) as u64;
        Plan { kv: self.kv.saturating_add(kv), workspace: self.workspace.saturating_add(hidden), ..self }
    }

    /// Bytes of a draft model, whose KV cache has as many pages.
    fn of_draft(&self, draft: &Model, batch: usize) -> u64 {
        let step = Step { tokens: batch.max(2 * self.slots), logits: self.slots };
        let context = self.context.value.min(draft.spec.context);
        let kv = self.shape.of_draft_model().bytes(&draft.spec) as u64;
        (draft.weight_bytes() as u64).saturating_add(kv).saturating_add(workspace(draft, step, context))
    }

    /// True if the context is long enough to choose this device while other candidates remain.
    pub(crate) fn is_roomy(&self) -> bool {
        self.context.origin != Origin::Memory || self.context.value >= USEFUL_CONTEXT.min(self.made_for)
    }

    /// Plan for a [`SingleRunner`](crate::single_runner::SingleRunner), whose context is fixed.
    pub(crate) fn alone(
        model: &Model,
        shape: KvShape,
        step: Step,
        (device, cpu): (&Device, CpuOptions),
    ) -> Plan {
        let context = Setting { value: shape.pages * shape.page_len, origin: Origin::Flag };
        let workspace = workspace(model, step, context.value);
        let (weights, kv) = (model.weight_bytes() as u64, shape.bytes(&model.spec) as u64);
        // The last page may extend past the requested context.
        let made_for = context.value;
        let (name, memory) = (device.to_string(), device.info().memory());
        let (draft, adapters, slots) = (0, 0, 1);
        let plan = Plan {
            weights,
            draft,
            adapters,
            kv,
            workspace,
            context,
            made_for,
            slots,
            shape,
            device: name,
            memory,
            ram_cache: 0,
            shares_memory: device.info().traits().shares_memory,
            weights_in: WeightsIn::Memory,
        };
        Plan { weights_in: device.weights_in(model, cpu), ..plan }.capturing(model, device)
    }

    /// Plan for an encoder with steps of up to `batch` tokens, or one text if that is longer. The image encoder
    /// of a dual encoder runs after it, and reuses its cache and workspace.
    pub(crate) fn of_encoder(model: &EncoderModel, batch: usize, device: &Device) -> Plan {
        let plan = Plan::of_one_encoder(model, batch, device);
        let Some(images) = &model.image_encoder else { return plan };
        let other = Plan::of_one_encoder(images, batch, device);
        Plan { kv: plan.kv.max(other.kv), workspace: plan.workspace.max(other.workspace), ..plan }
    }

    fn of_one_encoder(model: &EncoderModel, batch: usize, device: &Device) -> Plan {
        let (spec, made_for) = (&model.spec, model.context());
        let tokens = batch.max(made_for);
        // A step has up to `batch` texts of one token, which take a page each, or one long text.
        let pages = batch.max(made_for.div_ceil(encoder::PAGE));
        let shape =
            KvShape { dtype: DType::F32, page_len: encoder::PAGE, pages, swa_pages: 0, state_rows: 0 };
        let cols = spec.layers.iter().map(|l| l.mixer.heads.kv_cols()).max().unwrap_or(0);
        let kv = (2 * pages * encoder::PAGE * cols * DType::F32.size()) as u64;
        let tables: usize = spec.ropes.iter().map(|r| r.table_len(made_for)).sum();
        let workspace = (tokens * activations(&spec.layers, spec.dim) + tables) * DType::F32.size();
        let context = Setting { value: made_for, origin: Origin::Model };
        Plan {
            weights: model.weight_bytes() as u64,
            draft: 0,
            adapters: 0,
            kv,
            workspace: workspace as u64,
            context,
            made_for,
            slots: 1,
            shape,
            device: device.to_string(),
            memory: device.info().memory(),
            ram_cache: 0,
            shares_memory: device.info().traits().shares_memory,
            weights_in: WeightsIn::Memory,
        }
    }

    /// Plan for a seq2seq (encoder-decoder) model.
    pub(crate) fn of_seq2seq(model: &Seq2SeqModel, limits: Seq2SeqLimits, device: &Device) -> Plan {
        let (encoder, decoder) = (&model.spec.encoder, &model.spec.decoder);
        let shape = limits.shape();
        let frames = if model.takes_audio() { 4 * limits.encoder_tokens } else { 0 };
        let read = (limits.encoder_tokens + frames) * activations(&encoder.layers, encoder.dim);
        let written = limits.step() * activations(&decoder.layers, decoder.dim);
        let logits = 2 * limits.slots * decoder.vocab;
        let context = Setting { value: limits.decoder_tokens, origin: Origin::Model };
        Plan {
            weights: model.weight_bytes() as u64,
            draft: 0,
            adapters: 0,
            kv: shape.bytes(decoder) as u64,
            workspace: ((read + written + logits) * DType::F32.size()) as u64,
            context,
            made_for: limits.decoder_tokens,
            slots: limits.slots,
            shape,
            device: device.to_string(),
            memory: device.info().memory(),
            ram_cache: 0,
            shares_memory: device.info().traits().shares_memory,
            weights_in: WeightsIn::Memory,
        }
    }

    /// Total bytes of the device's memory.
    pub(crate) fn total(&self) -> u64 {
        let ram_cache = if self.shares_memory { self.ram_cache } else { 0 };
        let weights = if self.weights_in == WeightsIn::Disk { 0 } else { self.weights };
        let all = [weights, self.draft, self.adapters, self.kv, self.workspace, ram_cache];
        all.into_iter().fold(0, u64::saturating_add)
    }

    /// True if it fits; assumed where the memory is unknown.
    pub(crate) fn fits(&self) -> bool {
        self.fits_among(1)
    }

    /// Bytes that are not free, and would have to be.
    pub(crate) fn missing(&self) -> u64 {
        let usable = self.memory.map_or(u64::MAX, |m| (m.free as f64 * (1.0 - HEADROOM)) as u64);
        self.total().saturating_sub(usable)
    }

    /// True if it fits into its share, where so many models share the memory.
    fn fits_among(&self, models: usize) -> bool {
        let share = (1.0 - HEADROOM) / models.max(1) as f64;
        self.memory.is_none_or(|m| (self.total() as f64) <= m.free as f64 * share)
    }

    /// An error with the numbers if it does not fit, or if the context exceeds what the model supports.
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
        let map = match self.weights_in {
            WeightsIn::MemoryOrDisk => ", --mmap (weights stay on the disk)",
            _ => "",
        };
        let (needs, free) = (size(self.total()), size(memory.free));
        let smaller = match self.context.origin {
            Origin::Prompt => {
                format!("a shorter prompt (a context of {asked} tokens was chosen for this one)")
            }
            _ => smaller,
        };
        Err(Failed::no_room(format!(
            "the model does not fit: it needs {needs}, and {free} of memory are free on {}\n{self}\n\
             Take {smaller}, a smaller quantization of the model{map}, or end other programs.",
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
        let more = |name: &str, bytes: u64| match bytes {
            0 => String::new(),
            bytes => format!("{name} {} + ", size(bytes)),
        };
        let (draft, adapters) = (more("draft model", self.draft), more("adapters", self.adapters));
        let free = self.memory.map_or(String::new(), |m| format!(", {} free", size(m.free)));
        let (shared, beside) = match (self.ram_cache, self.shares_memory) {
            (0, _) => Default::default(),
            (bytes, true) => (more("RAM cache", bytes), String::new()),
            (bytes, false) => (String::new(), format!("; RAM cache {} of the host's memory", size(bytes))),
        };
        write!(
            f,
            "{}: weights {}{} {draft}{adapters}cache {} ({kv}) + {shared}workspace {} = {}{free}{beside}",
            self.device,
            size(self.weights),
            if self.weights_in == WeightsIn::Disk { " on the disk;" } else { " +" },
            size(self.kv),
            size(self.workspace),
            size(self.total())
        )
    }
}

/// Checks that the host has room for a RAM cache of so many bytes.
pub(crate) fn check_ram_cache(bytes: u64) -> Result<(), Failed> {
    match Memory::now() {
        Some(host) if bytes as f64 > host.free as f64 * (1.0 - HEADROOM) => Err(Failed::new(format!(
            "--cache-ram: {} are asked for, and {} of memory are free",
            size(bytes),
            size(host.free)
        ))),
        _ => Ok(()),
    }
}

/// Limits of a seq2seq (encoder-decoder) model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seq2SeqLimits {
    /// Maximum running sequences.
    pub slots: usize,
    /// Maximum tokens of the encoder's output.
    pub encoder_tokens: usize,
    /// Maximum tokens that the decoder computes: prompt and answer, without the last token of the answer.
    pub decoder_tokens: usize,
    /// Data type of K and V.
    pub dtype: DType,
    /// Decoder tokens per step.
    pub batch: usize,
}

impl Seq2SeqLimits {
    /// As long as the model supports.
    pub(crate) fn of(model: &Seq2SeqModel, slots: usize, dtype: DType, batch: usize) -> Seq2SeqLimits {
        let (encoder_tokens, decoder_tokens) = (model.spec.encoder.context, model.spec.decoder.context);
        Seq2SeqLimits { slots, encoder_tokens, decoder_tokens, dtype, batch }
    }

    /// Maximum tokens of a sequence: prompt and answer.
    pub(crate) fn context(&self) -> usize {
        self.decoder_tokens + 1
    }

    /// KV cache with pages for self-attention and cross-attention of all slots.
    pub(crate) fn shape(&self) -> KvShape {
        let pages = self.context().div_ceil(PAGE) + self.encoder_tokens.div_ceil(PAGE);
        let pages = self.slots.saturating_mul(pages);
        KvShape { dtype: self.dtype, page_len: PAGE, pages, swa_pages: 0, state_rows: 0 }
    }

    /// Decoder tokens of the largest step.
    fn step(&self) -> usize {
        self.batch.min(self.slots * self.decoder_tokens).max(2 * self.slots)
    }
}

/// Largest step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub tokens: usize,
    /// Tokens whose logits are returned.
    pub logits: usize,
}

impl Step {
    /// The largest step if all slots may draft: each returns the logits of its draft and of the token before it.
    fn drafting(self, slots: usize) -> Step {
        let drafted = slots.saturating_mul(1 + MOST_DRAFTED).min(self.tokens);
        Step { logits: self.logits.max(drafted), ..self }
    }
}

/// Maximum tokens per step that belong to scored prompts. Each of them needs a row of logits; a few at a time keep that
/// small.
pub(crate) fn scored(batch: usize) -> usize {
    (batch / 8).clamp(1, 64)
}

/// Rows of recurrent states: two for each slot, and for snapshots a quarter as many bytes as the KV cache has, but at
/// least one for each slot; none in a model without recurrent state.
fn state_rows(spec: &DecoderSpec, shape: KvShape, slots: usize) -> usize {
    if !spec.is_recurrent() {
        return 0;
    }
    let snapshots = shape.bytes(spec) / 4 / KvShape::state_row_bytes(spec).max(1);
    slots.saturating_mul(2).saturating_add(snapshots.clamp(slots, MOST_SNAPSHOTS.max(slots)))
}

/// Pages of the sliding-window layers: those that all slots need, and for prefixes a quarter of what would hold all tokens. 0
/// if that is not less than all, or there are no such layers.
fn swa_pages(spec: &DecoderSpec, shape: KvShape, slots: usize, step: Step) -> usize {
    let Some(window) = spec.swa_window() else { return 0 };
    let needed = SlidingWindow::new(window).pages_needed(slots, step.tokens, shape.page_len);
    Some(needed.saturating_add(shape.pages / 4)).filter(|pages| *pages < shape.pages).unwrap_or(0)
}

/// Upper bound of a step's bytes besides weights and KV cache.
fn workspace(model: &Model, step: Step, context: usize) -> u64 {
    let spec = &model.spec;
    let activations = step.tokens as u64 * activations(&spec.layers, spec.dim) as u64;
    // On the device, and as downloaded from it.
    let logits = 2 * step.logits as u64 * spec.vocab as u64;
    let tables: usize = spec.ropes.iter().map(|r| r.table_len(context)).sum();
    (activations + logits + tables as u64) * DType::F32.size() as u64
}

/// Upper bound of the elements per token that a step has at one time.
fn activations<L: Clone + Into<LayerSpec>>(layers: &[L], dim: usize) -> usize {
    let layers: Vec<LayerSpec> = layers.iter().cloned().map(L::into).collect();
    let widest = |f: &dyn Fn(&LayerSpec) -> usize| layers.iter().map(f).max().unwrap_or(0);
    let qkv = widest(&|l| match &l.mixer {
        Mixer::Attention(a) => a.heads.qkv_cols() + (2 + 2 * usize::from(a.gated)) * a.heads.q_cols(),
        Mixer::SharedKv(a) => a.heads.qkv_cols() + 2 * a.heads.q_cols(),
        Mixer::Mla(a) => {
            let projected = a.q_heads * (a.qk_nope_dim + a.qk_rope_dim + a.v_dim);
            a.heads().qkv_cols() + 2 * a.heads().q_cols() + projected
        }
        // Gated delta rule: q, k and v as projected, after the convolution, and as heads.
        Mixer::GatedDelta(d) => 3 * d.heads.cols() + 5 * d.heads.value_cols() + 4 * d.heads.values,
    });
    // MoE: each token is copied for each of its experts, and their outputs are kept apart.
    let sorted = |moe: &MoeSpec| 2 * moe.experts.top_k * dim + 4 * moe.experts.count;
    let ffn = widest(&|l| 3 * l.active_ffn_width() + l.ffn.moe().map_or(0, sorted));
    4 * dim + qkv.max(ffn)
}

/// Returns freed memory to the system, where the allocator (glibc) would keep it.
pub(crate) fn trim() {
    // SAFETY: `malloc_trim` may be called at any time and from any thread; it takes the allocator's own locks.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use tallow_support::golden;

    use super::*;
    use crate::load::{LoadedModel, OpenOptions, open};
    use crate::model_name::DEMO;
    use crate::settings::{Defaults, Flags, Sources, Speculative, resolve};

    /// The demo model, and the settings of a server.
    fn demo() -> (LoadedModel, EngineConfig) {
        let sources = Sources::read(None).unwrap();
        let opened = open(DEMO, OpenOptions::new(&sources, true, None).unwrap()).unwrap();
        let config = resolve(&sources, &Flags::default(), &opened.generation, Defaults::API).unwrap();
        (opened, config)
    }

    /// A RAM cache is memory of the host: of the device's too if that is the same, and of no use to the CPU.
    #[test]
    fn a_ram_cache_is_in_the_plan() {
        let (opened, mut config) = demo();
        let plain = Plan::new(&opened.model, None, &config, &Device::cpu());
        config.ram_cache = 1 << 30;
        assert_eq!(Plan::new(&opened.model, None, &config, &Device::cpu()), plain);
        let plan = |shares_memory| Plan { ram_cache: 1 << 30, shares_memory, ..plain.clone() };
        assert_eq!(plan(true).total(), plain.total() + (1 << 30));
        assert!(plan(true).to_string().contains(" + RAM cache 1.00 GiB + workspace"), "{}", plan(true));
        assert_eq!(plan(false).total(), plain.total());
        let beside = plan(false).to_string();
        assert!(beside.ends_with("; RAM cache 1.00 GiB of the host's memory"), "{beside}");
        check_ram_cache(1 << 20).unwrap();
        let why = check_ram_cache(1 << 60).unwrap_err().to_string();
        assert!(why.starts_with("--cache-ram: 1048576 TiB are asked for"), "{why}");
    }

    /// Sliding-window layers keep what all slots need and a quarter more, unless all tokens are asked for.
    #[test]
    fn windows_take_less_than_all_tokens() {
        let model = Model::open(&golden("gpt-oss")).unwrap();
        let (opened, mut config) = demo();
        config.context = Some(Setting { value: 1024, origin: Origin::Flag });
        let plan = Plan::new(&model, None, &config, &Device::cpu());
        // Eight slots with a window of 8 tokens that begins anywhere in a tile of 64, and steps of 256.
        assert_eq!((plan.shape.pages, plan.shape.swa_pages), (512, 8 * 8 + 32 + 128));
        config.swa_full = true;
        let full = Plan::new(&model, None, &config, &Device::cpu());
        assert_eq!((full.shape.pages, full.shape.swa_pages), (512, 0));
        // Every other layer has a window.
        assert_eq!(1024 * plan.kv, (512 + 224) * full.kv);
        // With large steps, or no windows at all, there is nothing to be saved.
        (config.swa_full, config.batch.value) = (false, 4096);
        assert_eq!(Plan::new(&model, None, &config, &Device::cpu()).shape, full.shape);
        assert_eq!(Plan::new(&opened.model, None, &config, &Device::cpu()).shape.swa_pages, 0);
    }

    /// A step in which eight slots draft has 72 rows of logits, on the device and on the host; any other 40.
    #[test]
    fn rows_of_drafts_are_in_the_plan() {
        let (opened, mut config) = demo();
        let mut workspace = |speculative| {
            config.speculative.value = speculative;
            Plan::new(&opened.model, None, &config, &Device::cpu()).workspace
        };
        let more = workspace(Speculative::Auto) - workspace(Speculative::Off);
        assert_eq!(more, 2 * (72 - 40) * 4 * opened.model.spec.vocab as u64);
    }

    /// A model's MTP layer is loaded to draft, unless n-grams alone are to, or nothing; then it takes no memory.
    #[test]
    fn an_mtp_layer_is_in_the_plan_where_it_drafts() {
        let (_, mut config) = demo();
        let sources = Sources::read(None).unwrap();
        let path = golden("mtp/glm4-moe");
        let how = OpenOptions::new(&sources, true, None).unwrap();
        let opened = open(path.to_str().unwrap(), how).unwrap();
        let mut plan = |speculative| {
            config.speculative.value = speculative;
            let model = opened.used(&config);
            (model.mtp, Plan::new(&model, None, &config, &Device::cpu()))
        };
        let ((with, all), (without, ngram)) = (plan(Speculative::Auto), plan(Speculative::Ngram));
        assert!(with && !without && !plan(Speculative::Off).0);
        // A third layer beside two.
        assert_eq!(2 * all.kv, 3 * ngram.kv);
        assert!(all.weights > ngram.weights && all.workspace > ngram.workspace);
    }

    #[test]
    fn sizes_read_well() {
        let sizes = [0, 1023, 1024, 1536, 10 << 20, 4 << 30, 150 << 30].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "10.0 MiB", "4.00 GiB", "150 GiB"]);
    }
}
