//! BERT.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names::{self, Names, Slot};

use super::{Declared, EncoderFamily, encoders};
use crate::spec::Bias;
use crate::spec::encoder::{EncoderSpec, HeadActivation, MlmHeadSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Encoder(&BERT), Declared::GgufEncoder(&BERT_GGUF)];

static BERT: EncoderFamily = EncoderFamily {
    name: "BERT",
    hf: &["BertModel", "BertForSequenceClassification", "BertForMaskedLM"],
    names: NAMES,
    spare: &["pooler.", "cls."],
    spec,
};

static BERT_GGUF: EncoderFamily =
    EncoderFamily { name: "BERT", hf: &["bert"], names: encoders::GGUF_NAMES, spare: &[], spec };

/// Tensor names.
const NAMES: Names = Names {
    base: "bert.",
    ..tensor_names::HF.with(&[
        (Slot::TokenEmbd, "bert.embeddings.word_embeddings"),
        (Slot::TokenTypes, "bert.embeddings.token_type_embeddings"),
        (Slot::TokenEmbdNorm, "bert.embeddings.LayerNorm"),
        (Slot::PosEmbd, "bert.embeddings.position_embeddings"),
        (Slot::AttnPostNorm, "bert.encoder.layer.{}.attention.output.LayerNorm"),
        (Slot::AttnQ, "bert.encoder.layer.{}.attention.self.query"),
        (Slot::AttnK, "bert.encoder.layer.{}.attention.self.key"),
        (Slot::AttnV, "bert.encoder.layer.{}.attention.self.value"),
        (Slot::AttnOut, "bert.encoder.layer.{}.attention.output.dense"),
        (Slot::FfnPostNorm, "bert.encoder.layer.{}.output.LayerNorm"),
        (Slot::FfnUp, "bert.encoder.layer.{}.intermediate.dense"),
        (Slot::FfnDown, "bert.encoder.layer.{}.output.dense"),
    ])
};

fn spec(c: &Config<'_>) -> Result<EncoderSpec> {
    encoders::only_both_ways(c)?;
    encoders::only_gguf_both_ways(c)?;
    let mut spec = encoders::plain(c, &encoders::DEFAULTS)?;
    spec.types = encoders::types(c, 2)?;
    spec.head = encoders::head(c, "bert.pooler.dense", HeadActivation::Tanh, "classifier");
    spec.pooler = encoders::pooler(c, &spec, NAMES.base, "bert.pooler.dense");
    let words = MlmHeadSpec {
        dense: "cls.predictions.transform.dense",
        dense_bias: Bias::Yes,
        act: spec.layers[0].ffn.act,
        norm: "cls.predictions.transform.LayerNorm",
        out: "cls.predictions.decoder",
        bias: None,
    };
    spec.mlm_head = encoders::words(c, words, &["cls.predictions.bias", "cls.predictions.decoder.bias"]);
    Ok(spec)
}
