//! Nomic BERT: RoPE instead of learned positions, gated FFN, fused QKV, few biases.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Names, Slot};

use super::{Declared, EncoderFamily, common, encoders, rope};
use crate::spec::encoder::{EncoderSpec, HeadActivation};

/// Tensor names, with a common prefix.
macro_rules! names {
    ($base:literal) => {
        Names {
            base: $base,
            ..tensor_names::HF.with(&[
                (Slot::TokenEmbd, concat!($base, "embeddings.word_embeddings")),
                (Slot::TokenTypes, concat!($base, "embeddings.token_type_embeddings")),
                (Slot::TokenEmbdNorm, concat!($base, "emb_ln")),
                (Slot::AttnPostNorm, concat!($base, "encoder.layers.{}.norm1")),
                (Slot::AttnQkv, concat!($base, "encoder.layers.{}.attn.Wqkv")),
                (Slot::AttnOut, concat!($base, "encoder.layers.{}.attn.out_proj")),
                (Slot::FfnPostNorm, concat!($base, "encoder.layers.{}.norm2")),
                (Slot::FfnGate, concat!($base, "encoder.layers.{}.mlp.fc12")),
                (Slot::FfnUp, concat!($base, "encoder.layers.{}.mlp.fc11")),
                (Slot::FfnDown, concat!($base, "encoder.layers.{}.mlp.fc2")),
            ])
        }
    };
}

pub(super) const FAMILIES: &[Declared] = &[
    Declared::Encoder(&NOMIC_BERT),
    Declared::Encoder(&NOMIC_BERT_RANK),
    Declared::GgufEncoder(&NOMIC_BERT_GGUF),
];

static NOMIC_BERT: EncoderFamily = EncoderFamily {
    name: "Nomic BERT",
    hf: &["NomicBertModel"],
    names: names!("bert."),
    spare: &["pooler.", "cls."],
    spec,
};

/// With a classification head, and as newer library versions write it.
static NOMIC_BERT_RANK: EncoderFamily = EncoderFamily {
    name: "Nomic BERT",
    hf: &["NomicBertForSequenceClassification"],
    names: names!("nomic_bert."),
    spare: &[],
    spec: |c| {
        let head = encoders::head(c, "nomic_bert.pooler.dense", HeadActivation::Tanh, "classifier");
        Ok(EncoderSpec { head, ..spec(c)? })
    },
};

static NOMIC_BERT_GGUF: EncoderFamily = EncoderFamily {
    name: "Nomic BERT",
    hf: &["nomic-bert"],
    names: encoders::GGUF_NAMES.with(&[(Slot::AttnQkv, "blk.{}.attn_qkv")]),
    spare: &[],
    spec,
};

const ACT: Key = key("activation_function", "");
const TRAINED: Key = key("max_trained_positions", "");
const STRETCH: Key = key("rotary_scaling_factor", "");
const EXPERTS_EVERY: Key = key("moe_every_n_layers", "");

/// Config keys and defaults of the files on the Hugging Face Hub.
const HUBS: common::Defaults = common::Defaults {
    dim: key("n_embd", ""),
    layers: key("n_layer", ""),
    heads: key("n_head", ""),
    ffn: key("n_inner", ""),
    act: (key("", ""), "silu"),
    context: (key("n_positions", ""), 2048),
    eps: (key("layer_norm_epsilon", ""), 1e-12),
    rope: rope::Defaults {
        theta: (key("rotary_emb_base", ""), 10_000.0),
        part: Some((key("rotary_emb_fraction", ""), 1.0)),
        ..rope::DEFAULTS
    },
    ..NEWER
};

/// Config keys and defaults of newer files.
const NEWER: common::Defaults = common::Defaults {
    gated: true,
    act: (common::ACT, "silu"),
    context: (common::CONTEXT, 2048),
    rope: rope::Defaults { theta: (rope::THETA, 1000.0), ..rope::DEFAULTS },
    rotates: true,
    ..encoders::DEFAULTS
};

fn spec(c: &Config<'_>) -> Result<EncoderSpec> {
    for switch in ["prenorm", "causal", "parallel_block", "use_rms_norm", "rotary_emb_interleaved"] {
        common::off(c, switch)?;
    }
    if let Some(every) = c.find_count(EXPERTS_EVERY)?.filter(|n| *n > 0) {
        return Err(c.unsupported(EXPERTS_EVERY, every, "layers without experts are"));
    }
    match c.find_text(ACT)?.unwrap_or("swiglu") {
        "swiglu" => {}
        other => return Err(c.unsupported(ACT, other, "swiglu is")),
    }
    encoders::only_gguf_both_ways(c)?;
    if c.is_gguf() && !c.has(rope::THETA) {
        return Err(c.bad(rope::THETA, "is missing, and files without it do not agree on what it is"));
    }
    let mut spec = encoders::plain(c, if c.has(HUBS.dim) { &HUBS } else { &NEWER })?;
    if c.has(STRETCH) {
        // Beyond this length each text would need a RoPE of its own (dynamic NTK).
        spec.context = spec.context.min(common::sane(c, TRAINED, c.find_count(TRAINED)?.unwrap_or(2048))?);
    }
    spec.positions = None;
    spec.types = encoders::types(c, 2)?;
    let of_attention = common::bias(c, "qkv_proj_bias", false)?;
    let (of_up, of_down) = (common::bias(c, "mlp_fc1_bias", false)?, common::bias(c, "mlp_fc2_bias", false)?);
    if of_up != of_down {
        return Err(c.unsupported(
            key("mlp_fc1_bias", ""),
            format_args!("{of_up:?}"),
            "the same as mlp_fc2_bias is",
        ));
    }
    for layer in &mut spec.layers {
        layer.mixer.rope = Some(0);
        (layer.mixer.qkv_bias, layer.mixer.out_bias, layer.ffn.bias) = (of_attention, of_attention, of_up);
    }
    Ok(spec)
}
