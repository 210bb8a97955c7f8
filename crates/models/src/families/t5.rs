//! T5: relative position bias, unscaled attention scores, one embedding shared by encoder and decoder.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Names, Slot};
use tallow_core::{Activation, Heads};

use super::{Declared, EncoderFamily, Seq2SeqFamily, common};
use crate::spec::encoder::EncoderSpec;
use crate::spec::seq2seq::Seq2SeqSpec;
use crate::spec::{DenseDecoderSpec, RelativeBiasSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Encoder(&T5_ENCODER), Declared::Seq2Seq(&T5)];

static T5_ENCODER: EncoderFamily = EncoderFamily {
    name: "T5",
    hf: &["T5EncoderModel", "MT5EncoderModel"],
    names: ENCODER,
    // The decoder of a full checkpoint is not used.
    spare: &["encoder.embed_tokens.", "decoder.", "lm_head."],
    spec: encoder,
};

static T5: Seq2SeqFamily = Seq2SeqFamily {
    name: "T5",
    hf: &["T5ForConditionalGeneration", "MT5ForConditionalGeneration"],
    encoder: ENCODER,
    decoder: tensor_names::HF.with(&[
        (Slot::TokenEmbd, "shared"),
        (Slot::OutputNorm, "decoder.final_layer_norm"),
        (Slot::AttnNorm, "decoder.block.{}.layer.0.layer_norm"),
        (Slot::AttnQ, "decoder.block.{}.layer.0.SelfAttention.q"),
        (Slot::AttnK, "decoder.block.{}.layer.0.SelfAttention.k"),
        (Slot::AttnV, "decoder.block.{}.layer.0.SelfAttention.v"),
        (Slot::AttnOut, "decoder.block.{}.layer.0.SelfAttention.o"),
        (Slot::AttnRelB, "decoder.block.0.layer.0.SelfAttention.relative_attention_bias"),
        (Slot::CrossAttnNorm, "decoder.block.{}.layer.1.layer_norm"),
        (Slot::CrossAttnQ, "decoder.block.{}.layer.1.EncDecAttention.q"),
        (Slot::CrossAttnK, "decoder.block.{}.layer.1.EncDecAttention.k"),
        (Slot::CrossAttnV, "decoder.block.{}.layer.1.EncDecAttention.v"),
        (Slot::CrossAttnOut, "decoder.block.{}.layer.1.EncDecAttention.o"),
        (Slot::FfnNorm, "decoder.block.{}.layer.2.layer_norm"),
        (Slot::FfnGate, "decoder.block.{}.layer.2.DenseReluDense.wi_0"),
        (Slot::FfnUp, "decoder.block.{}.layer.2.DenseReluDense.wi_1"),
        (Slot::FfnUpUngated, "decoder.block.{}.layer.2.DenseReluDense.wi"),
        (Slot::FfnDown, "decoder.block.{}.layer.2.DenseReluDense.wo"),
    ]),
    // Old checkpoints also have a relative bias for cross-attention, which nothing reads.
    spare: &[
        "encoder.embed_tokens.",
        "decoder.embed_tokens.",
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.",
    ],
    spec,
};

const ENCODER: Names = tensor_names::HF.with(&[
    (Slot::TokenEmbd, "shared"),
    (Slot::OutputNorm, "encoder.final_layer_norm"),
    (Slot::AttnNorm, "encoder.block.{}.layer.0.layer_norm"),
    (Slot::AttnQ, "encoder.block.{}.layer.0.SelfAttention.q"),
    (Slot::AttnK, "encoder.block.{}.layer.0.SelfAttention.k"),
    (Slot::AttnV, "encoder.block.{}.layer.0.SelfAttention.v"),
    (Slot::AttnOut, "encoder.block.{}.layer.0.SelfAttention.o"),
    (Slot::AttnRelB, "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"),
    (Slot::FfnNorm, "encoder.block.{}.layer.1.layer_norm"),
    (Slot::FfnGate, "encoder.block.{}.layer.1.DenseReluDense.wi_0"),
    (Slot::FfnUp, "encoder.block.{}.layer.1.DenseReluDense.wi_1"),
    (Slot::FfnUpUngated, "encoder.block.{}.layer.1.DenseReluDense.wi"),
    (Slot::FfnDown, "encoder.block.{}.layer.1.DenseReluDense.wo"),
]);

const LAYERS: Key = key("num_layers", "");
const DECODER_LAYERS: Key = key("num_decoder_layers", "");
const HEADS: Key = key("num_heads", "");
const HEAD_DIM: Key = key("d_kv", "");
const BUCKETS: Key = key("relative_attention_num_buckets", "");
const FURTHEST: Key = key("relative_attention_max_distance", "");
const FFN: Key = key("feed_forward_proj", "");
const SCALED: Key = key("scale_decoder_outputs", "");
const TIED: Key = key("tie_word_embeddings", "");
const START: Key = key("decoder_start_token_id", "");
/// Upper limit of the relative bias' `max_distance`.
const MOST_DISTANCE: usize = 1 << 16;

/// The encoder or the decoder; `layers` is the key for its number of layers.
fn half(c: &Config<'_>, layers: Key, causal: bool) -> Result<DenseDecoderSpec> {
    let defaults = common::Defaults {
        dim: key("d_model", ""),
        layers,
        ffn: key("d_ff", ""),
        act: (key("", ""), "relu"),
        context: (key("n_positions", ""), 512),
        eps: (key("layer_norm_epsilon", ""), 1e-6),
        tied: true,
        ..common::DEFAULTS
    };
    let mut spec = common::plain_of(c, &defaults, |_| {
        let q = common::sane(c, HEADS, c.count(HEADS)?)?;
        let dim = c.count(HEAD_DIM)?;
        match dim.is_multiple_of(2) && (2..=1024).contains(&dim) {
            true => Ok((Heads { q, kv: q, dim }, dim)),
            false => Err(c.bad(HEAD_DIM, format_args!("is {dim}; even numbers up to 1024 are supported"))),
        }
    })?;
    let bias = distance(c, causal)?;
    let (act, gated) = feed_forward(c)?;
    for layer in &mut spec.layers {
        (layer.mixer.rope, layer.mixer.scale, layer.mixer.causal) = (None, 1.0, causal);
        layer.mixer.relative_bias = Some(bias);
        layer.mixer.cross_attention = causal;
        (layer.ffn.act, layer.ffn.gated) = (act, gated);
    }
    spec.ropes.clear();
    Ok(spec)
}

fn distance(c: &Config<'_>, causal: bool) -> Result<RelativeBiasSpec> {
    let buckets = common::sane(c, BUCKETS, c.find_count(BUCKETS)?.unwrap_or(32))?;
    let max_distance = c.find_count(FURTHEST)?.unwrap_or(128);
    let bias = RelativeBiasSpec { buckets, max_distance };
    if buckets < 4 {
        return Err(c.unsupported(BUCKETS, buckets, "4 and more are"));
    }
    let own = bias.own(causal);
    if max_distance <= own || max_distance > MOST_DISTANCE {
        let why = format_args!("is {max_distance}; from {} to {MOST_DISTANCE} make sense", own + 1);
        return Err(c.bad(FURTHEST, why));
    }
    Ok(bias)
}

/// Activation and whether the FFN is gated, both from one setting.
fn feed_forward(c: &Config<'_>) -> Result<(Activation, bool)> {
    let default = if is_multilingual(c) { "gated-gelu" } else { "relu" };
    match c.find_text(FFN)?.unwrap_or(default) {
        "gated-gelu" => Ok((Activation::GeluTanh, true)),
        said => match said.strip_prefix("gated-") {
            Some(act) => Ok((common::activation_called(c, FFN, act)?, true)),
            None => Ok((common::activation_called(c, FFN, said)?, false)),
        },
    }
}

fn is_multilingual(c: &Config<'_>) -> bool {
    c.arch().starts_with("MT5")
}

fn encoder(c: &Config<'_>) -> Result<EncoderSpec> {
    Ok(half(c, LAYERS, false)?.into())
}

fn spec(c: &Config<'_>) -> Result<Seq2SeqSpec> {
    let layers = if c.has(DECODER_LAYERS) { DECODER_LAYERS } else { LAYERS };
    let mut decoder = half(c, layers, true)?;
    // Newer configs always say that embeddings are tied; they are only if there is no head tensor.
    let was_tied = c.flag_or(TIED, true)?;
    decoder.tied_embeddings = common::tensor(c, &tensor_names::HF, Slot::Output, 0).is_none();
    // Older configs imply the logit scale by the tie flag, newer ones have a key of its own; multilingual models (mT5)
    // never scale.
    if c.flag_or(SCALED, was_tied && !is_multilingual(c))? {
        decoder.logit_scale = (1.0 / (decoder.dim as f64).sqrt()) as f32;
    }
    let start = c.find_count(START)?.unwrap_or(0);
    if start >= decoder.vocab {
        return Err(c.bad(START, format_args!("is {start}, of {} tokens", decoder.vocab)));
    }
    Ok(Seq2SeqSpec {
        encoder: encoder(c)?,
        decoder: decoder.into(),
        start: start as u32,
        shares_embedding: true,
    })
}
