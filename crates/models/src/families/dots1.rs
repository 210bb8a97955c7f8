//! dots.llm1: Qwen3's attention, DeepSeek V3's MoE. Folders may have sliding windows in later layers.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names;

use super::{Declared, Family, common, routed};
use crate::spec::{DecoderSpec, QkNormSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&DOTS1)];

static DOTS1: Family = Family {
    name: "dots.llm1",
    hf: &["Dots1ForCausalLM"],
    gguf: &["dots1"],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec,
};

const SCORES: Key = key("scoring_func", "");
/// 2 is sigmoid.
const GGUF_SCORES: Key = key("", "expert_gating_func");
const EVERY: Key = key("moe_layer_freq", "");
const WINDOW_FROM: Key = key("max_window_layers", "");

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    check(c)?;
    let mut spec = common::plain_as(c, &common::Defaults { kv_heads: Some(32), ..common::DEFAULTS })?;
    // llama.cpp has no windows in this family, whatever the metadata.
    let window = if c.is_gguf() { None } else { common::window_or(c, 4096)? };
    let from = c.find_count(WINDOW_FROM)?.unwrap_or(62);
    let windowed = common::windowed(c, spec.layers.len(), |i| i >= from)?;
    let width = common::expert_width(c, 1408)?;
    let count = common::find_experts(c, common::ROUTED_EXPERTS)?;
    let defaults = routed::Defaults {
        count: count.map_or_else(|| c.count(common::ROUTED_EXPERTS), Ok)?,
        used: None,
        groups: None,
        shared: 0,
        scale: 1.0,
        norm_weights: false,
    };
    let experts = routed::sigmoid(c, width, &defaults)?;
    let dense = c.find_count(routed::DENSE)?.unwrap_or(0);
    let bias = common::bias(c, "attention_bias", false)?;
    for (i, (layer, windowed)) in spec.layers.iter_mut().zip(windowed).enumerate() {
        layer.mixer.qk_norm = QkNormSpec::PerHead;
        (layer.mixer.qkv_bias, layer.mixer.out_bias) = (bias, bias);
        layer.mixer.window = window.filter(|_| windowed);
        if i >= dense {
            layer.ffn.width = width;
        }
    }
    Ok(spec.with_experts(|i| (i >= dense).then_some(experts)))
}

/// Returns an error for a setting that no published model has and the reference ignores.
fn check(c: &Config<'_>) -> Result<()> {
    // Published configs have the name of the selection method here, as DeepSeek's `topk_method`.
    match c.find_text(SCORES)?.unwrap_or("sigmoid") {
        "sigmoid" | "noaux_tc" => {}
        other => return Err(c.unsupported(SCORES, other, "sigmoid and noaux_tc are")),
    }
    if let Some(other) = c.find_count(GGUF_SCORES)?.filter(|n| *n != 2) {
        return Err(c.unsupported(GGUF_SCORES, other, "2 is"));
    }
    if let Some(every) = c.find_count(EVERY)?.filter(|n| *n != 1) {
        return Err(c.unsupported(EVERY, every, "1 is"));
    }
    Ok(())
}
