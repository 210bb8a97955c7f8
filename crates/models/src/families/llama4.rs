//! Llama 4, text model: layers with chunked attention, and between them full-attention layers without RoPE whose
//! queries are scaled by position; MoE in some layers, whose router weights scale the experts' input.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Slot};
use tallow_core::{RopePairs, RoutingWeightOn, Scores};

use super::{Declared, Family, common, rope};
use crate::spec::rope::{RopeSpec, Scaling};
use crate::spec::{DecoderSpec, ExpertsSpec, QkNormSpec, SharedExpertSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&LLAMA4)];

static LLAMA4: Family = Family {
    name: "Llama 4",
    hf: &["Llama4ForCausalLM", "Llama4ForConditionalGeneration"],
    gguf: &[],
    hf_names: tensor_names::HF.with(&[
        (Slot::FfnGate, "model.layers.{}.feed_forward.gate_proj"),
        (Slot::FfnUp, "model.layers.{}.feed_forward.up_proj"),
        (Slot::FfnDown, "model.layers.{}.feed_forward.down_proj"),
        (Slot::FfnGateInp, "model.layers.{}.feed_forward.router"),
        (Slot::FfnGateUpExpsT, "model.layers.{}.feed_forward.experts.gate_up_proj"),
        (Slot::FfnDownExps, "model.layers.{}.feed_forward.experts.down_proj"),
        (Slot::FfnGateShexp, "model.layers.{}.feed_forward.shared_expert.gate_proj"),
        (Slot::FfnUpShexp, "model.layers.{}.feed_forward.shared_expert.up_proj"),
        (Slot::FfnDownShexp, "model.layers.{}.feed_forward.shared_expert.down_proj"),
    ]),
    gguf_names: tensor_names::GGUF,
    spec,
};

/// FFN width of a dense layer.
const DENSE_WIDTH: Key = key("intermediate_size_mlp", "");
/// Layers with experts.
const MIXED: Key = key("moe_layers", "");
const EVERY: Key = key("interleave_moe_layer_step", "");
/// Layers with RoPE.
const ROPE_LAYERS: Key = key("no_rope_layers", "");
const NOPE_EVERY: Key = key("no_rope_layer_interval", "");
const CHUNK: Key = key("attention_chunk_size", "");
const TEMPERATURE: Key = key("attn_scale", "");
const FLOOR: Key = key("floor_scale", "");

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults = common::Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        context: (common::CONTEXT, 131_072),
        eps: (common::EPS, 1e-5),
        rope: rope::Defaults { theta: (rope::THETA, 500_000.0), ..rope::DEFAULTS },
        ..common::DEFAULTS
    };
    // Other scalings also lengthen queries, and the QK norm would have to be applied after that.
    rope::only(c, &["default", "linear", "dynamic", "llama3"])?;
    let mut spec = common::plain_as(c, &defaults)?;
    spec.ropes.iter_mut().for_each(|rope| rope.pairs = RopePairs::Interleaved);
    let (layers, experts) = (spec.layers.len(), experts(c, spec.layers[0].ffn.width)?);
    let width = common::sane(c, DENSE_WIDTH, c.find_count(DENSE_WIDTH)?.unwrap_or(16_384))?;
    let (mixed, has_rope) = (mixed(c, layers)?, has_rope(c, layers)?);
    let chunked = common::of_type(c, layers, "chunked_attention", |i| has_rope[i])?;
    let chunk = match c.leaves_out(CHUNK) {
        true => Some(8192),
        false => c.find_count(CHUNK)?.map(|n| common::sane(c, CHUNK, n)).transpose()?,
    };
    let normed = common::flag(c, "use_qk_norm", true)?;
    let tuned = common::flag(c, "attn_temperature_tuning", true)?;
    if tuned {
        spec.ropes.push(temperature(c, &spec.ropes[0])?);
    }
    let bias = common::bias(c, "attention_bias", false)?;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        (layer.mixer.qkv_bias, layer.mixer.out_bias) = (bias, bias);
        layer.mixer.chunk = chunk.filter(|_| chunked[i]);
        if !has_rope[i] {
            (layer.mixer.rope, layer.mixer.second_rope) = (None, tuned.then_some(1));
        } else if normed {
            layer.mixer.qk_norm = QkNormSpec::Plain;
        }
        if !mixed[i] {
            layer.ffn.width = width;
        }
    }
    Ok(spec.with_experts(|i| mixed[i].then_some(experts)))
}

fn experts(c: &Config<'_>, width: usize) -> Result<ExpertsSpec> {
    let count = common::experts(c, common::LOCAL_EXPERTS, 16)?;
    Ok(ExpertsSpec {
        scores: Scores::Sigmoid,
        weight_on: RoutingWeightOn::Input,
        shared: Some(SharedExpertSpec { width, gated: false }),
        ..ExpertsSpec::softmax(count, common::experts_used(c, 1, count)?)
    })
}

/// The layers with experts.
fn mixed(c: &Config<'_>, layers: usize) -> Result<Vec<bool>> {
    if let Some(listed) = c.find_counts(MIXED)? {
        return Ok((0..layers).map(|i| listed.contains(&i)).collect());
    }
    let every = at_least_one(c, EVERY, 1)?;
    Ok((0..layers).map(|i| (i + 1).is_multiple_of(every)).collect())
}

/// The layers with RoPE.
fn has_rope(c: &Config<'_>, layers: usize) -> Result<Vec<bool>> {
    let listed = c.find_flags(ROPE_LAYERS)?.filter(|list| !list.is_empty());
    if let Some(listed) = c.per_layer(ROPE_LAYERS, layers, listed)? {
        return Ok(listed);
    }
    let every = at_least_one(c, NOPE_EVERY, 4)?;
    Ok((0..layers).map(|i| !(i + 1).is_multiple_of(every)).collect())
}

fn at_least_one(c: &Config<'_>, key: Key, default: usize) -> Result<usize> {
    match c.find_count(key)?.unwrap_or(default) {
        0 => Err(c.bad(key, "is 0")),
        n => Ok(n),
    }
}

/// Scaling of queries by position in layers without RoPE (temperature tuning).
fn temperature(c: &Config<'_>, rope: &RopeSpec) -> Result<RopeSpec> {
    let scale = c.number_or(TEMPERATURE, 0.1)?;
    let original = common::sane(c, FLOOR, c.find_count(FLOOR)?.unwrap_or(8192))?;
    Ok(RopeSpec { scaling: Scaling::Temperature { scale, original, early: 1 }, ..rope.clone() })
}
