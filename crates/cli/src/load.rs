//! From a model's name to an engine that runs it.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use tallow_core::Backend;
use tallow_cpu::Cpu;
use tallow_engine::engine::spawn;
use tallow_engine::handle::{EngineHandle, Info};
use tallow_engine::kv::KvShape;
use tallow_engine::pace;
#[cfg(feature = "wgpu")]
use tallow_engine::pool::BlockId;
use tallow_engine::runner::Runner;
use tallow_engine::scheduler::Limits;
#[cfg(feature = "wgpu")]
use tallow_engine::scheduler::{Batch, Part, SeqId, Wanted};
use tallow_hub::{Cache, Hub, ModelRef};
use tallow_models::Model;
use tallow_models::decoder::Decoder;
use tallow_models::formats::Checkpoint;
use tallow_models::generation::Generation;
use tallow_models::template::ChatTemplates;
use tallow_models::tokenizer::Tokenizer;

use crate::device::{Asked, Device, candidates};
use crate::memory::{self, Plan};
use crate::settings::{EngineConfig, Origin, Setting, Sources};
use crate::{Failed, commands, env, screen};

/// The model that is part of the program.
pub(crate) const DEMO: &str = "demo";
static DEMO_BYTES: &[u8] = include_bytes!("../../../assets/demo.gguf");

/// A model with everything that goes with it, not yet on a device.
#[derive(Debug, Clone)]
pub(crate) struct Opened {
    /// What to call it.
    pub name: String,
    pub model: Model,
    pub tokenizer: Tokenizer,
    pub templates: Option<ChatTemplates>,
    pub generation: Generation,
}

/// The cache of downloaded models.
pub(crate) fn cache() -> Result<Cache, Failed> {
    let folder = env::hub_cache().ok_or_else(|| {
        Failed::new("there is no folder for downloaded models: set HOME, or HF_HUB_CACHE to a folder")
    })?;
    Ok(Cache::at(folder))
}

/// The hub, as the environment describes it.
pub(crate) fn hub() -> Result<Hub, Failed> {
    let (proxy, no_proxy) = env::proxy();
    let mut settings =
        tallow_hub::Settings { token: env::hub_token(), proxy, no_proxy, ..Default::default() };
    if let Some(endpoint) = env::get("HF_ENDPOINT") {
        settings.endpoint = endpoint;
    }
    Ok(Hub::new(cache()?, &settings)?)
}

/// Is the hub not to be asked?
pub(crate) fn is_offline(sources: &Sources, flag: bool) -> Result<bool, Failed> {
    let asked: Setting<bool> = sources.get("offline", flag.then_some(true), false)?;
    let switch =
        env::get("HF_HUB_OFFLINE").is_some_and(|v| !["0", "false", "no", "off"].contains(&v.as_str()));
    Ok(asked.value || switch)
}

/// Finds a model's files, downloading them if they are not here.
fn checkpoint(name: &str, offline: bool) -> Result<Checkpoint, Failed> {
    if name == DEMO {
        return Ok(Checkpoint::embedded(DEMO, DEMO_BYTES)?);
    }
    let path = expand(name);
    if path.exists() {
        return Ok(Checkpoint::open(&path)?);
    }
    // What cannot be a name on the hub was meant as a path.
    let meant_as_path = name.starts_with(['.', '/', '~', '\\']) || name.matches('/').count() > 1;
    if meant_as_path || path.extension().is_some_and(|e| e == "gguf" || e == "safetensors") {
        return Err(Failed::new(format!("{}: there is no such file or folder", path.display())));
    }
    let model = ModelRef::parse(name).map_err(|e| {
        Failed::new(format!("{name:?} is no file or folder here, and no name on the hub either: {e}"))
    })?;
    if let Some(snapshot) = cache()?.find(&model)? {
        return Ok(Checkpoint::open(&snapshot.path)?);
    }
    if offline {
        let why = format!(
            "{name} is not on this machine, and the hub is not to be asked (offline). `tallow list` shows what is here."
        );
        return Err(Failed::new(why));
    }
    let fetched = commands::hub::fetch(&model);
    // It may have been meant as a path.
    let fetched =
        fetched.map_err(|e| Failed::new(format!("{name} is no file or folder here. From the hub: {e}")))?;
    Ok(Checkpoint::open(&fetched.path)?)
}

/// A path in which `~` stands for the home folder.
fn expand(name: &str) -> PathBuf {
    match (name.strip_prefix("~/"), env::get("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(name),
    }
}

/// Opens a model alone: goldens and benchmarks have no tokenizer.
pub(crate) fn model(name: &str, offline: bool) -> Result<Model, Failed> {
    Ok(Model::new(checkpoint(name, offline)?)?)
}

/// Opens a model and what goes with it.
pub(crate) fn open(name: &str, offline: bool) -> Result<Opened, Failed> {
    let model = model(name, offline)?;
    let tokenizer = model.tokenizer()?;
    let templates = model.templates(&tokenizer)?;
    let generation = model.generation()?;
    Ok(Opened { name: short_name(name), model, tokenizer, templates, generation })
}

/// Opens a model's tokenizer alone: also that of a file which has nothing else, or of a family that we do not run.
pub(crate) fn tokenizer(name: &str, offline: bool) -> Result<Tokenizer, Failed> {
    let checkpoint = checkpoint(name, offline)?;
    Ok(match &checkpoint.settings {
        tallow_models::formats::Settings::Gguf(meta) => Tokenizer::from_gguf(meta)?,
        tallow_models::formats::Settings::Hf(_) => Tokenizer::from_folder(&checkpoint.path)?,
    })
}

/// A model's name as clients know it: without folders and ending.
fn short_name(name: &str) -> String {
    let path = Path::new(name);
    let on_disk = path.exists();
    let last = path.file_name().map(|n| n.to_string_lossy().into_owned()).filter(|_| on_disk);
    let last = last.unwrap_or_else(|| name.to_owned());
    last.strip_suffix(".gguf").map_or(last.clone(), str::to_owned)
}

impl Opened {
    /// What requests have to keep to, before anybody knows how fast the device is.
    fn limits(&self, config: &EngineConfig, plan: &Plan) -> Limits {
        let (slots, budget) = (plan.slots, config.batch.value);
        // Scored prompts bring a row of logits for each token; a few at a time keep that small.
        let all_logits = memory::scored(budget);
        Limits { context: plan.context.value, slots, budget, beside: budget, all_logits }
    }

    fn info(&self, config: &EngineConfig, plan: &Plan, names: Vec<String>) -> Info {
        Info {
            names,
            tokenizer: self.tokenizer.clone(),
            vocab: self.model.spec.vocab,
            context: plan.context.value,
            slots: plan.slots,
            queue: config.queue.value,
            page_len: plan.shape.page_len,
            pages: plan.shape.pages,
            sampling: config.sampling(),
        }
    }

    /// Starts an engine for the model under these names, on the device that was asked for or the best that has room.
    /// Which that is, and why, is said to `say`.
    pub(crate) fn start(
        &self,
        config: &EngineConfig,
        names: Vec<String>,
        say: &dyn Fn(&Note),
    ) -> Result<EngineHandle, Failed> {
        let plan = |device: &Device| Plan::new(&self.model, config, device);
        on_some_device(config.device.value, plan, say, |device, plan| {
            let (model, context, shape) = (self.model.clone(), plan.context.value, plan.shape);
            let info = self.info(config, plan, names.clone());
            let limits = self.limits(config, plan);
            match device.clone() {
                Device::Cpu => {
                    let (isa, threads) = (config.isa.value, config.threads.value);
                    let arithmetic = config.arithmetic.value;
                    // Who asked for a number of tokens gets it, and whoever is alone waits for nobody.
                    let chosen = config.batch.origin != Origin::BuiltIn || limits.slots == 1;
                    spawn(info, move || {
                        let b = Cpu::new(isa, threads)?.with(arithmetic);
                        let runner = runner(b, &model, context, shape)?;
                        let limits = if chosen { limits } else { paced(&runner, limits, shape.page_len)? };
                        Ok((runner, limits))
                    })
                }
                #[cfg(feature = "wgpu")]
                Device::Gpu(found) => {
                    spawn(info, move || Ok((gpu_runner(&found, &model, context, shape)?, limits)))
                }
            }
        })
    }
}

/// What is said while a device is chosen.
#[derive(Debug)]
pub(crate) enum Note {
    /// The device that is taken, and what the model takes of it.
    Taken(String),
    /// A device that is not, though it comes first.
    PassedOver(String),
}

impl Note {
    /// Shows it to somebody at a terminal. What was passed over is shown to everybody: it is never silent.
    pub(crate) fn show(&self) {
        match self {
            Note::Taken(text) if std::io::stderr().is_terminal() => eprintln!("{}", screen::dim(text)),
            Note::Taken(_) => {}
            Note::PassedOver(text) => eprintln!("{}", screen::harmless(text)),
        }
    }

    /// Writes it to the log.
    pub(crate) fn log(&self) {
        match self {
            Note::Taken(text) => tracing::info!("{text}"),
            Note::PassedOver(text) => tracing::warn!("{text}"),
        }
    }
}

/// Does something on the first device that has room for it and can do it.
pub(crate) fn on_some_device<T>(
    asked: Asked,
    plan: impl Fn(&Device) -> Plan,
    say: &dyn Fn(&Note),
    put: impl FnMut(&Device, &Plan) -> Result<T, Failed>,
) -> Result<T, Failed> {
    let (devices, why) = candidates(asked)?;
    on_one_of(&devices, why.as_deref(), plan, say, put)
}

/// The same for devices that are known. `why` says why those before the last are not there.
fn on_one_of<T>(
    devices: &[Device],
    why: Option<&str>,
    plan: impl Fn(&Device) -> Plan,
    say: &dyn Fn(&Note),
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
                say(&Note::Taken(plan.to_string()));
                put(device, &plan)
            }
            Err(e) => Err(e),
        };
        match put {
            Ok(done) => return Ok(done),
            Err(e) => say(&Note::PassedOver(format!("not on {device}: {e}\ntrying {next} instead"))),
        }
    }
    let Some(last) = devices.last() else { return Err(Failed::new("there is no device")) };
    let plan = plan(last);
    plan.check()?;
    let why = why.map_or(String::new(), |why| format!(" ({why})"));
    say(&Note::Taken(format!("{plan}{why}")));
    put(last, &plan)
}

/// Loads a model on a GPU, and has it compute a little: so that its kernels are compiled before the first request comes,
/// and a driver that cannot compile them, or a device that cannot run them, shows now.
#[cfg(feature = "wgpu")]
pub(crate) fn gpu_runner(
    found: &tallow_wgpu::Found,
    model: &Model,
    context: usize,
    shape: KvShape,
) -> Result<Runner<tallow_wgpu::Wgpu>, Failed> {
    let runner = runner(tallow_wgpu::Wgpu::open(found)?, model, context, shape)?;
    // A prompt, and a token of an answer.
    for tokens in [context.min(64), 1] {
        let blocks = (0..tokens.div_ceil(shape.page_len) as u32).map(BlockId).collect();
        let (id, tokens, logits) = (SeqId(0), vec![0; tokens], Wanted::Last);
        runner.logits(&Batch { parts: vec![Part { id, tokens, start: 0, blocks, logits }] })?;
        runner.backend().sync()?;
    }
    Ok(runner)
}

/// The limits, with room beside answers by what steps take here.
fn paced<B: Backend>(runner: &Runner<B>, limits: Limits, page_len: usize) -> Result<Limits, Failed> {
    let timings = pace::time(runner, &limits, page_len)?;
    let beside = pace::beside(&timings, limits.budget);
    let steps = timings.iter().map(|(tokens, took)| format!("{tokens} tokens in {} ms", took.as_millis()));
    let steps: Vec<String> = steps.collect();
    tracing::info!("while answers are under way a step has up to {beside} tokens ({})", steps.join(", "));
    Ok(Limits { beside, ..limits })
}

/// Bytes that are loaded before anybody could read how far it has got.
const QUICK: usize = 64 << 20;

/// Loads a model, showing how far it has got.
pub(crate) fn runner<B: Backend>(
    b: B,
    model: &Model,
    context: usize,
    shape: KvShape,
) -> Result<Runner<B>, Failed> {
    let bytes = model.checkpoint.weight_bytes();
    let bar = if bytes < QUICK { ProgressBar::hidden() } else { screen::bytes_bar(bytes as u64, "loading") };
    let decoder = Decoder::load(&b, model, context, &mut |done, _| bar.set_position(done as u64));
    bar.finish_and_clear();
    Ok(Runner::new(b, decoder?, shape)?)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::settings::{Defaults, Flags, resolve};

    /// Goes through two devices, the first of which does what `first` says.
    fn through(context: usize, first: impl Fn() -> Result<(), Failed>) -> (Result<usize, Failed>, String) {
        let opened = open(DEMO, true).unwrap();
        let mut flags = Flags::default();
        flags.engine.context = Some(context);
        let sources = Sources::read(None).unwrap();
        let config = resolve(&sources, &flags, &opened.generation, Defaults::CHAT).unwrap();
        let said = RefCell::new(String::new());
        let say = |note: &Note| {
            *said.borrow_mut() += &match note {
                Note::Taken(text) => format!("taken: {}\n", text.split(':').next().unwrap()),
                Note::PassedOver(text) => format!("passed over: {text}\n"),
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
        // What fits nowhere is refused by the last.
        let (done, said) = through(4096, || Ok(()));
        assert!(done.unwrap_err().to_string().contains("a context of 4096 tokens is asked for"));
        assert!(said.starts_with("passed over: not on cpu: a context of 4096"), "{said}");
    }
}
