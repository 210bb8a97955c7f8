//! EXAONE 4: post-norm and QK norm. Large models have sliding windows, and no RoPE in the layers without one.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names::{self, Slot};

use super::{Declared, Family, common};
use crate::spec::{DecoderSpec, Order, QkNormSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&EXAONE4)];

static EXAONE4: Family = Family {
    name: "EXAONE 4",
    hf: &["Exaone4ForCausalLM"],
    gguf: &[],
    hf_names: tensor_names::HF.with(&[
        (Slot::AttnPostNorm, "model.layers.{}.post_attention_layernorm"),
        (Slot::FfnPostNorm, "model.layers.{}.post_feedforward_layernorm"),
    ]),
    gguf_names: tensor_names::GGUF,
    spec,
};

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults = common::Defaults { kv_heads: Some(32), eps: (common::EPS, 1e-5), ..common::DEFAULTS };
    let mut spec = common::plain_as(c, &defaults)?;
    let window = common::window_or(c, 4096)?;
    let windowed = match window {
        Some(_) => common::windowed_but_every(c, spec.layers.len(), 4)?,
        None => vec![false; spec.layers.len()],
    };
    for (layer, windowed) in spec.layers.iter_mut().zip(windowed) {
        layer.order = Order::Post;
        layer.mixer.qk_norm = QkNormSpec::PerHead;
        layer.mixer.window = window.filter(|_| windowed);
        layer.mixer.rope = (windowed || window.is_none()).then_some(0);
    }
    Ok(spec.into())
}
