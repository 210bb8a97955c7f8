//! MiniMax M2: MoE in every layer with sigmoid scores, partial RoPE, QK norm over all heads at once.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Slot};
use tallow_core::Scores;

use super::{Declared, Family, common, rope};
use crate::spec::{DecoderSpec, ExpertsSpec, QkNormSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&MINIMAX_M2)];

static MINIMAX_M2: Family = Family {
    name: "MiniMax M2",
    hf: &["MiniMaxM2ForCausalLM"],
    gguf: &["minimax-m2"],
    hf_names: tensor_names::HF.with(&[
        (Slot::FfnGateInp, "model.layers.{}.block_sparse_moe.gate"),
        (Slot::FfnExpProbsB, "model.layers.{}.block_sparse_moe.e_score_correction_bias"),
        (Slot::FfnGateExps, "model.layers.{}.block_sparse_moe.experts.{expert}.w1"),
        (Slot::FfnUpExps, "model.layers.{}.block_sparse_moe.experts.{expert}.w3"),
        (Slot::FfnDownExps, "model.layers.{}.block_sparse_moe.experts.{expert}.w2"),
    ]),
    gguf_names: tensor_names::GGUF,
    spec,
};

/// Elements of a head that RoPE rotates. Newer configs have `partial_rotary_factor` instead.
const ROTARY_DIM: Key = key("rotary_dim", "");
const SCORES: Key = key("scoring_func", "");
/// 2 is sigmoid.
const GGUF_SCORES: Key = key("", "expert_gating_func");
const QK_NORM: Key = key("use_qk_norm", "");
const QK_NORM_TYPE: Key = key("qk_norm_type", "");
const ROUTING_BIAS: Key = key("use_routing_bias", "");

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    check(c)?;
    let defaults = common::Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        context: (common::CONTEXT, 196_608),
        ..common::DEFAULTS
    };
    let head = common::heads(c, c.count(defaults.dim)?, &defaults)?.dim;
    let part = match c.find_count(ROTARY_DIM)? {
        Some(n) if n > head => {
            return Err(c.bad(ROTARY_DIM, format_args!("is {n}, and heads have {head} elements")));
        }
        Some(n) => n as f64 / head as f64,
        None => 1.0,
    };
    let rope = rope::Defaults {
        theta: (rope::THETA, 5_000_000.0),
        part: Some((rope::PART, part)),
        ..rope::DEFAULTS
    };
    let mut spec = common::plain_as(c, &common::Defaults { rope, ..defaults })?;
    spec.layers.iter_mut().for_each(|layer| layer.mixer.qk_norm = QkNormSpec::AllHeads);
    let count = common::experts(c, common::LOCAL_EXPERTS, 256)?;
    let experts = ExpertsSpec {
        scores: Scores::Sigmoid,
        bias: true,
        norm_weights: true,
        ..ExpertsSpec::softmax(count, common::experts_used(c, 8, count)?)
    };
    Ok(spec.with_experts(|_| Some(experts)))
}

/// Returns an error for a setting that no published model has and the reference ignores.
fn check(c: &Config<'_>) -> Result<()> {
    common::only(c, SCORES, "sigmoid")?;
    common::only(c, QK_NORM_TYPE, "per_layer")?;
    if let Some(other) = c.find_count(GGUF_SCORES)?.filter(|n| *n != 2) {
        return Err(c.unsupported(GGUF_SCORES, other, "2 is"));
    }
    for switch in [QK_NORM, ROUTING_BIAS] {
        if !c.flag_or(switch, true)? {
            return Err(c.unsupported(switch, false, "true is"));
        }
    }
    Ok(())
}
