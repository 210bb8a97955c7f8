//! DeepSeek V2 and V3: MLA; the first layers have a dense FFN, the others grouped MoE with shared experts. The two
//! differ in expert selection.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Slot};
use tallow_core::RopePairs;

use super::{Declared, Family, common, rope, routed};
use crate::spec::rope::Scaling;
use crate::spec::{Bias, DecoderSpec, ExpertsSpec, Mixer, MlaSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&DEEPSEEK_V2), Declared::Decoder(&DEEPSEEK_V3)];

static DEEPSEEK_V2: Family = Family {
    name: "DeepSeek V2",
    hf: &["DeepseekV2ForCausalLM"],
    // GGUF files of V3 have the same architecture name.
    gguf: &["deepseek2"],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec: v2,
};

static DEEPSEEK_V3: Family = Family {
    name: "DeepSeek V3",
    hf: &["DeepseekV3ForCausalLM"],
    gguf: &["deepseek2"],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec: v3,
};

const Q_LORA_RANK: Key = key("q_lora_rank", "attention.q_lora_rank");
const KV_LORA_RANK: Key = key("kv_lora_rank", "attention.kv_lora_rank");
const QK_NOPE_DIM: Key = key("qk_nope_head_dim", "");
const QK_ROPE_DIM: Key = key("qk_rope_head_dim", "rope.dimension_count");
const V_DIM: Key = key("v_head_dim", "attention.value_length_mla");
/// `qk_nope_dim + qk_rope_dim`.
const GGUF_QK_DIM: Key = key("", "attention.key_length_mla");
const GGUF_SCALING: Key = key("", "rope.scaling.type");
const GGUF_ATTENTION: Key = key("", "rope.scaling.attn_factor");
const EVERY: Key = key("moe_layer_freq", "");
const CHOICE: Key = key("topk_method", "");
const SCORES: Key = key("scoring_func", "");
const GGUF_SCORES: Key = key("", "expert_gating_func");
const NEIGHBOURS: Key = key("rope_interleave", "");

/// Sizes of MLA and MoE where keys are missing.
pub(super) struct Sizes {
    pub kv_lora_rank: usize,
    pub q_lora_rank: usize,
    pub qk_nope_dim: usize,
    pub qk_rope_dim: usize,
    pub v_dim: usize,
    /// FFN width of an expert.
    pub expert_width: usize,
    /// Leading layers without experts.
    pub dense: usize,
}

const V2_SIZES: Sizes = Sizes {
    kv_lora_rank: 512,
    q_lora_rank: 1536,
    qk_nope_dim: 128,
    qk_rope_dim: 64,
    v_dim: 128,
    expert_width: 1407,
    dense: 0,
};

/// Settings common to V2 and V3. `experts` makes the MoE settings from the expert FFN width.
fn base(
    c: &Config<'_>,
    defaults: &common::Defaults,
    sizes: &Sizes,
    experts: impl FnOnce(usize) -> Result<ExpertsSpec>,
) -> Result<DecoderSpec> {
    common::off(c, "mlp_bias")?;
    if let Some(kind) = c.find_text(GGUF_SCALING)?.filter(|kind| !["none", "yarn"].contains(kind)) {
        return Err(c.unsupported(GGUF_SCALING, kind, "in GGUF files of this family none and yarn are"));
    }
    if let Some(by) = c.find_number(GGUF_ATTENTION)?.filter(|by| *by != 1.0) {
        return Err(c.unsupported(GGUF_ATTENTION, by, "in GGUF files of this family 1 is"));
    }
    if let Some(every) = c.find_count(EVERY)?.filter(|n| *n != 1) {
        return Err(c.unsupported(EVERY, every, "1 is"));
    }
    let q = common::sane(c, defaults.heads, c.count(defaults.heads)?)?;
    let mla = mla(c, q, sizes)?;
    if let Some(kv) = c.find_count(common::KV_HEADS)?.filter(|kv| *kv != q && !c.is_gguf()) {
        return Err(c.unsupported(
            common::KV_HEADS,
            kv,
            format_args!("as many as there are heads ({q}) are"),
        ));
    }
    let mut spec = common::plain_of(c, defaults, |_| Ok((mla.heads(), mla.qk_rope_dim)))?;
    for rope in &mut spec.ropes {
        rope.pairs = RopePairs::Interleaved;
        // In GGUF files YaRN scales the attention scores only, not cos and sin.
        if let (Scaling::Yarn(yarn), true) = (&mut rope.scaling, c.is_gguf()) {
            yarn.attention = 1.0;
        }
    }
    let width = common::expert_width(c, sizes.expert_width)?;
    let experts = experts(width)?;
    let dense = c.find_count(routed::DENSE)?.unwrap_or(sizes.dense);
    let bias = common::bias(c, "attention_bias", false)?;
    let scale = rope::sharpness(c)? / ((mla.qk_nope_dim + mla.qk_rope_dim) as f64).sqrt();
    let eps = if c.is_gguf() { spec.norm.eps } else { mla.eps };
    let mla = MlaSpec { eps, down_bias: bias, out_bias: bias, scale: scale as f32, ..mla };
    spec.layers.iter_mut().skip(dense).for_each(|layer| layer.ffn.width = width);
    let spec = spec.with_mixers(|_, _| Mixer::Mla(mla));
    Ok(spec.with_experts(|i| (i >= dense).then_some(experts)))
}

/// MLA without biases, and with scores as they are.
fn mla(c: &Config<'_>, q_heads: usize, sizes: &Sizes) -> Result<MlaSpec> {
    let count = |key: Key, default: usize| match c.is_gguf() {
        true => common::sane(c, key, c.count(key)?),
        false => common::sane(c, key, c.find_count(key)?.unwrap_or(default)),
    };
    let kv_lora_rank = count(KV_LORA_RANK, sizes.kv_lora_rank)?;
    let (qk_rope_dim, v_dim) = (count(QK_ROPE_DIM, sizes.qk_rope_dim)?, count(V_DIM, sizes.v_dim)?);
    let q_lora_rank = match c.find_count(Q_LORA_RANK)? {
        None if !c.is_gguf() && c.leaves_out(Q_LORA_RANK) => Some(sizes.q_lora_rank),
        q_rank => q_rank.map(|n| common::sane(c, Q_LORA_RANK, n)).transpose()?,
    };
    let plain = match c.is_gguf() {
        true => count(GGUF_QK_DIM, 0)?.checked_sub(qk_rope_dim).filter(|n| *n > 0),
        false => Some(count(QK_NOPE_DIM, sizes.qk_nope_dim)?),
    };
    let qk_nope_dim = plain.ok_or_else(|| {
        c.bad(GGUF_QK_DIM, format_args!("leaves nothing beside {qk_rope_dim} that are rotated"))
    })?;
    if !qk_rope_dim.is_multiple_of(2) || qk_rope_dim + kv_lora_rank > 1024 {
        let why = format_args!(
            "is {qk_rope_dim} beside {kv_lora_rank}; an even number is supported, both up to 1024"
        );
        return Err(c.bad(QK_ROPE_DIM, why));
    }
    Ok(MlaSpec {
        q_heads,
        kv_lora_rank,
        q_lora_rank,
        qk_nope_dim,
        qk_rope_dim,
        v_dim,
        eps: 1e-6,
        down_bias: Bias::No,
        out_bias: Bias::No,
        rope: 0,
        scale: 1.0,
    })
}

fn v2(c: &Config<'_>) -> Result<DecoderSpec> {
    // GGUF metadata has no version but the scoring function: 1 is softmax (V2), 2 is sigmoid (V3).
    match c.find_count(GGUF_SCORES)?.filter(|_| c.is_gguf()) {
        // Files of GLM 4.7 Flash lack it. V2 has no bias for expert selection.
        None if c.is_gguf() && selects_by_bias(c)? => return v3(c),
        None | Some(1) => {}
        Some(2) => return v3(c),
        Some(other) => return Err(c.unsupported(GGUF_SCORES, other, "1 and 2 are")),
    }
    let defaults =
        routed::Defaults { count: 64, used: None, groups: None, shared: 2, scale: 1.0, norm_weights: false };
    common::only(c, SCORES, "softmax")?;
    if c.flag_or(routed::NORM_WEIGHTS, defaults.norm_weights)? {
        return Err(c.unsupported(routed::NORM_WEIGHTS, true, "false is"));
    }
    let limited = match c.find_text(CHOICE)?.unwrap_or("greedy") {
        "greedy" => false,
        "group_limited_greedy" => true,
        other => return Err(c.unsupported(CHOICE, other, "greedy and group_limited_greedy are")),
    };
    base(c, &common::DEFAULTS, &V2_SIZES, |width| {
        let experts = routed::softmax(c, width, &defaults)?;
        let groups = match limited || c.is_gguf() {
            true => routed::groups(c, &experts, &defaults, 1)?,
            false => None,
        };
        // It is not verified which group selection GGUF files with softmax scores mean.
        if groups.is_some() && c.is_gguf() {
            return Err(c.unsupported(GGUF_SCORES, 1, "groups of experts are with 2 only"));
        }
        Ok(ExpertsSpec { groups, ..experts })
    })
}

/// True if a GGUF file has a bias for expert selection.
fn selects_by_bias(c: &Config<'_>) -> Result<bool> {
    let layers = c.count(common::DEFAULTS.layers)?.min(c.checkpoint().tensors().len());
    let bias = |i: usize| tensor_names::GGUF.name(Slot::FfnExpProbsB, i);
    Ok((0..layers).filter_map(bias).any(|name| c.checkpoint().get(&name).is_some()))
}

fn v3(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults = common::Defaults { context: (common::CONTEXT, 4096), ..common::DEFAULTS };
    let norm_weights = !c.is_gguf();
    let experts = routed::Defaults {
        count: 256,
        used: Some(8),
        groups: Some((8, 4)),
        shared: 1,
        scale: 2.5,
        norm_weights,
    };
    v3_as(c, &defaults, &Sizes { expert_width: 2048, dense: 3, ..V2_SIZES }, &experts)
}

/// V3 with the defaults of a family that is built like it.
pub(super) fn v3_as(
    c: &Config<'_>,
    defaults: &common::Defaults,
    sizes: &Sizes,
    experts: &routed::Defaults,
) -> Result<DecoderSpec> {
    common::only(c, SCORES, "sigmoid")?;
    common::only(c, CHOICE, "noaux_tc")?;
    let mut spec = base(c, defaults, sizes, |width| routed::sigmoid(c, width, experts))?;
    if !c.flag_or(NEIGHBOURS, true)? {
        spec.ropes.iter_mut().for_each(|rope| rope.pairs = RopePairs::Halves);
    }
    common::mtp_layers(c, &mut spec, 1)?;
    Ok(spec)
}
