//! Cohere Command R and successors: attention and FFN in parallel behind one norm, interleaved RoPE, scaled logits.
//! Cohere 2 has sliding windows, and no RoPE in the layers without one.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names;
use tallow_core::RopePairs;

use super::{Declared, Family, common, rope};
use crate::spec::{Bias, DecoderSpec, DenseDecoderSpec, Order, QkNormSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&COHERE), Declared::Decoder(&COHERE2)];

static COHERE: Family = Family {
    name: "Cohere",
    hf: &["CohereForCausalLM"],
    gguf: &["command-r"],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec: cohere,
};

static COHERE2: Family = Family {
    name: "Cohere 2",
    hf: &["Cohere2ForCausalLM"],
    gguf: &["cohere2"],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec: cohere2,
};

const LOGITS: Key = key("logit_scale", "logit_scale");

const DEFAULTS: common::Defaults = common::Defaults {
    norm_bias: Bias::No,
    context: (common::CONTEXT, 8192),
    tied: true,
    ..common::LAYER_NORM_DEFAULTS
};

/// Settings common to Cohere 1 and 2.
fn base(c: &Config<'_>, defaults: &common::Defaults) -> Result<DenseDecoderSpec> {
    let mut spec = common::plain_as(c, defaults)?;
    spec.logit_scale = c.number_or(LOGITS, 0.0625)? as f32;
    spec.ropes.iter_mut().for_each(|rope| rope.pairs = RopePairs::Interleaved);
    let bias = common::bias(c, "attention_bias", false)?;
    for layer in &mut spec.layers {
        layer.order = Order::ParallelOneNorm;
        (layer.mixer.qkv_bias, layer.mixer.out_bias) = (bias, bias);
    }
    Ok(spec)
}

fn cohere(c: &Config<'_>) -> Result<DecoderSpec> {
    let rope = rope::Defaults { theta: (rope::THETA, 500_000.0), ..rope::DEFAULTS };
    let mut spec = base(c, &common::Defaults { rope, ..DEFAULTS })?;
    if common::flag(c, "use_qk_norm", false)? {
        spec.layers.iter_mut().for_each(|layer| layer.mixer.qk_norm = QkNormSpec::HeadWeights);
    }
    Ok(spec.into())
}

fn cohere2(c: &Config<'_>) -> Result<DecoderSpec> {
    let mut spec = base(c, &DEFAULTS)?;
    let window = common::window_or(c, 4096)?;
    let windowed = common::windowed_but_every(c, spec.layers.len(), 4)?;
    for (layer, windowed) in spec.layers.iter_mut().zip(windowed) {
        layer.mixer.window = window.filter(|_| windowed);
        layer.mixer.rope = layer.mixer.window.map(|_| 0);
    }
    Ok(spec.into())
}
