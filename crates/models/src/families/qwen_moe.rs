//! Qwen2-MoE (experts and a gated shared expert) and Qwen3-MoE.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Slot};

use super::{Declared, Family, common};
use crate::spec::{DecoderSpec, ExpertsSpec, FfnSpec, LayerSpec, Mixer, QkNormSpec, SharedExpertSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&QWEN2_MOE), Declared::Decoder(&QWEN3_MOE)];

static QWEN2_MOE: Family = Family {
    name: "Qwen2-MoE",
    hf: &["Qwen2MoeForCausalLM"],
    gguf: &["qwen2moe"],
    hf_names: tensor_names::HF.with(&[
        (Slot::FfnGateShexp, "model.layers.{}.mlp.shared_expert.gate_proj"),
        (Slot::FfnUpShexp, "model.layers.{}.mlp.shared_expert.up_proj"),
        (Slot::FfnDownShexp, "model.layers.{}.mlp.shared_expert.down_proj"),
        (Slot::FfnGateInpShexp, "model.layers.{}.mlp.shared_expert_gate"),
    ]),
    gguf_names: tensor_names::GGUF,
    spec: qwen2_moe,
};

static QWEN3_MOE: Family = Family {
    name: "Qwen3-MoE",
    hf: &["Qwen3MoeForCausalLM"],
    gguf: &["qwen3moe"],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec: qwen3_moe,
};

const QKV_BIAS: &str = "qkv_bias";
const EVERY: Key = key("decoder_sparse_step", "");
const DENSE: Key = key("mlp_only_layers", "");
const SHARED: Key = key("shared_expert_intermediate_size", "expert_shared_feed_forward_length");
const NORM_WEIGHTS: Key = key("norm_topk_prob", "");
const USE_WINDOW: Key = key("use_sliding_window", "");
const WINDOW_TO: Key = key("max_window_layers", "");

const DEFAULTS: common::Defaults =
    common::Defaults { kv_heads: Some(4), context: (common::CONTEXT, 32_768), ..common::DEFAULTS };

fn qwen2_moe(c: &Config<'_>) -> Result<DecoderSpec> {
    let width = shared_width(c, 5632)?;
    let count = common::experts(c, common::EXPERTS, 60)?;
    let norm_weights = c.flag_or(NORM_WEIGHTS, false)?;
    let mut spec = common::plain_as(c, &common::Defaults { kv_heads: Some(16), ..DEFAULTS })?;
    let bias = common::bias(c, QKV_BIAS, true)?;
    spec.layers.iter_mut().for_each(|layer| layer.mixer.qkv_bias = bias);
    if c.flag_or(USE_WINDOW, false)? {
        let window = common::window_or(c, 4096)?;
        let to = c.find_count(WINDOW_TO)?.unwrap_or(28);
        let chosen = common::windowed(c, spec.layers.len(), |i| i % 2 == 0 && i < to)?;
        for (layer, _) in spec.layers.iter_mut().zip(chosen).filter(|(_, chosen)| *chosen) {
            layer.mixer.window = window;
        }
    }
    if count == 0 {
        return Ok(spec.into());
    }
    let shared = Some(SharedExpertSpec { width, gated: true });
    let softmax = ExpertsSpec::softmax(count, common::experts_used(c, 4, count)?);
    mix(c, spec, ExpertsSpec { shared, norm_weights, ..softmax }, 1408)
}

fn qwen3_moe(c: &Config<'_>) -> Result<DecoderSpec> {
    let count = common::experts(c, common::EXPERTS, 128)?;
    // GGUF files do not have the flag, and their readers take it as true.
    let norm_weights = c.is_gguf() || c.flag_or(NORM_WEIGHTS, false)?;
    let mut spec = common::plain_as(c, &DEFAULTS)?;
    let bias = common::bias(c, "attention_bias", false)?;
    let window = match c.flag_or(USE_WINDOW, false)? {
        true => common::window_or(c, 4096)?,
        false => None,
    };
    for layer in &mut spec.layers {
        layer.mixer.qk_norm = QkNormSpec::PerHead;
        (layer.mixer.qkv_bias, layer.mixer.out_bias) = (bias, bias);
        layer.mixer.window = window;
    }
    if count == 0 {
        return Ok(spec.into());
    }
    let softmax = ExpertsSpec::softmax(count, common::experts_used(c, 8, count)?);
    mix(c, spec, ExpertsSpec { norm_weights, ..softmax }, 768)
}

/// FFN width of the shared expert.
pub(super) fn shared_width(c: &Config<'_>, default: usize) -> Result<usize> {
    common::sane(c, SHARED, c.find_count(SHARED)?.unwrap_or(default))
}

/// MoE in some layers; `width` is the default expert FFN width.
pub(super) fn mix<M: Into<Mixer>>(
    c: &Config<'_>,
    mut spec: DecoderSpec<LayerSpec<M, FfnSpec>>,
    experts: ExpertsSpec,
    width: usize,
) -> Result<DecoderSpec> {
    let width = common::expert_width(c, width)?;
    let every = c.find_count(EVERY)?.unwrap_or(1);
    if every == 0 {
        return Err(c.bad(EVERY, "is 0"));
    }
    let dense = c.find_counts(DENSE)?.unwrap_or_default();
    let mixed = |i: usize| (i + 1).is_multiple_of(every) && !dense.contains(&i) && common::has_router(c, i);
    for (_, layer) in spec.layers.iter_mut().enumerate().filter(|(i, _)| mixed(*i)) {
        layer.ffn.width = width;
    }
    Ok(spec.with_experts(|i| mixed(i).then_some(experts)))
}
