//! Starts a runner for a seq2seq (encoder-decoder) model.

use std::ops::ControlFlow;

use tallow_core::Backend;
use tallow_engine::seq2seq::{
    DecoderSequence, EncoderInput, Seq2SeqHandle, Seq2SeqRunner, SlotLimits, spawn,
};
use tallow_engine::transcribe::Transcriber;
use tallow_models::seq2seq::{Seq2Seq, Seq2SeqModel};
use tallow_models::speech::Speech;

use crate::devices::{CpuOptions, Device, Hardware, Task};
use crate::encoder::Placement;
use crate::fit::on_some_device;
use crate::memory::Plan;
use crate::notice::Notice;
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
    placement: Placement,
    limits: SlotLimits,
    say: &dyn Fn(&Notice),
) -> Result<Running, Failed> {
    let plan = |device: &Device| Plan::of_seq2seq(model, limits, device);
    let handle = on_some_device(placement.device, plan, say, |device, _| {
        device.run(StartSeq2Seq { model: model.clone(), limits, cpu: placement.cpu })
    });
    Ok(Running(handle?))
}

/// Loads a model and starts the runner for it.
struct StartSeq2Seq {
    model: Seq2SeqModel,
    limits: SlotLimits,
    cpu: CpuOptions,
}

impl Task for StartSeq2Seq {
    type Output = Seq2SeqHandle;

    fn run<H: Hardware>(self, device: H) -> Result<Seq2SeqHandle, Failed> {
        let StartSeq2Seq { model, limits, cpu } = self;
        spawn(limits, move || {
            let runner = runner(device.open(cpu)?, &model, limits)?;
            if device.traits().compiles_kernels {
                warm_up(&runner, &model, limits)?;
            }
            Ok(runner)
        })
    }
}

/// Encodes a dummy input and decodes one token.
fn warm_up<B: Backend>(
    runner: &Seq2SeqRunner<B>,
    model: &Seq2SeqModel,
    limits: SlotLimits,
) -> Result<(), Failed> {
    let mel = model.spec.encoder.audio.map(|audio| vec![0.0; 2 * limits.encoder_tokens * audio.bands]);
    let tokens = || EncoderInput::Tokens(vec![0; limits.encoder_tokens.min(64)]);
    let read = runner.encode(0, &mel.map_or_else(tokens, EncoderInput::Mel))?.rows();
    runner.step(&[DecoderSequence { place: 0, read, fed: 0, tokens: vec![model.spec.start] }])?;
    Ok(())
}

/// Loads a model with a progress bar.
fn runner<B: Backend>(b: B, model: &Seq2SeqModel, limits: SlotLimits) -> Result<Seq2SeqRunner<B>, Failed> {
    let bar = terminal::loading_bar(model.weight_bytes());
    let loaded = Seq2Seq::load(&b, model, &mut |done, _| {
        bar.set_position(done as u64);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    Ok(Seq2SeqRunner::new(b, loaded?, limits)?)
}

/// Starts a transcriber for up to `slots` recordings at a time.
pub(crate) fn transcriber(
    model: &Seq2SeqModel,
    placement: Placement,
    kv: KvType,
    slots: usize,
    say: &dyn Fn(&Notice),
) -> Result<(Running, Transcriber), Failed> {
    let spec = &model.spec;
    let Some(audio) = spec.encoder.audio else {
        return Err(Failed::new("the model takes text, not audio: use `tallow run`"));
    };
    let tokenizer = model.tokenizer()?;
    let speech = Speech::read(model, &tokenizer)?;
    let (encoder_tokens, decoder_tokens, queue) = (spec.encoder.context, spec.decoder.context, usize::MAX);
    let limits = SlotLimits { slots, encoder_tokens, decoder_tokens, dtype: kv.0, queue };
    let running = start(model, placement, limits, say)?;
    let transcriber = Transcriber::new(running.clone(), speech, tokenizer, audio.bands);
    Ok((running, transcriber))
}
