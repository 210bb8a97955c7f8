//! StableLM: LayerNorm, partial RoPE (a quarter of each head); some models run attention and FFN in parallel.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Slot};

use super::{Declared, Family, common, rope};
use crate::spec::{DecoderSpec, Order, QkNormSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&STABLELM)];

static STABLELM: Family = Family {
    name: "StableLM",
    hf: &["StableLmForCausalLM"],
    gguf: &["stablelm"],
    hf_names: tensor_names::HF.with(&[
        (Slot::AttnQNorm, "model.layers.{}.self_attn.q_layernorm.norms.{head}"),
        (Slot::AttnKNorm, "model.layers.{}.self_attn.k_layernorm.norms.{head}"),
    ]),
    gguf_names: tensor_names::GGUF,
    spec,
};

const PARALLEL: Key = key("use_parallel_residual", "use_parallel_residual");

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults = common::Defaults {
        kv_heads: Some(32),
        context: (common::CONTEXT, 4096),
        rope: rope::Defaults { part: Some((rope::PART, 0.25)), ..rope::DEFAULTS },
        ..common::LAYER_NORM_DEFAULTS
    };
    let mut spec = common::plain_as(c, &defaults)?;
    let bias = common::bias(c, "use_qkv_bias", false)?;
    let parallel = c.flag_or(PARALLEL, false)?;
    let normed = common::flag(c, "qk_layernorm", false)?;
    for layer in &mut spec.layers {
        layer.order = if parallel { Order::ParallelOneNorm } else { Order::Pre };
        layer.mixer.qk_norm = if normed { QkNormSpec::HeadWeights } else { QkNormSpec::None };
        layer.mixer.qkv_bias = bias;
    }
    Ok(spec.into())
}
