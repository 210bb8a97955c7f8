//! Mixtral: Mistral with MoE, top 2 by a softmax over those two.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names::{self, Slot};

use super::{Declared, Family, common, rope};
use crate::spec::{DecoderSpec, ExpertsSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&MIXTRAL)];

static MIXTRAL: Family = Family {
    name: "Mixtral",
    hf: &["MixtralForCausalLM"],
    gguf: &["llama"],
    hf_names: tensor_names::HF.with(&[
        (Slot::FfnGateInp, "model.layers.{}.block_sparse_moe.gate"),
        (Slot::FfnGateExps, "model.layers.{}.block_sparse_moe.experts.{expert}.w1"),
        (Slot::FfnUpExps, "model.layers.{}.block_sparse_moe.experts.{expert}.w3"),
        (Slot::FfnDownExps, "model.layers.{}.block_sparse_moe.experts.{expert}.w2"),
    ]),
    gguf_names: tensor_names::GGUF,
    spec,
};

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let rope = rope::Defaults { theta: (rope::THETA, 1e6), ..rope::DEFAULTS };
    let defaults = common::Defaults {
        kv_heads: Some(8),
        context: (common::CONTEXT, 131_072),
        eps: (common::EPS, 1e-5),
        rope,
        ..common::DEFAULTS
    };
    let mut spec = common::plain_as(c, &defaults)?;
    let experts = experts(c, common::experts(c, common::LOCAL_EXPERTS, 8)?)?;
    let window = common::window(c)?;
    for layer in &mut spec.layers {
        layer.mixer.window = window;
    }
    Ok(spec.with_experts(|_| Some(experts)))
}

/// MoE settings for `count` experts.
pub(super) fn experts(c: &Config<'_>, count: usize) -> Result<ExpertsSpec> {
    Ok(ExpertsSpec { norm_weights: true, ..ExpertsSpec::softmax(count, common::experts_used(c, 2, count)?) })
}
