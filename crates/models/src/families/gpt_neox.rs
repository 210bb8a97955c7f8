//! GPT-NeoX and Pythia: attention and FFN in parallel with a norm each; QKV fused head by head.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, key};
use tallow_checkpoint::tensor_names::{self, Layout, Names, Slot};

use super::{Declared, Family, common, rope};
use crate::spec::{Bias, DecoderSpec, Order};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&GPT_NEOX)];

static GPT_NEOX: Family = Family {
    name: "GPT-NeoX",
    hf: &["GPTNeoXForCausalLM"],
    // Its GGUF files are not verified to give the same results.
    gguf: &[],
    hf_names: Names {
        base: "gpt_neox.",
        layout: Layout::RowsByHead,
        ..tensor_names::HF.with(&[
            (Slot::TokenEmbd, "gpt_neox.embed_in"),
            (Slot::OutputNorm, "gpt_neox.final_layer_norm"),
            (Slot::Output, "embed_out"),
            (Slot::AttnNorm, "gpt_neox.layers.{}.input_layernorm"),
            (Slot::AttnQkv, "gpt_neox.layers.{}.attention.query_key_value"),
            (Slot::AttnOut, "gpt_neox.layers.{}.attention.dense"),
            (Slot::FfnNorm, "gpt_neox.layers.{}.post_attention_layernorm"),
            (Slot::FfnUp, "gpt_neox.layers.{}.mlp.dense_h_to_4h"),
            (Slot::FfnDown, "gpt_neox.layers.{}.mlp.dense_4h_to_h"),
        ])
    },
    gguf_names: tensor_names::GGUF,
    spec,
};

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let rope = rope::Defaults {
        theta: (key("rotary_emb_base", rope::GGUF_THETA), 10_000.0),
        part: Some((key("rotary_pct", ""), 0.25)),
        ..rope::DEFAULTS
    };
    let defaults =
        common::Defaults { gated: false, act: (common::ACT, "gelu"), rope, ..common::LAYER_NORM_DEFAULTS };
    let mut spec = common::plain_of(c, &defaults, |dim| common::mha_heads(c, dim, &defaults))?;
    let bias = common::bias(c, "attention_bias", true)?;
    let parallel = common::flag(c, "use_parallel_residual", true)?;
    for layer in &mut spec.layers {
        layer.order = if parallel { Order::Parallel } else { Order::Pre };
        (layer.mixer.qkv_bias, layer.mixer.out_bias, layer.ffn.bias) = (bias, bias, Bias::Yes);
    }
    Ok(spec.into())
}
