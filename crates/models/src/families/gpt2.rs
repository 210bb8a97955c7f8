//! GPT-2: learned positions, no RoPE, ungated FFN, weights stored as [inputs, outputs].

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, key};
use tallow_checkpoint::tensor_names::{self, Layout, Names, Slot};

use super::{Declared, Family, common};
use crate::spec::{Bias, DecoderSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&GPT2)];

static GPT2: Family = Family {
    name: "GPT-2",
    hf: &["GPT2LMHeadModel"],
    gguf: &["gpt2"],
    hf_names: Names {
        base: "transformer.",
        layout: Layout::Columns,
        ..tensor_names::HF.with(&[
            (Slot::TokenEmbd, "transformer.wte"),
            (Slot::PosEmbd, "transformer.wpe"),
            (Slot::OutputNorm, "transformer.ln_f"),
            (Slot::AttnNorm, "transformer.h.{}.ln_1"),
            (Slot::AttnQkv, "transformer.h.{}.attn.c_attn"),
            (Slot::AttnOut, "transformer.h.{}.attn.c_proj"),
            (Slot::FfnNorm, "transformer.h.{}.ln_2"),
            (Slot::FfnUp, "transformer.h.{}.mlp.c_fc"),
            (Slot::FfnDown, "transformer.h.{}.mlp.c_proj"),
        ])
    },
    gguf_names: tensor_names::GGUF.with(&[(Slot::AttnQkv, "blk.{}.attn_qkv")]),
    spec,
};

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults = common::Defaults {
        dim: key("n_embd", common::DEFAULTS.dim.gguf),
        layers: key("n_layer", common::DEFAULTS.layers.gguf),
        heads: key("n_head", common::DEFAULTS.heads.gguf),
        ffn: key("n_inner", common::DEFAULTS.ffn.gguf),
        ffn_times: Some(4),
        gated: false,
        act: (key("activation_function", ""), "gelu_new"),
        context: (key("n_positions", common::CONTEXT.gguf), 1024),
        eps: (key("layer_norm_epsilon", common::GGUF_LAYER_EPS), 1e-5),
        tied: true,
        ..common::LAYER_NORM_DEFAULTS
    };
    let mut spec = common::plain_of(c, &defaults, |dim| common::mha_heads(c, dim, &defaults))?;
    common::off(c, "add_cross_attention")?;
    spec.positions = Some(spec.context);
    spec.ropes.clear();
    let scaled = common::flag(c, "scale_attn_weights", true)?;
    let by_layer = common::flag(c, "scale_attn_by_inverse_layer_idx", false)?;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        layer.mixer.rope = None;
        let scale = if scaled { layer.mixer.scale } else { 1.0 };
        layer.mixer.scale = if by_layer { scale / (i + 1) as f32 } else { scale };
        (layer.mixer.qkv_bias, layer.mixer.out_bias, layer.ffn.bias) = (Bias::Yes, Bias::Yes, Bias::Yes);
    }
    Ok(spec.into())
}
