//! ERNIE 4.5, dense text models: Llama with interleaved RoPE.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names;
use tallow_core::RopePairs;

use super::{Declared, Family, common, rope};
use crate::spec::DecoderSpec;

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&ERNIE4_5)];

static ERNIE4_5: Family = Family {
    name: "ERNIE 4.5",
    // The second is the name in Baidu's own code.
    hf: &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"],
    gguf: &[],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec,
};

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults = common::Defaults {
        kv_heads: Some(2),
        head_dim: Some(128),
        context: (common::CONTEXT, 131_072),
        eps: (common::EPS, 1e-5),
        tied: true,
        rope: rope::Defaults { theta: (rope::THETA, 500_000.0), ..rope::DEFAULTS },
        ..common::DEFAULTS
    };
    let mut spec = common::plain_as(c, &defaults)?;
    spec.ropes.iter_mut().for_each(|rope| rope.pairs = RopePairs::Interleaved);
    let bias = common::bias(c, "use_bias", false)?;
    for layer in &mut spec.layers {
        (layer.mixer.qkv_bias, layer.mixer.out_bias, layer.ffn.bias) = (bias, bias, bias);
    }
    Ok(spec.into())
}
