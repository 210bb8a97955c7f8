//! gpt-oss: experts with biases and a clamped activation, attention sinks, a sliding window in every other layer.
//! Folders have MXFP4 or unquantized experts.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Joint, Names, Slot};
use tallow_core::Activation;

use super::{Declared, Family, common, rope};
use crate::spec::rope::{Scaling, Yarn};
use crate::spec::{Bias, DecoderSpec, ExpertsSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&GPT_OSS)];

static GPT_OSS: Family = Family {
    name: "gpt-oss",
    hf: &["GptOssForCausalLM"],
    gguf: &["gpt-oss"],
    hf_names: Names {
        joint: Joint::Alternating,
        ..tensor_names::HF.with(&[
            (Slot::AttnSinks, "model.layers.{}.self_attn.sinks"),
            (Slot::FfnGateInp, "model.layers.{}.mlp.router"),
            (Slot::FfnGateUpExpsT, "model.layers.{}.mlp.experts.gate_up_proj"),
            (Slot::FfnDownExps, "model.layers.{}.mlp.experts.down_proj"),
        ])
    },
    gguf_names: tensor_names::GGUF.with(&[
        (Slot::AttnSinks, "blk.{}.attn_sinks.weight"),
        (Slot::FfnNorm, "blk.{}.post_attention_norm"),
    ]),
    spec,
};

const SLOPE: Key = key("swiglu_alpha", "");
const LIMIT: Key = key("swiglu_limit", "");

/// RoPE scaling of configs that have none.
const DEFAULT_YARN: Yarn = Yarn {
    factor: 32.0,
    original: 4096,
    beta_fast: 32.0,
    beta_slow: 1.0,
    truncate: false,
    attention: 1.0 + 0.1 * 5.0 * std::f64::consts::LN_2,
};

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults = common::Defaults {
        kv_heads: Some(8),
        head_dim: Some(64),
        context: (common::CONTEXT, 131_072),
        eps: (common::EPS, 1e-5),
        rope: rope::Defaults { theta: (rope::THETA, 150_000.0), gguf_truncate: false, ..rope::DEFAULTS },
        ..common::DEFAULTS
    };
    common::only(c, common::ACT, "silu")?;
    held(c, SLOPE, Activation::SLOPE)?;
    held(c, LIMIT, Activation::LIMIT)?;
    let mut spec = common::plain_as(c, &defaults)?;
    if !rope::is_said(c) {
        spec.ropes.iter_mut().for_each(|rope| rope.scaling = Scaling::Yarn(DEFAULT_YARN));
    }
    let count = common::experts(c, common::LOCAL_EXPERTS, 128)?;
    let experts = ExpertsSpec {
        router_bias: Bias::Yes,
        norm_weights: true,
        ..ExpertsSpec::softmax(count, common::experts_used(c, 4, count)?)
    };
    let bias = common::bias(c, "attention_bias", true)?;
    let window = common::window_or(c, 128)?;
    let windowed = common::windowed(c, spec.layers.len(), |i| i % 2 == 0)?;
    for (layer, windowed) in spec.layers.iter_mut().zip(windowed) {
        (layer.mixer.qkv_bias, layer.mixer.out_bias) = (bias, bias);
        layer.mixer.sinks = true;
        layer.mixer.window = window.filter(|_| windowed);
        (layer.ffn.act, layer.ffn.bias) = (Activation::Clamped, Bias::Yes);
    }
    Ok(spec.with_experts(|_| Some(experts)))
}

/// Returns an error if an activation constant is not `want`.
fn held(c: &Config<'_>, key: Key, want: f32) -> Result<()> {
    match c.number_or(key, f64::from(want))? {
        x if x as f32 == want => Ok(()),
        x => Err(c.unsupported(key, x, format_args!("{want} is"))),
    }
}
