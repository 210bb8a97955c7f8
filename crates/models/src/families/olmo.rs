//! OLMo 2 and 3: norms behind the blocks, queries and keys normalised as a whole. OLMo 3 adds a window to three layers
//! of four, whose rotary embedding is not scaled.

use super::{Family, common, rope};
use crate::error::Result;
use crate::formats::config::{Config, Key, key};
use crate::formats::names::{self, Names};
use crate::spec::{DecoderSpec, Order, QkNormSpec};

pub(super) static OLMO2: Family = Family {
    name: "OLMo 2",
    hf: &["Olmo2ForCausalLM"],
    gguf: &["olmo2"],
    hf_names: HF,
    gguf_names: GGUF,
    spec,
};

pub(super) static OLMO3: Family = Family {
    name: "OLMo 3",
    hf: &["Olmo3ForCausalLM"],
    // Its GGUF files call themselves olmo2 and bring a window.
    gguf: &[],
    hf_names: HF,
    gguf_names: GGUF,
    spec,
};

const HF: Names = Names {
    mixer_norm: "model.layers.{}.post_attention_layernorm",
    ffn_norm: "model.layers.{}.post_feedforward_layernorm",
    ..names::HF
};

const GGUF: Names =
    Names { mixer_norm: "blk.{}.post_attention_norm", ffn_norm: "blk.{}.post_ffw_norm", ..names::GGUF };

/// Which layers have a window, in GGUF metadata.
const PATTERN: Key = key("", "attention.sliding_window_pattern");

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let mut spec = common::plain(c)?;
    spec.norm.eps = c.number_or(common::EPS, 1e-5)? as f32;
    let bias = common::bias(c, "attention_bias", false)?;
    for layer in &mut spec.layers {
        layer.order = Order::Post;
        layer.mixer.qk_norm = QkNormSpec::Whole;
        (layer.mixer.qkv_bias, layer.mixer.out_bias) = (bias, bias);
    }
    if c.arch() == OLMO3.hf[0] || c.has(PATTERN) || (c.is_gguf() && c.has(common::WINDOW)) {
        windowed(c, &mut spec)?;
    }
    Ok(spec)
}

fn windowed(c: &Config<'_>, spec: &mut DecoderSpec) -> Result<()> {
    let head = spec.layers[0].mixer.heads.dim;
    let full = rope::rope(c, head, 500_000.0)?;
    spec.ropes = vec![full.clone(), rope::window_rope(c, &full, head)?];
    let window = if c.leaves_out(common::WINDOW) { Some(4096) } else { common::window(c)? };
    let count = spec.layers.len();
    let three_of_four = |i: usize| !(i + 1).is_multiple_of(4);
    let chosen = match c.per_layer(PATTERN, count, c.find_flags(PATTERN)?)? {
        Some(pattern) => pattern,
        None => common::windowed(c, count, three_of_four)?,
    };
    for (layer, _) in spec.layers.iter_mut().zip(chosen).filter(|(_, chosen)| *chosen) {
        layer.mixer.window = window;
        layer.mixer.rope = Some(1);
    }
    Ok(())
}
