//! Grouped MoE with shared experts: the config keys that GLM 4 and DeepSeek have in common.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_core::{Groups, Scores};

use super::common;
use crate::spec::{ExpertsSpec, SharedExpertSpec};

/// Leading layers without experts.
pub(super) const DENSE: Key = key("first_k_dense_replace", "leading_dense_block_count");
pub(super) const NORM_WEIGHTS: Key = key("norm_topk_prob", "expert_weights_norm");
const SHARED: Key = key("n_shared_experts", "expert_shared_count");
const GROUPS: Key = key("n_group", "expert_group_count");
const GROUPS_USED: Key = key("topk_group", "expert_group_used_count");
const SCALE: Key = key("routed_scaling_factor", "expert_weights_scale");

/// Defaults where keys are missing.
pub(super) struct Defaults {
    pub count: usize,
    /// Experts per token; required in the config if `None`.
    pub used: Option<usize>,
    /// Number of groups, and groups used per token.
    pub groups: Option<(usize, usize)>,
    pub shared: usize,
    pub scale: f64,
    pub norm_weights: bool,
}

/// MoE of that width with sigmoid scores and a bias for expert selection only (DeepSeek V3).
pub(super) fn sigmoid(c: &Config<'_>, width: usize, defaults: &Defaults) -> Result<ExpertsSpec> {
    let softmax = softmax(c, width, defaults)?;
    let groups = groups(c, &softmax, defaults, 2)?;
    Ok(ExpertsSpec {
        scores: Scores::Sigmoid,
        bias: true,
        groups,
        norm_weights: c.flag_or(NORM_WEIGHTS, defaults.norm_weights)?,
        ..softmax
    })
}

/// MoE of that width with softmax scores over all experts.
pub(super) fn softmax(c: &Config<'_>, width: usize, defaults: &Defaults) -> Result<ExpertsSpec> {
    let count = common::experts(c, common::ROUTED_EXPERTS, defaults.count)?;
    let used = defaults.used.map_or_else(|| c.count(common::EXPERTS_USED), Ok)?;
    let used = common::experts_used(c, used, count)?;
    let shared = match c.find_count(SHARED)?.unwrap_or(defaults.shared) {
        0 => None,
        n => {
            Some(SharedExpertSpec { width: common::sane(c, SHARED, n.saturating_mul(width))?, gated: false })
        }
    };
    let scale = c.number_or(SCALE, defaults.scale)? as f32;
    Ok(ExpertsSpec { shared, scale, ..ExpertsSpec::softmax(count, used) })
}

/// Expert groups; a group's score is that of its `best` top experts.
pub(super) fn groups(
    c: &Config<'_>,
    experts: &ExpertsSpec,
    defaults: &Defaults,
    best: usize,
) -> Result<Option<Groups>> {
    let ((all, used), count) = (defaults.groups.unwrap_or((1, 1)), experts.count);
    let all = c.find_count(GROUPS)?.unwrap_or(if c.is_gguf() { 1 } else { all });
    match (all, c.find_count(GROUPS_USED)?.unwrap_or(used)) {
        (0 | 1, _) => Ok(None),
        (n, topk_group) if count.is_multiple_of(n) && count / n >= best && (1..=n).contains(&topk_group) => {
            match topk_group * (count / n) {
                most if experts.top_k <= most => Ok(Some(Groups { n_group: n, topk_group, best })),
                most => {
                    let why = format_args!("is {}, and the groups that are used have {most}", experts.top_k);
                    Err(c.bad(common::EXPERTS_USED, why))
                }
            }
        }
        (n, used) => {
            Err(c.bad(GROUPS, format_args!("is {n}, of which {used} are used, for {count} experts")))
        }
    }
}
