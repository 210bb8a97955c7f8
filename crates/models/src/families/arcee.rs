//! Arcee AFM: Llama with an ungated FFN.

use super::{Declared, Family, common};
use crate::error::Result;
use crate::formats::config::Config;
use crate::formats::names;
use crate::spec::DecoderSpec;

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&ARCEE)];

static ARCEE: Family = Family {
    name: "Arcee",
    hf: &["ArceeForCausalLM"],
    gguf: &[],
    hf_names: names::HF,
    gguf_names: names::GGUF,
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
