//! GLM: Llama with fused tensors and interleaved partial RoPE (half of each head). GLM 4 adds post-norms. GLM 4 MoE
//! differs: pre-norm and half-split RoPE.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names::{self, Slot};
use tallow_core::RopePairs;

use super::{Declared, Family, common, rope, routed};
use crate::spec::{DecoderSpec, DenseDecoderSpec, Order, QkNormSpec};

pub(super) const FAMILIES: &[Declared] =
    &[Declared::Decoder(&GLM), Declared::Decoder(&GLM4), Declared::Decoder(&GLM4_MOE)];

static GLM: Family = Family {
    name: "GLM",
    hf: &["GlmForCausalLM"],
    gguf: &[],
    hf_names: tensor_names::HF.with(&[(Slot::FfnGateUp, "model.layers.{}.mlp.gate_up_proj")]),
    gguf_names: tensor_names::GGUF,
    spec: |c| Ok(glm(c)?.into()),
};

static GLM4: Family = Family {
    name: "GLM 4",
    hf: &["Glm4ForCausalLM"],
    gguf: &["glm4"],
    hf_names: tensor_names::HF.with(&[
        (Slot::AttnPostNorm, "model.layers.{}.post_self_attn_layernorm"),
        (Slot::FfnPostNorm, "model.layers.{}.post_mlp_layernorm"),
        (Slot::FfnGateUp, "model.layers.{}.mlp.gate_up_proj"),
    ]),
    gguf_names: tensor_names::GGUF.with(&[(Slot::FfnGateUp, "blk.{}.ffn_up")]),
    spec: glm4,
};

fn glm(c: &Config<'_>) -> Result<DenseDecoderSpec> {
    let defaults = common::Defaults {
        kv_heads: Some(2),
        head_dim: Some(128),
        context: (common::CONTEXT, 131_072),
        eps: (common::EPS, 1.5625e-7),
        rope: rope::Defaults { part: Some((rope::PART, 0.5)), ..rope::DEFAULTS },
        ..common::DEFAULTS
    };
    let mut spec = common::plain_as(c, &defaults)?;
    spec.ropes.iter_mut().for_each(|rope| rope.pairs = RopePairs::Interleaved);
    let bias = common::bias(c, "attention_bias", true)?;
    spec.layers.iter_mut().for_each(|layer| layer.mixer.qkv_bias = bias);
    Ok(spec)
}

fn glm4(c: &Config<'_>) -> Result<DecoderSpec> {
    let mut spec = glm(c)?;
    spec.layers.iter_mut().for_each(|layer| layer.order = Order::Sandwich);
    Ok(spec.into())
}

static GLM4_MOE: Family = Family {
    name: "GLM 4 MoE",
    hf: &["Glm4MoeForCausalLM"],
    gguf: &["glm4moe"],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF.with(&[(Slot::FfnNorm, "blk.{}.post_attention_norm")]),
    spec: with_experts,
};

fn with_experts(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults = common::Defaults {
        kv_heads: Some(8),
        context: (common::CONTEXT, 131_072),
        eps: (common::EPS, 1e-5),
        rope: rope::Defaults { part: Some((rope::PART, 0.5)), ..rope::DEFAULTS },
        ..common::DEFAULTS
    };
    let mut spec = common::plain_as(c, &defaults)?;
    common::mtp_layers(c, &mut spec, 1)?;
    let width = common::expert_width(c, 1408)?;
    let defaults = routed::Defaults {
        count: 128,
        used: Some(8),
        groups: None,
        shared: 1,
        scale: 1.0,
        norm_weights: true,
    };
    let experts = routed::sigmoid(c, width, &defaults)?;
    let dense = c.find_count(routed::DENSE)?.unwrap_or(1);
    let bias = common::bias(c, "attention_bias", false)?;
    let normed = match c.is_gguf() {
        true => c.checkpoint().get("blk.0.attn_q_norm.weight").is_some(),
        false => common::flag(c, "use_qk_norm", false)?,
    };
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        layer.mixer.qkv_bias = bias;
        if normed {
            layer.mixer.qk_norm = QkNormSpec::PerHead;
        }
        if i >= dense {
            layer.ffn.width = width;
        }
    }
    Ok(spec.with_experts(|i| (i >= dense).then_some(experts)))
}
