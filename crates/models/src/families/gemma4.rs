//! Gemma 4, text model: V norm, unscaled scores, larger heads with partial rotary in full-attention layers, per-layer
//! embeddings. In some models the last layers share the KV cache of earlier ones, some tie K and V, and some have
//! parallel MoE.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Slot};
use tallow_core::Heads;

use super::gemma::{self, LOGIT_CAP};
use super::{Declared, Family, common, rope};
use crate::spec::rope::{RopeSpec, Scaling};
use crate::spec::{
    AttentionSpec, DecoderSpec, DenseLayerSpec, ExpertsSpec, Ffn, FfnSpec, Mixer, MoeSpec, Order, QkNormSpec,
    SharedKvSpec,
};

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&GEMMA4)];

static GEMMA4: Family = Family {
    name: "Gemma 4",
    hf: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    gguf: &["gemma4"],
    hf_names: gemma::HF.with(&[
        (Slot::FfnGateInp, "model.layers.{}.router.proj"),
        (Slot::FfnGateInpNorm, "model.layers.{}.router.scale"),
        (Slot::FfnDownExpsScale, "model.layers.{}.router.per_expert_scale"),
        (Slot::FfnGateUpExps, "model.layers.{}.experts.gate_up_proj"),
        (Slot::FfnDownExpsStacked, "model.layers.{}.experts.down_proj"),
        (Slot::FfnPostNorm1, "model.layers.{}.post_feedforward_layernorm_1"),
        (Slot::FfnPreNorm2, "model.layers.{}.pre_feedforward_layernorm_2"),
        (Slot::FfnPostNorm2, "model.layers.{}.post_feedforward_layernorm_2"),
    ]),
    gguf_names: tensor_names::GGUF,
    spec,
};

const WIDE: Key = key("global_head_dim", "");
const WIDE_KV: Key = key("num_global_key_value_heads", "");
const HEAD_DIM: Key = key("head_dim", "attention.key_length");
const GGUF_VALUE: Key = key("", "attention.value_length");
const GGUF_NARROW: Key = key("", "attention.key_length_swa");
const GGUF_NARROW_VALUE: Key = key("", "attention.value_length_swa");
const GGUF_NARROW_ROPE_DIM: Key = key("", "rope.dimension_count_swa");
const GGUF_ROPE_DIM: Key = key("", "rope.dimension_count");
const GGUF_WIDTH: Key = key("", "feed_forward_length");
const SHARED_KV: Key = key("num_kv_shared_layers", "attention.shared_kv_layers");
const PER_LAYER_DIM: Key = key("hidden_size_per_layer_input", "embedding_length_per_layer_input");
const PER_LAYER_VOCAB: Key = key("vocab_size_per_layer_input", "");
const BOTH_WAYS: Key = key("use_bidirectional_attention", "");
const USED: Key = key("top_k_experts", common::EXPERTS_USED.gguf);
const TIE_KV: &str = "attention_k_eq_v";
/// Settings by layer.
const BY_LAYER: &str = "per_layer_config";

const DEFAULTS: common::Defaults = common::Defaults {
    kv_heads: Some(4),
    head_dim: Some(256),
    // GGUF files may have one width per layer.
    ffn: key("intermediate_size", ""),
    ffn_times: Some(1),
    act: (gemma::ACT, "gelu_pytorch_tanh"),
    context: (common::CONTEXT, 131_072),
    tied: true,
    rope: rope::Defaults { theta: (rope::THETA, 1e6), ..rope::DEFAULTS },
    ..common::DEFAULTS
};

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    match c.find_text(BOTH_WAYS)? {
        None | Some("vision") => {}
        Some(other) => return Err(c.unsupported(BOTH_WAYS, other, "attention to earlier tokens is")),
    }
    let (mut windowed, mut heads) = (Vec::new(), Vec::new());
    let mut spec = common::plain_of(c, &DEFAULTS, |dim| {
        let layers = c.count(DEFAULTS.layers)?;
        windowed = windowed_layers(c, layers)?;
        heads = heads_by_layer(c, dim, &windowed)?;
        // The last layer has no window.
        heads.last().map(|last| (*last, last.dim)).ok_or_else(|| c.bad(DEFAULTS.layers, "is 0"))
    })?;
    let wide = spec.layers[0].mixer.heads.dim;
    let narrow = windowed.iter().position(|windowed| *windowed).map_or(wide, |i| heads[i].dim);
    let alike = |(heads, windowed): (&Heads, &bool)| heads.dim == if *windowed { narrow } else { wide };
    if !heads.iter().zip(&windowed).all(alike) {
        return Err(c.unsupported(HEAD_DIM, "other in some layers", "one with a window and one without is"));
    }
    if c.is_gguf() && spec.ropes[0].scaling == Scaling::None {
        return Err(
            c.bad(GGUF_ROPE_DIM, "counts frequencies of which a tensor, rope_freqs.weight, is missing")
        );
    }
    if !rope::is_said(c) {
        spec.ropes[0].scaling = rope::some_of(wide / 2, wide / 8, 1.0);
    }
    let local = RopeSpec { dim: narrow, ..spec.ropes[0].clone() };
    spec.ropes.push(rope::local_rope(c, &local)?);
    spec.embed_scale = (spec.dim as f32).sqrt();
    spec.logit_softcap = gemma::cap(c, LOGIT_CAP, None)?;
    spec.per_layer_dim = per_layer_dim(c, spec.vocab)?;
    let bias = common::bias(c, "attention_bias", false)?;
    let window = common::window_or(c, 512)?;
    let tie_kv = common::flag(c, TIE_KV, false)?;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let (mixer, windowed) = (&mut layer.mixer, windowed[i]);
        mixer.heads = heads[i];
        (mixer.qkv_bias, mixer.out_bias) = (bias, bias);
        (mixer.qk_norm, mixer.v_norm, mixer.scale) = (QkNormSpec::PerHead, true, 1.0);
        mixer.window = window.filter(|_| windowed);
        mixer.rope = Some(usize::from(windowed));
        mixer.tie_kv = match c.is_gguf() {
            true => common::tensor(c, &tensor_names::GGUF, Slot::AttnV, i).is_none(),
            false => tie_kv && !windowed,
        };
        (layer.order, layer.layer_scale) = (Order::Sandwich, true);
    }
    let sources = kv_sources(c, &spec.layers, &windowed)?;
    widths(c, &mut spec.layers, &sources)?;
    let experts = experts(c)?;
    let spec = spec.with_mixers(|i, attention| match sources[i] {
        Some(kv_source) => share_kv(kv_source, attention),
        None => Mixer::Attention(attention),
    });
    Ok(spec.with_ffns(|i, dense| match experts.filter(|_| common::has_router(c, i)) {
        Some((width, experts)) => {
            Ffn::Parallel { dense, moe: MoeSpec { expert: FfnSpec { width, ..dense }, experts } }
        }
        None => Ffn::Dense(dense),
    }))
}

/// The layers with a sliding window; never the last.
fn windowed_layers(c: &Config<'_>, layers: usize) -> Result<Vec<bool>> {
    let mut windowed = common::windowed_but_every(c, layers, 6)?;
    if let Some(last) = windowed.last_mut() {
        *last = false;
    }
    Ok(windowed)
}

/// Heads of each layer.
fn heads_by_layer(c: &Config<'_>, dim: usize, windowed: &[bool]) -> Result<Vec<Heads>> {
    let even = |key: Key, n: usize| match n.is_multiple_of(2) && (1..=1024).contains(&n) {
        true => Ok(n),
        false => Err(c.bad(key, format_args!("is {n}; even numbers up to 1024 are supported"))),
    };
    let shared = |heads: Heads| match heads.kv > 0 && heads.q.is_multiple_of(heads.kv) {
        true => Ok(heads),
        false => Err(c.bad(common::KV_HEADS, format_args!("is {}, for {} heads", heads.kv, heads.q))),
    };
    if c.is_gguf() {
        let q = common::sane(c, DEFAULTS.heads, c.count(DEFAULTS.heads)?)?;
        let wide = even(HEAD_DIM, c.count(HEAD_DIM)?)?;
        let narrow = even(GGUF_NARROW, c.find_count(GGUF_NARROW)?.unwrap_or(wide))?;
        for (key, dim) in [(GGUF_VALUE, wide), (GGUF_NARROW_VALUE, narrow), (GGUF_NARROW_ROPE_DIM, narrow)] {
            if let Some(n) = c.find_count(key)?.filter(|n| *n != dim) {
                return Err(c.unsupported(key, n, format_args!("{dim} is, as keys are wide")));
            }
        }
        let kv = c.count_by_layer(common::KV_HEADS, windowed.len())?;
        let of = |(kv, windowed): (usize, &bool)| {
            shared(Heads { q, kv, dim: if *windowed { narrow } else { wide } })
        };
        return kv.into_iter().zip(windowed).map(of).collect();
    }
    let narrow = common::heads(c, dim, &DEFAULTS)?;
    let by_layer = c.under(BY_LAYER).is_there();
    let fewer = if common::flag(c, TIE_KV, false)? { c.find_count(WIDE_KV)? } else { None };
    let wide = even(WIDE, c.find_count(WIDE)?.unwrap_or(512))?;
    let of = |(i, windowed): (usize, &bool)| {
        let own = c.of_layer(BY_LAYER, i);
        if let Some(other) = own.other_than(&[HEAD_DIM, common::KV_HEADS]) {
            return Err(own.unsupported(
                key("*", ""),
                other,
                "by layer the number and width of heads alone are",
            ));
        }
        if !by_layer {
            let kv = fewer.unwrap_or(narrow.kv);
            return if *windowed { Ok(narrow) } else { shared(Heads { kv, dim: wide, ..narrow }) };
        }
        let kv = own.find_count(common::KV_HEADS)?.unwrap_or(narrow.kv);
        shared(Heads { kv, dim: even(HEAD_DIM, own.find_count(HEAD_DIM)?.unwrap_or(narrow.dim))?, ..narrow })
    };
    windowed.iter().enumerate().map(of).collect()
}

/// Shared KV: the last layers read the KV cache of the last earlier layer of their kind (window or full).
fn kv_sources(c: &Config<'_>, layers: &[DenseLayerSpec], windowed: &[bool]) -> Result<Vec<Option<usize>>> {
    let without = c.find_count(SHARED_KV)?.unwrap_or(0);
    let Some(own) = layers.len().checked_sub(without).filter(|own| *own > 0) else {
        return Err(c.bad(SHARED_KV, format_args!("is {without}, of {} layers", layers.len())));
    };
    let source = |i: usize| {
        if i < own {
            return Ok(None);
        }
        let Some(source) = (0..own).rfind(|other| windowed[*other] == windowed[i]) else {
            return Err(c.bad(SHARED_KV, format_args!("is {without}, and no layer before is like layer {i}")));
        };
        match layers[source].mixer.heads == layers[i].mixer.heads {
            true => Ok(Some(source)),
            false => Err(
                c.bad(SHARED_KV, format_args!("is {without}, and layer {i} has other heads than {source}"))
            ),
        }
    };
    (0..layers.len()).map(source).collect()
}

fn share_kv(kv_source: usize, attention: AttentionSpec) -> Mixer {
    let AttentionSpec { heads, qkv_bias: q_bias, out_bias, rope, window, scale, .. } = attention;
    Mixer::SharedKv(SharedKvSpec { kv_source, heads, q_bias, out_bias, rope, window, scale })
}

/// Layers with shared KV may have an FFN of twice the width.
fn widths(c: &Config<'_>, layers: &mut [DenseLayerSpec], sources: &[Option<usize>]) -> Result<()> {
    if c.is_gguf() {
        let widths = c.count_by_layer(GGUF_WIDTH, layers.len())?;
        for (layer, width) in layers.iter_mut().zip(widths) {
            layer.ffn.width = common::sane(c, GGUF_WIDTH, width)?;
        }
    } else if common::flag(c, "use_double_wide_mlp", false)? {
        for (layer, _) in layers.iter_mut().zip(sources).filter(|(_, source)| source.is_some()) {
            layer.ffn.width *= 2;
        }
    }
    Ok(())
}

/// Parallel MoE: the experts parallel to the dense FFN and their width, if there are any.
fn experts(c: &Config<'_>) -> Result<Option<(usize, ExpertsSpec)>> {
    let there = c.is_gguf() || common::flag(c, "enable_moe_block", false)?;
    let Some(count) = common::find_experts(c, common::EXPERTS)?.filter(|count| there && *count > 0) else {
        return Ok(None);
    };
    let used = c.count(USED)?;
    if !(1..=count).contains(&used) {
        return Err(c.bad(USED, format_args!("is {used}, of {count} experts")));
    }
    let width = common::sane(c, common::EXPERT_WIDTH, c.count(common::EXPERT_WIDTH)?)?;
    let experts = ExpertsSpec {
        norm_weights: true,
        router_norm: true,
        expert_scale: true,
        ..ExpertsSpec::softmax(count, used)
    };
    Ok(Some((width, experts)))
}

/// Size of the per-layer embedding, if the model has one.
fn per_layer_dim(c: &Config<'_>, vocab: usize) -> Result<Option<usize>> {
    let default = if c.is_gguf() { 0 } else { 256 };
    let width = c.find_count(PER_LAYER_DIM)?.unwrap_or(default);
    if let Some(n) = c.find_count(PER_LAYER_VOCAB)?.filter(|n| *n != vocab && width > 0) {
        return Err(c.unsupported(
            PER_LAYER_VOCAB,
            n,
            format_args!("{vocab} is, as many as there are tokens"),
        ));
    }
    match width {
        0 => Ok(None),
        n => common::sane(c, PER_LAYER_DIM, n).map(Some),
    }
}
