//! Feed-forward blocks: dense, or a mixture of experts.

use tallow_core::{Activation, Groups, RoutingWeightOn, Scores};

use super::Bias;

/// The feed-forward block of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Ffn {
    /// One FFN for all tokens.
    Dense(FfnSpec),
    /// Mixture of experts.
    Moe(MoeSpec),
    /// Parallel MoE (Gemma 4): a dense FFN parallel to the experts, each with norms of its own.
    Parallel {
        /// The dense FFN.
        dense: FfnSpec,
        /// The experts parallel to it.
        moe: MoeSpec,
    },
}

impl Ffn {
    /// The FFN that every token goes through.
    pub fn dense(&self) -> Option<&FfnSpec> {
        match self {
            Ffn::Dense(dense) | Ffn::Parallel { dense, .. } => Some(dense),
            Ffn::Moe(_) => None,
        }
    }

    /// The experts, if there are any.
    pub fn moe(&self) -> Option<&MoeSpec> {
        match self {
            Ffn::Moe(moe) | Ffn::Parallel { moe, .. } => Some(moe),
            Ffn::Dense(_) => None,
        }
    }

    /// The FFN of one expert; a dense FFN is its own only expert.
    pub fn expert(&self) -> &FfnSpec {
        match self {
            Ffn::Dense(dense) => dense,
            Ffn::Moe(moe) | Ffn::Parallel { moe, .. } => &moe.expert,
        }
    }
}

/// A feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FfnSpec {
    /// Intermediate size.
    pub width: usize,
    /// Activation function.
    pub act: Activation,
    /// True if there is a gate projection (GLU).
    pub gated: bool,
    /// Bias of its linear layers.
    pub bias: Bias,
}

/// Mixture of experts: FFNs of one shape, and how tokens get to them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MoeSpec {
    /// The FFN of one expert.
    pub expert: FfnSpec,
    /// The number of experts, and the routing.
    pub experts: ExpertsSpec,
}

/// The experts of an MoE: their number, and how a token is routed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertsSpec {
    /// Number of experts.
    pub count: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Bias of the router's logits.
    pub router_bias: Bias,
    /// Function from logits to scores.
    pub scores: Scores,
    /// Place of a token's routing weight: it multiplies the expert's output or its input.
    pub weight_on: RoutingWeightOn,
    /// True if a bias takes part in the selection only, not in the expert weights (`e_score_correction_bias`, DeepSeek
    /// V3).
    pub bias: bool,
    /// Group-limited routing: groups are chosen first.
    pub groups: Option<Groups>,
    /// True if the weights of the chosen experts are normalised to sum to 1 (`norm_topk_prob`).
    pub norm_weights: bool,
    /// Multiplies expert weights (`routed_scaling_factor`).
    pub scale: f32,
    /// Shared expert, which every token goes through.
    pub shared: Option<SharedExpertSpec>,
    /// True if the router reads the hidden state through a norm of its own.
    pub router_norm: bool,
    /// True if a learned scalar per expert multiplies its weight.
    pub expert_scale: bool,
}

/// Shared expert: an FFN that every token uses, in addition to the routed experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpertSpec {
    /// Intermediate size.
    pub width: usize,
    /// True if a gate per token scales its output (Qwen2-MoE).
    pub gated: bool,
}

impl ExpertsSpec {
    /// Softmax over all experts, then top-k; everything else off.
    pub fn softmax(count: usize, top_k: usize) -> ExpertsSpec {
        let scores = Scores::Softmax;
        ExpertsSpec {
            count,
            top_k,
            router_bias: Bias::No,
            scores,
            weight_on: RoutingWeightOn::Output,
            bias: false,
            groups: None,
            norm_weights: false,
            scale: 1.0,
            shared: None,
            router_norm: false,
            expert_scale: false,
        }
    }
}
