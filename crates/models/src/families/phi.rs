//! Phi 1 and 2 (parallel attention and FFN behind one norm, ungated, biases everywhere), Phi 3 and 4 (Llama with fused
//! tensors).

use tallow_checkpoint::Result;
use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names::{self, Slot};

use super::{Declared, Family, common, rope};
use crate::spec::{Bias, DecoderSpec, Order, QkNormSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&PHI), Declared::Decoder(&PHI3)];

static PHI: Family = Family {
    name: "Phi",
    hf: &["PhiForCausalLM"],
    gguf: &["phi2"],
    hf_names: tensor_names::HF.with(&[
        (Slot::OutputNorm, "model.final_layernorm"),
        (Slot::AttnOut, "model.layers.{}.self_attn.dense"),
        (Slot::AttnQNorm, "model.layers.{}.self_attn.q_layernorm"),
        (Slot::AttnKNorm, "model.layers.{}.self_attn.k_layernorm"),
        (Slot::FfnUp, "model.layers.{}.mlp.fc1"),
        (Slot::FfnDown, "model.layers.{}.mlp.fc2"),
    ]),
    gguf_names: tensor_names::GGUF.with(&[(Slot::AttnQkv, "blk.{}.attn_qkv")]),
    spec: phi,
};

static PHI3: Family = Family {
    name: "Phi 3",
    hf: &["Phi3ForCausalLM"],
    gguf: &["phi3"],
    hf_names: tensor_names::HF.with(&[
        (Slot::AttnQkv, "model.layers.{}.self_attn.qkv_proj"),
        (Slot::FfnGateUp, "model.layers.{}.mlp.gate_up_proj"),
    ]),
    gguf_names: tensor_names::GGUF
        .with(&[(Slot::AttnQkv, "blk.{}.attn_qkv"), (Slot::FfnGateUp, "blk.{}.ffn_up")]),
    spec: phi3,
};

fn phi(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults = common::Defaults {
        gated: false,
        act: (common::ACT, "gelu_new"),
        rope: rope::Defaults { part: Some((rope::PART, 0.5)), ..rope::DEFAULTS },
        ..common::LAYER_NORM_DEFAULTS
    };
    let mut spec = common::plain_as(c, &defaults)?;
    spec.head_bias = Bias::Yes;
    let normed = common::flag(c, "qk_layernorm", false)?;
    for layer in &mut spec.layers {
        layer.order = Order::ParallelOneNorm;
        layer.mixer.qk_norm = if normed { QkNormSpec::PerHead } else { QkNormSpec::None };
        (layer.mixer.qkv_bias, layer.mixer.out_bias, layer.ffn.bias) = (Bias::Yes, Bias::Yes, Bias::Yes);
    }
    Ok(spec.into())
}

fn phi3(c: &Config<'_>) -> Result<DecoderSpec> {
    // Some files call longrope `yarn`.
    rope::only(c, &["default", "longrope", "su", "yarn"])?;
    let rope = rope::Defaults { original: Some(4096), part: Some((rope::PART, 1.0)), ..rope::DEFAULTS };
    let defaults = common::Defaults {
        eps: (common::EPS, 1e-5),
        context: (common::CONTEXT, 4096),
        rope,
        ..common::DEFAULTS
    };
    let mut spec = common::plain_as(c, &defaults)?;
    let window = common::window(c)?;
    spec.layers.iter_mut().for_each(|layer| layer.mixer.window = window);
    Ok(spec.into())
}
