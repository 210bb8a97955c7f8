//! Seq2seq (encoder-decoder) models.

use std::ops::ControlFlow;

use tallow_core::Backend;
use tallow_engine::encoder_input::EncoderInput;
use tallow_engine::runner::Runner;
use tallow_engine::scheduler::{Batch, LogitsRows};
use tallow_models::seq2seq::{Seq2Seq, Seq2SeqModel};

use super::Tensors;
use super::inputs::{Ids, Inputs};
use crate::devices::{Device, Hardware, Task};
use crate::fit::on_some_device;
use crate::memory::{Plan, Seq2SeqLimits};
use crate::notice::Notice;
use crate::single_runner::Setup;
use crate::{Failed, seq2seq};

/// Encoder input and decoder tokens of a row.
struct Row {
    input: EncoderInput,
    /// Rows that the encoder's output is padded to, as in a batch.
    width: usize,
    tokens: Vec<u32>,
}

/// The encoder's hidden states and the decoder's logits; each row is computed alone.
pub(super) fn dump(model: &Seq2SeqModel, setup: Setup, inputs: &Inputs) -> Result<Tensors, Failed> {
    let mut groups = Vec::new();
    for before in inputs.groups(&["input_ids", "input_features"])? {
        let rows = rows(model, inputs, &before)?;
        groups.push((before, rows));
    }
    let all = || groups.iter().flat_map(|(_, rows)| rows);
    let (read, written) = (all().map(|row| row.width).max(), all().map(|row| row.tokens.len()).max());
    let (encoder_tokens, decoder_tokens) = (read.unwrap_or(1), written.unwrap_or(1));
    let (dtype, batch) = (setup.kv.0, decoder_tokens);
    let limits = Seq2SeqLimits { slots: 1, encoder_tokens, decoder_tokens, dtype, batch };
    let plan = |device: &Device| Plan::of_seq2seq(model, limits, device);
    on_some_device(setup.device, plan, &Notice::show_passed_over, |device, _| {
        device.run(Forward { model, setup, limits, groups: &groups })
    })
}

/// Computes the outputs of a model.
struct Forward<'a> {
    model: &'a Seq2SeqModel,
    setup: Setup,
    limits: Seq2SeqLimits,
    groups: &'a [(String, Vec<Row>)],
}

impl Task for Forward<'_> {
    type Output = Tensors;

    fn run<H: Hardware>(self, device: H) -> Result<Tensors, Failed> {
        outputs(device.open(self.setup.cpu)?, self.model, self.limits, self.groups)
    }
}

fn rows(model: &Seq2SeqModel, inputs: &Inputs, before: &str) -> Result<Vec<Row>, Failed> {
    let (encoder, decoder) = (&model.spec.encoder, &model.spec.decoder);
    let name = format!("{before}decoder_input_ids");
    let tokens: Ids =
        inputs.ids(&name)?.ok_or_else(|| inputs.wrong(format_args!("has no tensor {name:?}")))?;
    inputs.known(&name, &tokens, decoder.vocab)?;
    if tokens[0].len() > decoder.context {
        let (tokens, context) = (tokens[0].len(), decoder.context);
        return Err(inputs.wrong(format_args!("{name} has {tokens} tokens, and the model writes {context}")));
    }
    let (width, encoder_inputs): (usize, Vec<EncoderInput>) = match encoder.audio {
        None => {
            let width = inputs.ids(&format!("{before}input_ids"))?.map_or(0, |rows| rows[0].len());
            let texts = inputs.texts(before, encoder.vocab, encoder.context)?.unwrap_or_default();
            (width, texts.into_iter().map(EncoderInput::Tokens).collect())
        }
        Some(audio) => {
            let (bands, frames) = (audio.bands, 2 * encoder.context);
            let spectrograms =
                inputs.floats(&format!("{before}input_features"), &[bands, frames])?.unwrap_or_default();
            // From [bands, frames] to [frames, bands].
            let frame = |x: &[f32], t: usize| (0..bands).map(|band| x[band * frames + t]).collect::<Vec<_>>();
            let transposed = |x: Vec<f32>| (0..frames).flat_map(|t| frame(&x, t)).collect();
            (encoder.context, spectrograms.into_iter().map(|x| EncoderInput::Mel(transposed(x))).collect())
        }
    };
    if encoder_inputs.len() != tokens.len() {
        let why = format!("has {} rows to take in and {} to write", encoder_inputs.len(), tokens.len());
        return Err(inputs.wrong(why));
    }
    Ok(encoder_inputs.into_iter().zip(tokens).map(|(input, tokens)| Row { input, width, tokens }).collect())
}

fn outputs<B: Backend>(
    b: B,
    model: &Seq2SeqModel,
    limits: Seq2SeqLimits,
    groups: &[(String, Vec<Row>)],
) -> Result<Tensors, Failed> {
    let loaded = Seq2Seq::load(&b, model, &mut |_, _| ControlFlow::Continue(()))?;
    let runner = Runner::seq2seq(b, loaded, limits.shape())?;
    let mut tensors = Tensors::new();
    for (before, rows) in groups {
        let (mut hidden, mut logits) = (Vec::new(), Vec::new());
        for row in rows {
            let wanted = LogitsRows::All { last: false };
            let (x, part) = seq2seq::encoded(&runner, &row.input, row.tokens.clone(), wanted)?;
            let end = hidden.len() + row.width * x.cols();
            hidden.extend(runner.backend().download::<f32>(&x)?);
            // Padding is written as zeros.
            hidden.resize(end, 0.0);
            let rows = runner.logits(&Batch { parts: vec![part] })?;
            logits.extend(runner.backend().download::<f32>(&rows)?);
        }
        let (count, width) = (rows.len(), rows.first().map_or(0, |row| row.width));
        let (dim, vocab) = (model.spec.decoder.dim, model.spec.decoder.vocab);
        tensors.insert(format!("{before}encoder_last_hidden"), (vec![count, width, dim], hidden));
        let tokens = rows.first().map_or(0, |row| row.tokens.len());
        tensors.insert(format!("{before}logits"), (vec![count, tokens, vocab], logits));
    }
    Ok(tensors)
}
