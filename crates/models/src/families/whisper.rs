//! Whisper: an audio encoder behind two convolutions, and a text decoder.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Names, Slot};
use tallow_core::Activation;

use super::{Declared, Seq2SeqFamily, common};
use crate::spec::encoder::{AudioSpec, EncoderSpec};
use crate::spec::seq2seq::Seq2SeqSpec;
use crate::spec::{Bias, DenseDecoderSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Seq2Seq(&WHISPER)];

static WHISPER: Seq2SeqFamily = Seq2SeqFamily {
    name: "Whisper",
    hf: &["WhisperForConditionalGeneration"],
    encoder: Names {
        base: "model.",
        ..tensor_names::HF.with(&[
            (Slot::EncConv1, "model.encoder.conv1"),
            (Slot::EncConv2, "model.encoder.conv2"),
            (Slot::PosEmbd, "model.encoder.embed_positions"),
            (Slot::OutputNorm, "model.encoder.layer_norm"),
            (Slot::AttnNorm, "model.encoder.layers.{}.self_attn_layer_norm"),
            (Slot::AttnQ, "model.encoder.layers.{}.self_attn.q_proj"),
            (Slot::AttnK, "model.encoder.layers.{}.self_attn.k_proj"),
            (Slot::AttnV, "model.encoder.layers.{}.self_attn.v_proj"),
            (Slot::AttnOut, "model.encoder.layers.{}.self_attn.out_proj"),
            (Slot::FfnNorm, "model.encoder.layers.{}.final_layer_norm"),
            (Slot::FfnUp, "model.encoder.layers.{}.fc1"),
            (Slot::FfnDown, "model.encoder.layers.{}.fc2"),
        ])
    },
    decoder: Names {
        base: "model.",
        ..tensor_names::HF.with(&[
            (Slot::TokenEmbd, "model.decoder.embed_tokens"),
            (Slot::PosEmbd, "model.decoder.embed_positions"),
            (Slot::OutputNorm, "model.decoder.layer_norm"),
            (Slot::Output, "proj_out"),
            (Slot::AttnNorm, "model.decoder.layers.{}.self_attn_layer_norm"),
            (Slot::AttnQ, "model.decoder.layers.{}.self_attn.q_proj"),
            (Slot::AttnK, "model.decoder.layers.{}.self_attn.k_proj"),
            (Slot::AttnV, "model.decoder.layers.{}.self_attn.v_proj"),
            (Slot::AttnOut, "model.decoder.layers.{}.self_attn.out_proj"),
            (Slot::CrossAttnNorm, "model.decoder.layers.{}.encoder_attn_layer_norm"),
            (Slot::CrossAttnQ, "model.decoder.layers.{}.encoder_attn.q_proj"),
            (Slot::CrossAttnK, "model.decoder.layers.{}.encoder_attn.k_proj"),
            (Slot::CrossAttnV, "model.decoder.layers.{}.encoder_attn.v_proj"),
            (Slot::CrossAttnOut, "model.decoder.layers.{}.encoder_attn.out_proj"),
            (Slot::FfnNorm, "model.decoder.layers.{}.final_layer_norm"),
            (Slot::FfnUp, "model.decoder.layers.{}.fc1"),
            (Slot::FfnDown, "model.decoder.layers.{}.fc2"),
        ])
    },
    spare: &[],
    spec,
};

const BANDS: Key = key("num_mel_bins", "");
const READ: Key = key("max_source_positions", "");
const WRITTEN: Key = key("max_target_positions", "");
const ACT: (Key, &str) = (key("activation_function", ""), "gelu");
const START: Key = key("decoder_start_token_id", "");

/// The encoder or the decoder.
fn half(
    c: &Config<'_>,
    names: [&'static str; 3],
    context: (Key, usize),
    causal: bool,
) -> Result<DenseDecoderSpec> {
    let [layers, heads, ffn] = names.map(|name| key(name, ""));
    let defaults = common::Defaults {
        dim: key("d_model", ""),
        layers,
        heads,
        ffn,
        gated: false,
        act: ACT,
        context,
        eps: (key("", ""), 1e-5),
        tied: true,
        ..common::LAYER_NORM_DEFAULTS
    };
    let mut spec = common::plain_as(c, &defaults)?;
    for layer in &mut spec.layers {
        (layer.mixer.rope, layer.mixer.causal, layer.mixer.cross_attention) = (None, causal, causal);
        (layer.mixer.qkv_bias, layer.mixer.out_bias, layer.ffn.bias) = (Bias::Yes, Bias::Yes, Bias::Yes);
        layer.mixer.no_k_bias = true;
    }
    spec.ropes.clear();
    spec.positions = Some(spec.context);
    Ok(spec)
}

fn spec(c: &Config<'_>) -> Result<Seq2SeqSpec> {
    // `scale_embedding` is in the config, but implementations ignore it.
    let of_encoder = ["encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"];
    let of_decoder = ["decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"];
    let like = half(c, of_encoder, (READ, 1500), false)?;
    let decoder = half(c, of_decoder, (WRITTEN, 448), true)?;
    let bands = c.find_count(BANDS)?.unwrap_or(80);
    if !(1..=1024).contains(&bands) {
        return Err(c.bad(BANDS, format_args!("is {bands}; 1 to 1024 make sense")));
    }
    // The convolutions use GELU whatever the layers use.
    let audio = Some(AudioSpec { bands, act: Activation::Gelu });
    let encoder = EncoderSpec { audio, ..like.into() };
    let start = c.find_count(START)?.unwrap_or(50257);
    if start >= decoder.vocab {
        return Err(c.bad(START, format_args!("is {start}, of {} tokens", decoder.vocab)));
    }
    Ok(Seq2SeqSpec { encoder, decoder: decoder.into(), start: start as u32, shares_embedding: false })
}
