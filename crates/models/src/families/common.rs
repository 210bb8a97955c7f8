//! What the settings of most decoders have in common.

use tallow_core::ops::MOST_EXPERTS;
use tallow_core::{Activation, Heads, NormKind, RopePairs};

use super::rope::rope;
use crate::error::Result;
use crate::formats::config::{Config, Key, key};
use crate::formats::names;
use crate::spec::{AttentionSpec, Bias, DecoderSpec, FfnSpec, LayerSpec, NormSpec, Order, QkNormSpec};

const VOCAB: Key = key("vocab_size", "vocab_size");
const DIM: Key = key("hidden_size", "embedding_length");
const LAYERS: Key = key("num_hidden_layers", "block_count");
const HEADS: Key = key("num_attention_heads", "attention.head_count");
const KV_HEADS: Key = key("num_key_value_heads", "attention.head_count_kv");
const HEAD_DIM: Key = key("head_dim", "attention.key_length");
const VALUE_DIM: Key = key("", "attention.value_length");
const FFN: Key = key("intermediate_size", "feed_forward_length");
pub(super) const EPS: Key = key("rms_norm_eps", "attention.layer_norm_rms_epsilon");
pub(super) const CONTEXT: Key = key("max_position_embeddings", "context_length");
const ACT: Key = key("hidden_act", "");
const TIED: Key = key("tie_word_embeddings", "");
const QUANTIZED: Key = key("quantization_config", "");
/// Tokens that a token sees, itself included.
pub(super) const WINDOW: Key = key("sliding_window", "attention.sliding_window");
const LAYER_TYPES: Key = key("layer_types", "");

/// What `rope_theta` is where it is left out.
const THETA: f64 = 10_000.0;

const EXPERTS: Key = key("num_experts", "expert_count");
const EXPERTS_NEW: Key = key("num_local_experts", "expert_count");
const EXPERTS_USED: Key = key("num_experts_per_tok", "expert_used_count");
const EXPERT_WIDTH: Key = key("moe_intermediate_size", "expert_feed_forward_length");

/// The least and most that numbers of a model can be; past that a file is damaged or malicious.
const SANE: usize = 1 << 24;

/// A decoder of plain layers, all alike: pre-norm, no biases, no norm of queries and keys, rotary embedding of the
/// whole head, embedding not tied. Families change what is different.
pub(super) fn plain(c: &Config<'_>) -> Result<DecoderSpec> {
    if c.has(QUANTIZED) {
        let why =
            "quantized Hugging Face checkpoints are not read yet; use the unquantized model or a GGUF file";
        return Err(c.unsupported(QUANTIZED, "…", why));
    }
    let dim = sane(c, DIM, c.count(DIM)?)?;
    let count = c.count(LAYERS)?;
    if count == 0 || count > c.checkpoint().tensors().len() {
        return Err(
            c.bad(LAYERS, format_args!("is {count}, with {} tensors", c.checkpoint().tensors().len()))
        );
    }
    let heads = heads(c, dim)?;
    let eps = c.number_or(EPS, 1e-6)?;
    if !(0.0..1.0).contains(&eps) {
        return Err(c.bad(EPS, format_args!("is {eps}")));
    }
    let mixer = AttentionSpec {
        heads,
        qkv_bias: Bias::No,
        out_bias: Bias::No,
        qk_norm: QkNormSpec::None,
        rope: Some(0),
        window: None,
        scale: (1.0 / (heads.dim as f64).sqrt()) as f32,
    };
    let ffn = FfnSpec { width: sane(c, FFN, c.count(FFN)?)?, act: activation(c)?, bias: Bias::No };
    let layer = LayerSpec { mixer, ffn, experts: None, order: Order::Pre, residual_scale: 1.0 };
    Ok(DecoderSpec {
        vocab: vocab(c)?,
        dim,
        context: sane(c, CONTEXT, c.find_count(CONTEXT)?.unwrap_or(2048))?,
        norm: NormSpec { kind: NormKind::Rms, eps: eps as f32 },
        tied: tied(c, false)?,
        embed_scale: 1.0,
        logit_scale: 1.0,
        ropes: vec![rope(c, heads.dim, THETA)?],
        layers: vec![layer; count],
    })
}

/// A count that a model can have.
pub(super) fn sane(c: &Config<'_>, key: Key, n: usize) -> Result<usize> {
    match (1..=SANE).contains(&n) {
        true => Ok(n),
        false => Err(c.bad(key, format_args!("is {n}; 1 to {SANE} make sense"))),
    }
}

/// GGUF metadata may leave the vocabulary's size to the embedding's shape.
fn vocab(c: &Config<'_>) -> Result<usize> {
    let embed = c.checkpoint().get(&format!("{}.weight", names::GGUF.embed)).filter(|_| c.is_gguf());
    match embed.and_then(|t| t.shape.first()) {
        Some(rows) => sane(c, VOCAB, *rows),
        None => sane(c, VOCAB, c.count(VOCAB)?),
    }
}

fn heads(c: &Config<'_>, dim: usize) -> Result<Heads> {
    let q = sane(c, HEADS, c.count(HEADS)?)?;
    let kv = sane(c, KV_HEADS, c.find_count(KV_HEADS)?.unwrap_or(q))?;
    if !q.is_multiple_of(kv) {
        return Err(c.bad(HEADS, format_args!("is {q}, not a multiple of the {kv} key heads")));
    }
    let head = match c.find_count(HEAD_DIM)? {
        Some(n) => sane(c, HEAD_DIM, n)?,
        None if dim.is_multiple_of(q) => dim / q,
        None => return Err(c.bad(HEADS, format_args!("is {q}, which does not divide {dim}"))),
    };
    if !head.is_multiple_of(2) || head > 1024 {
        return Err(c.bad(HEAD_DIM, format_args!("is {head}; even numbers up to 1024 are supported")));
    }
    if let Some(v) = c.find_count(VALUE_DIM)?
        && v != head
    {
        return Err(c.unsupported(VALUE_DIM, v, format_args!("values as wide as keys ({head}) are")));
    }
    Ok(Heads { q, kv, dim: head })
}

fn activation(c: &Config<'_>) -> Result<Activation> {
    match c.find_text(ACT)?.unwrap_or("silu") {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
        "relu2" => Ok(Activation::Relu2),
        other => Err(c.unsupported(ACT, other, "silu, gelu, gelu_new, gelu_pytorch_tanh and relu2 are")),
    }
}

/// Is the head the embedding? GGUF files that share it leave the head out.
pub(super) fn tied(c: &Config<'_>, default: bool) -> Result<bool> {
    match c.is_gguf() {
        true => Ok(c.checkpoint().get(&format!("{}.weight", names::GGUF.head)).is_none()),
        false => c.flag_or(TIED, default),
    }
}

/// Has a layer a bias, by a setting of `config.json`?
pub(super) fn bias(c: &Config<'_>, hf: &'static str, default: bool) -> Result<Bias> {
    if c.is_gguf() {
        return Ok(Bias::IfThere);
    }
    Ok(if c.flag_or(key(hf, ""), default)? { Bias::Yes } else { Bias::No })
}

/// Which layers see only a window, by `layer_types`; `default` where there is no such list.
pub(super) fn windowed(c: &Config<'_>, layers: usize, default: impl Fn(usize) -> bool) -> Result<Vec<bool>> {
    let Some(types) = c.per_layer(LAYER_TYPES, layers, c.find_texts(LAYER_TYPES)?)? else {
        return Ok((0..layers).map(default).collect());
    };
    let window = |t: &str| match t {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => Err(c.unsupported(LAYER_TYPES, other, "full_attention and sliding_attention are")),
    };
    types.into_iter().take(layers).map(window).collect()
}

/// The window, if one is set.
pub(super) fn window(c: &Config<'_>) -> Result<Option<usize>> {
    c.find_count(WINDOW)?.map(|n| sane(c, WINDOW, n)).transpose()
}

/// How many experts there are, if there are any.
pub(super) fn find_experts(c: &Config<'_>) -> Result<Option<usize>> {
    let count = match c.find_count(EXPERTS)? {
        None => c.find_count(EXPERTS_NEW)?,
        count => count,
    };
    match count {
        Some(n) if n > MOST_EXPERTS => {
            Err(c.unsupported(EXPERTS, n, format_args!("up to {MOST_EXPERTS} are")))
        }
        count => Ok(count.filter(|n| *n > 0)),
    }
}

/// How many experts there are, or `default` where that is left out.
pub(super) fn experts(c: &Config<'_>, default: usize) -> Result<usize> {
    Ok(find_experts(c)?.unwrap_or(default))
}

/// How many of `count` experts a token goes through.
pub(super) fn experts_used(c: &Config<'_>, default: usize, count: usize) -> Result<usize> {
    match c.find_count(EXPERTS_USED)?.unwrap_or(default) {
        used if (1..=count).contains(&used) => Ok(used),
        used => Err(c.bad(EXPERTS_USED, format_args!("is {used}, of {count} experts"))),
    }
}

/// Elements in the middle of an expert.
pub(super) fn expert_width(c: &Config<'_>, default: usize) -> Result<usize> {
    sane(c, EXPERT_WIDTH, c.find_count(EXPERT_WIDTH)?.unwrap_or(default))
}

/// Has layer `i` experts? GGUF metadata leaves that to the tensors.
pub(super) fn has_router(c: &Config<'_>, i: usize) -> bool {
    let router = format!("{}.weight", names::of_layer(names::GGUF.router, i));
    !c.is_gguf() || c.checkpoint().get(&router).is_some()
}

/// Pairs in GGUF files of families whose converter reorders queries and keys.
pub(super) fn reordered(c: &Config<'_>, spec: &mut DecoderSpec) {
    if c.is_gguf() {
        spec.ropes.iter_mut().for_each(|r| r.pairs = RopePairs::Neighbours);
    }
}
