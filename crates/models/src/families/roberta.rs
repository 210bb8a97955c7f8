//! RoBERTa and XLM-R: BERT with positions that start behind the padding token's id.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names::{self, Names};
use tallow_core::Activation;

use super::{Declared, EncoderFamily, encoders};
use crate::encoder::spec::{EncoderSpec, HeadActivation, MlmHeadSpec};
use crate::spec::Bias;

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
        embed: "roberta.embeddings.word_embeddings",
        positions: "roberta.embeddings.position_embeddings",
        mixer_post_norm: "roberta.encoder.layer.{}.attention.output.LayerNorm",
        q: "roberta.encoder.layer.{}.attention.self.query",
        k: "roberta.encoder.layer.{}.attention.self.key",
        v: "roberta.encoder.layer.{}.attention.self.value",
        o: "roberta.encoder.layer.{}.attention.output.dense",
        ffn_post_norm: "roberta.encoder.layer.{}.output.LayerNorm",
        up: "roberta.encoder.layer.{}.intermediate.dense",
        down: "roberta.encoder.layer.{}.output.dense",
        ..tensor_names::HF
    },
    types: "roberta.embeddings.token_type_embeddings",
    embed_norm: "roberta.embeddings.LayerNorm",
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
