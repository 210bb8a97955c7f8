//! Granite: Llama with multipliers on embeddings, attention, residuals and logits. Its MoE models have experts in every
//! layer.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Slot};

use super::{Declared, Family, common};
use crate::spec::{DecoderSpec, DenseDecoderSpec, ExpertsSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&GRANITE), Declared::Decoder(&GRANITE_MOE)];

static GRANITE: Family = Family {
    name: "Granite",
    hf: &["GraniteForCausalLM"],
    gguf: &["granite"],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec: |c| Ok(spec(c)?.into()),
};

static GRANITE_MOE: Family = Family {
    name: "Granite MoE",
    hf: &["GraniteMoeForCausalLM"],
    gguf: &[],
    hf_names: tensor_names::HF.with(&[
        (Slot::FfnGateInp, "model.layers.{}.block_sparse_moe.router.layer"),
        (Slot::FfnGateUpExps, "model.layers.{}.block_sparse_moe.input_linear.weight"),
        (Slot::FfnDownExpsStacked, "model.layers.{}.block_sparse_moe.output_linear.weight"),
    ]),
    gguf_names: tensor_names::GGUF,
    spec: with_experts,
};

const EMBED: Key = key("embedding_multiplier", "embedding_scale");
const ATTENTION: Key = key("attention_multiplier", "attention.scale");
const RESIDUAL: Key = key("residual_multiplier", "residual_scale");
/// Divides the logits.
const LOGITS: Key = key("logits_scaling", "logit_scale");

fn spec(c: &Config<'_>) -> Result<DenseDecoderSpec> {
    let mut spec = common::plain(c)?;
    common::gguf_permutes_qk(c, &mut spec);
    let divisor = c.number_or(LOGITS, 1.0)?;
    if divisor == 0.0 {
        return Err(c.bad(LOGITS, "is 0"));
    }
    spec.logit_scale = (1.0 / divisor) as f32;
    spec.embed_scale = c.number_or(EMBED, 1.0)? as f32;
    let (attention, residual) = (c.number_or(ATTENTION, 1.0)? as f32, c.number_or(RESIDUAL, 1.0)? as f32);
    let (bias, mlp_bias) = (common::bias(c, "attention_bias", false)?, common::bias(c, "mlp_bias", false)?);
    for layer in &mut spec.layers {
        layer.mixer.scale = attention;
        layer.residual_scale = residual;
        (layer.mixer.qkv_bias, layer.mixer.out_bias, layer.ffn.bias) = (bias, bias, mlp_bias);
    }
    Ok(spec)
}

fn with_experts(c: &Config<'_>) -> Result<DecoderSpec> {
    let spec = spec(c)?;
    let count = common::experts(c, common::LOCAL_EXPERTS, 8)?;
    let experts =
        ExpertsSpec { norm_weights: true, ..ExpertsSpec::softmax(count, common::experts_used(c, 2, count)?) };
    Ok(spec.with_experts(|_| Some(experts)))
}
