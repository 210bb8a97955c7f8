//! Seed-OSS: Llama with biases on Q, K and V.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names;

use super::{Declared, Family, common};
use crate::spec::DecoderSpec;

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&SEED_OSS)];

static SEED_OSS: Family = Family {
    name: "Seed-OSS",
    hf: &["SeedOssForCausalLM"],
    gguf: &[],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec,
};

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults = common::Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        context: (common::CONTEXT, 524_288),
        ..common::DEFAULTS
    };
    let mut spec = common::plain_as(c, &defaults)?;
    let (qkv, out) =
        (common::bias(c, "attention_bias", true)?, common::bias(c, "attention_out_bias", false)?);
    let mlp = common::bias(c, "mlp_bias", false)?;
    for layer in &mut spec.layers {
        (layer.mixer.qkv_bias, layer.mixer.out_bias, layer.ffn.bias) = (qkv, out, mlp);
    }
    Ok(spec.into())
}
