//! OLMo 2 and 3: post-norm, QK norm over all heads at once. OLMo 3 has a sliding window in three of four layers, whose
//! RoPE is not scaled.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names::{self, Names, Slot};

use super::{Declared, Family, common, rope};
use crate::spec::{DecoderSpec, DenseDecoderSpec, Order, QkNormSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&OLMO2), Declared::Decoder(&OLMO3)];

static OLMO2: Family = Family {
    name: "OLMo 2",
    hf: &["Olmo2ForCausalLM"],
    gguf: &["olmo2"],
    hf_names: HF,
    gguf_names: tensor_names::GGUF,
    spec,
};

static OLMO3: Family = Family {
    name: "OLMo 3",
    hf: &["Olmo3ForCausalLM"],
    // `olmo2` files of OLMo 3 are those with a window.
    gguf: &["olmo2"],
    hf_names: HF,
    gguf_names: tensor_names::GGUF,
    spec,
};

const HF: Names = tensor_names::HF.with(&[
    (Slot::AttnPostNorm, "model.layers.{}.post_attention_layernorm"),
    (Slot::FfnPostNorm, "model.layers.{}.post_feedforward_layernorm"),
]);

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let mut spec = common::plain_as(c, &common::Defaults { eps: (common::EPS, 1e-5), ..common::DEFAULTS })?;
    let bias = common::bias(c, "attention_bias", false)?;
    for layer in &mut spec.layers {
        layer.order = Order::Post;
        layer.mixer.qk_norm = QkNormSpec::AllHeads;
        (layer.mixer.qkv_bias, layer.mixer.out_bias) = (bias, bias);
    }
    if c.arch() == OLMO3.hf[0] || c.has(common::WINDOWED) || (c.is_gguf() && c.has(common::WINDOW)) {
        windowed(c, &mut spec)?;
    }
    Ok(spec.into())
}

fn windowed(c: &Config<'_>, spec: &mut DenseDecoderSpec) -> Result<()> {
    let head = spec.layers[0].mixer.heads.dim;
    let full = rope::rope(c, head, &rope::Defaults { theta: (rope::THETA, 500_000.0), ..rope::DEFAULTS })?;
    spec.ropes = vec![full.clone(), rope::window_rope(c, &full, head)?];
    let window = common::window_or(c, 4096)?;
    let chosen = common::windowed(c, spec.layers.len(), |i| !(i + 1).is_multiple_of(4))?;
    for (layer, _) in spec.layers.iter_mut().zip(chosen).filter(|(_, chosen)| *chosen) {
        layer.mixer.window = window;
        layer.mixer.rope = Some(1);
    }
    Ok(())
}
