//! Starts an embedder for an encoder.

use std::ops::ControlFlow;

use tallow_core::Backend;
use tallow_engine::embedder::{EmbedderInfo, EncoderRunner, PoolingTask, RunningEmbedder, spawn};
use tallow_models::encoder::{Encoder, EncoderModel, Image, Input, Inputs, Item};

use crate::devices::{Arithmetic, CpuOptions, Device, DeviceChoice, Hardware, Task};
use crate::fit::{Host, on_some_device};
use crate::memory::Plan;
use crate::settings::{DeviceArgs, EngineConfig, Sources};
use crate::single_runner::Setup;
use crate::{Failed, terminal};

/// Device and settings that an encoder or a seq2seq model runs with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub device: DeviceChoice,
    pub cpu: CpuOptions,
    /// Tokens per step, unless a single text has more.
    pub batch: usize,
}

impl Placement {
    /// From a command's flags.
    pub(crate) fn new(sources: &Sources, device: &DeviceArgs) -> Result<Placement, Failed> {
        let Setup { device, cpu, batch, .. } = Setup::new(sources, device, None, Arithmetic::Fast)?;
        Ok(Placement { device, cpu, batch })
    }

    /// From an engine configuration.
    pub(crate) fn of(config: &EngineConfig) -> Placement {
        Placement { device: config.device.value, cpu: config.cpu(), batch: config.batch.value }
    }
}

/// Starts an embedder under these names, on the requested device or the best one with room, for up to `queue` requests
/// at one time. The choice of device is reported to `host`.
pub(crate) fn start(
    model: &EncoderModel,
    placement: Placement,
    names: Vec<String>,
    queue: usize,
    host: &dyn Host,
) -> Result<RunningEmbedder, Failed> {
    let (task, width) = match model.spec.head {
        None => (PoolingTask::Embed(model.sentence.pooling), model.spec.width()),
        Some(head) => (PoolingTask::Classify, head.labels),
    };
    let classes = model.classes()?;
    let plan = |device: &Device| Plan::of_encoder(model, placement.batch, device);
    on_some_device(placement.device, plan, host, |device, _| {
        // The tokenizer is read while the weights are loaded.
        let info = || {
            let (names, inputs) = (names.clone(), Inputs::new(model)?);
            Ok(EmbedderInfo { names, inputs, task, width, classes: classes.clone(), queue })
        };
        device.run(StartEmbedder { info, model: model.clone(), task, placement })
    })
}

/// Loads an encoder and starts the embedder for it.
struct StartEmbedder<I> {
    info: I,
    model: EncoderModel,
    task: PoolingTask,
    placement: Placement,
}

impl<I: FnOnce() -> Result<EmbedderInfo, Failed>> Task for StartEmbedder<I> {
    type Output = RunningEmbedder;

    fn run<H: Hardware>(self, device: H) -> Result<RunningEmbedder, Failed> {
        let StartEmbedder { info, model, task, placement } = self;
        spawn(info, move || {
            let worker = worker(device.open(placement.cpu)?, &model, task, placement.batch)?;
            if device.traits().compiles_kernels {
                for tokens in [model.context().min(64), 1] {
                    worker.run(&warm_up(&model, tokens))?;
                }
            }
            Ok(worker)
        })
    }
}

/// Warm-up input: a text of `tokens` tokens and an image, as far as the model takes them.
fn warm_up(model: &EncoderModel, tokens: usize) -> Vec<Item> {
    let text = model.of_texts().map(|_| Input { tokens: vec![0; tokens], types: vec![0; tokens] });
    let image = model.of_images().and_then(|model| model.spec.patches);
    let image = image.map(|p| Image { patches: vec![0.0; p.count() * p.width()], rows: p.rows() });
    text.map(Item::Text).into_iter().chain(image.map(Item::Image)).collect()
}

/// Loads an encoder with a progress bar.
fn worker<B: Backend>(
    b: B,
    model: &EncoderModel,
    task: PoolingTask,
    batch: usize,
) -> Result<EncoderRunner<B>, Failed> {
    let bar = terminal::loading_bar(model.weight_bytes());
    let before = std::cell::Cell::new(0);
    let load = |model: &EncoderModel| {
        let first = before.get();
        Encoder::load(&b, model, &mut |done, _| {
            before.set(first + done);
            bar.set_position(before.get() as u64);
            ControlFlow::Continue(())
        })
    };
    let loaded =
        load(model).and_then(|encoder| Ok((encoder, model.image_encoder.as_deref().map(load).transpose()?)));
    bar.finish_and_clear();
    let (encoder, images) = loaded?;
    Ok(EncoderRunner::new(b, encoder, task, batch).with(images))
}
