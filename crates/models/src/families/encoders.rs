//! Settings common to encoder families.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Names, Slot, named};

use super::{Declared, common, declared};
use crate::spec::encoder::{EncoderSpec, HeadActivation, HeadSpec, MlmHeadSpec, Pooling, Positions};
use crate::spec::{Bias, Order};

/// An encoder architecture.
#[derive(Debug)]
pub struct EncoderFamily {
    /// Display name.
    pub name: &'static str,
    /// `architectures` in `config.json`; for GGUF families `general.architecture`.
    pub hf: &'static [&'static str],
    /// Tensor names of the layers.
    pub names: Names,
    /// Prefixes of tensors that are only for training or for other tasks.
    pub spare: &'static [&'static str],
    /// Reads the settings.
    pub spec: fn(&Config<'_>) -> Result<EncoderSpec>,
}

/// Index buffers (0, 1, 2, …) that old checkpoints carry.
const COUNTS: [&str; 2] = ["embeddings.position_ids", "embeddings.token_type_ids"];

impl EncoderFamily {
    /// True if a tensor may be left unused.
    pub(crate) fn is_unused(&self, name: &str) -> bool {
        let name = name.strip_prefix(self.names.base).unwrap_or(name);
        COUNTS.contains(&name) || self.spare.iter().any(|start| name.starts_with(start))
    }
}

/// All encoder families for the checkpoint's file kind.
pub(super) fn all(c: &Config<'_>) -> impl Iterator<Item = &'static EncoderFamily> {
    let is_gguf = c.is_gguf();
    declared().filter_map(move |d| match d {
        Declared::Encoder(family) if !is_gguf => Some(family),
        Declared::GgufEncoder(family) if is_gguf => Some(family),
        _ => None,
    })
}

/// The encoder families whose architecture the checkpoint has.
pub(super) fn of(c: &Config<'_>) -> impl Iterator<Item = &'static EncoderFamily> {
    all(c).filter(|f| f.hf.contains(&c.arch()))
}

const TYPES: Key = key("type_vocab_size", "");
const PAD: Key = key("pad_token_id", "");
const POSITION_KIND: Key = key("position_embedding_type", "");

/// Defaults of most encoders: the common keys, exact GELU, post-norm.
pub(super) const DEFAULTS: common::Defaults = common::Defaults {
    gated: false,
    act: (common::ACT, "gelu"),
    context: (common::CONTEXT, 512),
    eps: (common::LAYER_EPS, 1e-12),
    rotates: false,
    ..common::LAYER_NORM_DEFAULTS
};

/// Encoder of uniform layers: post-norm, biases everywhere, learned position and token-type embeddings, no RoPE.
/// Families change what differs.
pub(super) fn plain(c: &Config<'_>, defaults: &common::Defaults) -> Result<EncoderSpec> {
    let mut spec = common::plain_as(c, defaults)?;
    spec.positions = Some(spec.context);
    for layer in &mut spec.layers {
        layer.order = Order::PostNorm;
        (layer.mixer.causal, layer.mixer.rope) = (false, None);
        (layer.mixer.qkv_bias, layer.mixer.out_bias, layer.ffn.bias) = (Bias::Yes, Bias::Yes, Bias::Yes);
    }
    Ok(EncoderSpec { last_norm: false, ..spec.into() })
}

/// GGUF names of post-norm encoders.
pub(super) const GGUF_NAMES: Names = tensor_names::GGUF.with(&[
    (Slot::AttnPostNorm, "blk.{}.attn_output_norm"),
    (Slot::FfnPostNorm, "blk.{}.layer_output_norm"),
    (Slot::TokenTypes, "token_types"),
    (Slot::TokenEmbdNorm, "token_embd_norm"),
]);

const CAUSAL: Key = key("", "attention.causal");

/// Returns an error for a GGUF encoder with causal attention.
pub(super) fn only_gguf_both_ways(c: &Config<'_>) -> Result<()> {
    match c.flag_or(CAUSAL, false)? {
        true => Err(c.unsupported(CAUSAL, true, "false is")),
        false => Ok(()),
    }
}

/// Returns an error for BERT variants that are not supported: causal ones and relative positions.
pub(super) fn only_both_ways(c: &Config<'_>) -> Result<()> {
    common::off(c, "is_decoder")?;
    match c.find_text(POSITION_KIND)? {
        None | Some("absolute") => Ok(()),
        Some(other) => Err(c.unsupported(POSITION_KIND, other, "absolute is")),
    }
}

/// Number of token types; `None` without a token-type embedding.
pub(super) fn types(c: &Config<'_>, default: usize) -> Result<Option<usize>> {
    // GGUF files leave it to the embedding's shape.
    let stored = common::tensor(c, &GGUF_NAMES, Slot::TokenTypes, 0).filter(|_| c.is_gguf());
    let types = match stored.and_then(|t| t.shape.first()) {
        Some(rows) => *rows,
        None => c.find_count(TYPES)?.unwrap_or(default),
    };
    (types > 0).then(|| common::sane(c, TYPES, types)).transpose()
}

/// Learned positions that start behind the padding token's id (RoBERTa).
pub(super) fn behind_pad(c: &Config<'_>, spec: &mut EncoderSpec, default: usize) -> Result<()> {
    let (rows, pad) = (spec.context, c.find_count(PAD)?.unwrap_or(default));
    if pad + 1 >= rows {
        return Err(c.bad(PAD, format_args!("is {pad}, and there are {rows} positions")));
    }
    spec.context = rows - pad - 1;
    spec.positions = Some(Positions { rows, pad: Some(pad as u32) });
    Ok(())
}

/// True if the checkpoint has tensor `name`, with or without the prefix `base`, which some files omit.
fn is_there(c: &Config<'_>, base: &str, name: &str) -> bool {
    let short = name.strip_prefix(base).unwrap_or(name);
    [name, short].into_iter().any(|name| c.checkpoint().get(name).is_some())
}

/// The linear layer of the pooler (`pooler_output`), if it exists and the model has no head of its own.
pub(super) fn pooler(
    c: &Config<'_>,
    spec: &EncoderSpec,
    base: &str,
    name: &'static str,
) -> Option<&'static str> {
    (spec.head.is_none() && is_there(c, base, &named(name))).then_some(name)
}

/// Masked-LM head; `None` for other architectures. Its bias is the first of `biases` that exists.
pub(super) fn words(c: &Config<'_>, words: MlmHeadSpec, biases: &[&'static str]) -> Option<MlmHeadSpec> {
    let bias = biases.iter().copied().find(|name| c.checkpoint().get(name).is_some());
    c.arch().ends_with("ForMaskedLM").then_some(MlmHeadSpec { bias, ..words })
}

/// Classification or ranking head; `None` for other architectures. `out` is its last linear layer.
pub(super) fn head(
    c: &Config<'_>,
    dense: &'static str,
    act: HeadActivation,
    out: &'static str,
) -> Option<HeadSpec> {
    let labels = c.checkpoint().get(&named(out)).and_then(|t| t.shape.first().copied()).unwrap_or(1);
    let (pooling, dense_bias, norm) = (Pooling::First, Bias::Yes, None);
    let head = HeadSpec { pooling, dense, dense_bias, act, norm, out, labels };
    c.arch().ends_with("ForSequenceClassification").then_some(head)
}
