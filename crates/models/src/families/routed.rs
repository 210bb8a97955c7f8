//! Experts in groups, with a block for every token beside them: what GLM 4 and DeepSeek say of theirs in the same words.

use tallow_core::{Groups, Scores};

use super::common;
use crate::error::Result;
use crate::formats::config::{Config, Key, key};
use crate::spec::{ExpertsSpec, SharedExpertSpec};

/// Layers in front that have no experts.
pub(super) const DENSE: Key = key("first_k_dense_replace", "leading_dense_block_count");
pub(super) const TO_ONE: Key = key("norm_topk_prob", "expert_weights_norm");
const SHARED: Key = key("n_shared_experts", "expert_shared_count");
const GROUPS: Key = key("n_group", "expert_group_count");
const GROUPS_USED: Key = key("topk_group", "expert_group_used_count");
const SCALE: Key = key("routed_scaling_factor", "expert_weights_scale");

/// What these settings are where they are left out.
pub(super) struct Usual {
    pub count: usize,
    /// Must be said if this does not.
    pub used: Option<usize>,
    /// How many there are, and how many are used.
    pub groups: Option<(usize, usize)>,
    pub shared: usize,
    pub scale: f64,
    pub to_one: bool,
}

/// Experts of that width, each scored on its own, with a bias where they are chosen.
pub(super) fn alone(c: &Config<'_>, width: usize, usual: &Usual) -> Result<ExpertsSpec> {
    let together = together(c, width, usual)?;
    let groups = groups(c, &together, usual, 2)?;
    Ok(ExpertsSpec {
        scores: Scores::Sigmoid,
        bias: true,
        groups,
        norm_weights: c.flag_or(TO_ONE, usual.to_one)?,
        ..together
    })
}

/// Experts of that width, chosen by a softmax over all.
pub(super) fn together(c: &Config<'_>, width: usize, usual: &Usual) -> Result<ExpertsSpec> {
    let count = common::experts(c, common::ROUTED_EXPERTS, usual.count)?;
    let used = usual.used.map_or_else(|| c.count(common::EXPERTS_USED), Ok)?;
    let used = common::experts_used(c, used, count)?;
    let shared = match c.find_count(SHARED)?.unwrap_or(usual.shared) {
        0 => None,
        n => {
            Some(SharedExpertSpec { width: common::sane(c, SHARED, n.saturating_mul(width))?, gated: false })
        }
    };
    let scale = c.number_or(SCALE, usual.scale)? as f32;
    Ok(ExpertsSpec { shared, scale, ..ExpertsSpec::softmax(count, used) })
}

/// The groups that experts are in, each as good as so many of its best.
pub(super) fn groups(
    c: &Config<'_>,
    experts: &ExpertsSpec,
    usual: &Usual,
    best: usize,
) -> Result<Option<Groups>> {
    let ((all, used), count) = (usual.groups.unwrap_or((1, 1)), experts.count);
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
