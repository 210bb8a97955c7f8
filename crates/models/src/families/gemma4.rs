//! Gemma 4, the text model: norms of values too, scores as they are, wider heads in layers without a window, of whose
//! frequencies only a part turns, and a part of each token for each layer.

use tallow_core::Heads;

use super::gemma::{self, LOGIT_CAP};
use super::{Family, common, rope};
use crate::blocks::rope::{RopeSpec, Scaling};
use crate::error::Result;
use crate::formats::config::{Config, Key, key};
use crate::formats::names;
use crate::spec::{DecoderSpec, Order, QkNormSpec};

pub(super) static GEMMA4: Family = Family {
    name: "Gemma 4",
    hf: &["Gemma4ForCausalLM"],
    gguf: &["gemma4"],
    hf_names: gemma::HF,
    gguf_names: names::GGUF,
    spec,
};

const WIDE: Key = key("global_head_dim", "");
const HEAD_DIM: Key = key("head_dim", "attention.key_length");
const GGUF_NARROW: Key = key("", "attention.key_length_swa");
const GGUF_NARROW_VALUE: Key = key("", "attention.value_length_swa");
const GGUF_NARROW_TURNED: Key = key("", "rope.dimension_count_swa");
const GGUF_TURNED: Key = key("", "rope.dimension_count");
const SHARED: Key = key("num_kv_shared_layers", "attention.shared_kv_layers");
const SIDE: Key = key("hidden_size_per_layer_input", "embedding_length_per_layer_input");
const SIDE_VOCAB: Key = key("vocab_size_per_layer_input", "");
const BOTH_WAYS: Key = key("use_bidirectional_attention", "");
/// Settings by layer.
const BY_LAYER: &str = "per_layer_config";

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    refuse(c)?;
    let usual = common::Usual {
        kv_heads: Some(4),
        head_dim: Some(256),
        act: (gemma::ACT, "gelu_pytorch_tanh"),
        context: (common::CONTEXT, 131_072),
        tied: true,
        rope: rope::Usual { theta: (rope::THETA, 1e6), ..rope::USUAL },
        ..common::USUAL
    };
    let (mut windowed, mut heads) = (Vec::new(), Vec::new());
    let mut spec = common::plain_of(c, &usual, |dim| {
        let layers = c.count(usual.layers)?;
        windowed = windowed_layers(c, layers)?;
        heads = heads_by_layer(c, common::heads(c, dim, &usual)?, &windowed)?;
        // The last layer has no window.
        heads.last().map(|last| (*last, last.dim)).ok_or_else(|| c.bad(usual.layers, "is 0"))
    })?;
    let wide = spec.layers[0].mixer.heads.dim;
    let narrow = windowed.iter().position(|windowed| *windowed).map_or(wide, |i| heads[i].dim);
    let alike = |(heads, windowed): (&Heads, &bool)| heads.dim == if *windowed { narrow } else { wide };
    if !heads.iter().zip(&windowed).all(alike) {
        return Err(c.unsupported(HEAD_DIM, "other in some layers", "one with a window and one without is"));
    }
    if c.is_gguf() && spec.ropes[0].scaling == Scaling::None {
        return Err(c.bad(GGUF_TURNED, "counts frequencies of which a tensor, rope_freqs.weight, is missing"));
    }
    if !rope::is_said(c) {
        spec.ropes[0].scaling = rope::some_of(wide / 2, wide / 8, 1.0);
    }
    let local = RopeSpec { dim: narrow, ..spec.ropes[0].clone() };
    spec.ropes.push(rope::local_rope(c, &local)?);
    spec.embed_scale = (spec.dim as f32).sqrt();
    spec.logit_cap = gemma::cap(c, LOGIT_CAP, None)?;
    spec.side = side(c, spec.vocab)?;
    let bias = common::bias(c, "attention_bias", false)?;
    let window = common::window_or(c, 512)?;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let (mixer, windowed) = (&mut layer.mixer, windowed[i]);
        mixer.heads = heads[i];
        (mixer.qkv_bias, mixer.out_bias) = (bias, bias);
        (mixer.qk_norm, mixer.v_norm, mixer.scale) = (QkNormSpec::PerHead, true, 1.0);
        mixer.window = window.filter(|_| windowed);
        mixer.rope = Some(usize::from(windowed));
        (layer.order, layer.scaled) = (Order::Sandwich, true);
    }
    Ok(spec)
}

/// Refuses what other models of the family have.
fn refuse(c: &Config<'_>) -> Result<()> {
    for switch in ["attention_k_eq_v", "enable_moe_block", "use_double_wide_mlp"] {
        common::off(c, switch)?;
    }
    if let Some(n) = c.find_count(SHARED)?.filter(|n| *n > 0) {
        return Err(c.unsupported(SHARED, n, "layers with keys and values of their own are"));
    }
    if let Some(n) = common::find_experts(c)? {
        return Err(c.unsupported(key("num_experts", "expert_count"), n, "models without experts are"));
    }
    match c.find_text(BOTH_WAYS)? {
        None | Some("vision") => Ok(()),
        Some(other) => Err(c.unsupported(BOTH_WAYS, other, "attention to earlier tokens is")),
    }
}

/// Which layers have a window: never the last.
fn windowed_layers(c: &Config<'_>, layers: usize) -> Result<Vec<bool>> {
    let mut windowed = common::windowed_but_every(c, layers, 6)?;
    if let Some(last) = windowed.last_mut() {
        *last = false;
    }
    Ok(windowed)
}

/// The heads of each layer. `usual` is what `common` reads: in folders those with a window, in GGUF files the others.
fn heads_by_layer(c: &Config<'_>, usual: Heads, windowed: &[bool]) -> Result<Vec<Heads>> {
    let even = |key: Key, n: usize| match n.is_multiple_of(2) && (1..=1024).contains(&n) {
        true => Ok(n),
        false => Err(c.bad(key, format_args!("is {n}; even numbers up to 1024 are supported"))),
    };
    if c.is_gguf() {
        let narrow = Heads { dim: even(GGUF_NARROW, c.count(GGUF_NARROW)?)?, ..usual };
        for key in [GGUF_NARROW_VALUE, GGUF_NARROW_TURNED] {
            if let Some(n) = c.find_count(key)?.filter(|n| *n != narrow.dim) {
                return Err(c.unsupported(key, n, format_args!("{} is, as keys are wide", narrow.dim)));
            }
        }
        return Ok(windowed.iter().map(|w| if *w { narrow } else { usual }).collect());
    }
    let by_layer = c.under(BY_LAYER).is_there();
    let wide = Heads { dim: even(WIDE, c.find_count(WIDE)?.unwrap_or(512))?, ..usual };
    let of = |(i, windowed): (usize, &bool)| {
        let own = c.of_layer(BY_LAYER, i);
        if let Some(other) = own.other_than(&[HEAD_DIM]) {
            return Err(own.unsupported(key("*", ""), other, "by layer the width of heads alone is"));
        }
        match own.find_count(HEAD_DIM)? {
            Some(dim) => Ok(Heads { dim: even(HEAD_DIM, dim)?, ..usual }),
            None if by_layer || *windowed => Ok(usual),
            None => Ok(wide),
        }
    };
    windowed.iter().enumerate().map(of).collect()
}

/// Elements of what a layer gets of its own.
fn side(c: &Config<'_>, vocab: usize) -> Result<Option<usize>> {
    let usual = if c.is_gguf() { 0 } else { 256 };
    let width = c.find_count(SIDE)?.unwrap_or(usual);
    if let Some(n) = c.find_count(SIDE_VOCAB)?.filter(|n| *n != vocab && width > 0) {
        return Err(c.unsupported(SIDE_VOCAB, n, format_args!("{vocab} is, as many as there are tokens")));
    }
    match width {
        0 => Ok(None),
        n => common::sane(c, SIDE, n).map(Some),
    }
}
