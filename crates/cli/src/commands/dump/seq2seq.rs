//! Seq2seq (encoder-decoder) models.

use std::ops::ControlFlow;

use tallow_core::{Backend, Memory};
use tallow_cpu::Cpu;
use tallow_engine::seq2seq::{DecoderSequence, EncoderInput, Seq2SeqRunner, SlotLimits};
use tallow_models::seq2seq::{Seq2Seq, Seq2SeqModel};

use super::given::{Given, Ids};
use super::{Tensors, say};
use crate::Failed;
use crate::device::Device;
use crate::load;
use crate::memory::Plan;
use crate::single_runner::Setup;

/// Encoder input and decoder tokens of a row.
struct Row {
    material: EncoderInput,
    /// Rows that the encoder's output is padded to, as in a batch.
    width: usize,
    tokens: Vec<u32>,
}

/// The encoder's hidden states and the decoder's logits; each row is computed alone.
pub(super) fn dump(model: &Seq2SeqModel, setup: Setup, given: &Given) -> Result<Tensors, Failed> {
    let mut groups = Vec::new();
    for before in given.groups(&["input_ids", "input_features"])? {
        let rows = rows(model, given, &before)?;
        groups.push((before, rows));
    }
    let all = || groups.iter().flat_map(|(_, rows)| rows);
    let (read, written) = (all().map(|row| row.width).max(), all().map(|row| row.tokens.len()).max());
    let (encoder_tokens, decoder_tokens) = (read.unwrap_or(1), written.unwrap_or(1));
    let desk = SlotLimits { slots: 1, encoder_tokens, decoder_tokens, dtype: setup.kv.0, queue: 1 };
    let plan = |device: &Device| Plan::of_seq2seq(model, desk, device);
    load::on_some_device(setup.device, plan, &say, |device, _| match device {
        Device::Cpu => on(Cpu::new(setup.isa, setup.threads)?.with(setup.arithmetic), model, desk, &groups),
        #[cfg(feature = "wgpu")]
        Device::Gpu(found) => on(tallow_wgpu::Wgpu::open(found)?, model, desk, &groups),
    })
}

fn rows(model: &Seq2SeqModel, given: &Given, before: &str) -> Result<Vec<Row>, Failed> {
    let (encoder, decoder) = (&model.spec.encoder, &model.spec.decoder);
    let name = format!("{before}decoder_input_ids");
    let tokens: Ids = given.ids(&name)?.ok_or_else(|| given.wrong(format_args!("has no tensor {name:?}")))?;
    given.known(&name, &tokens, decoder.vocab)?;
    if tokens[0].len() > decoder.context {
        let (tokens, context) = (tokens[0].len(), decoder.context);
        return Err(given.wrong(format_args!("{name} has {tokens} tokens, and the model writes {context}")));
    }
    let (width, materials): (usize, Vec<EncoderInput>) = match encoder.audio {
        None => {
            let width = given.ids(&format!("{before}input_ids"))?.map_or(0, |rows| rows[0].len());
            let texts = given.texts(before, encoder.vocab, encoder.context)?.unwrap_or_default();
            (width, texts.into_iter().map(EncoderInput::Tokens).collect())
        }
        Some(sound) => {
            let (bands, frames) = (sound.bands, 2 * encoder.context);
            let sounds =
                given.floats(&format!("{before}input_features"), &[bands, frames])?.unwrap_or_default();
            // From [bands, frames] to [frames, bands].
            let frame = |x: &[f32], t: usize| (0..bands).map(|band| x[band * frames + t]).collect::<Vec<_>>();
            let turned = |x: Vec<f32>| (0..frames).flat_map(|t| frame(&x, t)).collect();
            (encoder.context, sounds.into_iter().map(|x| EncoderInput::Mel(turned(x))).collect())
        }
    };
    if materials.len() != tokens.len() {
        let why = format!("has {} rows to take in and {} to write", materials.len(), tokens.len());
        return Err(given.wrong(why));
    }
    Ok(materials.into_iter().zip(tokens).map(|(material, tokens)| Row { material, width, tokens }).collect())
}

fn on<B: Backend>(
    b: B,
    model: &Seq2SeqModel,
    desk: SlotLimits,
    groups: &[(String, Vec<Row>)],
) -> Result<Tensors, Failed> {
    let scribe = Seq2Seq::load(&b, model, &mut |_, _| ControlFlow::Continue(()))?;
    let writer = Seq2SeqRunner::new(b, scribe, desk)?;
    let mut tensors = Tensors::new();
    for (before, rows) in groups {
        let (mut hidden, mut logits) = (Vec::new(), Vec::new());
        for row in rows {
            let x = writer.encode(0, &row.material)?;
            let end = hidden.len() + row.width * x.cols();
            hidden.extend(writer.device().download::<f32>(&x)?);
            // Padding is written as zeros.
            hidden.resize(end, 0.0);
            let line = DecoderSequence { place: 0, read: x.rows(), fed: 0, tokens: row.tokens.clone() };
            logits.extend(writer.step_all(&line)?);
        }
        let (count, width) = (rows.len(), rows.first().map_or(0, |row| row.width));
        let (dim, vocab) = (model.spec.decoder.dim, model.spec.decoder.vocab);
        tensors.insert(format!("{before}encoder_last_hidden"), (vec![count, width, dim], hidden));
        let tokens = rows.first().map_or(0, |row| row.tokens.len());
        tensors.insert(format!("{before}logits"), (vec![count, tokens, vocab], logits));
    }
    Ok(tensors)
}
