//! GLM 4: norms in front of the blocks and behind them, pairs of neighbours turn in a half of each head. With experts
//! (MoE) it is another: norms in front, and halves turn.

use tallow_core::{Groups, RopePairs, Scores};

use super::{Family, common, rope};
use crate::error::Result;
use crate::formats::config::{Config, Key, key};
use crate::formats::names::{self, Names};
use crate::spec::{DecoderSpec, ExpertsSpec, Order, QkNormSpec, SharedSpec};

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

pub(super) static GLM4_MOE: Family = Family {
    name: "GLM 4 MoE",
    hf: &["Glm4MoeForCausalLM"],
    gguf: &["glm4moe"],
    hf_names: names::HF,
    gguf_names: Names { ffn_norm: "blk.{}.post_attention_norm", ..names::GGUF },
    spec: with_experts,
};

const SHARED: Key = key("n_shared_experts", "expert_shared_count");
const GROUPS: Key = key("n_group", "expert_group_count");
const GROUPS_USED: Key = key("topk_group", "expert_group_used_count");
const TO_ONE: Key = key("norm_topk_prob", "expert_weights_norm");
const SCALE: Key = key("routed_scaling_factor", "expert_weights_scale");
const DENSE: Key = key("first_k_dense_replace", "leading_dense_block_count");
const GUESSING: Key = key("num_nextn_predict_layers", "nextn_predict_layers");

fn with_experts(c: &Config<'_>) -> Result<DecoderSpec> {
    let usual = common::Usual {
        kv_heads: Some(8),
        context: (common::CONTEXT, 131_072),
        eps: (common::EPS, 1e-5),
        rope: rope::Usual { part: (rope::PART, 0.5), ..rope::USUAL },
        ..common::USUAL
    };
    let mut spec = common::plain_as(c, &usual)?;
    let guessing = c.find_count(GUESSING)?.unwrap_or(if c.is_gguf() { 0 } else { 1 });
    spec.guessing = guessing;
    if c.is_gguf() {
        // There they count as layers.
        let layers = spec.layers.len();
        if guessing >= layers {
            return Err(c.bad(GUESSING, format_args!("is {guessing}, of {layers} layers")));
        }
        spec.layers.truncate(layers - guessing);
    }
    let width = common::expert_width(c, 1408)?;
    let experts = routed(c, width)?;
    let dense = c.find_count(DENSE)?.unwrap_or(1);
    let bias = common::bias(c, "attention_bias", false)?;
    let normed = match c.is_gguf() {
        true => c.checkpoint().get("blk.0.attn_q_norm.weight").is_some(),
        false => common::flag(c, "use_qk_norm", false)?,
    };
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        layer.mixer.qkv_bias = bias;
        if normed {
            layer.mixer.qk_norm = QkNormSpec::PerHead;
        }
        if i >= dense {
            (layer.ffn.width, layer.experts) = (width, Some(experts));
        }
    }
    Ok(spec)
}

/// Experts of that width, each scored on its own, chosen from the best groups.
fn routed(c: &Config<'_>, width: usize) -> Result<ExpertsSpec> {
    let count = common::experts(c, 128)?;
    let used = common::experts_used(c, 8, count)?;
    let (groups, groups_used) = (c.find_count(GROUPS)?.unwrap_or(1), c.find_count(GROUPS_USED)?.unwrap_or(1));
    let best = 2;
    let groups = match groups {
        0 | 1 => None,
        n if count.is_multiple_of(n) && count / n >= best && (1..=n).contains(&groups_used) => {
            Some(Groups { count: n, used: groups_used, best })
        }
        n => {
            let why = format_args!("is {n}, of which {groups_used} are used, for {count} experts");
            return Err(c.bad(GROUPS, why));
        }
    };
    let shared = c.find_count(SHARED)?.unwrap_or(1);
    let shared = match shared {
        0 => None,
        n => Some(SharedSpec { width: common::sane(c, SHARED, n.saturating_mul(width))?, gated: false }),
    };
    Ok(ExpertsSpec {
        scores: Scores::Sigmoid,
        bias: true,
        groups,
        to_one: c.flag_or(TO_ONE, true)?,
        scale: c.number_or(SCALE, 1.0)? as f32,
        shared,
        ..ExpertsSpec::softmax(count, used)
    })
}
