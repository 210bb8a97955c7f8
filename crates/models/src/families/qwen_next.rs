//! Qwen3-Next and Qwen3.5, dense and MoE: most layers are Gated DeltaNet, every fourth is attention with a gated
//! output. Qwen3.5 checkpoints have a vision encoder too; only the text model is read.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Names, Slot};
use tallow_core::ops::{MAX_KERNEL, MAX_KEY_DIM};
use tallow_core::{Activation, DeltaHeads, Sharing};

use super::{Declared, Family, common, qwen_moe, rope};
use crate::spec::{
    DecoderSpec, ExpertsSpec, FfnSpec, GatedDeltaSpec, LayerSpec, Mixer, QkNormSpec, SharedExpertSpec,
};

pub(super) const FAMILIES: &[Declared] =
    &[Declared::Decoder(&QWEN3_NEXT), Declared::Decoder(&QWEN35), Declared::Decoder(&QWEN35_MOE)];

static QWEN3_NEXT: Family = Family {
    name: "Qwen3-Next",
    hf: &["Qwen3NextForCausalLM"],
    gguf: &["qwen3next"],
    hf_names: TEXT,
    gguf_names: GGUF,
    spec: qwen3_next,
};

static QWEN35: Family = Family {
    name: "Qwen3.5",
    hf: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    gguf: &["qwen35"],
    hf_names: TEXT,
    gguf_names: GGUF,
    spec: qwen35,
};

static QWEN35_MOE: Family = Family {
    name: "Qwen3.5-MoE",
    hf: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
    gguf: &["qwen35moe"],
    hf_names: TEXT,
    gguf_names: GGUF,
    spec: qwen35_moe,
};

const LAYERS: Names = tensor_names::HF.with(&[
    (Slot::SsmIn, "model.layers.{}.linear_attn.in_proj_qkvz"),
    (Slot::SsmQkv, "model.layers.{}.linear_attn.in_proj_qkv"),
    (Slot::SsmGate, "model.layers.{}.linear_attn.in_proj_z"),
    (Slot::SsmBetaAlpha, "model.layers.{}.linear_attn.in_proj_ba"),
    (Slot::SsmBeta, "model.layers.{}.linear_attn.in_proj_b"),
    (Slot::SsmAlpha, "model.layers.{}.linear_attn.in_proj_a"),
    (Slot::SsmConv1d, "model.layers.{}.linear_attn.conv1d"),
    (Slot::SsmA, "model.layers.{}.linear_attn.A_log"),
    (Slot::SsmDt, "model.layers.{}.linear_attn.dt_bias"),
    (Slot::SsmNorm, "model.layers.{}.linear_attn.norm"),
    (Slot::SsmOut, "model.layers.{}.linear_attn.out_proj"),
    (Slot::FfnGateUpExps, "model.layers.{}.mlp.experts.gate_up_proj"),
    (Slot::FfnDownExpsStacked, "model.layers.{}.mlp.experts.down_proj"),
    (Slot::FfnGateShexp, "model.layers.{}.mlp.shared_expert.gate_proj"),
    (Slot::FfnUpShexp, "model.layers.{}.mlp.shared_expert.up_proj"),
    (Slot::FfnDownShexp, "model.layers.{}.mlp.shared_expert.down_proj"),
    (Slot::FfnGateInpShexp, "model.layers.{}.mlp.shared_expert_gate"),
]);
const MTP: Names = LAYERS.with(&[
    (Slot::NextnEhProj, "mtp.fc"),
    (Slot::NextnEnorm, "mtp.pre_fc_norm_embedding"),
    (Slot::NextnHnorm, "mtp.pre_fc_norm_hidden"),
    (Slot::NextnSharedHeadNorm, "mtp.norm"),
    (Slot::AttnNorm, "mtp.layers.{}.input_layernorm"),
    (Slot::AttnQ, "mtp.layers.{}.self_attn.q_proj"),
    (Slot::AttnK, "mtp.layers.{}.self_attn.k_proj"),
    (Slot::AttnV, "mtp.layers.{}.self_attn.v_proj"),
    (Slot::AttnOut, "mtp.layers.{}.self_attn.o_proj"),
    (Slot::AttnQNorm, "mtp.layers.{}.self_attn.q_norm"),
    (Slot::AttnKNorm, "mtp.layers.{}.self_attn.k_norm"),
    (Slot::FfnNorm, "mtp.layers.{}.post_attention_layernorm"),
    (Slot::FfnGate, "mtp.layers.{}.mlp.gate_proj"),
    (Slot::FfnUp, "mtp.layers.{}.mlp.up_proj"),
    (Slot::FfnDown, "mtp.layers.{}.mlp.down_proj"),
    (Slot::FfnGateInp, "mtp.layers.{}.mlp.gate"),
    (Slot::FfnGateExps, "mtp.layers.{}.mlp.experts.{expert}.gate_proj"),
    (Slot::FfnUpExps, "mtp.layers.{}.mlp.experts.{expert}.up_proj"),
    (Slot::FfnDownExps, "mtp.layers.{}.mlp.experts.{expert}.down_proj"),
    (Slot::FfnGateUpExps, "mtp.layers.{}.mlp.experts.gate_up_proj"),
    (Slot::FfnDownExpsStacked, "mtp.layers.{}.mlp.experts.down_proj"),
    (Slot::FfnGateShexp, "mtp.layers.{}.mlp.shared_expert.gate_proj"),
    (Slot::FfnUpShexp, "mtp.layers.{}.mlp.shared_expert.up_proj"),
    (Slot::FfnDownShexp, "mtp.layers.{}.mlp.shared_expert.down_proj"),
    (Slot::FfnGateInpShexp, "mtp.layers.{}.mlp.shared_expert_gate"),
]);
const TEXT: Names = Names { mtp: Some(("mtp.", &MTP)), ..LAYERS };
const GGUF: Names = tensor_names::GGUF.with(&[(Slot::FfnNorm, "blk.{}.post_attention_norm")]);

const KERNEL: Key = key("linear_conv_kernel_dim", "ssm.conv_kernel");
const KEYS: Key = key("linear_num_key_heads", "ssm.group_count");
const VALUES: Key = key("linear_num_value_heads", "ssm.time_step_rank");
const KEY_DIM: Key = key("linear_key_head_dim", "ssm.state_size");
const VALUE_DIM: Key = key("linear_value_head_dim", "");
/// Total size of the values: value heads × value head dim.
const INNER: Key = key("", "ssm.inner_size");
const MOST_VALUE: usize = 1024;
/// Every n-th layer is attention.
const EVERY: Key = key("full_attention_interval", "full_attention_interval");
/// The layers that are Gated DeltaNet.
const RECURRENT: Key = key("", "attention.recurrent_layers");
const EXPERTS: Key = key("num_experts", "expert_count");
const NORM_WEIGHTS: Key = key("norm_topk_prob", "");

const DEFAULTS: common::Defaults = common::Defaults {
    kv_heads: Some(2),
    head_dim: Some(256),
    context: (common::CONTEXT, 32_768),
    rope: rope::Defaults { part: Some((rope::PART, 0.25)), ..rope::DEFAULTS },
    ..common::DEFAULTS
};

fn qwen3_next(c: &Config<'_>) -> Result<DecoderSpec> {
    // GGUF files do not have the flag, and their readers take it as true.
    let norm_weights = c.is_gguf() || c.flag_or(NORM_WEIGHTS, true)?;
    let spec = hybrid(c, &DEFAULTS, Sharing::Grouped)?;
    if c.find_count(EXPERTS)? == Some(0) {
        return Ok(spec.into());
    }
    qwen_moe::mix(c, spec, experts(c, [512, 10], norm_weights)?, 512)
}

fn qwen35(c: &Config<'_>) -> Result<DecoderSpec> {
    rope::sections(c)?;
    Ok(hybrid(c, &common::Defaults { kv_heads: Some(4), ..DEFAULTS }, sharing(c))?.into())
}

fn qwen35_moe(c: &Config<'_>) -> Result<DecoderSpec> {
    rope::sections(c)?;
    let ffn = common::EXPERT_WIDTH;
    let spec = hybrid(c, &common::Defaults { ffn, ..DEFAULTS }, sharing(c))?;
    let experts = experts(c, [256, 8], true)?;
    Ok(spec.with_experts(|_| Some(experts)))
}

/// Converters of Qwen3.5 to GGUF reorder the value heads.
fn sharing(c: &Config<'_>) -> Sharing {
    if c.is_gguf() { Sharing::RoundRobin } else { Sharing::Grouped }
}

/// MoE settings with a shared expert; `count` and `used` are the defaults for experts and experts per token.
fn experts(c: &Config<'_>, [count, used]: [usize; 2], norm_weights: bool) -> Result<ExpertsSpec> {
    let width = qwen_moe::shared_width(c, 512)?;
    let count = common::experts(c, common::EXPERTS, count)?;
    let used = common::experts_used(c, used, count)?;
    let shared = Some(SharedExpertSpec { width, gated: true });
    Ok(ExpertsSpec { shared, norm_weights, ..ExpertsSpec::softmax(count, used) })
}

/// Settings common to all three, without experts.
fn hybrid(
    c: &Config<'_>,
    defaults: &common::Defaults,
    sharing: Sharing,
) -> Result<DecoderSpec<LayerSpec<Mixer, FfnSpec>>> {
    let mut spec = common::plain_as(c, defaults)?;
    // Converters to GGUF add the 1.
    spec.norm.weight_offset = if c.is_gguf() { 0.0 } else { 1.0 };
    match c.is_gguf() {
        true => common::mtp_layers(c, &mut spec, 0)?,
        // Settings of Qwen3-Next do not say.
        false => spec.mtp_layers = usize::from(common::tensor(c, &MTP, Slot::NextnEhProj, 0).is_some()),
    }
    if spec.layers[0].ffn.act != Activation::Silu {
        let act = c.find_text(common::ACT)?.unwrap_or_default();
        return Err(c.unsupported(common::ACT, act, "silu is, which is the convolution's too"));
    }
    let (delta, bias) = (delta(c, sharing)?, common::bias(c, "attention_bias", false)?);
    let recurrent = recurrent(c, spec.layers.len())?;
    for layer in &mut spec.layers {
        (layer.mixer.qkv_bias, layer.mixer.out_bias) = (bias, bias);
        (layer.mixer.qk_norm, layer.mixer.gated) = (QkNormSpec::PerHead, true);
    }
    Ok(spec.with_mixers(|i, attention| match recurrent[i] {
        true => Mixer::GatedDelta(delta),
        false => Mixer::Attention(attention),
    }))
}

/// The layers that are Gated DeltaNet.
fn recurrent(c: &Config<'_>, layers: usize) -> Result<Vec<bool>> {
    if let Some(list) = c.per_layer(RECURRENT, layers, c.find_flags(RECURRENT)?)? {
        return Ok(list);
    }
    let every = c.find_count(EVERY)?.unwrap_or(4);
    if every == 0 {
        return Err(c.bad(EVERY, "is 0"));
    }
    common::of_type(c, layers, "linear_attention", |i| !(i + 1).is_multiple_of(every))
}

fn delta(c: &Config<'_>, sharing: Sharing) -> Result<GatedDeltaSpec> {
    let count = |key: Key, default: usize| common::sane(c, key, c.find_count(key)?.unwrap_or(default));
    let most = |key: Key, n: usize, least: usize, most: usize| match (least..=most).contains(&n) {
        true => Ok(n),
        false => Err(c.unsupported(key, n, format_args!("{least} to {most} are"))),
    };
    let (keys, values) = (count(KEYS, 16)?, count(VALUES, 32)?);
    if !values.is_multiple_of(keys) {
        return Err(c.bad(VALUES, format_args!("is {values}, not a multiple of the {keys} key heads")));
    }
    let (value_key, value_dim) = match c.is_gguf() {
        false => (VALUE_DIM, count(VALUE_DIM, 128)?),
        true => match count(INNER, values * 128)? {
            inner if inner.is_multiple_of(values) => (INNER, inner / values),
            inner => return Err(c.bad(INNER, format_args!("is {inner}, which {values} heads do not divide"))),
        },
    };
    let heads = DeltaHeads {
        keys,
        values,
        key_dim: most(KEY_DIM, count(KEY_DIM, 128)?, 1, MAX_KEY_DIM)?,
        value_dim: most(value_key, value_dim, 1, MOST_VALUE)?,
        sharing,
    };
    Ok(GatedDeltaSpec { heads, kernel: most(KERNEL, count(KERNEL, 4)?, 2, MAX_KERNEL)? })
}
