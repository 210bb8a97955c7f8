//! Starts an engine for a decoder model.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tallow_core::Backend;
use tallow_engine::engine::spawn;
use tallow_engine::handle::{Info, RunningEngine};
use tallow_engine::kv_cache::KvShape;
use tallow_engine::runner::Runner;
use tallow_engine::scheduler::{DecodeBudget, Limits, LogitsRows};
use tallow_engine::step_budget;
use tallow_models::Model;
use tallow_models::decoder::Decoder;

use crate::devices::{CpuOptions, Device, Hardware, MeasuredBackend, Task, Traits, candidates};
use crate::fit::{Host, on_one_of};
use crate::load::{LoadedModel, quantized};
use crate::memory::{self, Plan};
use crate::notice::Notice;
use crate::settings::{EngineConfig, Origin, Speculative};
use crate::{Failed, terminal};

impl LoadedModel {
    /// Limits of requests, before the device's speed is known (see [`paced`]).
    fn limits(&self, config: &EngineConfig, plan: &Plan) -> Limits {
        let (slots, budget) = (plan.slots, config.batch.value);
        // Scored prompts need a row of logits for each token; a few at a time keep that small.
        let all_logits = memory::scored(budget);
        Limits {
            context: plan.context.value,
            slots,
            budget,
            decode_budget: DecodeBudget::of_tokens(budget),
            all_logits,
            drafts: None,
        }
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
            swa_pages: plan.shape.swa_pages,
            state_rows: plan.shape.state_rows,
            sampling: config.sampling(),
            adapter_room: config.adapter_room,
        })
    }

    /// Starts an engine for the model under these names, on the requested device or the best one with room. The choice
    /// and its reasons are reported to `host`.
    pub(crate) fn start(
        &self,
        config: &EngineConfig,
        names: Vec<String>,
        host: &dyn Host,
    ) -> Result<RunningEngine, Failed> {
        let model = self.used(config);
        let plan = |device: &Device| Plan::new(&model, self.draft(config), config, device);
        let handle = candidates(config.device.value).and_then(|(devices, why)| {
            if devices.len() > 1 {
                // A device should not be passed over for a tokenizer that cannot be read: no other device could read
                // it.
                self.text_codec()?;
            }
            if devices.iter().any(|device| !device.is_cpu()) {
                memory::check_ram_cache(config.ram_cache)?;
            }
            quantized(&self.model).for_each(|note| host.say(&note));
            let (started, ram_cache) = on_one_of(&devices, why, plan, host, |device, plan| {
                self.slow_on(device).into_iter().for_each(|why| host.say(&Notice::Slow(why)));
                Ok((self.start_on(device, &model, plan, config, names.clone())?, plan.ram_cache))
            })?;
            if ram_cache > 0 {
                started
                    .cache_in_ram(ram_cache)
                    .map_err(|why| Failed::new(format!("--cache-ram: {why}")))?;
            } else if config.ram_cache > 0 {
                let why = "--cache-ram is for GPUs, and ignored: on the CPU the KV cache is in the host's memory already";
                host.say(&Notice::Slow(why.into()));
            }
            Ok(started)
        });
        self.after_text_codec(handle)
    }

    /// The draft model, if it is used.
    pub(crate) fn draft(&self, config: &EngineConfig) -> Option<&Model> {
        self.draft.as_ref().filter(|_| config.speculative.value == Speculative::Auto)
    }

    /// The model, with its MTP layer if that drafts.
    pub(crate) fn used(&self, config: &EngineConfig) -> Model {
        let may = config.speculative.value == Speculative::Auto && self.draft.is_none();
        Model { mtp: may && self.model.has_mtp(), ..self.model.clone() }
    }

    /// Warnings about what runs on a device, but slower than users may expect.
    fn slow_on(&self, device: &Device) -> Vec<String> {
        let mut slow = Vec::new();
        if self.model.has_shuffled_experts() && !device.info().traits().orders_experts {
            slow.push("experts quantized with act-order are all computed for every token".into());
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
        model: &Model,
        plan: &Plan,
        config: &EngineConfig,
        names: Vec<String>,
    ) -> Result<RunningEngine, Failed> {
        let limits = self.limits(config, plan);
        let (may_draft, draft) = (config.may_draft(), self.draft(config).cloned());
        let loading = Loading { draft, ..Loading::new(model, plan.context.value, plan.shape) };
        let unwanted = loading.unwanted.clone();
        let info = || {
            let info = self.info(config, plan, names);
            unwanted.store(info.is_err(), Ordering::Relaxed);
            info
        };
        // A batch size that the user chose is kept, and a single slot has no other answers to delay.
        let may_limit = config.batch.origin == Origin::BuiltIn && limits.slots > 1;
        device.run(StartEngine { info, loading, limits, may_limit, may_draft, cpu: config.cpu() })
    }
}

/// Loads a model and starts the engine for it.
struct StartEngine<I> {
    info: I,
    loading: Loading,
    limits: Limits,
    /// True if steps may be limited by measured times.
    may_limit: bool,
    /// True if tokens may be drafted.
    may_draft: bool,
    cpu: CpuOptions,
}

impl<I: FnOnce() -> Result<Info, Failed>> Task for StartEngine<I> {
    type Output = RunningEngine;

    fn run<H: Hardware>(self, device: H) -> Result<RunningEngine, Failed> {
        let StartEngine { info, loading, limits, may_limit, may_draft, cpu } = self;
        spawn(info, move || {
            let traits = device.traits();
            let runner = loading.runner(loading.open(&device, cpu)?, traits)?;
            if let Some(why) = runner.backend().slowed() {
                tracing::warn!("{why}");
            }
            let limits = match may_limit {
                true => paced(&runner, limits, loading.shape.page_len, traits)?,
                false => limits,
            };
            let drafts = match may_draft {
                true => step_budget::draft_costs(&runner, &limits, loading.shape.page_len)?,
                false => None,
            };
            tracing::debug!("costs of drafts, in seconds: {drafts:?}");
            Ok((runner, Limits { drafts, ..limits }))
        })
    }
}

/// A model to be loaded on a device.
pub(crate) struct Loading {
    model: Model,
    /// Guesses its tokens.
    draft: Option<Model>,
    context: usize,
    shape: KvShape,
    /// Set when the model is no longer needed; cancels loading.
    unwanted: Arc<AtomicBool>,
}

impl Loading {
    pub(crate) fn new(model: &Model, context: usize, shape: KvShape) -> Loading {
        Loading { model: model.clone(), draft: None, context, shape, unwanted: Arc::default() }
    }

    /// Opens a device for it.
    pub(crate) fn open<H: Hardware>(&self, device: &H, cpu: CpuOptions) -> Result<H::Backend, Failed> {
        let models: Vec<&Model> = std::iter::once(&self.model).chain(&self.draft).collect();
        device.open_for(&models, cpu)
    }

    /// Loads the model on an open device, with a progress bar, and with a warm-up if the device wants one.
    pub(crate) fn runner<B: Backend>(&self, b: B, traits: Traits) -> Result<Runner<B>, Failed> {
        let decoder = self.decoder(&b, &self.model, self.context)?;
        if let Some(why) = decoder.mtp_fault() {
            tracing::warn!("the model's MTP layer is left out and drafts nothing: {why}");
        }
        let mut runner = Runner::new(b, decoder, self.shape)?.with_mtp(self.shape)?;
        if let Some(draft) = &self.draft {
            let context = self.context.min(draft.spec.context);
            let decoder = self.decoder(runner.backend(), draft, context)?;
            runner = runner.with_draft_model(decoder, context, self.shape)?;
        }
        if traits.compiles_kernels {
            self.warm_up(&runner)?;
        }
        Ok(runner)
    }

    fn decoder<B: Backend>(&self, b: &B, model: &Model, context: usize) -> Result<Decoder<B>, Failed> {
        let bar = terminal::loading_bar(model.weight_bytes());
        let decoder = Decoder::load(b, model, context, &mut |done, _| {
            bar.set_position(done as u64);
            match self.unwanted.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        bar.finish_and_clear();
        Ok(decoder?)
    }

    /// A prefill step and a decode step.
    fn warm_up<B: Backend>(&self, runner: &Runner<B>) -> Result<(), Failed> {
        for tokens in [self.context.min(64), 1] {
            step_budget::time_step(runner, 0, tokens, LogitsRows::Last, self.shape.page_len)?;
        }
        Ok(())
    }
}

/// Sets the decode budget by measured step times.
fn paced<B: Backend>(
    runner: &Runner<B>,
    limits: Limits,
    page_len: usize,
    traits: Traits,
) -> Result<Limits, Failed> {
    let timings = step_budget::time(runner, &limits, page_len, traits.compiles_kernels)?;
    let decode_budget = step_budget::decode_budget(&timings, limits.budget);
    let steps = timings.iter().map(|(tokens, took)| format!("{tokens} tokens in {} ms", took.as_millis()));
    let steps: Vec<String> = steps.collect();
    tracing::debug!("{decode_budget:?}, as steps take: {}", steps.join(", "));
    Ok(Limits { decode_budget, ..limits })
}
