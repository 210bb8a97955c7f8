//! DistilBERT: BERT without token types, with its own tensor names.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, key};
use tallow_checkpoint::tensor_names::{self, Names, Slot};
use tallow_core::Activation;

use super::{Declared, EncoderFamily, common, encoders};
use crate::spec::Bias;
use crate::spec::encoder::{EncoderSpec, HeadActivation, MlmHeadSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Encoder(&DISTILBERT)];

static DISTILBERT: EncoderFamily = EncoderFamily {
    name: "DistilBERT",
    hf: &["DistilBertModel", "DistilBertForSequenceClassification", "DistilBertForMaskedLM"],
    names: Names {
        base: "distilbert.",
        ..tensor_names::HF.with(&[
            (Slot::TokenEmbdNorm, "distilbert.embeddings.LayerNorm"),
            (Slot::TokenEmbd, "distilbert.embeddings.word_embeddings"),
            (Slot::PosEmbd, "distilbert.embeddings.position_embeddings"),
            (Slot::AttnPostNorm, "distilbert.transformer.layer.{}.sa_layer_norm"),
            (Slot::AttnQ, "distilbert.transformer.layer.{}.attention.q_lin"),
            (Slot::AttnK, "distilbert.transformer.layer.{}.attention.k_lin"),
            (Slot::AttnV, "distilbert.transformer.layer.{}.attention.v_lin"),
            (Slot::AttnOut, "distilbert.transformer.layer.{}.attention.out_lin"),
            (Slot::FfnPostNorm, "distilbert.transformer.layer.{}.output_layer_norm"),
            (Slot::FfnUp, "distilbert.transformer.layer.{}.ffn.lin1"),
            (Slot::FfnDown, "distilbert.transformer.layer.{}.ffn.lin2"),
        ])
    },
    spare: &["vocab_transform.", "vocab_layer_norm.", "vocab_projector."],
    spec,
};

fn spec(c: &Config<'_>) -> Result<EncoderSpec> {
    let defaults = common::Defaults {
        dim: key("dim", ""),
        layers: key("n_layers", ""),
        heads: key("n_heads", ""),
        ffn: key("hidden_dim", ""),
        act: (key("activation", ""), "gelu"),
        ..encoders::DEFAULTS
    };
    let mut spec = encoders::plain(c, &defaults)?;
    spec.head = encoders::head(c, "pre_classifier", HeadActivation::Like(Activation::Relu), "classifier");
    let words = MlmHeadSpec {
        dense: "vocab_transform",
        dense_bias: Bias::Yes,
        act: spec.layers[0].ffn.act,
        norm: "vocab_layer_norm",
        out: "vocab_projector",
        bias: None,
    };
    spec.mlm_head = encoders::words(c, words, &["vocab_projector.bias"]);
    Ok(spec)
}
