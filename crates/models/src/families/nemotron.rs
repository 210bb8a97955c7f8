//! Nemotron (3, 4 and Minitron): LayerNorm with weights stored as w - 1, partial RoPE (half of each head), ungated FFN.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, key};
use tallow_checkpoint::tensor_names;

use super::{Declared, Family, common, rope};
use crate::spec::DecoderSpec;

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&NEMOTRON)];

static NEMOTRON: Family = Family {
    name: "Nemotron",
    hf: &["NemotronForCausalLM"],
    gguf: &[],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec,
};

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults = common::Defaults {
        gated: false,
        act: (common::ACT, "relu2"),
        context: (common::CONTEXT, 4096),
        eps: (key("norm_eps", common::GGUF_LAYER_EPS), 1e-5),
        rope: rope::Defaults { part: Some((rope::PART, 0.5)), ..rope::DEFAULTS },
        ..common::LAYER_NORM_DEFAULTS
    };
    let mut spec = common::plain_as(c, &defaults)?;
    spec.norm.weight_offset = 1.0;
    let (attention, mlp) = (common::bias(c, "attention_bias", false)?, common::bias(c, "mlp_bias", false)?);
    for layer in &mut spec.layers {
        (layer.mixer.qkv_bias, layer.mixer.out_bias, layer.ffn.bias) = (attention, attention, mlp);
    }
    Ok(spec.into())
}
