//! Starts an engine for a seq2seq (encoder-decoder) model.

use std::ops::ControlFlow;

use tallow_core::{Backend, PageTable, Tensor};
use tallow_engine::encoder_input::EncoderInput;
use tallow_engine::engine::spawn;
use tallow_engine::handle::{Failure, Info, RunningEngine};
use tallow_engine::runner::Runner;
use tallow_engine::sampler::Sampling;
use tallow_engine::scheduler::{Batch, BatchPart, CrossPart, DecodeBudget, Limits, LogitsRows, SeqId};
use tallow_engine::transcribe::Transcriber;
use tallow_models::seq2seq::{Seq2Seq, Seq2SeqModel};
use tallow_models::speech::Speech;
use tallow_text::tokenizer::Tokenizer;

use crate::devices::{CpuOptions, Device, Hardware, Task};
use crate::encoder::Placement;
use crate::fit::{Host, on_some_device};
use crate::memory::{PAGE, Plan, Seq2SeqLimits};
use crate::settings::KvType;
use crate::{Failed, terminal};

/// Starts an engine under these names on the requested device or the best one with room. The choice is reported to
/// `host`.
pub(crate) fn start(
    model: &Seq2SeqModel,
    tokenizer: &Tokenizer,
    names: Vec<String>,
    placement: Placement,
    limits: Seq2SeqLimits,
    host: &dyn Host,
) -> Result<RunningEngine, Failed> {
    let plan = |device: &Device| Plan::of_seq2seq(model, limits, device);
    on_some_device(placement.device, plan, host, |device, _| {
        let (model, tokenizer, names) = (model.clone(), tokenizer.clone(), names.clone());
        device.run(StartSeq2Seq { model, tokenizer, names, limits, cpu: placement.cpu })
    })
}

/// Loads a model and starts the engine for it.
struct StartSeq2Seq {
    model: Seq2SeqModel,
    tokenizer: Tokenizer,
    names: Vec<String>,
    limits: Seq2SeqLimits,
    cpu: CpuOptions,
}

impl Task for StartSeq2Seq {
    type Output = RunningEngine;

    fn run<H: Hardware>(self, device: H) -> Result<RunningEngine, Failed> {
        let StartSeq2Seq { model, tokenizer, names, limits, cpu } = self;
        let Seq2SeqLimits { slots, batch, .. } = limits;
        let (context, shape) = (limits.context(), limits.shape());
        let info = Info {
            names,
            tokenizer,
            vocab: model.spec.decoder.vocab,
            context,
            slots,
            // Whoever starts it limits the requests.
            queue: usize::MAX,
            queue_timeout: None,
            page_len: shape.page_len,
            pages: shape.pages,
            swa_pages: 0,
            state_rows: 0,
            sampling: Sampling::greedy(),
            adapter_room: 0,
        };
        let steps = Limits {
            context,
            slots,
            budget: batch,
            decode_budget: DecodeBudget::of_tokens(batch),
            all_logits: slots,
            drafts: None,
        };
        spawn(
            || Ok(info),
            move || {
                let runner = runner(device.open(cpu)?, &model, limits)?;
                if device.traits().compiles_kernels {
                    warm_up(&runner, &model, limits)?;
                }
                Ok((runner, steps))
            },
        )
    }
}

/// Encodes a dummy input and decodes one token.
fn warm_up<B: Backend>(
    runner: &Runner<B>,
    model: &Seq2SeqModel,
    limits: Seq2SeqLimits,
) -> Result<(), Failed> {
    let input = match model.spec.encoder.audio {
        Some(audio) => EncoderInput::Mel(vec![0.0; 2 * limits.encoder_tokens * audio.bands]),
        None => EncoderInput::Tokens(vec![0; limits.encoder_tokens.min(64)]),
    };
    let (_, part) = encoded(runner, &input, vec![model.spec.start], LogitsRows::Last)?;
    runner.logits(&Batch { parts: vec![part] })?;
    Ok(runner.backend().sync()?)
}

/// Encodes an input into the first pages of an unused KV cache. Returns the encoder's output, and the batch part that
/// computes `tokens` with it.
pub(crate) fn encoded<B: Backend>(
    runner: &Runner<B>,
    input: &EncoderInput,
    tokens: Vec<u32>,
    logits: LogitsRows,
) -> Result<(Tensor<B>, BatchPart), Failed> {
    let read = runner.encoder_tokens(Some(input)).map_err(Failure::from)?.unwrap_or(0);
    let pages = [read, tokens.len()].map(|tokens| tokens.div_ceil(PAGE) as u32);
    let cross: PageTable = (0..pages[0]).collect();
    let x = runner.encode(input, &cross)?;
    let blocks = (pages[0]..pages[0] + pages[1]).collect();
    let cross = Some(CrossPart { tokens: read, blocks: cross, encode: false });
    Ok((x, BatchPart { cross, ..BatchPart::new(SeqId(0), tokens, blocks, logits) }))
}

/// Loads a model with a progress bar.
fn runner<B: Backend>(b: B, model: &Seq2SeqModel, limits: Seq2SeqLimits) -> Result<Runner<B>, Failed> {
    let bar = terminal::loading_bar(model.weight_bytes());
    let loaded = Seq2Seq::load(&b, model, &mut |done, _| {
        bar.set_position(done as u64);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    Ok(Runner::seq2seq(b, loaded?, limits.shape())?)
}

/// Starts a transcriber under these names for up to `slots` recordings at a time.
pub(crate) fn transcriber(
    model: &Seq2SeqModel,
    names: Vec<String>,
    placement: Placement,
    kv: KvType,
    slots: usize,
    host: &dyn Host,
) -> Result<(RunningEngine, Transcriber), Failed> {
    let spec = &model.spec;
    let Some(audio) = spec.encoder.audio else {
        return Err(Failed::new("the model takes text, not audio: use `tallow run`"));
    };
    let tokenizer = model.tokenizer()?;
    let speech = Speech::read(model, &tokenizer)?;
    let limits = Seq2SeqLimits::of(model, slots, kv.0, placement.batch);
    let running = start(model, &tokenizer, names, placement, limits, host)?;
    let transcriber =
        Transcriber::new(running.clone(), speech, tokenizer, audio.bands, limits.encoder_tokens);
    Ok((running, transcriber))
}
