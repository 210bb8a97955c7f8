//! RoBERTa and XLM-R: BERT with positions that start behind the padding token's id.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names::{self, Names, Slot};
use tallow_core::Activation;

use super::{Declared, EncoderFamily, encoders};
use crate::spec::Bias;
use crate::spec::encoder::{EncoderSpec, HeadActivation, MlmHeadSpec};

pub(super) const FAMILIES: &[Declared] = &[Declared::Encoder(&ROBERTA)];

static ROBERTA: EncoderFamily = EncoderFamily {
    name: "RoBERTa",
    hf: &[
        "RobertaModel",
        "RobertaForSequenceClassification",
        "RobertaForMaskedLM",
        "XLMRobertaModel",
        "XLMRobertaForSequenceClassification",
        "XLMRobertaForMaskedLM",
    ],
    names: Names {
        base: "roberta.",
        ..tensor_names::HF.with(&[
            (Slot::TokenTypes, "roberta.embeddings.token_type_embeddings"),
            (Slot::TokenEmbdNorm, "roberta.embeddings.LayerNorm"),
            (Slot::TokenEmbd, "roberta.embeddings.word_embeddings"),
            (Slot::PosEmbd, "roberta.embeddings.position_embeddings"),
            (Slot::AttnPostNorm, "roberta.encoder.layer.{}.attention.output.LayerNorm"),
            (Slot::AttnQ, "roberta.encoder.layer.{}.attention.self.query"),
            (Slot::AttnK, "roberta.encoder.layer.{}.attention.self.key"),
            (Slot::AttnV, "roberta.encoder.layer.{}.attention.self.value"),
            (Slot::AttnOut, "roberta.encoder.layer.{}.attention.output.dense"),
            (Slot::FfnPostNorm, "roberta.encoder.layer.{}.output.LayerNorm"),
            (Slot::FfnUp, "roberta.encoder.layer.{}.intermediate.dense"),
            (Slot::FfnDown, "roberta.encoder.layer.{}.output.dense"),
        ])
    },
    spare: &["pooler.", "lm_head."],
    spec,
};

fn spec(c: &Config<'_>) -> Result<EncoderSpec> {
    encoders::only_both_ways(c)?;
    let mut spec = encoders::plain(c, &encoders::DEFAULTS)?;
    encoders::behind_pad(c, &mut spec, 1)?;
    spec.types = encoders::types(c, 2)?;
    spec.head = encoders::head(c, "classifier.dense", HeadActivation::Tanh, "classifier.out_proj");
    spec.pooler = encoders::pooler(c, &spec, ROBERTA.names.base, "roberta.pooler.dense");
    let words = MlmHeadSpec {
        dense: "lm_head.dense",
        dense_bias: Bias::Yes,
        act: Activation::Gelu,
        norm: "lm_head.layer_norm",
        out: "lm_head.decoder",
        bias: None,
    };
    spec.mlm_head = encoders::words(c, words, &["lm_head.bias", "lm_head.decoder.bias"]);
    Ok(spec)
}
