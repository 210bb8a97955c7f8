//! Arcee AFM: Llama with an ungated FFN.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names;

use super::{Declared, Family, common};
use crate::spec::DecoderSpec;

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&ARCEE)];

static ARCEE: Family = Family {
    name: "Arcee",
    hf: &["ArceeForCausalLM"],
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
        eps: (common::EPS, 1e-5),
        ..common::DEFAULTS
    };
    let mut spec = common::plain_as(c, &defaults)?;
    let (attention, mlp) = (common::bias(c, "attention_bias", false)?, common::bias(c, "mlp_bias", false)?);
    for layer in &mut spec.layers {
        (layer.mixer.qkv_bias, layer.mixer.out_bias, layer.ffn.bias) = (attention, attention, mlp);
    }
    Ok(spec.into())
}
