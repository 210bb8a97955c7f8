//! Starts a runner for a seq2seq (encoder-decoder) model.

use std::ops::ControlFlow;

use indicatif::ProgressBar;
use tallow_core::Backend;
use tallow_cpu::Cpu;
use tallow_engine::seq2seq::{Seq2SeqHandle, Seq2SeqRunner, SlotLimits, spawn};
use tallow_engine::transcribe::Transcriber;
use tallow_models::seq2seq::{Seq2Seq, Seq2SeqModel};
use tallow_models::speech::Speech;

use crate::device::Device;
use crate::encoder::Place;
use crate::load::{self, Notice, QUICK};
use crate::memory::Plan;
use crate::settings::KvType;
use crate::{Failed, terminal};

/// Handle of a running seq2seq model; closed on drop.
pub(crate) struct Running(Seq2SeqHandle);

impl std::ops::Deref for Running {
    type Target = Seq2SeqHandle;

    fn deref(&self) -> &Seq2SeqHandle {
        &self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Starts a seq2seq runner on the requested device or the best one with room. The choice is reported through `say`.
pub(crate) fn start(
    model: &Seq2SeqModel,
    place: Place,
    desk: SlotLimits,
    say: &dyn Fn(&Notice),
) -> Result<Running, Failed> {
    let plan = |device: &Device| Plan::of_seq2seq(model, desk, device);
    let handle = load::on_some_device(place.device, plan, say, |device, _| {
        let model = model.clone();
        match device.clone() {
            Device::Cpu => spawn(desk, move || {
                writer(Cpu::new(place.isa, place.threads)?.with(place.arithmetic), &model, desk)
            }),
            #[cfg(feature = "wgpu")]
            Device::Gpu(found) => spawn(desk, move || {
                let writer = writer(tallow_wgpu::Wgpu::open(&found)?, &model, desk)?;
                // Warm-up: compiles the kernels now, and shows a device that cannot run them.
                try_out(&writer, &model, desk)?;
                Ok(writer)
            }),
        }
    });
    Ok(Running(handle?))
}

/// Encodes a dummy input and decodes one token.
#[cfg(feature = "wgpu")]
fn try_out<B: Backend>(
    writer: &Seq2SeqRunner<B>,
    model: &Seq2SeqModel,
    desk: SlotLimits,
) -> Result<(), Failed> {
    use tallow_engine::seq2seq::{DecoderSequence, EncoderInput};
    let sound = model.spec.encoder.audio.map(|sound| vec![0.0; 2 * desk.encoder_tokens * sound.bands]);
    let words = || EncoderInput::Tokens(vec![0; desk.encoder_tokens.min(64)]);
    let read = writer.encode(0, &sound.map_or_else(words, EncoderInput::Mel))?.rows();
    writer.step(&[DecoderSequence { place: 0, read, fed: 0, tokens: vec![model.spec.start] }])?;
    Ok(())
}

/// Loads a model with a progress bar.
fn writer<B: Backend>(b: B, model: &Seq2SeqModel, desk: SlotLimits) -> Result<Seq2SeqRunner<B>, Failed> {
    let bytes = model.weight_bytes();
    let bar =
        if bytes < QUICK { ProgressBar::hidden() } else { terminal::bytes_bar(bytes as u64, "loading") };
    let scribe = Seq2Seq::load(&b, model, &mut |done, _| {
        bar.set_position(done as u64);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    Ok(Seq2SeqRunner::new(b, scribe?, desk)?)
}

/// Starts a transcriber for up to `slots` recordings at a time.
pub(crate) fn transcriber(
    model: &Seq2SeqModel,
    place: Place,
    kv: KvType,
    slots: usize,
    say: &dyn Fn(&Notice),
) -> Result<(Running, Transcriber), Failed> {
    let spec = &model.spec;
    let Some(sound) = spec.encoder.audio else {
        return Err(Failed::new("the model takes text, not audio: use `tallow run`"));
    };
    let tokenizer = model.tokenizer()?;
    let speech = Speech::read(model, &tokenizer)?;
    let (encoder_tokens, decoder_tokens, queue) = (spec.encoder.context, spec.decoder.context, usize::MAX);
    let desk = SlotLimits { slots, encoder_tokens, decoder_tokens, dtype: kv.0, queue };
    let running = start(model, place, desk, say)?;
    let transcriber = Transcriber::new(running.clone(), speech, tokenizer, sound.bands);
    Ok((running, transcriber))
}
