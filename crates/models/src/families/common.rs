//! Config settings common to most decoder families.

use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Names, Slot};
use tallow_checkpoint::{Result, Stored};
use tallow_core::ops::MAX_EXPERTS;
use tallow_core::{Activation, Heads, NormKind, RopePairs};

use super::rope;
pub(super) use super::sizes::{CONTEXT, sane};
use crate::spec::{AttentionSpec, Bias, DecoderSpec, DenseDecoderSpec, FfnSpec, LayerSpec, NormSpec};

const VOCAB: Key = key("vocab_size", "vocab_size");
pub(super) const KV_HEADS: Key = key("num_key_value_heads", "attention.head_count_kv");
const HEAD_DIM: Key = key("head_dim", "attention.key_length");
const VALUE_DIM: Key = key("", "attention.value_length");
pub(super) const EPS: Key = key("rms_norm_eps", "attention.layer_norm_rms_epsilon");
/// Epsilon of a LayerNorm (mean subtracted). Some families use another key.
pub(super) const LAYER_EPS: Key = key("layer_norm_eps", GGUF_LAYER_EPS);
pub(super) const GGUF_LAYER_EPS: &str = "attention.layer_norm_epsilon";
pub(super) const ACT: Key = key("hidden_act", "");
const TIED: Key = key("tie_word_embeddings", "");
/// Sliding-window size in tokens, the current one included.
pub(super) const WINDOW: Key = key("sliding_window", "attention.sliding_window");
const LAYER_TYPES: Key = key("layer_types", "");
/// Every n-th layer has full attention, the others a window.
const EVERY: Key = key("sliding_window_pattern", "");
/// Layers with a sliding window: a bool for each.
pub(super) const WINDOWED: Key = key("", "attention.sliding_window_pattern");

/// Number of experts. Each family uses one of these keys; newer configs may use another family's.
pub(super) const EXPERTS: Key = key("num_experts", "expert_count");
pub(super) const LOCAL_EXPERTS: Key = key("num_local_experts", "expert_count");
pub(super) const ROUTED_EXPERTS: Key = key("n_routed_experts", "expert_count");
pub(super) const EXPERTS_USED: Key = key("num_experts_per_tok", "expert_used_count");
const MTP_LAYERS: Key = key("num_nextn_predict_layers", "nextn_predict_layers");
pub(super) const EXPERT_WIDTH: Key = key("moe_intermediate_size", "expert_feed_forward_length");

/// A family's config keys, and the defaults where a key is missing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defaults {
    pub dim: Key,
    pub layers: Key,
    pub heads: Key,
    /// Default `heads` and `vocab`, in families whose configs may leave them out.
    pub head_count: Option<usize>,
    pub vocab: Option<usize>,
    /// Default number of KV heads; `None`: as many as query heads.
    pub kv_heads: Option<usize>,
    /// Default head size; `None`: `dim / heads`.
    pub head_dim: Option<usize>,
    pub ffn: Key,
    /// Default FFN width as a multiple of `dim`.
    pub ffn_times: Option<usize>,
    pub gated: bool,
    pub act: (Key, &'static str),
    pub context: (Key, usize),
    pub norm: NormKind,
    pub norm_bias: Bias,
    pub eps: (Key, f64),
    pub tied: bool,
    pub rope: rope::Defaults,
    /// True if RoPE is used. Without it a head may have an odd size.
    pub rotates: bool,
}

/// Defaults of most families.
pub(super) const DEFAULTS: Defaults = Defaults {
    dim: key("hidden_size", "embedding_length"),
    layers: key("num_hidden_layers", "block_count"),
    heads: key("num_attention_heads", "attention.head_count"),
    head_count: None,
    vocab: None,
    kv_heads: None,
    head_dim: None,
    ffn: key("intermediate_size", "feed_forward_length"),
    ffn_times: None,
    gated: true,
    act: (ACT, "silu"),
    context: (CONTEXT, 2048),
    norm: NormKind::Rms,
    norm_bias: Bias::No,
    eps: (EPS, 1e-6),
    tied: false,
    rope: rope::DEFAULTS,
    rotates: true,
};

/// Defaults of families with LayerNorm.
pub(super) const LAYER_NORM_DEFAULTS: Defaults =
    Defaults { norm: NormKind::Layer, norm_bias: Bias::Yes, eps: (LAYER_EPS, 1e-5), ..DEFAULTS };

/// Decoder of uniform layers: pre-norm, no biases, no QK norm, RoPE over the whole head, untied embeddings. Families
/// change what differs.
pub(super) fn plain(c: &Config<'_>) -> Result<DenseDecoderSpec> {
    plain_as(c, &DEFAULTS)
}

/// [`plain`] with a family's own keys and defaults.
pub(super) fn plain_as(c: &Config<'_>, defaults: &Defaults) -> Result<DenseDecoderSpec> {
    plain_of(c, defaults, |dim| heads(c, dim, defaults).map(|heads| (heads, heads.dim)))
}

/// [`plain_as`] with a callback that reads the heads from the hidden size; it returns them and the number of elements
/// per head that RoPE rotates.
pub(super) fn plain_of(
    c: &Config<'_>,
    defaults: &Defaults,
    heads: impl FnOnce(usize) -> Result<(Heads, usize)>,
) -> Result<DenseDecoderSpec> {
    let dim = sane(c, defaults.dim, c.count(defaults.dim)?)?;
    let (count, tensors) = (c.count(defaults.layers)?, c.checkpoint().tensors().len());
    if count == 0 || count > tensors {
        return Err(c.bad(defaults.layers, format_args!("is {count}, with {tensors} tensors")));
    }
    let (heads, rope_dim) = heads(dim)?;
    let (eps_key, eps) = defaults.eps;
    let eps = c.number_or(eps_key, eps)?;
    if !(0.0..1.0).contains(&eps) {
        return Err(c.bad(eps_key, format_args!("is {eps}")));
    }
    let width = match (c.find_count(defaults.ffn)?, defaults.ffn_times) {
        (None, Some(times)) => times * dim,
        _ => c.count(defaults.ffn)?,
    };
    let ffn = FfnSpec {
        width: sane(c, defaults.ffn, width)?,
        act: activation(c, defaults.act)?,
        gated: defaults.gated,
        bias: Bias::No,
    };
    let (context_key, context) = defaults.context;
    Ok(DecoderSpec {
        gguf_permutes_qk: false,
        mtp_layers: 0,
        vocab: vocab(c, defaults)?,
        dim,
        context: sane(c, context_key, c.find_count(context_key)?.unwrap_or(context))?,
        norm: NormSpec { kind: defaults.norm, eps: eps as f32, bias: defaults.norm_bias, weight_offset: 0.0 },
        tied_embeddings: tied(c, defaults.tied)?,
        head_bias: Bias::No,
        embed_scale: 1.0,
        positions: None,
        per_layer_dim: None,
        logit_scale: 1.0,
        logit_softcap: None,
        ropes: if defaults.rotates { vec![rope::rope(c, rope_dim, &defaults.rope)?] } else { Vec::new() },
        layers: vec![LayerSpec::new(AttentionSpec::new(heads), ffn); count],
    })
}

/// The weight in a slot of layer `i`, if the checkpoint has it.
pub(super) fn tensor<'a>(c: &Config<'a>, names: &Names, slot: Slot, i: usize) -> Option<&'a Stored> {
    c.checkpoint().get(&names.weight(slot, i)?)
}

/// Vocabulary size. GGUF metadata may leave it to the embedding's shape.
fn vocab(c: &Config<'_>, defaults: &Defaults) -> Result<usize> {
    let embed = tensor(c, &tensor_names::GGUF, Slot::TokenEmbd, 0).filter(|_| c.is_gguf());
    match embed.and_then(|t| t.shape.first()) {
        Some(rows) => sane(c, VOCAB, *rows),
        None => sane(c, VOCAB, c.find_count(VOCAB)?.or(defaults.vocab).map_or_else(|| c.count(VOCAB), Ok)?),
    }
}

pub(super) fn heads(c: &Config<'_>, dim: usize, defaults: &Defaults) -> Result<Heads> {
    // `null` means derived from the other settings; a missing key means the default of the family's first model.
    let left_out = |key, value: Option<usize>| value.filter(|_| !c.is_gguf() && c.leaves_out(key));
    let q = c.find_count(defaults.heads)?.or(left_out(defaults.heads, defaults.head_count));
    let q = sane(c, defaults.heads, q.map_or_else(|| c.count(defaults.heads), Ok)?)?;
    let kv = c.find_count(KV_HEADS)?.or(left_out(KV_HEADS, defaults.kv_heads));
    let kv = sane(c, KV_HEADS, kv.unwrap_or(q))?;
    if !q.is_multiple_of(kv) {
        return Err(c.bad(defaults.heads, format_args!("is {q}, not a multiple of the {kv} key heads")));
    }
    let head = match c.find_count(HEAD_DIM)?.or(left_out(HEAD_DIM, defaults.head_dim)) {
        Some(n) => sane(c, HEAD_DIM, n)?,
        None => share(c, defaults.heads, dim, q)?,
    };
    if defaults.rotates || head > MOST_OF_A_HEAD {
        even(c, HEAD_DIM, head)?;
    }
    if let Some(v) = c.find_count(VALUE_DIM)?
        && v != head
    {
        return Err(c.unsupported(VALUE_DIM, v, format_args!("values as wide as keys ({head}) are")));
    }
    Ok(Heads { q, kv, dim: head })
}

/// MHA heads of size `dim / heads`, for families without GQA: the config's KV-head and head-size keys, which other
/// families use, are ignored.
pub(super) fn mha_heads(c: &Config<'_>, dim: usize, defaults: &Defaults) -> Result<(Heads, usize)> {
    let q = sane(c, defaults.heads, c.count(defaults.heads)?)?;
    let head = share(c, defaults.heads, dim, q)?;
    even(c, defaults.heads, head)?;
    Ok((Heads { q, kv: q, dim: head }, head))
}

fn share(c: &Config<'_>, heads: Key, dim: usize, q: usize) -> Result<usize> {
    match dim.is_multiple_of(q) {
        true => Ok(dim / q),
        false => Err(c.bad(heads, format_args!("is {q}, which does not divide {dim}"))),
    }
}

fn even(c: &Config<'_>, key: Key, head: usize) -> Result<()> {
    match head.is_multiple_of(2) && head <= MOST_OF_A_HEAD {
        true => Ok(()),
        false => Err(c.bad(
            key,
            format_args!("makes heads of {head}; even numbers up to {MOST_OF_A_HEAD} are supported"),
        )),
    }
}

/// Largest head size.
const MOST_OF_A_HEAD: usize = 1024;

pub(super) fn activation(c: &Config<'_>, (key, default): (Key, &'static str)) -> Result<Activation> {
    activation_called(c, key, c.find_text(key)?.unwrap_or(default))
}

/// Activation function by its config name; `key` is for the error.
pub(super) fn activation_called(c: &Config<'_>, key: Key, name: &str) -> Result<Activation> {
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" | "gelu_python" => Ok(Activation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
        "quick_gelu" => Ok(Activation::QuickGelu),
        "relu2" => Ok(Activation::Relu2),
        "relu" => Ok(Activation::Relu),
        other => {
            let known = "silu, gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, relu and relu2 are";
            Err(c.unsupported(key, other, known))
        }
    }
}

/// True if the LM head shares the embedding's weights. GGUF files with tied weights have no head tensor.
pub(super) fn tied(c: &Config<'_>, default: bool) -> Result<bool> {
    match c.is_gguf() {
        true => Ok(tensor(c, &tensor_names::GGUF, Slot::Output, 0).is_none()),
        false => {
            // In a multimodal config the flag may be in the outer or the text config; the outer one wins.
            let whole = c.of_whole();
            let said = if whole.has(TIED) { whole } else { *c };
            // Multimodal models do not agree on the default, so it depends on whether a head tensor exists.
            let alone = tensor(c, &tensor_names::HF, Slot::Output, 0).is_none();
            said.flag_or(TIED, if c.is_within() { alone } else { default })
        }
    }
}

/// True if linear layers have a bias, by a flag in `config.json`.
pub(super) fn bias(c: &Config<'_>, hf: &'static str, default: bool) -> Result<Bias> {
    if c.is_gguf() {
        return Ok(Bias::IfPresent);
    }
    Ok(if c.flag_or(key(hf, ""), default)? { Bias::Yes } else { Bias::No })
}

/// The layers with a sliding window, by `layer_types` or its GGUF equivalent; `default` where there is no list.
pub(super) fn windowed(c: &Config<'_>, layers: usize, default: impl Fn(usize) -> bool) -> Result<Vec<bool>> {
    match c.per_layer(WINDOWED, layers, c.find_flags(WINDOWED)?)? {
        Some(list) => Ok(list),
        None => of_type(c, layers, "sliding_attention", default),
    }
}

/// The layers of type `kind` in `layer_types`; the others must be `full_attention`.
pub(super) fn of_type(
    c: &Config<'_>,
    layers: usize,
    kind: &str,
    default: impl Fn(usize) -> bool,
) -> Result<Vec<bool>> {
    let Some(types) = c.per_layer(LAYER_TYPES, layers, c.find_texts(LAYER_TYPES)?)? else {
        return Ok((0..layers).map(default).collect());
    };
    let is = |t: &str| match t {
        "full_attention" => Ok(false),
        t if t == kind => Ok(true),
        other => Err(c.unsupported(LAYER_TYPES, other, format_args!("full_attention and {kind} are"))),
    };
    types.into_iter().take(layers).map(is).collect()
}

/// The layers with a sliding window: all but every n-th, with n = `default` unless the settings have another.
pub(super) fn windowed_but_every(c: &Config<'_>, layers: usize, default: usize) -> Result<Vec<bool>> {
    // With an explicit list the interval is ignored, so it may have any value.
    let listed = c.has(LAYER_TYPES) || c.has(WINDOWED);
    let every = if listed { default } else { c.find_count(EVERY)?.unwrap_or(default) };
    if every == 0 {
        return Err(c.bad(EVERY, "is 0"));
    }
    windowed(c, layers, |i| !(i + 1).is_multiple_of(every))
}

/// Sliding-window size, if set. In GGUF files 0 means none.
pub(super) fn window(c: &Config<'_>) -> Result<Option<usize>> {
    let window = c.find_count(WINDOW)?.filter(|n| *n > 0 || !c.is_gguf());
    window.map(|n| sane(c, WINDOW, n)).transpose()
}

/// Sliding-window size, in families that default to `default` unless it is `null`.
pub(super) fn window_or(c: &Config<'_>, default: usize) -> Result<Option<usize>> {
    if c.leaves_out(WINDOW) { Ok(Some(default)) } else { window(c) }
}

/// Boolean flag in `config.json`.
pub(super) fn flag(c: &Config<'_>, switch: &'static str, default: bool) -> Result<bool> {
    c.flag_or(key(switch, ""), default)
}

/// Returns an error if an unsupported flag that changes the result is on.
pub(super) fn off(c: &Config<'_>, switch: &'static str) -> Result<()> {
    match flag(c, switch, false)? {
        true => Err(c.unsupported(key(switch, ""), true, "false is")),
        false => Ok(()),
    }
}

/// Returns an error for any value but `text`.
pub(super) fn only(c: &Config<'_>, key: Key, text: &str) -> Result<()> {
    match c.find_text(key)?.unwrap_or(text) {
        said if said == text => Ok(()),
        other => Err(c.unsupported(key, other, format_args!("{text} is"))),
    }
}

/// Number of experts, if set; the family's own key `own` is tried first. 0 means none.
pub(super) fn find_experts(c: &Config<'_>, own: Key) -> Result<Option<usize>> {
    for key in [own, EXPERTS, LOCAL_EXPERTS, ROUTED_EXPERTS] {
        if let Some(n) = c.find_count(key)? {
            return match n > MAX_EXPERTS {
                true => Err(c.unsupported(key, n, format_args!("up to {MAX_EXPERTS} are"))),
                false => Ok(Some(n)),
            };
        }
    }
    Ok(None)
}

/// Number of experts, or `default` where it is missing.
pub(super) fn experts(c: &Config<'_>, own: Key, default: usize) -> Result<usize> {
    Ok(find_experts(c, own)?.unwrap_or(default))
}

/// Experts per token (top-k) out of `count`.
pub(super) fn experts_used(c: &Config<'_>, default: usize, count: usize) -> Result<usize> {
    match c.find_count(EXPERTS_USED)?.unwrap_or(default) {
        used if (1..=count).contains(&used) => Ok(used),
        used => Err(c.bad(EXPERTS_USED, format_args!("is {used}, of {count} experts"))),
    }
}

/// MTP (nextn) layers behind the last one. GGUF files include them in the layer count.
pub(super) fn mtp_layers<L>(c: &Config<'_>, spec: &mut DecoderSpec<L>, default: usize) -> Result<()> {
    spec.mtp_layers = c.find_count(MTP_LAYERS)?.unwrap_or(if c.is_gguf() { 0 } else { default });
    if c.is_gguf() {
        let (mtp, layers) = (spec.mtp_layers, spec.layers.len());
        if mtp >= layers {
            return Err(c.bad(MTP_LAYERS, format_args!("is {mtp}, of {layers} layers")));
        }
        spec.layers.truncate(layers - mtp);
    }
    Ok(())
}

/// FFN width of an expert.
pub(super) fn expert_width(c: &Config<'_>, default: usize) -> Result<usize> {
    sane(c, EXPERT_WIDTH, c.find_count(EXPERT_WIDTH)?.unwrap_or(default))
}

/// True if layer `i` has experts. In GGUF files that depends on whether the router tensor exists.
pub(super) fn has_router(c: &Config<'_>, i: usize) -> bool {
    !c.is_gguf() || tensor(c, &tensor_names::GGUF, Slot::FfnGateInp, i).is_some()
}

/// Marks a family whose GGUF converter permutes Q and K rows: RoPE pairs are interleaved in its GGUF files.
pub(super) fn gguf_permutes_qk<L>(c: &Config<'_>, spec: &mut DecoderSpec<L>) {
    spec.gguf_permutes_qk = true;
    if c.is_gguf() {
        spec.ropes.iter_mut().for_each(|r| r.pairs = RopePairs::Interleaved);
    }
}
