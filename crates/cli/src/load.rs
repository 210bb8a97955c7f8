//! From a model's name to a running engine.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use indicatif::ProgressBar;
use tallow_core::Backend;
use tallow_cpu::Cpu;
use tallow_engine::block_pool::BlockId;
use tallow_engine::engine::spawn;
use tallow_engine::handle::{EngineHandle, Info};
use tallow_engine::kv_cache::KvShape;
use tallow_engine::runner::Runner;
use tallow_engine::scheduler::{Batch, BatchPart, Limits, SeqId, SlotId, Wanted};
use tallow_engine::step_budget;
use tallow_hub::{Cache, Hub, HubError, ModelRef};
use tallow_models::decoder::Decoder;
use tallow_models::encoder::EncoderModel;
use tallow_models::formats::Checkpoint;
use tallow_models::generation::Generation;
use tallow_models::recipe::Recipe;
use tallow_models::seq2seq::Seq2SeqModel;
use tallow_models::template::ChatTemplates;
use tallow_models::tokenizer::Tokenizer;
use tallow_models::{AnyModel, Model};

use crate::device::{Device, DeviceChoice, NoGpu, candidates};
use crate::memory::{self, Plan};
use crate::settings::{EngineConfig, Origin, Sources, Switch, unreadable};
use crate::{Failed, commands, env, log, terminal};

/// Name of the model that is embedded in the program.
pub(crate) const DEMO: &str = "demo";
static DEMO_BYTES: &[u8] = include_bytes!("../../../assets/demo.gguf");

/// A decoder model with what goes with it, not yet on a device.
#[derive(Debug, Clone)]
pub(crate) struct LoadedModel {
    /// Name shown to users and clients.
    pub name: String,
    pub model: Model,
    pub generation: Generation,
    words: OnceLock<TextCodec>,
}

/// Tokenizer and chat templates.
#[derive(Debug, Clone)]
pub(crate) struct TextCodec {
    pub tokenizer: Tokenizer,
    pub templates: Option<ChatTemplates>,
}

impl TextCodec {
    fn of(model: &Model) -> Result<TextCodec, Failed> {
        let tokenizer = model.tokenizer()?;
        let templates = model.templates(&tokenizer)?;
        Ok(TextCodec { tokenizer, templates })
    }
}

/// The cache of downloaded models.
pub(crate) fn cache() -> Result<Cache, Failed> {
    let folder = env::hub_cache().ok_or_else(|| {
        Failed::new("there is no folder for downloaded models: set HOME, or HF_HUB_CACHE to a folder")
    })?;
    Ok(Cache::at(folder))
}

/// Hub client, configured from the environment.
pub(crate) fn hub() -> Result<Hub, Failed> {
    let (proxy, no_proxy) = env::proxy();
    let mut settings = tallow_hub::Settings { token: env::hub_token(), no_proxy, ..Default::default() };
    (settings.names.endpoint, settings.names.token) = ("HF_ENDPOINT".into(), "HF_TOKEN".into());
    if let Some((variable, proxy)) = proxy {
        (settings.names.proxy, settings.proxy) = (variable.into(), Some(proxy));
    }
    if let Some(endpoint) = env::get("HF_ENDPOINT") {
        settings.endpoint = endpoint;
    }
    Ok(Hub::new(cache()?, &settings)?)
}

/// Why the hub must not be contacted: which setting says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offline {
    Flag,
    /// `HF_HUB_OFFLINE`, which other programs that use the hub read, too.
    HubVariable,
    OwnVariable,
    File,
}

impl std::fmt::Display for Offline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Offline::Flag => "--offline is given: leave it out to download models",
            Offline::HubVariable => "HF_HUB_OFFLINE is set: unset it to download models",
            Offline::OwnVariable => "TALLOW_OFFLINE is set: unset it to download models",
            Offline::File => {
                "the configuration file says `offline = true`: take that out to download models (`tallow doctor` says where \
                 the file is)"
            }
        })
    }
}

/// Options for opening a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenOptions {
    offline: Option<Offline>,
    quant: Option<Recipe>,
}

impl OpenOptions {
    pub(crate) fn new(
        sources: &Sources,
        offline: bool,
        quant: Option<Recipe>,
    ) -> Result<OpenOptions, Failed> {
        let quant = sources.find("quant", quant)?.map(|quant| quant.value);
        Ok(OpenOptions { offline: self::offline(sources, offline)?, quant })
    }

    /// With this `quant` or none, whatever the configuration file says: its setting is for models that are run, not
    /// written.
    pub(crate) fn to_write(
        sources: &Sources,
        offline: bool,
        quant: Option<Recipe>,
    ) -> Result<OpenOptions, Failed> {
        Ok(OpenOptions { offline: self::offline(sources, offline)?, quant })
    }

    /// Rejects `quant`: models with encoders are small, and are used as stored.
    fn as_stored(self) -> Result<(), Failed> {
        match self.quant {
            None => Ok(()),
            Some(quant) => Err(Failed::new(format!(
                "--quant {quant}: models with encoders are used as they are stored; leave the flag (or setting) out"
            ))),
        }
    }
}

/// Whether the hub must not be contacted, and which setting says so.
pub(crate) fn offline(sources: &Sources, flag: bool) -> Result<Option<Offline>, Failed> {
    let asked = sources.get("offline", flag.then_some(Switch(true)), Switch(false))?;
    let off = |value: &String| ["0", "false", "no", "off"].contains(&value.as_str());
    Ok(match asked.origin {
        origin if asked.value.0 => Some(match origin {
            Origin::Flag => Offline::Flag,
            Origin::Environment(_) => Offline::OwnVariable,
            _ => Offline::File,
        }),
        _ => env::get("HF_HUB_OFFLINE").filter(|value| !off(value)).map(|_| Offline::HubVariable),
    })
}

/// Finds a model's files; downloads them if they are not here.
fn checkpoint(name: &str, offline: Option<Offline>) -> Result<Checkpoint, Failed> {
    if name == DEMO {
        return Ok(Checkpoint::embedded(DEMO, DEMO_BYTES)?);
    }
    let path = expand(name);
    let there = match std::fs::metadata(&path) {
        Ok(_) => return Ok(Checkpoint::open(&path)?),
        Err(why) => why,
    };
    // What cannot be a hub name was meant as a path.
    let model = ModelRef::parse(name);
    let slashes = name.matches('/').count() > 1 && model.is_err() && !name.contains("://");
    let meant_as_path = name.starts_with(['.', '/', '~', '\\']) || slashes;
    let ends = path.extension().is_some_and(|e| e == "gguf" || e == "safetensors") && !name.contains("://");
    if meant_as_path || (ends && model.as_ref().map_or(true, |model| model.repo.as_str() == name)) {
        return Err(Failed::new(format!("{}: {}", path.display(), unreadable(&there))));
    }
    let model = model.map_err(|e| match e {
        HubError::Name { why, .. } => Failed::new(format!(
            "{name:?} is neither a file or folder here nor a valid hub name: {why}. Names look like org/name, \
             org/name:Q4_K_M or org/name@revision; `tallow search TEXT` finds short ones"
        )),
        other => other.into(),
    })?;
    if let Some(snapshot) = cache()?.find(&model)? {
        return Ok(Checkpoint::open(&snapshot.path)?);
    }
    if let Some(why) = offline {
        return Err(Failed::new(format!(
            "{name} is not on this machine, and {why}. `tallow list` shows what is here"
        )));
    }
    let fetched = commands::hub::fetch(&model);
    // The name may have been meant as a path.
    let fetched = fetched.map_err(|e| {
        Failed::new(format!("{name} is not a file or folder here, and could not be downloaded: {e}"))
    })?;
    Ok(Checkpoint::open(&fetched.path)?)
}

/// A path with `~/` expanded to the home folder.
pub(crate) fn expand(name: &str) -> PathBuf {
    match (name.strip_prefix("~/"), env::get("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(name),
    }
}

/// Opens a decoder model without its tokenizer; golden and benchmark models have none.
pub(crate) fn model(name: &str, how: OpenOptions) -> Result<Model, Failed> {
    let mut model = Model::new(checkpoint(name, how.offline)?)?;
    model.recipe = how.quant;
    quantized(&model).for_each(|note| note.show());
    Ok(model)
}

/// Notes on how the model is quantized on load.
pub(crate) fn quantized(model: &Model) -> impl Iterator<Item = Notice> {
    model.quantizing_notes().into_iter().map(Notice::Quantized)
}

/// Opens a model of any kind.
pub(crate) fn any(name: &str, how: OpenOptions) -> Result<AnyModel, Failed> {
    let mut model = AnyModel::new(checkpoint(name, how.offline)?)?;
    match &mut model {
        AnyModel::Decoder(model) => model.recipe = how.quant,
        AnyModel::Encoder(_) | AnyModel::Seq2Seq(_) => how.as_stored()?,
    }
    Ok(model)
}

/// Opens an encoder.
pub(crate) fn encoder(name: &str, how: OpenOptions) -> Result<EncoderModel, Failed> {
    how.as_stored()?;
    Ok(EncoderModel::new(checkpoint(name, how.offline)?)?)
}

/// Opens a seq2seq (encoder-decoder) model.
pub(crate) fn seq2seq(name: &str, how: OpenOptions) -> Result<Seq2SeqModel, Failed> {
    how.as_stored()?;
    Ok(Seq2SeqModel::new(checkpoint(name, how.offline)?)?)
}

/// Opens a decoder model. Its tokenizer and templates are read on first use: that takes a while, in which weights can
/// be loaded.
pub(crate) fn open(name: &str, how: OpenOptions) -> Result<LoadedModel, Failed> {
    opened(name, model(name, how)?)
}

/// As [`open`], for a model that is already open.
pub(crate) fn opened(name: &str, model: Model) -> Result<LoadedModel, Failed> {
    let generation = match model.generation() {
        Ok(generation) => generation,
        Err(why) => return Err(TextCodec::of(&model).err().unwrap_or(why.into())),
    };
    Ok(LoadedModel { name: short_name(name), model, generation, words: OnceLock::new() })
}

/// Opens a tokenizer alone; also of a file with nothing else, or of a family that is not supported.
pub(crate) fn tokenizer(name: &str, offline: Option<Offline>) -> Result<Tokenizer, Failed> {
    let checkpoint = checkpoint(name, offline)?;
    Ok(match &checkpoint.settings {
        tallow_models::formats::Settings::Gguf(meta) => Tokenizer::from_gguf(meta)?,
        tallow_models::formats::Settings::Hf(_) => Tokenizer::from_folder(&checkpoint.path)?,
    })
}

/// A model's name as clients know it: without folders (of a path on disk) and `.gguf`.
pub(crate) fn short_name(name: &str) -> String {
    let path = Path::new(name);
    let on_disk = path.exists();
    let last = path.file_name().map(|n| n.to_string_lossy().into_owned()).filter(|_| on_disk);
    let last = last.unwrap_or_else(|| name.to_owned());
    last.strip_suffix(".gguf").map_or(last.clone(), str::to_owned)
}

impl LoadedModel {
    /// Tokenizer and chat templates, read on first use.
    pub(crate) fn text_codec(&self) -> Result<&TextCodec, Failed> {
        if let Some(words) = self.words.get() {
            return Ok(words);
        }
        let words = TextCodec::of(&self.model)?;
        Ok(self.words.get_or_init(|| words))
    }

    /// Returns `done`; but if that failed and the tokenizer cannot be read either, the tokenizer's error, so that the
    /// error does not depend on which of the two came first.
    pub(crate) fn after_text_codec<T>(&self, done: Result<T, Failed>) -> Result<T, Failed> {
        done.or_else(|why| self.text_codec().and(Err(why)))
    }

    /// Limits of requests, before the device's speed is known (see [`paced`]).
    fn limits(&self, config: &EngineConfig, plan: &Plan) -> Limits {
        let (slots, budget) = (plan.slots, config.batch.value);
        // Scored prompts need a row of logits for each token; a few at a time keep that small.
        let all_logits = memory::scored(budget);
        let (context, prefixes) = (plan.context.value, !self.model.spec.is_recurrent());
        Limits { context, slots, budget, decode_budget: budget, all_logits, prefixes }
    }

    fn info(&self, config: &EngineConfig, plan: &Plan, names: Vec<String>) -> Result<Info, Failed> {
        Ok(Info {
            names,
            tokenizer: self.text_codec()?.tokenizer.clone(),
            vocab: self.model.spec.vocab,
            context: plan.context.value,
            slots: plan.slots,
            queue: config.queue.value,
            queue_timeout: config.queue_timeout,
            page_len: plan.shape.page_len,
            pages: plan.shape.pages,
            sampling: config.sampling(),
            adapter_room: config.adapter_room,
        })
    }

    /// Starts an engine for the model under these names, on the requested device or the best one with room. The choice
    /// and its reasons are reported through `say`.
    pub(crate) fn start(
        &self,
        config: &EngineConfig,
        names: Vec<String>,
        say: &dyn Fn(&Notice),
    ) -> Result<EngineHandle, Failed> {
        let plan = |device: &Device| Plan::new(&self.model, config, device);
        let handle = candidates(config.device.value).and_then(|(devices, why)| {
            if devices.len() > 1 {
                // A device should not be passed over for a tokenizer that cannot be read: no other device could read
                // it.
                self.text_codec()?;
            }
            quantized(&self.model).for_each(|note| say(&note));
            on_one_of(&devices, why, plan, say, |device, plan| {
                self.slow(device).into_iter().for_each(|why| say(&Notice::Slow(why)));
                self.start_on(device, plan, config, names.clone())
            })
        });
        self.after_text_codec(handle)
    }

    /// What works on that device, but slower than users may expect.
    fn slow(&self, device: &Device) -> Vec<String> {
        let (layers, on_gpu) = (&self.model.spec.layers, !matches!(device, Device::Cpu));
        let (experts, latent) =
            (layers.iter().any(|l| l.experts.is_some()), layers.iter().any(|l| l.mla.is_some()));
        let mut slow = Vec::new();
        if on_gpu && experts {
            slow.push(format!("{device} computes every expert for every token; --device cpu may be faster"));
        } else if self.model.has_shuffled_experts() {
            slow.push("experts quantized with act-order are all computed for every token".into());
        }
        if on_gpu && latent {
            slow.push(format!(
                "{device} goes through this model's heads one by one; --device cpu may be faster"
            ));
        }
        match self.model.widened() {
            0 => {}
            n => slow.push(format!(
                "{n} tensors are quantized in a way that is kept as f32 here, which takes memory and time"
            )),
        }
        slow
    }

    /// Starts the engine on `device`. The tokenizer is read while the weights are loaded.
    fn start_on(
        &self,
        device: &Device,
        plan: &Plan,
        config: &EngineConfig,
        names: Vec<String>,
    ) -> Result<EngineHandle, Failed> {
        let limits = self.limits(config, plan);
        let loading = Loading::new(&self.model, plan.context.value, plan.shape);
        let unwanted = loading.unwanted.clone();
        let info = || {
            let info = self.info(config, plan, names);
            unwanted.store(info.is_err(), Ordering::Relaxed);
            info
        };
        match device.clone() {
            Device::Cpu => {
                let (isa, threads) = (config.isa.value, config.threads.value);
                let (arithmetic, page_len) = (config.arithmetic.value, plan.shape.page_len);
                // A batch size that the user chose is kept, and a single slot has no other answers to delay.
                let chosen = config.batch.origin != Origin::BuiltIn || limits.slots == 1;
                spawn(info, move || {
                    let runner = loading.runner(Cpu::new(isa, threads)?.with(arithmetic))?;
                    let limits = if chosen { limits } else { paced(&runner, limits, page_len)? };
                    Ok((runner, limits))
                })
            }
            #[cfg(feature = "wgpu")]
            Device::Gpu(found) => spawn(info, move || Ok((loading.gpu_runner(&found)?, limits))),
        }
    }
}

/// Notices while a device is chosen.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The chosen device, and the memory plan on it.
    Taken(String),
    /// Why the model will be slower than it could be.
    Slow(String),
    /// What was done with weights that were to be quantized.
    Quantized(String),
    /// A preferred device that is passed over, and why.
    PassedOver(String),
    /// Why the CPU is used, where that is expected.
    OnCpu(String),
}

impl Notice {
    /// Shows the notice to users: the chosen device on a terminal only, why the model is slow unless `--quiet` is given,
    /// what is quantized or passed over always.
    pub(crate) fn show(&self) {
        match self {
            Notice::Taken(text) if std::io::stderr().is_terminal() && !log::is_quiet() => {
                terminal::tell(&terminal::dim(text));
            }
            Notice::Taken(text) => tracing::info!("{text}"),
            Notice::OnCpu(text) => tracing::info!("{text}"),
            Notice::Slow(_) if log::is_quiet() => {}
            Notice::Slow(text) | Notice::Quantized(text) | Notice::PassedOver(text) => {
                terminal::tell(&terminal::harmless(text))
            }
        }
    }

    /// Writes it to the log.
    pub(crate) fn log(&self) {
        match self {
            Notice::Taken(text) => tracing::info!("{text}"),
            Notice::OnCpu(text) => tracing::debug!("{text}"),
            Notice::Slow(text) | Notice::Quantized(text) | Notice::PassedOver(text) => {
                tracing::warn!("{text}")
            }
        }
    }
}

/// Calls `put` on the first device that has room for its plan; if that fails, on the next.
pub(crate) fn on_some_device<T>(
    asked: DeviceChoice,
    plan: impl Fn(&Device) -> Plan,
    say: &dyn Fn(&Notice),
    put: impl FnMut(&Device, &Plan) -> Result<T, Failed>,
) -> Result<T, Failed> {
    let (devices, why) = candidates(asked)?;
    on_one_of(&devices, why, plan, say, put)
}

/// As [`on_some_device`], for known devices. `why`: why no GPU precedes the last one, the CPU.
fn on_one_of<T>(
    devices: &[Device],
    why: Option<NoGpu>,
    plan: impl Fn(&Device) -> Plan,
    say: &dyn Fn(&Notice),
    mut put: impl FnMut(&Device, &Plan) -> Result<T, Failed>,
) -> Result<T, Failed> {
    for (device, next) in devices.iter().zip(&devices[1..]) {
        let plan = plan(device);
        let put = match plan.check() {
            Ok(()) if !plan.is_roomy() => {
                let tokens = plan.context.value;
                Err(Failed::new(format!("{device} has room for a context of {tokens} tokens only")))
            }
            Ok(()) => {
                say(&Notice::Taken(plan.to_string()));
                put(device, &plan)
            }
            Err(e) => Err(e),
        };
        match put {
            Ok(done) => return Ok(done),
            Err(e) => say(&Notice::PassedOver(format!("not on {device}: {e}\ntrying {next} instead"))),
        }
    }
    let Some(last) = devices.last() else { return Err(Failed::new("there is no device")) };
    let plan = plan(last);
    plan.check()?;
    match why {
        Some(NoGpu { why, surprising: true }) => say(&Notice::PassedOver(why)),
        Some(NoGpu { why, surprising: false }) => say(&Notice::OnCpu(why)),
        None => {}
    }
    say(&Notice::Taken(plan.to_string()));
    put(last, &plan)
}

/// Sets the decode budget by measured step times.
fn paced<B: Backend>(runner: &Runner<B>, limits: Limits, page_len: usize) -> Result<Limits, Failed> {
    let timings = step_budget::time(runner, &limits, page_len)?;
    let decode_budget = step_budget::decode_budget(&timings, limits.budget);
    let steps = timings.iter().map(|(tokens, took)| format!("{tokens} tokens in {} ms", took.as_millis()));
    let steps: Vec<String> = steps.collect();
    tracing::debug!(
        "while answers are under way a step has up to {decode_budget} tokens ({})",
        steps.join(", ")
    );
    Ok(Limits { decode_budget, ..limits })
}

/// Below this many bytes of weights, loading is too fast for a progress bar.
pub(crate) const QUICK: usize = 64 << 20;

/// A model to be loaded on a device.
pub(crate) struct Loading {
    model: Model,
    context: usize,
    shape: KvShape,
    /// Set when the model is no longer needed; cancels loading.
    unwanted: Arc<AtomicBool>,
}

impl Loading {
    pub(crate) fn new(model: &Model, context: usize, shape: KvShape) -> Loading {
        Loading { model: model.clone(), context, shape, unwanted: Arc::default() }
    }

    /// Loads the model with a progress bar.
    pub(crate) fn runner<B: Backend>(&self, b: B) -> Result<Runner<B>, Failed> {
        let bytes = self.model.weight_bytes();
        let bar =
            if bytes < QUICK { ProgressBar::hidden() } else { terminal::bytes_bar(bytes as u64, "loading") };
        let decoder = Decoder::load(&b, &self.model, self.context, &mut |done, _| {
            bar.set_position(done as u64);
            match self.unwanted.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        bar.finish_and_clear();
        Ok(Runner::new(b, decoder?, self.shape)?)
    }

    /// Loads it on a GPU, with a warm-up.
    #[cfg(feature = "wgpu")]
    pub(crate) fn gpu_runner(&self, found: &tallow_wgpu::Found) -> Result<Runner<tallow_wgpu::Wgpu>, Failed> {
        self.warm_runner(tallow_wgpu::Wgpu::open(found)?)
    }

    /// Loads it and runs two warm-up steps, so that the kernels are compiled before the first request, and a driver that
    /// cannot compile them, or a device that cannot run them, fails now.
    pub(crate) fn warm_runner<B: Backend>(&self, b: B) -> Result<Runner<B>, Failed> {
        let runner = self.runner(b)?;
        // A prefill step and a decode step.
        for tokens in [self.context.min(64), 1] {
            let blocks = (0..tokens.div_ceil(self.shape.page_len) as u32).map(BlockId).collect();
            let (id, slot, tokens, logits) = (SeqId(0), SlotId(0), vec![0; tokens], Wanted::Last);
            runner.logits(&Batch {
                parts: vec![BatchPart { id, tokens, start: 0, blocks, slot, logits, lora: None }],
            })?;
            runner.backend().sync()?;
        }
        Ok(runner)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::settings::{Defaults, Flags, resolve};

    /// Tries two devices; `put` returns `first()` on the first of them.
    fn through(context: usize, first: impl Fn() -> Result<(), Failed>) -> (Result<usize, Failed>, String) {
        let opened = open(DEMO, OpenOptions { offline: Some(Offline::Flag), quant: None }).unwrap();
        let mut flags = Flags::default();
        flags.engine.context = Some(context);
        let sources = Sources::read(None).unwrap();
        let config = resolve(&sources, &flags, &opened.generation, Defaults::CHAT).unwrap();
        let said = RefCell::new(String::new());
        let say = |note: &Notice| {
            *said.borrow_mut() += &match note {
                Notice::Taken(text) => format!("taken: {}\n", text.split(':').next().unwrap()),
                Notice::Slow(text) | Notice::Quantized(text) => format!("slow: {text}\n"),
                Notice::PassedOver(text) => format!("passed over: {text}\n"),
                Notice::OnCpu(text) => format!("on the CPU: {text}\n"),
            };
        };
        let mut tried = 0;
        let devices = [Device::Cpu, Device::Cpu];
        let plan = |device: &Device| Plan::new(&opened.model, &config, device);
        let done = on_one_of(&devices, None, plan, &say, |_, _| {
            tried += 1;
            if tried == 1 { first().map(|()| 1) } else { Ok(tried) }
        });
        (done, said.into_inner())
    }

    #[test]
    fn a_device_that_cannot_is_passed_over_with_its_words() {
        let (done, said) = through(1024, || Ok(()));
        assert_eq!((done.unwrap(), said.as_str()), (1, "taken: cpu\n"));
        let (done, said) = through(1024, || Err(Failed::new("a kernel does not compile")));
        assert_eq!(done.unwrap(), 2);
        assert_eq!(
            said,
            "taken: cpu\npassed over: not on cpu: a kernel does not compile\ntrying cpu instead\ntaken: cpu\n"
        );
        // What fits nowhere is refused by the last device.
        let (done, said) = through(4096, || Ok(()));
        assert!(done.unwrap_err().to_string().contains("a context of 4096 tokens is asked for"));
        assert!(said.starts_with("passed over: not on cpu: a context of 4096"), "{said}");
    }
}
