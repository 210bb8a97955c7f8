//! The families: what each kind of model is, in terms of the shared blocks.
//!
//! A family has no forward pass. To add one, write its file and name it in [`ALL`].

mod arcee;
mod bert;
mod clip;
mod cohere;
mod common;
mod deepseek;
mod distilbert;
mod encoders;
mod ernie4_5;
mod exaone4;
mod gemma;
mod gemma4;
mod glm4;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod llama;
mod llama4;
mod mistral;
mod mixtral;
mod modernbert;
mod nemotron;
mod nomic_bert;
mod olmo;
mod olmoe;
mod phi;
mod phimoe;
mod qwen;
mod qwen_moe;
mod qwen_next;
mod roberta;
pub(crate) mod rope;
mod routed;
mod scribes;
mod seed_oss;
mod siglip;
mod smollm3;
mod stablelm;
mod starcoder2;
mod t5;
mod towers;
mod whisper;

use std::collections::HashSet;

use crate::error::Result;
use crate::formats::config::{Config, Key, TEXT, key};
use crate::formats::names::Names;
use crate::spec::DecoderSpec;

pub use encoders::{EncoderFamily, encoder, encoder_of_images, find_encoder};
pub use scribes::{ScribeFamily, find_scribe, scribe};

/// A kind of model.
#[derive(Debug)]
pub struct Family {
    /// What to call it.
    pub name: &'static str,
    /// `architectures` in `config.json`: the first is that of the text model alone, others may be of models that it is
    /// within.
    pub hf: &'static [&'static str],
    /// `general.architecture` in GGUF metadata. Where several families share one, the first in [`ALL`] reads such files.
    pub gguf: &'static [&'static str],
    /// Tensor names in Hugging Face folders.
    pub hf_names: Names,
    /// Tensor names in GGUF files.
    pub gguf_names: Names,
    /// Reads the settings.
    pub spec: fn(&Config<'_>) -> Result<DecoderSpec>,
}

impl Family {
    /// Reads the settings of a model of this kind, or of the text model within it.
    pub(crate) fn read(&self, config: &Config<'_>) -> Result<DecoderSpec> {
        (self.spec)(&config.of_text())
    }

    /// Is that what `model_type` says of its models? `qwen3_moe` and the like are said of `Qwen3MoeForCausalLM`.
    fn is_called(&self, kind: &str) -> bool {
        let plain = |name: &str| name.replace('_', "").to_lowercase();
        let kind = plain(kind.strip_suffix("_text").unwrap_or(kind));
        self.hf.iter().any(|arch| arch.strip_suffix("ForCausalLM").is_some_and(|name| plain(name) == kind))
    }

    /// Is this tensor one that the settings were read from?
    pub(crate) fn reads(&self, name: &str) -> bool {
        rope::TENSORS.contains(&name)
    }
}

/// Every family that we know.
pub static ALL: &[&Family] = &[
    &arcee::ARCEE,
    &cohere::COHERE,
    &cohere::COHERE2,
    &deepseek::DEEPSEEK_V2,
    &deepseek::DEEPSEEK_V3,
    &ernie4_5::ERNIE4_5,
    &exaone4::EXAONE4,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &gemma4::GEMMA4,
    &glm4::GLM,
    &glm4::GLM4,
    &glm4::GLM4_MOE,
    &gpt2::GPT2,
    &gpt_neox::GPT_NEOX,
    &gpt_oss::GPT_OSS,
    &granite::GRANITE,
    &granite::GRANITE_MOE,
    &llama::LLAMA,
    &llama4::LLAMA4,
    &mistral::MINISTRAL,
    &mistral::MINISTRAL3,
    &mistral::MISTRAL,
    &mixtral::MIXTRAL,
    &nemotron::NEMOTRON,
    &olmo::OLMO2,
    &olmo::OLMO3,
    &olmoe::OLMOE,
    &phi::PHI,
    &phi::PHI3,
    &phimoe::PHIMOE,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &qwen_moe::QWEN2_MOE,
    &qwen_moe::QWEN3_MOE,
    &qwen_next::QWEN3_NEXT,
    &qwen_next::QWEN35,
    &qwen_next::QWEN35_MOE,
    &seed_oss::SEED_OSS,
    &smollm3::SMOLLM3,
    &stablelm::STABLELM,
    &starcoder2::STARCODER2,
];

/// Every family of encoders that we know. Where two name the same architecture, it has two encoders: the first is that
/// of texts, the second that of images.
pub static ENCODERS: &[&EncoderFamily] = &[
    &bert::BERT,
    &clip::CLIP,
    &clip::CLIP_IMAGES,
    &distilbert::DISTILBERT,
    &modernbert::MODERNBERT,
    &nomic_bert::NOMIC_BERT,
    &nomic_bert::NOMIC_BERT_RANK,
    &roberta::ROBERTA,
    &siglip::SIGLIP,
    &siglip::SIGLIP_IMAGES,
    &t5::T5_ENCODER,
];

/// Every family of encoders of which we know GGUF files.
pub static GGUF_ENCODERS: &[&EncoderFamily] = &[&bert::BERT_GGUF, &nomic_bert::NOMIC_BERT_GGUF];

/// Every family of encoders with a decoder that we know.
pub static SCRIBES: &[&ScribeFamily] = &[&t5::T5, &whisper::WHISPER];

const MODEL_TYPE: Key = key("model_type", "");

/// The family of a checkpoint, by what its settings call it.
pub fn find(config: &Config<'_>) -> Result<&'static Family> {
    let arch = config.arch();
    if encoder(config).is_some() {
        return Err(encoders::writes_no_text(config));
    }
    if scribe(config).is_some() {
        return Err(scribes::has_an_encoder(config));
    }
    let names = |f: &Family| if config.is_gguf() { f.gguf } else { f.hf };
    // What sees pictures has one name with text models of several kinds. Some folders have no name but that of the kind.
    let inner = config.under(TEXT).find_text(MODEL_TYPE)?.or((!config.is_gguf()).then_some(arch));
    let listed: Vec<&Family> = ALL.iter().copied().filter(|f| names(f).contains(&arch)).collect();
    let called = |f: &&&Family| inner.is_some_and(|kind| f.is_called(kind));
    let found = match listed.as_slice() {
        [] => ALL.iter().find(|f| !config.is_gguf() && f.is_called(arch)),
        [one] => Some(one),
        several if config.is_gguf() => several.first(),
        several => several.iter().find(called),
    };
    found.copied().ok_or_else(|| {
        let mut known: Vec<&str> = ALL.iter().flat_map(|f| names(f)).copied().collect();
        let mut seen = HashSet::new();
        known.retain(|name| seen.insert(*name));
        let why = format!("these are: {}", known.join(", "));
        crate::LoadError::unsupported(&config.checkpoint().path, format!("the architecture {arch:?}"), why)
    })
}
