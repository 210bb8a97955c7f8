//! [`Names`]: a checkpoint's tensor names. Only the loader and the converter use them.

mod pattern;
mod slot;

use Slot::*;

pub use pattern::{Index, Indices, Pattern};
pub use slot::{Slot, Slots};

/// Tensor names of a decoder or an encoder, and what goes with the names: how such files store what they name.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// Prefix of the names, which some files omit.
    pub base: &'static str,
    /// The names.
    pub slots: Slots,
    /// Layout of the linear layers.
    pub layout: Layout,
    /// Layout of [`Slot::FfnGateUpExpsT`].
    pub joint: Joint,
    /// Encoding of [`Slot::SsmA`].
    pub rate: Rate,
    /// Prefixes of tensors that the decoder does not use: vision encoders, pooling heads.
    pub spare: &'static [&'static str],
    /// Names of the MTP layer's tensors, and the prefix that all of them have, where that is not the layer behind the last.
    pub mtp: Option<(&'static str, &'static Names)>,
}

impl Names {
    /// These names, and those in `table` in the place of the same slots' here. Names come without `.weight` and `.bias`
    /// unless the slot [is whole](Slot::is_whole).
    pub const fn with(self, table: &[(Slot, &'static str)]) -> Names {
        Names { slots: self.slots.with(table), ..self }
    }

    /// The name in a slot, if such files have the tensor.
    pub fn get(&self, slot: Slot) -> Option<Pattern> {
        self.slots.get(slot)
    }

    /// True if such files may have the tensor.
    pub fn has(&self, slot: Slot) -> bool {
        self.get(slot).is_some()
    }

    /// All names, in the order of the slots.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, Pattern)> {
        self.slots.iter()
    }

    /// A tensor's name, without `.weight` and `.bias` unless the slot [is whole](Slot::is_whole).
    pub fn name(&self, slot: Slot, at: impl Into<Indices>) -> Option<String> {
        self.get(slot).map(|name| name.fill(at.into()))
    }

    /// The whole name of a weight.
    pub fn weight(&self, slot: Slot, at: impl Into<Indices>) -> Option<String> {
        let name = self.name(slot, at)?;
        Some(if slot.is_whole() { name } else { named(&name) })
    }

    /// The slots whose weight has that name, which may come without the prefix. There are several where files have one or
    /// the other, such as the up projection and fused gate and up.
    pub fn find(&self, name: &str) -> impl Iterator<Item = (Slot, Indices)> {
        let long = format!("{}{name}", self.base);
        let parse = move |(slot, pattern): (Slot, Pattern)| {
            let at = [name, &long].into_iter().find_map(|name| match slot.is_whole() {
                true => pattern.parse(name),
                false => pattern.parse(name.strip_suffix(".weight")?),
            });
            Some((slot, at?))
        };
        self.iter().filter_map(parse)
    }

    /// True if the decoder does not use a tensor.
    pub fn is_unused(&self, name: &str) -> bool {
        let mtp = self.mtp.map(|(prefix, _)| prefix);
        self.spare.iter().copied().chain(mtp).any(|base| name.starts_with(base))
    }

    /// Layer number of a tensor, if it belongs to a layer.
    pub fn layer(&self, name: &str) -> Option<usize> {
        self.get(AttnNorm)?.layer_of(name)
    }
}

/// The name of a layer's weight.
pub fn named(layer: &str) -> String {
    format!("{layer}.weight")
}

/// Encoding of the decay rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// Stored as its logarithm.
    Logarithm,
    /// Negated.
    Negative,
}

/// Layout of the linear layers in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// A row per output.
    Rows,
    /// A row per output; fused QKV is grouped by head.
    RowsByHead,
    /// A row per input.
    Columns,
}

/// Layout of a fused gate and up of all experts. It and `down` have a row per input, unless they are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joint {
    /// All rows of gate, then all of up.
    InTurn,
    /// Outputs of gate and up alternate.
    Alternating,
}

/// Hugging Face names of most decoders.
pub const HF: Names = Names {
    base: "model.",
    slots: Slots::new(&[
        (TokenEmbd, "model.embed_tokens"),
        (OutputNorm, "model.norm"),
        (Output, "lm_head"),
        (AttnNorm, "model.layers.{}.input_layernorm"),
        (AttnQ, "model.layers.{}.self_attn.q_proj"),
        (AttnK, "model.layers.{}.self_attn.k_proj"),
        (AttnV, "model.layers.{}.self_attn.v_proj"),
        (AttnOut, "model.layers.{}.self_attn.o_proj"),
        (AttnQNorm, "model.layers.{}.self_attn.q_norm"),
        (AttnKNorm, "model.layers.{}.self_attn.k_norm"),
        (AttnQA, "model.layers.{}.self_attn.q_a_proj"),
        (AttnQANorm, "model.layers.{}.self_attn.q_a_layernorm"),
        (AttnQB, "model.layers.{}.self_attn.q_b_proj"),
        (AttnKvAMqa, "model.layers.{}.self_attn.kv_a_proj_with_mqa"),
        (AttnKvANorm, "model.layers.{}.self_attn.kv_a_layernorm"),
        (FfnNorm, "model.layers.{}.post_attention_layernorm"),
        (FfnGate, "model.layers.{}.mlp.gate_proj"),
        (FfnUp, "model.layers.{}.mlp.up_proj"),
        (FfnDown, "model.layers.{}.mlp.down_proj"),
        (FfnGateInp, "model.layers.{}.mlp.gate"),
        (FfnExpProbsB, "model.layers.{}.mlp.gate.e_score_correction_bias"),
        (FfnGateExps, "model.layers.{}.mlp.experts.{expert}.gate_proj"),
        (FfnUpExps, "model.layers.{}.mlp.experts.{expert}.up_proj"),
        (FfnDownExps, "model.layers.{}.mlp.experts.{expert}.down_proj"),
        (PerLayerTokenEmbd, "model.embed_tokens_per_layer"),
        (PerLayerModelProj, "model.per_layer_model_projection"),
        (PerLayerProjNorm, "model.per_layer_projection_norm"),
        (PerLayerInpGate, "model.layers.{}.per_layer_input_gate"),
        (PerLayerProj, "model.layers.{}.per_layer_projection"),
        (PerLayerPostNorm, "model.layers.{}.post_per_layer_input_norm"),
        (LayerOutScale, "model.layers.{}.layer_scalar"),
        (FfnGateShexp, "model.layers.{}.mlp.shared_experts.gate_proj"),
        (FfnUpShexp, "model.layers.{}.mlp.shared_experts.up_proj"),
        (FfnDownShexp, "model.layers.{}.mlp.shared_experts.down_proj"),
        (AttnKvB, "model.layers.{}.self_attn.kv_b_proj"),
        (NextnEhProj, "model.layers.{}.eh_proj"),
        (NextnEmbedTokens, "model.layers.{}.embed_tokens"),
        (NextnEnorm, "model.layers.{}.enorm"),
        (NextnHnorm, "model.layers.{}.hnorm"),
        (NextnSharedHeadHead, "model.layers.{}.shared_head.head"),
        (NextnSharedHeadNorm, "model.layers.{}.shared_head.norm"),
    ]),
    layout: Layout::Rows,
    joint: Joint::InTurn,
    rate: Rate::Logarithm,
    spare: &[],
    mtp: None,
};

/// GGUF names.
pub const GGUF: Names = Names {
    base: "",
    slots: Slots::new(&[
        (TokenEmbd, "token_embd"),
        (PosEmbd, "position_embd"),
        (OutputNorm, "output_norm"),
        (Output, "output"),
        (AttnNorm, "blk.{}.attn_norm"),
        (AttnPostNorm, "blk.{}.post_attention_norm"),
        (AttnQ, "blk.{}.attn_q"),
        (AttnK, "blk.{}.attn_k"),
        (AttnV, "blk.{}.attn_v"),
        (AttnOut, "blk.{}.attn_output"),
        (AttnQNorm, "blk.{}.attn_q_norm"),
        (AttnKNorm, "blk.{}.attn_k_norm"),
        (AttnQA, "blk.{}.attn_q_a"),
        (AttnQANorm, "blk.{}.attn_q_a_norm"),
        (AttnQB, "blk.{}.attn_q_b"),
        (AttnKvAMqa, "blk.{}.attn_kv_a_mqa"),
        (AttnKvANorm, "blk.{}.attn_kv_a_norm"),
        (FfnNorm, "blk.{}.ffn_norm"),
        (FfnPostNorm, "blk.{}.post_ffw_norm"),
        (FfnGate, "blk.{}.ffn_gate"),
        (FfnUp, "blk.{}.ffn_up"),
        (FfnDown, "blk.{}.ffn_down"),
        (FfnGateInp, "blk.{}.ffn_gate_inp"),
        (FfnExpProbsB, "blk.{}.exp_probs_b.bias"),
        (FfnGateInpNorm, "blk.{}.ffn_gate_inp.scale"),
        (FfnDownExpsScale, "blk.{}.ffn_down_exps.scale"),
        (FfnPostNorm1, "blk.{}.post_ffw_norm_1"),
        (FfnPreNorm2, "blk.{}.pre_ffw_norm_2"),
        (FfnPostNorm2, "blk.{}.post_ffw_norm_2"),
        (FfnGateUpExps, "blk.{}.ffn_gate_up_exps.weight"),
        (FfnDownExpsStacked, "blk.{}.ffn_down_exps.weight"),
        (FfnGateExps, "blk.{}.ffn_gate_exps"),
        (FfnUpExps, "blk.{}.ffn_up_exps"),
        (FfnDownExps, "blk.{}.ffn_down_exps"),
        (PerLayerTokenEmbd, "per_layer_token_embd"),
        (PerLayerModelProj, "per_layer_model_proj"),
        (PerLayerProjNorm, "per_layer_proj_norm"),
        (PerLayerInpGate, "blk.{}.inp_gate"),
        (PerLayerProj, "blk.{}.proj"),
        (PerLayerPostNorm, "blk.{}.post_norm"),
        (LayerOutScale, "blk.{}.layer_output_scale.weight"),
        (FfnGateShexp, "blk.{}.ffn_gate_shexp"),
        (FfnUpShexp, "blk.{}.ffn_up_shexp"),
        (FfnDownShexp, "blk.{}.ffn_down_shexp"),
        (FfnGateInpShexp, "blk.{}.ffn_gate_inp_shexp"),
        (SsmQkv, "blk.{}.attn_qkv"),
        (SsmGate, "blk.{}.attn_gate"),
        (SsmBetaAlpha, "blk.{}.ssm_ba"),
        (SsmBeta, "blk.{}.ssm_beta"),
        (SsmAlpha, "blk.{}.ssm_alpha"),
        (SsmConv1d, "blk.{}.ssm_conv1d"),
        (SsmA, "blk.{}.ssm_a"),
        (SsmDt, "blk.{}.ssm_dt.bias"),
        (SsmNorm, "blk.{}.ssm_norm"),
        (SsmOut, "blk.{}.ssm_out"),
        (AttnKB, "blk.{}.attn_k_b"),
        (AttnVB, "blk.{}.attn_v_b"),
        (NextnEhProj, "blk.{}.nextn.eh_proj"),
        (NextnEmbedTokens, "blk.{}.nextn.embed_tokens"),
        (NextnEnorm, "blk.{}.nextn.enorm"),
        (NextnHnorm, "blk.{}.nextn.hnorm"),
        (NextnSharedHeadHead, "blk.{}.nextn.shared_head_head"),
        (NextnSharedHeadNorm, "blk.{}.nextn.shared_head_norm"),
    ]),
    layout: Layout::Rows,
    joint: Joint::InTurn,
    rate: Rate::Negative,
    spare: &[],
    mtp: None,
};

/// Tensors that follow from the settings and are not needed.
pub fn is_redundant(name: &str) -> bool {
    // Attention masks in old checkpoints, which are named like a bias.
    let masks = [".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias"];
    name.ends_with(".rotary_emb.inv_freq") || masks.iter().any(|mask| name.ends_with(mask))
}

/// True if a tensor belongs to a vision or audio encoder, not to the text model.
pub fn is_of_senses(name: &str) -> bool {
    let parts = [
        "visual.",
        "vision_tower.",
        "vision_model.",
        "multi_modal_projector.",
        "embed_vision.",
        "audio_tower.",
        "embed_audio.",
    ];
    let name = name.strip_prefix("model.").unwrap_or(name);
    parts.iter().any(|part| name.starts_with(part))
}

/// The text-only name of a tensor of a text model inside a multimodal one.
pub fn within(name: &str) -> Option<String> {
    match name.strip_prefix("model.language_model.") {
        Some(rest) => Some(format!("model.{rest}")),
        None => name.strip_prefix("language_model.").map(str::to_owned),
    }
}
