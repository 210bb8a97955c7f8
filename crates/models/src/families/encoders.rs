//! What families of encoders have in common.

use super::{Declared, common, declared, find};
use crate::encoder::spec::{EncoderSpec, HeadActivation, HeadSpec, Pooling, Positions, TokenEmbedSpec};
use crate::error::{LoadError, Result};
use crate::formats::config::{Config, Key, key};
use crate::formats::names::{self, Names};
use crate::spec::{Bias, Order};
use crate::weights::named;

/// A kind of encoder.
#[derive(Debug)]
pub struct EncoderFamily {
    /// What to call it.
    pub name: &'static str,
    /// `architectures` in `config.json`, or `general.architecture` where this is of GGUF files.
    pub hf: &'static [&'static str],
    /// Tensor names of its layers.
    pub names: Names,
    /// The name of the embedding of kinds of tokens.
    pub types: &'static str,
    /// The name of the norm of embeddings; empty where there is none.
    pub embed_norm: &'static str,
    /// What names begin with of tensors that are there for training or for other tasks.
    pub spare: &'static [&'static str],
    /// Reads the settings.
    pub spec: fn(&Config<'_>) -> Result<EncoderSpec>,
}

/// Numbers from 0 on, which old checkpoints carry.
const COUNTS: [&str; 2] = ["embeddings.position_ids", "embeddings.token_type_ids"];

impl EncoderFamily {
    /// Is this a tensor that may be left over?
    pub(crate) fn spares(&self, name: &str) -> bool {
        let name = name.strip_prefix(self.names.base).unwrap_or(name);
        COUNTS.contains(&name) || self.spare.iter().any(|start| name.starts_with(start))
    }
}

/// The families of encoders that we know in such files as a checkpoint's.
fn all(c: &Config<'_>) -> impl Iterator<Item = &'static EncoderFamily> {
    let is_gguf = c.is_gguf();
    declared().filter_map(move |d| match d {
        Declared::Encoder(family) if !is_gguf => Some(family),
        Declared::GgufEncoder(family) if is_gguf => Some(family),
        _ => None,
    })
}

/// Those of them that a checkpoint is of.
fn of(c: &Config<'_>) -> impl Iterator<Item = &'static EncoderFamily> {
    all(c).filter(|f| f.hf.contains(&c.arch()))
}

/// The family of encoders that a checkpoint is of, if it is of one.
pub fn encoder(c: &Config<'_>) -> Option<&'static EncoderFamily> {
    of(c).next()
}

/// The family of the encoder of images that stands beside that of texts, if one does.
pub fn encoder_of_images(c: &Config<'_>) -> Option<&'static EncoderFamily> {
    of(c).nth(1)
}

/// The family of encoders that a checkpoint is of; a refusal where it is of none.
pub fn find_encoder(c: &Config<'_>) -> Result<&'static EncoderFamily> {
    encoder(c).ok_or_else(|| {
        let what = format!("embedding with the architecture {:?}", c.arch());
        let why = match find(c) {
            Ok(_) => "it generates text: use `tallow run` or `tallow serve`".to_owned(),
            Err(_) => {
                let known: Vec<&str> = all(c).flat_map(|f| f.hf).copied().collect();
                format!("these are: {}", known.join(", "))
            }
        };
        LoadError::unsupported(&c.checkpoint().path, what, why)
    })
}

/// Why a checkpoint of an encoder is no decoder.
pub(super) fn writes_no_text(c: &Config<'_>) -> LoadError {
    let what = format!("text generation with the architecture {:?}", c.arch());
    let why = "it is an encoder: use `tallow embed`, `tallow rerank` or `tallow classify`, or serve it";
    LoadError::unsupported(&c.checkpoint().path, what, why)
}

const TYPES: Key = key("type_vocab_size", "");
const PAD: Key = key("pad_token_id", "");
const POSITION_KIND: Key = key("position_embedding_type", "");

/// What most encoders have: the usual names of settings, plain GELU, norms behind the sums.
pub(super) const USUAL: common::Usual = common::Usual {
    gated: false,
    act: (common::ACT, "gelu"),
    context: (common::CONTEXT, 512),
    eps: (common::LAYER_EPS, 1e-12),
    rotates: false,
    ..common::USUAL_LAYER_NORM
};

/// An encoder of layers that are all alike: norms behind the sums, biases everywhere, positions and kinds of tokens with
/// embeddings of their own, no rotation. Families change what is different.
pub(super) fn plain(c: &Config<'_>, usual: &common::Usual) -> Result<EncoderSpec> {
    let like = common::plain_as(c, usual)?;
    let mut layers = like.layers;
    for layer in &mut layers {
        layer.order = Order::PostNorm;
        (layer.mixer.causal, layer.mixer.rope) = (false, None);
        (layer.mixer.qkv_bias, layer.mixer.out_bias, layer.ffn.bias) = (Bias::Yes, Bias::Yes, Bias::Yes);
    }
    Ok(EncoderSpec {
        vocab: like.vocab,
        dim: like.dim,
        context: like.context,
        norm: like.norm,
        positions: Some(Positions { rows: like.context, pad: None }),
        types: None,
        patches: None,
        fill: None,
        ropes: like.ropes,
        layers,
        last_norm: false,
        head: None,
        words: None,
        pooler: None,
        ending: None,
        dense: Vec::new(),
        sound: None,
    })
}

/// As GGUF files call the embedding of kinds of tokens, and the norm of embeddings.
pub(super) const GGUF_TYPES: &str = "token_types";
pub(super) const GGUF_EMBED_NORM: &str = "token_embd_norm";

/// Names in GGUF files of encoders whose norms stand behind the sums.
pub(super) const GGUF_NAMES: Names =
    Names { mixer_behind: "blk.{}.attn_output_norm", ffn_behind: "blk.{}.layer_output_norm", ..names::GGUF };

const CAUSAL: Key = key("", "attention.causal");

/// Refuses a GGUF file of an encoder whose tokens see to one side only.
pub(super) fn only_gguf_both_ways(c: &Config<'_>) -> Result<()> {
    match c.flag_or(CAUSAL, false)? {
        true => Err(c.unsupported(CAUSAL, true, "false is")),
        false => Ok(()),
    }
}

/// Refuses what BERT's relatives may be and are not here.
pub(super) fn only_both_ways(c: &Config<'_>) -> Result<()> {
    common::off(c, "is_decoder")?;
    match c.find_text(POSITION_KIND)? {
        None | Some("absolute") => Ok(()),
        Some(other) => Err(c.unsupported(POSITION_KIND, other, "absolute is")),
    }
}

/// Kinds of tokens that have embeddings.
pub(super) fn types(c: &Config<'_>, usual: usize) -> Result<Option<usize>> {
    // GGUF files leave it to the embedding's shape.
    let stored = c.checkpoint().get(&named(GGUF_TYPES)).filter(|_| c.is_gguf());
    let types = match stored.and_then(|t| t.shape.first()) {
        Some(rows) => *rows,
        None => c.find_count(TYPES)?.unwrap_or(usual),
    };
    (types > 0).then(|| common::sane(c, TYPES, types)).transpose()
}

/// Positions that are counted from the token that fills up short texts.
pub(super) fn behind_pad(c: &Config<'_>, spec: &mut EncoderSpec, usual: usize) -> Result<()> {
    let (rows, pad) = (spec.context, c.find_count(PAD)?.unwrap_or(usual));
    if pad + 1 >= rows {
        return Err(c.bad(PAD, format_args!("is {pad}, and there are {rows} positions")));
    }
    spec.context = rows - pad - 1;
    spec.positions = Some(Positions { rows, pad: Some(pad as u32) });
    Ok(())
}

/// Has the checkpoint a tensor of that name, or of what is left of it without what some files leave out in front?
fn is_there(c: &Config<'_>, base: &str, name: &str) -> bool {
    let short = name.strip_prefix(base).unwrap_or(name);
    [name, short].into_iter().any(|name| c.checkpoint().get(name).is_some())
}

/// The layer of that name that makes `pooler_output`, if a model without a head of its own has it.
pub(super) fn pooler(
    c: &Config<'_>,
    spec: &EncoderSpec,
    base: &str,
    name: &'static str,
) -> Option<&'static str> {
    (spec.head.is_none() && is_there(c, base, &named(name))).then_some(name)
}

/// The head of a masked language model; `None` for others. Its bias is the first of `biases` that is there.
pub(super) fn words(
    c: &Config<'_>,
    words: TokenEmbedSpec,
    biases: &[&'static str],
) -> Option<TokenEmbedSpec> {
    let bias = biases.iter().copied().find(|name| c.checkpoint().get(name).is_some());
    c.arch().ends_with("ForMaskedLM").then_some(TokenEmbedSpec { bias, ..words })
}

/// The head of a model that was made to sort or rank texts; `None` for others. `out` is its last layer's name.
pub(super) fn head(
    c: &Config<'_>,
    dense: &'static str,
    bend: HeadActivation,
    out: &'static str,
) -> Option<HeadSpec> {
    let labels = c.checkpoint().get(&named(out)).and_then(|t| t.shape.first().copied()).unwrap_or(1);
    let (pooling, dense_bias, norm) = (Pooling::First, Bias::Yes, None);
    let head = HeadSpec { pooling, dense, dense_bias, bend, norm, out, labels };
    c.arch().ends_with("ForSequenceClassification").then_some(head)
}
