//! [`Names`]: what a checkpoint calls the parts of a decoder. Past the loader nobody knows.

/// The names of a decoder's tensors, without `.weight` and `.bias`. `{}` stands for the layer's number, `{e}` for the
/// expert's: without it a tensor holds what all experts have, one after another.
///
/// A name may be empty where a family has no such tensor.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the fields are the parts' own names")]
pub struct Names {
    /// What names begin with, and in some files do not.
    pub base: &'static str,
    pub embed: &'static str,
    /// The embedding of positions.
    pub positions: &'static str,
    pub norm: &'static str,
    pub head: &'static str,
    /// The norm in front of the mixer.
    pub mixer_norm: &'static str,
    /// The norm behind the mixer.
    pub mixer_behind: &'static str,
    /// Queries, keys and values as one. Where a file has no such tensor they are three.
    pub qkv: &'static str,
    pub q: &'static str,
    pub k: &'static str,
    pub v: &'static str,
    pub o: &'static str,
    /// May have `{head}` for the number of a head.
    pub q_norm: &'static str,
    pub k_norm: &'static str,
    /// The whole name of scores that heads have beside those of tokens.
    pub sinks: &'static str,
    /// The numbers that are added to scores by distance. Without `{}` all layers have the same.
    pub distance: &'static str,
    /// What looks at what an encoder gave, and the norm in front of it.
    pub across: AcrossNames,
    pub latent: LatentNames,
    pub delta: DeltaNames,
    /// The norm in front of the feed-forward block.
    pub ffn_norm: &'static str,
    /// The norm behind the feed-forward block.
    pub ffn_behind: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    /// Up where there is no gate, if that has a name of its own.
    pub up_alone: &'static str,
    /// Gate and up as one. Where a file has no such tensor, or it is up alone, they are two.
    pub gate_up: &'static str,
    pub down: &'static str,
    pub router: &'static str,
    /// The whole name of what has a say in the choice of experts only.
    pub router_bias: &'static str,
    /// The whole name of a norm's weights in front of the router.
    pub router_norm: &'static str,
    /// The whole name of what multiplies experts' shares.
    pub expert_scale: &'static str,
    pub twofold: TwofoldNames,
    pub expert_gate: &'static str,
    pub expert_up: &'static str,
    pub expert_down: &'static str,
    /// Gate and up of all experts as one, and what they and down are like then. These names are whole.
    pub expert_joint: Option<(&'static str, Joint)>,
    /// Gate and up of all experts as one, and down, with a row for each output, in files that have them so. These names are
    /// whole.
    pub expert_rows: Option<(&'static str, &'static str)>,
    /// What layers get beside the hidden state: of each token, and from its embedding.
    pub side_table: &'static str,
    pub side_from: &'static str,
    pub side_norm: &'static str,
    pub side_gate: &'static str,
    pub side_back: &'static str,
    pub side_behind: &'static str,
    /// The whole name of what multiplies a layer's result.
    pub scale: &'static str,
    pub shared_gate: &'static str,
    pub shared_up: &'static str,
    pub shared_down: &'static str,
    /// How much the block beside experts counts.
    pub shared_router: &'static str,
    pub layout: Layout,
    /// What the names of tensors begin with that a decoder has no use for: what sees pictures, or guesses further tokens.
    pub spare: &'static [&'static str],
}

/// The names of norms around a dense block and experts beside it.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the fields are the parts' own names")]
pub struct TwofoldNames {
    pub dense_behind: &'static str,
    /// In front of experts, and behind them.
    pub before: &'static str,
    pub behind: &'static str,
}

impl TwofoldNames {
    /// Of models that have none.
    pub const NONE: TwofoldNames = TwofoldNames { dense_behind: "", before: "", behind: "" };
}

/// The names of heads that keep a matrix of their sequence.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the fields are the parts' own names")]
pub struct DeltaNames {
    /// Queries, keys, values and gates as one, key head by key head. Where a file has no such tensor they are two.
    pub qkvz: &'static str,
    pub qkv: &'static str,
    pub z: &'static str,
    /// What heads write and what they keep as one, key head by key head. Where a file has no such tensor they are two.
    pub ba: &'static str,
    pub b: &'static str,
    pub a: &'static str,
    pub conv: &'static str,
    /// The whole name of how fast heads forget, and how that is written.
    pub rate: (&'static str, Rate),
    /// The whole name of what is added to what a token says of it.
    pub bias: &'static str,
    pub norm: &'static str,
    pub o: &'static str,
}

impl DeltaNames {
    /// Of families without such heads.
    pub const NONE: DeltaNames = DeltaNames {
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

impl DeltaNames {
    /// What parts are called here and in another kind of file, where heads may come in another order.
    pub(crate) fn beside(&self, other: &DeltaNames) -> Vec<(Part, &'static str, &'static str)> {
        let of = |names: &DeltaNames| {
            use Part::*;
            [
                (Recalled, names.qkv),
                (Values, names.z),
                (ByKeyHead, names.ba),
                (EachHead, names.b),
                (EachHead, names.a),
                (Kernel, names.conv),
                (Rates, names.rate.0),
                (NumberEach, names.bias),
                (Table, names.norm),
                (OfValues, names.o),
            ]
        };
        of(self).into_iter().zip(of(other)).map(|((part, here), (_, there))| (part, here, there)).collect()
    }
}

/// How a file writes how fast heads forget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// As its logarithm.
    Logarithm,
    /// With the other sign.
    Negative,
}

/// The names of attention to what an encoder gave.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the fields are the parts' own names")]
pub struct AcrossNames {
    pub norm: &'static str,
    pub q: &'static str,
    pub k: &'static str,
    pub v: &'static str,
    pub o: &'static str,
}

impl AcrossNames {
    /// Of models that have none.
    pub const NONE: AcrossNames = AcrossNames { norm: "", q: "", k: "", v: "", o: "" };
}

/// The names of attention whose keys and values come from a narrow row.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the fields are the parts' own names")]
pub struct LatentNames {
    /// From the input to what queries come from.
    pub q_down: &'static str,
    pub q_norm: &'static str,
    pub q_up: &'static str,
    /// From the input to the row, and what turns of keys.
    pub down: &'static str,
    pub norm: &'static str,
    /// From the row to keys and values, head by head.
    pub up: &'static str,
    /// In files that have `up` in two: for each head from queries to the row,
    pub k: &'static str,
    /// and from the row to values.
    pub v: &'static str,
}

/// What is done to a part of a model when it goes from one kind of file to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Nothing: an embedding or a row.
    Table,
    /// A linear layer, which may lie with a row for each input.
    Linear,
    /// One whose outputs are queries.
    Queries,
    /// One whose outputs are keys.
    Keys,
    /// One whose outputs are queries, keys and values.
    Joint,
    /// A norm, whose weights may be stored less something.
    Norm,
    /// A linear layer whose outputs are queries, keys and values of heads that keep a matrix.
    Recalled,
    /// The weights of the convolution over those.
    Kernel,
    /// A linear layer with an output for each element of such heads' values.
    Values,
    /// One with an input for each.
    OfValues,
    /// One with an output for each such head.
    EachHead,
    /// One whose outputs come key head by key head.
    ByKeyHead,
    /// The whole name of a number for each head that keeps a matrix.
    NumberEach,
    /// The whole name of how fast each forgets.
    Rates,
    /// A tensor whose name is whole.
    Whole,
}

impl Part {
    /// Is its name whole?
    pub(crate) fn is_whole(self) -> bool {
        matches!(self, Part::Whole | Part::NumberEach | Part::Rates)
    }
}

impl Names {
    /// What parts are called here and in another kind of file, but those of [`DeltaNames`]; an empty name is none.
    pub(crate) fn beside(&self, other: &Names) -> Vec<(Part, &'static str, &'static str)> {
        let of = |names: &Names| {
            use Part::*;
            let latent = names.latent;
            [
                (Table, names.embed),
                (Table, names.positions),
                (Norm, names.norm),
                (Table, names.head),
                (Norm, names.mixer_norm),
                (Norm, names.mixer_behind),
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
                (Norm, names.ffn_behind),
                (Linear, names.gate),
                (Linear, names.up),
                (Linear, names.gate_up),
                (Linear, names.down),
                (Linear, names.router),
                (Whole, names.router_bias),
                (Whole, names.router_norm),
                (Whole, names.expert_scale),
                (Norm, names.twofold.dense_behind),
                (Norm, names.twofold.before),
                (Norm, names.twofold.behind),
                (Whole, names.expert_rows.map_or("", |(up, _)| up)),
                (Whole, names.expert_rows.map_or("", |(_, down)| down)),
                (Linear, names.expert_gate),
                (Linear, names.expert_up),
                (Linear, names.expert_down),
                (Table, names.side_table),
                (Linear, names.side_from),
                (Norm, names.side_norm),
                (Linear, names.side_gate),
                (Linear, names.side_back),
                (Norm, names.side_behind),
                (Whole, names.scale),
                (Linear, names.shared_gate),
                (Linear, names.shared_up),
                (Linear, names.shared_down),
                (Table, names.shared_router),
            ]
        };
        of(self).into_iter().zip(of(other)).map(|((part, here), (_, there))| (part, here, there)).collect()
    }

    /// Has a decoder no use for a tensor of that name?
    pub(crate) fn spares(&self, name: &str) -> bool {
        self.spare.iter().any(|base| name.starts_with(base))
    }

    /// The layer of a tensor, if it belongs to one.
    pub(crate) fn layer(&self, name: &str) -> Option<usize> {
        let (before, _) = self.mixer_norm.split_once("{}")?;
        name.strip_prefix(before)?.split('.').next()?.parse().ok()
    }
}

/// How the linear layers of a decoder's layers lie in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// A row for each output.
    Rows,
    /// A row for each output; queries, keys and values as one come head by head.
    RowsByHead,
    /// A row for each input.
    Columns,
}

/// How gate and up lie in a tensor that has both of all experts. It and that of down have a row for each input, unless
/// they are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joint {
    /// Gate first.
    InTurn,
    /// An output of gate, one of up, and so on.
    Alternating,
}

/// Names as Hugging Face writes those of most decoders.
pub const HF: Names = Names {
    base: "model.",
    embed: "model.embed_tokens",
    positions: "",
    norm: "model.norm",
    head: "lm_head",
    mixer_norm: "model.layers.{}.input_layernorm",
    mixer_behind: "",
    qkv: "",
    q: "model.layers.{}.self_attn.q_proj",
    k: "model.layers.{}.self_attn.k_proj",
    v: "model.layers.{}.self_attn.v_proj",
    o: "model.layers.{}.self_attn.o_proj",
    q_norm: "model.layers.{}.self_attn.q_norm",
    k_norm: "model.layers.{}.self_attn.k_norm",
    sinks: "",
    distance: "",
    across: AcrossNames::NONE,
    latent: LatentNames {
        q_down: "model.layers.{}.self_attn.q_a_proj",
        q_norm: "model.layers.{}.self_attn.q_a_layernorm",
        q_up: "model.layers.{}.self_attn.q_b_proj",
        down: "model.layers.{}.self_attn.kv_a_proj_with_mqa",
        norm: "model.layers.{}.self_attn.kv_a_layernorm",
        up: "model.layers.{}.self_attn.kv_b_proj",
        k: "",
        v: "",
    },
    delta: DeltaNames::NONE,
    ffn_norm: "model.layers.{}.post_attention_layernorm",
    ffn_behind: "",
    gate: "model.layers.{}.mlp.gate_proj",
    up: "model.layers.{}.mlp.up_proj",
    up_alone: "",
    gate_up: "",
    down: "model.layers.{}.mlp.down_proj",
    router: "model.layers.{}.mlp.gate",
    router_bias: "model.layers.{}.mlp.gate.e_score_correction_bias",
    router_norm: "",
    expert_scale: "",
    twofold: TwofoldNames::NONE,
    expert_gate: "model.layers.{}.mlp.experts.{e}.gate_proj",
    expert_up: "model.layers.{}.mlp.experts.{e}.up_proj",
    expert_down: "model.layers.{}.mlp.experts.{e}.down_proj",
    expert_joint: None,
    expert_rows: None,
    side_table: "model.embed_tokens_per_layer",
    side_from: "model.per_layer_model_projection",
    side_norm: "model.per_layer_projection_norm",
    side_gate: "model.layers.{}.per_layer_input_gate",
    side_back: "model.layers.{}.per_layer_projection",
    side_behind: "model.layers.{}.post_per_layer_input_norm",
    scale: "model.layers.{}.layer_scalar",
    shared_gate: "model.layers.{}.mlp.shared_experts.gate_proj",
    shared_up: "model.layers.{}.mlp.shared_experts.up_proj",
    shared_down: "model.layers.{}.mlp.shared_experts.down_proj",
    shared_router: "",
    layout: Layout::Rows,
    spare: &[],
};

/// Names in GGUF files.
pub const GGUF: Names = Names {
    base: "",
    embed: "token_embd",
    positions: "position_embd",
    norm: "output_norm",
    head: "output",
    mixer_norm: "blk.{}.attn_norm",
    mixer_behind: "blk.{}.post_attention_norm",
    qkv: "",
    q: "blk.{}.attn_q",
    k: "blk.{}.attn_k",
    v: "blk.{}.attn_v",
    o: "blk.{}.attn_output",
    q_norm: "blk.{}.attn_q_norm",
    k_norm: "blk.{}.attn_k_norm",
    sinks: "",
    distance: "",
    across: AcrossNames::NONE,
    latent: LatentNames {
        q_down: "blk.{}.attn_q_a",
        q_norm: "blk.{}.attn_q_a_norm",
        q_up: "blk.{}.attn_q_b",
        down: "blk.{}.attn_kv_a_mqa",
        norm: "blk.{}.attn_kv_a_norm",
        up: "",
        k: "blk.{}.attn_k_b",
        v: "blk.{}.attn_v_b",
    },
    delta: DeltaNames {
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
    ffn_behind: "blk.{}.post_ffw_norm",
    gate: "blk.{}.ffn_gate",
    up: "blk.{}.ffn_up",
    up_alone: "",
    gate_up: "",
    down: "blk.{}.ffn_down",
    router: "blk.{}.ffn_gate_inp",
    router_bias: "blk.{}.exp_probs_b.bias",
    router_norm: "blk.{}.ffn_gate_inp.scale",
    expert_scale: "blk.{}.ffn_down_exps.scale",
    twofold: TwofoldNames {
        dense_behind: "blk.{}.post_ffw_norm_1",
        before: "blk.{}.pre_ffw_norm_2",
        behind: "blk.{}.post_ffw_norm_2",
    },
    expert_gate: "blk.{}.ffn_gate_exps",
    expert_up: "blk.{}.ffn_up_exps",
    expert_down: "blk.{}.ffn_down_exps",
    expert_joint: None,
    expert_rows: Some(("blk.{}.ffn_gate_up_exps.weight", "blk.{}.ffn_down_exps.weight")),
    side_table: "per_layer_token_embd",
    side_from: "per_layer_model_proj",
    side_norm: "per_layer_proj_norm",
    side_gate: "blk.{}.inp_gate",
    side_back: "blk.{}.proj",
    side_behind: "blk.{}.post_norm",
    scale: "blk.{}.layer_output_scale.weight",
    shared_gate: "blk.{}.ffn_gate_shexp",
    shared_up: "blk.{}.ffn_up_shexp",
    shared_down: "blk.{}.ffn_down_shexp",
    shared_router: "blk.{}.ffn_gate_inp_shexp",
    layout: Layout::Rows,
    spare: &[],
};

/// What stands for an expert's number in a name.
pub(crate) const EXPERT: &str = "{e}";

/// Tensors that checkpoints carry and nobody needs: they follow from the settings.
pub(crate) fn is_redundant(name: &str) -> bool {
    // Masks of old kinds of attention, which have names like a bias.
    let masks = [".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias"];
    name.ends_with(".rotary_emb.inv_freq") || masks.iter().any(|mask| name.ends_with(mask))
}

/// Does a tensor belong to what sees or hears, and not to the text model beside it?
pub(crate) fn is_of_senses(name: &str) -> bool {
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

/// The name that a tensor of a text model within another has in text models.
pub(crate) fn within(name: &str) -> Option<String> {
    match name.strip_prefix("model.language_model.") {
        Some(rest) => Some(format!("model.{rest}")),
        None => name.strip_prefix("language_model.").map(str::to_owned),
    }
}

/// The name of a layer's tensor.
pub(crate) fn of_layer(pattern: &str, layer: usize) -> String {
    pattern.replace("{}", &layer.to_string())
}

/// The layer of a tensor whose name is made by that pattern; 0 where it is of none.
pub(crate) fn layer_in(pattern: &str, name: &str) -> Option<usize> {
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
