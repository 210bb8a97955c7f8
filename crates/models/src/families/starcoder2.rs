//! StarCoder2: LayerNorm, biases everywhere, ungated FFN.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, key};
use tallow_checkpoint::tensor_names::{self, Slot};

use super::{Declared, Family, common};
use crate::spec::DecoderSpec;

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&STARCODER2)];

static STARCODER2: Family = Family {
    name: "StarCoder2",
    hf: &["Starcoder2ForCausalLM"],
    // Its GGUF files do not have the window.
    gguf: &[],
    hf_names: tensor_names::HF
        .with(&[(Slot::FfnUp, "model.layers.{}.mlp.c_fc"), (Slot::FfnDown, "model.layers.{}.mlp.c_proj")]),
    gguf_names: tensor_names::GGUF,
    spec,
};

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults = common::Defaults {
        kv_heads: Some(2),
        gated: false,
        act: (common::ACT, "gelu_pytorch_tanh"),
        context: (common::CONTEXT, 4096),
        eps: (key("norm_epsilon", common::GGUF_LAYER_EPS), 1e-5),
        tied: true,
        ..common::LAYER_NORM_DEFAULTS
    };
    let mut spec = common::plain_as(c, &defaults)?;
    let (bias, window) = (common::bias(c, "use_bias", true)?, common::window(c)?);
    for layer in &mut spec.layers {
        layer.mixer.window = window;
        (layer.mixer.qkv_bias, layer.mixer.out_bias, layer.ffn.bias) = (bias, bias, bias);
    }
    Ok(spec.into())
}
