//! Starts an embedder for an encoder.

use std::ops::ControlFlow;

use indicatif::ProgressBar;
use tallow_core::Backend;
use tallow_cpu::{Arithmetic, Cpu, Isa};
use tallow_engine::embedder::{EmbedderHandle, EmbedderInfo, EncoderRunner, Wanted, spawn};
use tallow_models::encoder::{Encoder, EncoderModel, Inputs};
#[cfg(feature = "wgpu")]
use tallow_models::encoder::{Image, Input, Item};

use crate::args::DeviceArgs;
use crate::device::{Device, DeviceChoice};
use crate::load::{self, Notice, QUICK};
use crate::memory::Plan;
use crate::settings::{EngineConfig, Sources};
use crate::single_runner::Setup;
use crate::{Failed, terminal};

/// Device and settings that an encoder or a seq2seq model runs with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub device: DeviceChoice,
    pub isa: Isa,
    pub arithmetic: Arithmetic,
    pub threads: usize,
    /// Tokens per step, unless a single text has more.
    pub batch: usize,
}

impl Place {
    /// From a command's flags.
    pub(crate) fn new(sources: &Sources, device: &DeviceArgs) -> Result<Place, Failed> {
        let Setup { device, isa, arithmetic, threads, batch, .. } =
            Setup::new(sources, device, None, Arithmetic::Fast)?;
        Ok(Place { device, isa, arithmetic, threads, batch })
    }

    /// From an engine configuration.
    pub(crate) fn of(config: &EngineConfig) -> Place {
        Place {
            device: config.device.value,
            isa: config.isa.value,
            arithmetic: config.arithmetic.value,
            threads: config.threads.value,
            batch: config.batch.value,
        }
    }
}

/// Handle of a running embedder; closed on drop.
pub(crate) struct Running(EmbedderHandle);

impl std::ops::Deref for Running {
    type Target = EmbedderHandle;

    fn deref(&self) -> &EmbedderHandle {
        &self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Starts an embedder under these names, on the requested device or the best one with room, for up to `queue` requests
/// at one time. The choice of device is reported through `say`.
pub(crate) fn start(
    model: &EncoderModel,
    place: Place,
    names: Vec<String>,
    queue: usize,
    say: &dyn Fn(&Notice),
) -> Result<Running, Failed> {
    let (wanted, width) = match model.spec.head {
        None => (Wanted::Vectors(model.sentence.pooling), model.spec.width()),
        Some(head) => (Wanted::Scores, head.labels),
    };
    let classes = model.classes()?;
    let plan = |device: &Device| Plan::of_encoder(model, place.batch, device);
    let handle = load::on_some_device(place.device, plan, say, |device, _| {
        // The tokenizer is read while the weights are loaded.
        let info = || {
            let (names, inputs) = (names.clone(), Inputs::new(model)?);
            Ok(EmbedderInfo { names, inputs, wanted, width, classes: classes.clone(), queue })
        };
        let model = model.clone();
        match device.clone() {
            Device::Cpu => spawn(info, move || {
                let b = Cpu::new(place.isa, place.threads)?.with(place.arithmetic);
                worker(b, &model, wanted, place.batch)
            }),
            #[cfg(feature = "wgpu")]
            Device::Gpu(found) => spawn(info, move || {
                let worker = worker(tallow_wgpu::Wgpu::open(&found)?, &model, wanted, place.batch)?;
                // Warm-up: compiles the kernels now, and shows a device that cannot run them.
                for tokens in [model.context().min(64), 1] {
                    worker.run(&trial(&model, tokens))?;
                }
                Ok(worker)
            }),
        }
    });
    Ok(Running(handle?))
}

/// Warm-up input: a text of `tokens` tokens and an image, as far as the model takes them.
#[cfg(feature = "wgpu")]
fn trial(model: &EncoderModel, tokens: usize) -> Vec<Item> {
    let text = model.of_texts().map(|_| Input { tokens: vec![0; tokens], types: vec![0; tokens] });
    let image = model.of_images().and_then(|model| model.spec.patches);
    let image = image.map(|p| Image { patches: vec![0.0; p.count() * p.width()], rows: p.rows() });
    text.map(Item::Text).into_iter().chain(image.map(Item::Image)).collect()
}

/// Loads an encoder with a progress bar.
fn worker<B: Backend>(
    b: B,
    model: &EncoderModel,
    wanted: Wanted,
    batch: usize,
) -> Result<EncoderRunner<B>, Failed> {
    let bytes = model.weight_bytes();
    let bar =
        if bytes < QUICK { ProgressBar::hidden() } else { terminal::bytes_bar(bytes as u64, "loading") };
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
        load(model).and_then(|encoder| Ok((encoder, model.beside.as_deref().map(load).transpose()?)));
    bar.finish_and_clear();
    let (encoder, images) = loaded?;
    Ok(EncoderRunner::new(b, encoder, wanted, batch).with(images))
}
