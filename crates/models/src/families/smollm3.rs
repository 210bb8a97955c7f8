//! SmolLM3: Llama with some layers without RoPE.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names;

use super::rope::{self, THETA};
use super::{Declared, Family, common};
use crate::spec::DecoderSpec;

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&SMOLLM3)];

static SMOLLM3: Family = Family {
    name: "SmolLM3",
    hf: &["SmolLM3ForCausalLM"],
    gguf: &["smollm3"],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec,
};

/// Flag of each layer: 1 if it has RoPE.
const ROTARY: Key = key("no_rope_layers", "");
const INTERVAL: Key = key("no_rope_layer_interval", "");
const USE_WINDOW: Key = key("use_sliding_window", "");

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let rope = rope::Defaults { theta: (THETA, 2_000_000.0), ..rope::DEFAULTS };
    let mut spec = common::plain_as(
        c,
        &common::Defaults {
            kv_heads: Some(4),
            context: (common::CONTEXT, 32_768),
            tied: true,
            rope,
            ..common::DEFAULTS
        },
    )?;
    common::gguf_permutes_qk(c, &mut spec);
    let count = spec.layers.len();
    let interval = c.find_count(INTERVAL)?.unwrap_or(4).max(1);
    let rotary = c.per_layer(ROTARY, count, c.find_flags(ROTARY)?)?;
    let rotary = rotary.unwrap_or_else(|| (0..count).map(|i| !(i + 1).is_multiple_of(interval)).collect());
    let use_window = c.flag_or(USE_WINDOW, false)?;
    let window = common::window(c)?;
    let windowed = common::windowed(c, count, |i| use_window && !rotary[i])?;
    let (attention, mlp) = (common::bias(c, "attention_bias", false)?, common::bias(c, "mlp_bias", false)?);
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        layer.mixer.rope = rotary[i].then_some(0);
        layer.mixer.window = window.filter(|_| windowed[i]);
        (layer.mixer.qkv_bias, layer.mixer.out_bias, layer.ffn.bias) = (attention, attention, mlp);
    }
    Ok(spec.into())
}
