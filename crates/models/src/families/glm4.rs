//! GLM 4: norms in front of the blocks and behind them, pairs of neighbours turn in a half of each head.

use tallow_core::RopePairs;

use super::{Family, common, rope};
use crate::error::Result;
use crate::formats::config::Config;
use crate::formats::names::{self, Names};
use crate::spec::{DecoderSpec, Order};

pub(super) static GLM4: Family = Family {
    name: "GLM 4",
    hf: &["Glm4ForCausalLM"],
    gguf: &["glm4"],
    hf_names: Names {
        mixer_behind: "model.layers.{}.post_self_attn_layernorm",
        ffn_behind: "model.layers.{}.post_mlp_layernorm",
        gate_up: "model.layers.{}.mlp.gate_up_proj",
        ..names::HF
    },
    gguf_names: Names { gate_up: "blk.{}.ffn_up", ..names::GGUF },
    spec,
};

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let usual = common::Usual {
        kv_heads: Some(2),
        head_dim: Some(128),
        context: (common::CONTEXT, 131_072),
        eps: (common::EPS, 1.5625e-7),
        rope: rope::Usual { part: (rope::PART, 0.5), ..rope::USUAL },
        ..common::USUAL
    };
    let mut spec = common::plain_as(c, &usual)?;
    spec.ropes.iter_mut().for_each(|rope| rope.pairs = RopePairs::Neighbours);
    let bias = common::bias(c, "attention_bias", true)?;
    for layer in &mut spec.layers {
        layer.order = Order::Sandwich;
        layer.mixer.qkv_bias = bias;
    }
    Ok(spec)
}
