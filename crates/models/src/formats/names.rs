//! [`Names`]: what a checkpoint calls the parts of a decoder. Past the loader nobody knows.

/// The names of a decoder's tensors, without `.weight` and `.bias`. `{}` stands for the layer's number.
///
/// A name may be empty where a family has no such tensor.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the fields are the parts' own names")]
pub struct Names {
    pub embed: &'static str,
    pub norm: &'static str,
    pub head: &'static str,
    /// The norm in front of (or, in a post-norm layer, behind) the mixer.
    pub mixer_norm: &'static str,
    pub q: &'static str,
    pub k: &'static str,
    pub v: &'static str,
    pub o: &'static str,
    pub q_norm: &'static str,
    pub k_norm: &'static str,
    /// The norm in front of (or behind) the feed-forward block.
    pub ffn_norm: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    pub down: &'static str,
}

/// Names as Hugging Face writes those of most decoders.
pub const HF: Names = Names {
    embed: "model.embed_tokens",
    norm: "model.norm",
    head: "lm_head",
    mixer_norm: "model.layers.{}.input_layernorm",
    q: "model.layers.{}.self_attn.q_proj",
    k: "model.layers.{}.self_attn.k_proj",
    v: "model.layers.{}.self_attn.v_proj",
    o: "model.layers.{}.self_attn.o_proj",
    q_norm: "model.layers.{}.self_attn.q_norm",
    k_norm: "model.layers.{}.self_attn.k_norm",
    ffn_norm: "model.layers.{}.post_attention_layernorm",
    gate: "model.layers.{}.mlp.gate_proj",
    up: "model.layers.{}.mlp.up_proj",
    down: "model.layers.{}.mlp.down_proj",
};

/// Names in GGUF files.
pub const GGUF: Names = Names {
    embed: "token_embd",
    norm: "output_norm",
    head: "output",
    mixer_norm: "blk.{}.attn_norm",
    q: "blk.{}.attn_q",
    k: "blk.{}.attn_k",
    v: "blk.{}.attn_v",
    o: "blk.{}.attn_output",
    q_norm: "blk.{}.attn_q_norm",
    k_norm: "blk.{}.attn_k_norm",
    ffn_norm: "blk.{}.ffn_norm",
    gate: "blk.{}.ffn_gate",
    up: "blk.{}.ffn_up",
    down: "blk.{}.ffn_down",
};

/// Tensors that checkpoints carry and nobody needs: they follow from the settings.
pub(crate) fn is_redundant(name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq")
}

/// The name of a layer's tensor.
pub(crate) fn of_layer(pattern: &str, layer: usize) -> String {
    pattern.replace("{}", &layer.to_string())
}
