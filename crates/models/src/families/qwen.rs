//! Qwen2 and 2.5 (biases on Q, K and V), Qwen3 (QK norm instead).

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names;

use super::{Declared, Family, common, rope};
use crate::spec::{Bias, DecoderSpec, DenseDecoderSpec, QkNormSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&QWEN2), Declared::Decoder(&QWEN3)];

static QWEN2: Family = Family {
    name: "Qwen2",
    hf: &["Qwen2ForCausalLM", QWEN2_VL, QWEN2_5_VL],
    gguf: &["qwen2"],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec: qwen2,
};

static QWEN3: Family = Family {
    name: "Qwen3",
    hf: &["Qwen3ForCausalLM", QWEN3_VL],
    gguf: &["qwen3"],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec: qwen3,
};

// Vision-language models around the text models.
const QWEN2_VL: &str = "Qwen2VLForConditionalGeneration";
const QWEN2_5_VL: &str = "Qwen2_5_VLForConditionalGeneration";
const QWEN3_VL: &str = "Qwen3VLForConditionalGeneration";

const USE_WINDOW: Key = key("use_sliding_window", "");
const WINDOW_FROM: Key = key("max_window_layers", "");

fn qwen2(c: &Config<'_>) -> Result<DecoderSpec> {
    let mut spec = windowed(c, None)?;
    spec.layers.iter_mut().for_each(|layer| layer.mixer.qkv_bias = Bias::Yes);
    Ok(spec.into())
}

fn qwen3(c: &Config<'_>) -> Result<DecoderSpec> {
    let mut spec = windowed(c, Some(128))?;
    let bias = common::bias(c, "attention_bias", false)?;
    for layer in &mut spec.layers {
        layer.mixer.qk_norm = QkNormSpec::PerHead;
        (layer.mixer.qkv_bias, layer.mixer.out_bias) = (bias, bias);
    }
    Ok(spec.into())
}

/// Later layers may have a sliding window, if `use_sliding_window` is on.
fn windowed(c: &Config<'_>, head_dim: Option<usize>) -> Result<DenseDecoderSpec> {
    let theta = match c.arch() {
        QWEN3_VL => 5e5,
        QWEN2_VL | QWEN2_5_VL => 1e6,
        _ => rope::DEFAULTS.theta.1,
    };
    let defaults = common::Defaults {
        kv_heads: Some(32),
        head_dim,
        rope: rope::Defaults { theta: (rope::THETA, theta), ..rope::DEFAULTS },
        context: (common::CONTEXT, 32_768),
        ..common::DEFAULTS
    };
    let mut spec = common::plain_as(c, &defaults)?;
    if !c.flag_or(USE_WINDOW, false)? {
        return Ok(spec);
    }
    let window = common::window_or(c, 4096)?;
    let from = c.find_count(WINDOW_FROM)?.unwrap_or(28);
    let chosen = common::windowed(c, spec.layers.len(), |i| i >= from)?;
    for (layer, _) in spec.layers.iter_mut().zip(chosen).filter(|(_, chosen)| *chosen) {
        layer.mixer.window = window;
    }
    Ok(spec)
}
