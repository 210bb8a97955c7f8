//! [`Names`]: a checkpoint's tensor names. Only the loader and the converter use them.

/// Tensor names of a decoder, without `.weight` and `.bias`. `{}` stands for the layer number, `{e}` for the expert's:
/// without `{e}` one tensor holds all experts, one after another.
///
/// Empty where a family has no such tensor. A full name is one that includes its suffix.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the fields are the parts' own names")]
pub struct Names {
    /// Prefix of the names, which some files omit.
    pub base: &'static str,
    pub embed: &'static str,
    /// Learned position embedding.
    pub positions: &'static str,
    pub norm: &'static str,
    pub head: &'static str,
    /// Norm before the mixer (attention, MLA, ...).
    pub mixer_norm: &'static str,
    /// Norm behind the mixer.
    pub mixer_post_norm: &'static str,
    /// Fused Q, K and V. Where a file lacks it, they are three tensors.
    pub qkv: &'static str,
    pub q: &'static str,
    pub k: &'static str,
    pub v: &'static str,
    pub o: &'static str,
    /// May contain `{head}` for the head number.
    pub q_norm: &'static str,
    pub k_norm: &'static str,
    /// Attention sinks, one score per head (full name).
    pub sinks: &'static str,
    /// Relative position bias. Without `{}` all layers share it.
    pub relative_bias: &'static str,
    /// Cross-attention and the norm before it.
    pub cross_attention: CrossAttentionNames,
    pub mla: MlaNames,
    pub gated_delta: GatedDeltaNames,
    /// Norm before the FFN.
    pub ffn_norm: &'static str,
    /// Norm behind the FFN.
    pub ffn_post_norm: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    /// Up projection of an ungated FFN, if it has another name.
    pub up_alone: &'static str,
    /// Fused gate and up. Where a file lacks it, or the FFN is ungated, `gate` and `up` are separate.
    pub gate_up: &'static str,
    pub down: &'static str,
    pub router: &'static str,
    /// Bias used for expert selection only (full name).
    pub router_bias: &'static str,
    /// Weight of the norm before the router (full name).
    pub router_norm: &'static str,
    /// Per-expert factor on the routing weights (full name).
    pub expert_scale: &'static str,
    pub parallel_moe: ParallelMoeNames,
    pub expert_gate: &'static str,
    pub expert_up: &'static str,
    pub expert_down: &'static str,
    /// Fused gate and up of all experts, and how they and `down` are laid out (full names).
    pub expert_joint: Option<(&'static str, Joint)>,
    /// Fused gate and up of all experts, and down, each with a row per output (full names).
    pub expert_rows: Option<(&'static str, &'static str)>,
    /// Per-layer embedding (PLE): embedding table, projection from the token embedding, and the parts in each layer.
    pub per_layer_tok_embd: &'static str,
    pub per_layer_model_proj: &'static str,
    pub per_layer_proj_norm: &'static str,
    pub per_layer_gate: &'static str,
    pub per_layer_proj: &'static str,
    pub per_layer_post_norm: &'static str,
    /// Factor on a layer's output (full name).
    pub scale: &'static str,
    pub shared_gate: &'static str,
    pub shared_up: &'static str,
    pub shared_down: &'static str,
    /// Gate of the shared expert.
    pub shared_router: &'static str,
    pub layout: Layout,
    /// Prefixes of tensors that the decoder does not use: vision encoders, MTP layers.
    pub spare: &'static [&'static str],
}

/// Norms of a parallel MoE.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the fields are the parts' own names")]
pub struct ParallelMoeNames {
    pub dense_post_norm: &'static str,
    /// Norms before and behind the experts.
    pub before: &'static str,
    pub behind: &'static str,
}

impl ParallelMoeNames {
    /// For models without a parallel MoE.
    pub const NONE: ParallelMoeNames = ParallelMoeNames { dense_post_norm: "", before: "", behind: "" };
}

/// Tensor names of Gated DeltaNet.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the fields are the parts' own names")]
pub struct GatedDeltaNames {
    /// Fused Q, K, V and output gate z, grouped by key head. Where a file lacks it, they are `qkv` and `z`.
    pub qkvz: &'static str,
    pub qkv: &'static str,
    pub z: &'static str,
    /// Fused beta (write strength) and alpha (decay), grouped by key head. Where a file lacks it, they are two.
    pub ba: &'static str,
    pub b: &'static str,
    pub a: &'static str,
    pub conv: &'static str,
    /// Decay rate per head (full name), and its encoding.
    pub rate: (&'static str, Rate),
    /// Bias of the decay's input, `dt_bias` (full name).
    pub bias: &'static str,
    pub norm: &'static str,
    pub o: &'static str,
}

impl GatedDeltaNames {
    /// For families without a gated delta rule.
    pub const NONE: GatedDeltaNames = GatedDeltaNames {
        qkvz: "",
        qkv: "",
        z: "",
        ba: "",
        b: "",
        a: "",
        conv: "",
        rate: ("", Rate::Logarithm),
        bias: "",
        norm: "",
        o: "",
    };
}

impl GatedDeltaNames {
    /// Names here and in the other file kind, with how each part is converted, as heads may be ordered differently.
    pub fn paired_with(&self, other: &GatedDeltaNames) -> Vec<(Part, &'static str, &'static str)> {
        let of = |names: &GatedDeltaNames| {
            use Part::*;
            [
                (DeltaQkv, names.qkv),
                (Values, names.z),
                (ByKeyHead, names.ba),
                (PerValueHead, names.b),
                (PerValueHead, names.a),
                (Kernel, names.conv),
                (Rates, names.rate.0),
                (ValuePerHead, names.bias),
                (Table, names.norm),
                (DeltaOutput, names.o),
            ]
        };
        of(self).into_iter().zip(of(other)).map(|((part, here), (_, there))| (part, here, there)).collect()
    }
}

/// Encoding of the decay rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// As its logarithm.
    Logarithm,
    /// Negated.
    Negative,
}

/// Tensor names of cross-attention.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the fields are the parts' own names")]
pub struct CrossAttentionNames {
    pub norm: &'static str,
    pub q: &'static str,
    pub k: &'static str,
    pub v: &'static str,
    pub o: &'static str,
}

impl CrossAttentionNames {
    /// For models without cross-attention.
    pub const NONE: CrossAttentionNames = CrossAttentionNames { norm: "", q: "", k: "", v: "", o: "" };
}

/// Tensor names of MLA.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the fields are the parts' own names")]
pub struct MlaNames {
    /// Q down-projection.
    pub q_down: &'static str,
    pub q_norm: &'static str,
    pub q_up: &'static str,
    /// KV down-projection: the latent row and the RoPE part of K.
    pub down: &'static str,
    pub norm: &'static str,
    /// KV up-projection: from the latent row to K and V, head by head.
    pub up: &'static str,
    /// In files that split `up`: maps each head's queries to the latent row,
    pub k: &'static str,
    /// and the latent row to values.
    pub v: &'static str,
}

/// How a part of a model is converted between file kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Unchanged: an embedding or a row.
    Table,
    /// Linear layer, which may be stored with a row per input.
    Linear,
    /// Linear layer whose outputs are queries.
    Queries,
    /// Linear layer whose outputs are keys.
    Keys,
    /// Linear layer whose outputs are fused Q, K and V.
    Joint,
    /// Norm, whose weights may be stored minus an offset.
    Norm,
    /// Gated DeltaNet: linear layer whose outputs are Q, K and V.
    DeltaQkv,
    /// Weights of the causal convolution over those.
    Kernel,
    /// Gated DeltaNet: linear layer with an output per value element.
    Values,
    /// Gated DeltaNet: linear layer with an input per value element.
    DeltaOutput,
    /// Gated DeltaNet: linear layer with an output per value head.
    PerValueHead,
    /// Linear layer whose outputs are grouped by key head.
    ByKeyHead,
    /// One value per value head (full name).
    ValuePerHead,
    /// Decay rate per value head (full name).
    Rates,
    /// MLA: the K up-projections of all heads, out of a tensor that has those of V, too.
    MlaKeys,
    /// MLA: the V up-projections out of the same tensor.
    MlaValues,
    /// Any other tensor with a full name.
    Whole,
}

impl Part {
    /// Whether the name is a full one.
    pub fn is_whole(self) -> bool {
        matches!(self, Part::Whole | Part::ValuePerHead | Part::Rates)
    }
}

impl Names {
    /// Names here and in the other file kind, with how each part is converted, except [`GatedDeltaNames`]; an empty name
    /// means that there is no such part.
    pub fn paired_with(&self, other: &Names) -> Vec<(Part, &'static str, &'static str)> {
        let of = |names: &Names| {
            use Part::*;
            let latent = names.mla;
            [
                (Table, names.embed),
                (Table, names.positions),
                (Norm, names.norm),
                (Table, names.head),
                (Norm, names.mixer_norm),
                (Norm, names.mixer_post_norm),
                (Joint, names.qkv),
                (Queries, names.q),
                (Keys, names.k),
                (Linear, names.v),
                (Linear, names.o),
                (Norm, names.q_norm),
                (Norm, names.k_norm),
                (Whole, names.sinks),
                (Linear, latent.q_down),
                (Norm, latent.q_norm),
                (Linear, latent.q_up),
                (Linear, latent.down),
                (Norm, latent.norm),
                (Norm, names.ffn_norm),
                (Norm, names.ffn_post_norm),
                (Linear, names.gate),
                (Linear, names.up),
                (Linear, names.gate_up),
                (Linear, names.down),
                (Linear, names.router),
                (Whole, names.router_bias),
                (Whole, names.router_norm),
                (Whole, names.expert_scale),
                (Norm, names.parallel_moe.dense_post_norm),
                (Norm, names.parallel_moe.before),
                (Norm, names.parallel_moe.behind),
                (Whole, names.expert_rows.map_or("", |(up, _)| up)),
                (Whole, names.expert_rows.map_or("", |(_, down)| down)),
                (Linear, names.expert_gate),
                (Linear, names.expert_up),
                (Linear, names.expert_down),
                (Table, names.per_layer_tok_embd),
                (Linear, names.per_layer_model_proj),
                (Norm, names.per_layer_proj_norm),
                (Linear, names.per_layer_gate),
                (Linear, names.per_layer_proj),
                (Norm, names.per_layer_post_norm),
                (Whole, names.scale),
                (Linear, names.shared_gate),
                (Linear, names.shared_up),
                (Linear, names.shared_down),
                (Table, names.shared_router),
            ]
        };
        of(self).into_iter().zip(of(other)).map(|((part, here), (_, there))| (part, here, there)).collect()
    }

    /// Whether the decoder does not use a tensor.
    pub fn is_unused(&self, name: &str) -> bool {
        self.spare.iter().any(|base| name.starts_with(base))
    }

    /// Layer number of a tensor, if it belongs to a layer.
    pub fn layer(&self, name: &str) -> Option<usize> {
        let (before, _) = self.mixer_norm.split_once("{}")?;
        name.strip_prefix(before)?.split('.').next()?.parse().ok()
    }
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
    /// All of gate, then all of up.
    InTurn,
    /// Outputs of gate and up alternate.
    Alternating,
}

/// Hugging Face names of most decoders.
pub const HF: Names = Names {
    base: "model.",
    embed: "model.embed_tokens",
    positions: "",
    norm: "model.norm",
    head: "lm_head",
    mixer_norm: "model.layers.{}.input_layernorm",
    mixer_post_norm: "",
    qkv: "",
    q: "model.layers.{}.self_attn.q_proj",
    k: "model.layers.{}.self_attn.k_proj",
    v: "model.layers.{}.self_attn.v_proj",
    o: "model.layers.{}.self_attn.o_proj",
    q_norm: "model.layers.{}.self_attn.q_norm",
    k_norm: "model.layers.{}.self_attn.k_norm",
    sinks: "",
    relative_bias: "",
    cross_attention: CrossAttentionNames::NONE,
    mla: MlaNames {
        q_down: "model.layers.{}.self_attn.q_a_proj",
        q_norm: "model.layers.{}.self_attn.q_a_layernorm",
        q_up: "model.layers.{}.self_attn.q_b_proj",
        down: "model.layers.{}.self_attn.kv_a_proj_with_mqa",
        norm: "model.layers.{}.self_attn.kv_a_layernorm",
        up: "model.layers.{}.self_attn.kv_b_proj",
        k: "",
        v: "",
    },
    gated_delta: GatedDeltaNames::NONE,
    ffn_norm: "model.layers.{}.post_attention_layernorm",
    ffn_post_norm: "",
    gate: "model.layers.{}.mlp.gate_proj",
    up: "model.layers.{}.mlp.up_proj",
    up_alone: "",
    gate_up: "",
    down: "model.layers.{}.mlp.down_proj",
    router: "model.layers.{}.mlp.gate",
    router_bias: "model.layers.{}.mlp.gate.e_score_correction_bias",
    router_norm: "",
    expert_scale: "",
    parallel_moe: ParallelMoeNames::NONE,
    expert_gate: "model.layers.{}.mlp.experts.{e}.gate_proj",
    expert_up: "model.layers.{}.mlp.experts.{e}.up_proj",
    expert_down: "model.layers.{}.mlp.experts.{e}.down_proj",
    expert_joint: None,
    expert_rows: None,
    per_layer_tok_embd: "model.embed_tokens_per_layer",
    per_layer_model_proj: "model.per_layer_model_projection",
    per_layer_proj_norm: "model.per_layer_projection_norm",
    per_layer_gate: "model.layers.{}.per_layer_input_gate",
    per_layer_proj: "model.layers.{}.per_layer_projection",
    per_layer_post_norm: "model.layers.{}.post_per_layer_input_norm",
    scale: "model.layers.{}.layer_scalar",
    shared_gate: "model.layers.{}.mlp.shared_experts.gate_proj",
    shared_up: "model.layers.{}.mlp.shared_experts.up_proj",
    shared_down: "model.layers.{}.mlp.shared_experts.down_proj",
    shared_router: "",
    layout: Layout::Rows,
    spare: &[],
};

/// GGUF names.
pub const GGUF: Names = Names {
    base: "",
    embed: "token_embd",
    positions: "position_embd",
    norm: "output_norm",
    head: "output",
    mixer_norm: "blk.{}.attn_norm",
    mixer_post_norm: "blk.{}.post_attention_norm",
    qkv: "",
    q: "blk.{}.attn_q",
    k: "blk.{}.attn_k",
    v: "blk.{}.attn_v",
    o: "blk.{}.attn_output",
    q_norm: "blk.{}.attn_q_norm",
    k_norm: "blk.{}.attn_k_norm",
    sinks: "",
    relative_bias: "",
    cross_attention: CrossAttentionNames::NONE,
    mla: MlaNames {
        q_down: "blk.{}.attn_q_a",
        q_norm: "blk.{}.attn_q_a_norm",
        q_up: "blk.{}.attn_q_b",
        down: "blk.{}.attn_kv_a_mqa",
        norm: "blk.{}.attn_kv_a_norm",
        up: "",
        k: "blk.{}.attn_k_b",
        v: "blk.{}.attn_v_b",
    },
    gated_delta: GatedDeltaNames {
        qkvz: "",
        qkv: "blk.{}.attn_qkv",
        z: "blk.{}.attn_gate",
        ba: "blk.{}.ssm_ba",
        b: "blk.{}.ssm_beta",
        a: "blk.{}.ssm_alpha",
        conv: "blk.{}.ssm_conv1d",
        rate: ("blk.{}.ssm_a", Rate::Negative),
        bias: "blk.{}.ssm_dt.bias",
        norm: "blk.{}.ssm_norm",
        o: "blk.{}.ssm_out",
    },
    ffn_norm: "blk.{}.ffn_norm",
    ffn_post_norm: "blk.{}.post_ffw_norm",
    gate: "blk.{}.ffn_gate",
    up: "blk.{}.ffn_up",
    up_alone: "",
    gate_up: "",
    down: "blk.{}.ffn_down",
    router: "blk.{}.ffn_gate_inp",
    router_bias: "blk.{}.exp_probs_b.bias",
    router_norm: "blk.{}.ffn_gate_inp.scale",
    expert_scale: "blk.{}.ffn_down_exps.scale",
    parallel_moe: ParallelMoeNames {
        dense_post_norm: "blk.{}.post_ffw_norm_1",
        before: "blk.{}.pre_ffw_norm_2",
        behind: "blk.{}.post_ffw_norm_2",
    },
    expert_gate: "blk.{}.ffn_gate_exps",
    expert_up: "blk.{}.ffn_up_exps",
    expert_down: "blk.{}.ffn_down_exps",
    expert_joint: None,
    expert_rows: Some(("blk.{}.ffn_gate_up_exps.weight", "blk.{}.ffn_down_exps.weight")),
    per_layer_tok_embd: "per_layer_token_embd",
    per_layer_model_proj: "per_layer_model_proj",
    per_layer_proj_norm: "per_layer_proj_norm",
    per_layer_gate: "blk.{}.inp_gate",
    per_layer_proj: "blk.{}.proj",
    per_layer_post_norm: "blk.{}.post_norm",
    scale: "blk.{}.layer_output_scale.weight",
    shared_gate: "blk.{}.ffn_gate_shexp",
    shared_up: "blk.{}.ffn_up_shexp",
    shared_down: "blk.{}.ffn_down_shexp",
    shared_router: "blk.{}.ffn_gate_inp_shexp",
    layout: Layout::Rows,
    spare: &[],
};

/// Placeholder for the expert number.
pub const EXPERT: &str = "{e}";

/// Tensors that follow from the settings and are not needed.
pub fn is_redundant(name: &str) -> bool {
    // Attention masks in old checkpoints, which are named like a bias.
    let masks = [".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias"];
    name.ends_with(".rotary_emb.inv_freq") || masks.iter().any(|mask| name.ends_with(mask))
}

/// Whether a tensor belongs to a vision or audio encoder beside the text model.
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

/// Tensor name for a layer.
pub fn of_layer(pattern: &str, layer: usize) -> String {
    pattern.replace("{}", &layer.to_string())
}

/// Layer number of a tensor whose name matches `pattern`; 0 if the pattern has none.
pub fn layer_in(pattern: &str, name: &str) -> Option<usize> {
    if pattern.is_empty() {
        return None;
    }
    let name = name.strip_suffix(".weight")?;
    let Some((before, after)) = pattern.split_once("{}") else { return (name == pattern).then_some(0) };
    let rest = name.strip_prefix(before)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (number, rest) = rest.split_at(digits);
    let fits = match after.split_once(EXPERT) {
        None => rest == after,
        Some((before, after)) => {
            let expert = rest.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
            expert.is_some_and(|e| !e.is_empty() && e.bytes().all(|b| b.is_ascii_digit()))
        }
    };
    number.parse().ok().filter(|_| fits)
}
