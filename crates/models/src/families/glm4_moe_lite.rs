//! GLM 4 MoE Lite (GLM 4.7 Flash): DeepSeek V3's MLA and MoE with other sizes.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names;

use super::{Declared, Family, common, deepseek, routed};
use crate::spec::DecoderSpec;

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&GLM4_MOE_LITE)];

static GLM4_MOE_LITE: Family = Family {
    name: "GLM 4 MoE Lite",
    hf: &["Glm4MoeLiteForCausalLM"],
    // Read by DeepSeek, whose GGUF files have all sizes.
    gguf: &["deepseek2"],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec,
};

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults = common::Defaults {
        context: (common::CONTEXT, 202_752),
        eps: (common::EPS, 1e-5),
        ..common::DEFAULTS
    };
    let sizes = deepseek::Sizes {
        kv_lora_rank: 512,
        q_lora_rank: 768,
        qk_nope_dim: 192,
        qk_rope_dim: 64,
        v_dim: 256,
        expert_width: 1536,
        dense: 1,
    };
    let experts = routed::Defaults {
        count: 64,
        used: Some(4),
        groups: None,
        shared: 1,
        scale: 1.8,
        norm_weights: true,
    };
    deepseek::v3_as(c, &defaults, &sizes, &experts)
}
