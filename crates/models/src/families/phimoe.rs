//! PhiMoE: experts chosen one after the other (SparseMixer), LayerNorm, biases in attention and head.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Slot};
use tallow_core::{NormKind, Scores};

use super::{Declared, Family, common, rope};
use crate::spec::rope::Scaling;
use crate::spec::{Bias, DecoderSpec, ExpertsSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&PHIMOE)];

static PHIMOE: Family = Family {
    name: "PhiMoE",
    // The second is the name in the first checkpoints.
    hf: &["PhimoeForCausalLM", "PhiMoEForCausalLM"],
    gguf: &[],
    hf_names: tensor_names::HF.with(&[
        (Slot::FfnGateInp, "model.layers.{}.block_sparse_moe.gate"),
        (Slot::FfnGateExps, "model.layers.{}.block_sparse_moe.experts.{expert}.w1"),
        (Slot::FfnUpExps, "model.layers.{}.block_sparse_moe.experts.{expert}.w3"),
        (Slot::FfnDownExps, "model.layers.{}.block_sparse_moe.experts.{expert}.w2"),
    ]),
    gguf_names: tensor_names::GGUF,
    spec,
};

const NOISE: Key = key("router_jitter_noise", "");

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults = common::Defaults {
        kv_heads: Some(8),
        context: (common::CONTEXT, 131_072),
        norm: NormKind::Layer,
        norm_bias: Bias::Yes,
        eps: (common::EPS, 1e-5),
        rope: rope::Defaults { theta: (rope::THETA, 1e6), ..rope::DEFAULTS },
        ..common::DEFAULTS
    };
    rope::only(c, &["default", "longrope"])?;
    let mut spec = common::plain_as(c, &defaults)?;
    for rope in &mut spec.ropes {
        if let Scaling::Long { attention, .. } = &mut rope.scaling {
            *attention = rope::attention(c)?;
        }
    }
    let noise = c.number_or(NOISE, 0.01)?;
    if noise < 0.0 {
        return Err(c.bad(NOISE, format_args!("is {noise}; at least 0 is expected")));
    }
    let count = common::experts(c, common::LOCAL_EXPERTS, 16)?;
    let used = common::experts_used(c, 2, count)?;
    if used != 2 {
        return Err(c.unsupported(common::EXPERTS_USED, used, "2 are: there is no rule for another choice"));
    }
    let scores = Scores::SparseMixer { near: (2.0 * noise) as f32 };
    let experts = ExpertsSpec { scores, ..ExpertsSpec::softmax(count, used) };
    let bias = common::bias(c, "attention_bias", false)?;
    spec.head_bias = common::bias(c, "lm_head_bias", false)?;
    let window = common::window(c)?;
    for layer in &mut spec.layers {
        (layer.mixer.qkv_bias, layer.mixer.out_bias) = (bias, bias);
        layer.mixer.window = window;
    }
    Ok(spec.with_experts(|_| Some(experts)))
}
