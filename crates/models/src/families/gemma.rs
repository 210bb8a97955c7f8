//! Gemma 1 to 3, text models: embeddings scaled by sqrt(dim), norm weights stored as w - 1. Gemma 2 adds post-norms,
//! softcaps on scores and logits, and a sliding window in every other layer. Gemma 3 has QK norm instead of the score
//! softcap, and a separate RoPE for window layers.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Names, Slot};
use tallow_core::Activation;

use super::{Declared, Family, common, rope};
use crate::spec::{DecoderSpec, DenseDecoderSpec, Order, QkNormSpec};

pub(super) const FAMILIES: &[Declared] =
    &[Declared::Decoder(&GEMMA), Declared::Decoder(&GEMMA2), Declared::Decoder(&GEMMA3)];

static GEMMA: Family = Family {
    name: "Gemma",
    hf: &["GemmaForCausalLM"],
    gguf: &["gemma"],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec: gemma,
};

static GEMMA2: Family = Family {
    name: "Gemma 2",
    hf: &["Gemma2ForCausalLM"],
    gguf: &["gemma2"],
    hf_names: HF,
    gguf_names: tensor_names::GGUF,
    spec: gemma2,
};

static GEMMA3: Family = Family {
    name: "Gemma 3",
    hf: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    gguf: &["gemma3", "gemma-embedding"],
    hf_names: HF,
    gguf_names: tensor_names::GGUF,
    spec: gemma3,
};

pub(super) const HF: Names = tensor_names::HF.with(&[
    (Slot::AttnPostNorm, "model.layers.{}.post_attention_layernorm"),
    (Slot::FfnNorm, "model.layers.{}.pre_feedforward_layernorm"),
    (Slot::FfnPostNorm, "model.layers.{}.post_feedforward_layernorm"),
]);

pub(super) const ACT: Key = key("hidden_activation", "");
/// Attention scores are divided by its square root.
const SCALAR: Key = key("query_pre_attn_scalar", "");
const SCORE_CAP: Key = key("attn_logit_softcapping", "attn_logit_softcapping");
pub(super) const LOGIT_CAP: Key = key("final_logit_softcapping", "final_logit_softcapping");

/// Set in embedding models (EmbeddingGemma).
const BIDIRECTIONAL: &str = "use_bidirectional_attention";

const DEFAULTS: common::Defaults = common::Defaults {
    kv_heads: Some(4),
    head_dim: Some(256),
    act: (ACT, "gelu_pytorch_tanh"),
    context: (common::CONTEXT, 8192),
    tied: true,
    ..common::DEFAULTS
};

/// Settings common to Gemma 1 to 3.
fn base(c: &Config<'_>, defaults: &common::Defaults) -> Result<DenseDecoderSpec> {
    let mut spec = common::plain_as(c, defaults)?;
    spec.embed_scale = (spec.dim as f32).sqrt();
    // Converters to GGUF add the 1.
    spec.norm.weight_offset = if c.is_gguf() { 0.0 } else { 1.0 };
    let bias = common::bias(c, "attention_bias", false)?;
    for layer in &mut spec.layers {
        (layer.mixer.qkv_bias, layer.mixer.out_bias) = (bias, bias);
    }
    Ok(spec)
}

fn gemma(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults = common::Defaults { kv_heads: Some(16), act: (common::ACT, DEFAULTS.act.1), ..DEFAULTS };
    let mut spec = base(c, &defaults)?;
    common::off(c, BIDIRECTIONAL)?;
    for layer in spec.layers.iter_mut().filter(|layer| layer.ffn.act == Activation::Gelu) {
        // The first configs say `gelu` but mean the tanh approximation.
        layer.ffn.act = Activation::GeluTanh;
    }
    Ok(spec.into())
}

/// Settings common to Gemma 2 and 3. GGUF files do not have the score scale; the model with `largest` layers has
/// another one than the rest.
fn sandwich(c: &Config<'_>, defaults: &common::Defaults, largest: usize) -> Result<DenseDecoderSpec> {
    let mut spec = base(c, defaults)?;
    let heads = spec.layers[0].mixer.heads;
    let scalar = match c.is_gguf() {
        true if spec.layers.len() == largest => spec.dim as f64 / heads.q as f64,
        true => heads.dim as f64,
        false => c.number_or(SCALAR, 256.0)?,
    };
    if scalar <= 0.0 {
        return Err(c.bad(SCALAR, format_args!("is {scalar}; more than 0 is expected")));
    }
    for layer in &mut spec.layers {
        layer.order = Order::Sandwich;
        layer.mixer.scale = (1.0 / scalar.sqrt()) as f32;
    }
    Ok(spec)
}

/// Softcap, if set.
pub(super) fn cap(c: &Config<'_>, key: Key, default: Option<f64>) -> Result<Option<f32>> {
    let cap = if c.leaves_out(key) { default } else { c.find_number(key)? };
    match cap.map(|cap| cap as f32) {
        Some(cap) if cap <= 0.0 || cap.is_infinite() => {
            Err(c.bad(key, format_args!("is {cap}; more than 0 is expected")))
        }
        cap => Ok(cap),
    }
}

fn gemma2(c: &Config<'_>) -> Result<DecoderSpec> {
    let mut spec = sandwich(c, &DEFAULTS, 46)?;
    common::off(c, BIDIRECTIONAL)?;
    spec.logit_softcap = cap(c, LOGIT_CAP, Some(30.0))?;
    let (window, softcap) = (common::window_or(c, 4096)?, cap(c, SCORE_CAP, Some(50.0))?);
    let windowed = common::windowed(c, spec.layers.len(), |i| i.is_multiple_of(2))?;
    for (layer, windowed) in spec.layers.iter_mut().zip(windowed) {
        layer.mixer.window = window.filter(|_| windowed);
        layer.mixer.softcap = softcap;
    }
    Ok(spec.into())
}

fn gemma3(c: &Config<'_>) -> Result<DecoderSpec> {
    let rope = rope::Defaults { theta: (rope::THETA, 1_000_000.0), ..rope::DEFAULTS };
    let defaults = common::Defaults {
        // Multimodal configs leave these keys out.
        head_count: Some(8),
        vocab: Some(262_208),
        context: (common::CONTEXT, 131_072),
        rope,
        ..DEFAULTS
    };
    let mut spec = sandwich(c, &defaults, 62)?;
    spec.logit_softcap = cap(c, LOGIT_CAP, None)?;
    spec.ropes.push(rope::local_rope(c, &spec.ropes[0])?);
    let causal = !common::flag(c, BIDIRECTIONAL, c.arch() == "gemma-embedding")?;
    // A window of two sides has half of it on each side of a token.
    let window = common::window_or(c, 4096)?.map(|window| if causal { window } else { window / 2 + 1 });
    let windowed = common::windowed_but_every(c, spec.layers.len(), 6)?;
    for (layer, windowed) in spec.layers.iter_mut().zip(windowed) {
        layer.mixer.window = window.filter(|_| windowed);
        (layer.mixer.rope, layer.mixer.causal) = (Some(usize::from(windowed)), causal);
        layer.mixer.qk_norm = QkNormSpec::PerHead;
    }
    Ok(spec.into())
}
