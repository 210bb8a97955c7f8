//! OLMoE: MoE in every layer, QK norm over all heads at once.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names;

use super::{Declared, Family, common};
use crate::spec::{DecoderSpec, ExpertsSpec, QkNormSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&OLMOE)];

static OLMOE: Family = Family {
    name: "OLMoE",
    hf: &["OlmoeForCausalLM"],
    gguf: &[],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec,
};

const CLIP: Key = key("clip_qkv", "");

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults =
        common::Defaults { eps: (common::EPS, 1e-5), context: (common::CONTEXT, 4096), ..common::DEFAULTS };
    let mut spec = common::plain_as(c, &defaults)?;
    if let Some(most) = c.find_number(CLIP)? {
        return Err(c.unsupported(CLIP, most, "null is"));
    }
    let count = common::experts(c, common::EXPERTS, 64)?;
    let norm_weights = common::flag(c, "norm_topk_prob", false)?;
    let experts =
        ExpertsSpec { norm_weights, ..ExpertsSpec::softmax(count, common::experts_used(c, 8, count)?) };
    let bias = common::bias(c, "attention_bias", false)?;
    for layer in &mut spec.layers {
        (layer.mixer.qkv_bias, layer.mixer.out_bias) = (bias, bias);
        layer.mixer.qk_norm = QkNormSpec::AllHeads;
    }
    Ok(spec.with_experts(|_| Some(experts)))
}
