//! The families: what each kind of model is, in terms of the shared blocks.
//!
//! A family has no forward pass. To add one, write its file and name it in [`ALL`].

mod bert;
mod clip;
mod cohere;
mod common;
mod deepseek;
mod distilbert;
mod encoders;
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
mod nomic_bert;
mod olmo;
mod phi;
mod phimoe;
mod qwen;
mod qwen_moe;
mod qwen_next;
mod roberta;
pub(crate) mod rope;
mod routed;
mod scribes;
mod siglip;
mod smollm3;
mod stablelm;
mod starcoder2;
mod t5;
mod towers;
mod whisper;

use std::collections::HashSet;

use crate::error::Result;
use crate::formats::config::Config;
use crate::formats::names::Names;
use crate::spec::DecoderSpec;

pub use encoders::{EncoderFamily, encoder, encoder_of_images, find_encoder};
pub use scribes::{ScribeFamily, find_scribe, scribe};

/// A kind of model.
#[derive(Debug)]
pub struct Family {
    /// What to call it.
    pub name: &'static str,
    /// `architectures` in `config.json`.
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
    /// Is this tensor one that the settings were read from?
    pub(crate) fn reads(&self, name: &str) -> bool {
        rope::TENSORS.contains(&name)
    }
}

/// Every family that we know.
pub static ALL: &[&Family] = &[
    &cohere::COHERE,
    &cohere::COHERE2,
    &deepseek::DEEPSEEK_V2,
    &deepseek::DEEPSEEK_V3,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &gemma4::GEMMA4,
    &glm4::GLM4,
    &glm4::GLM4_MOE,
    &gpt2::GPT2,
    &gpt_neox::GPT_NEOX,
    &gpt_oss::GPT_OSS,
    &granite::GRANITE,
    &llama::LLAMA,
    &llama4::LLAMA4,
    &mistral::MINISTRAL3,
    &mistral::MISTRAL,
    &mixtral::MIXTRAL,
    &olmo::OLMO2,
    &olmo::OLMO3,
    &phi::PHI,
    &phi::PHI3,
    &phimoe::PHIMOE,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &qwen_moe::QWEN2_MOE,
    &qwen_moe::QWEN3_MOE,
    &qwen_next::QWEN3_NEXT,
    &qwen_next::QWEN35,
    &qwen_next::QWEN35_SEEING,
    &qwen_next::QWEN35_MOE,
    &qwen_next::QWEN35_MOE_SEEING,
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
    ALL.iter().find(|f| names(f).contains(&arch)).copied().ok_or_else(|| {
        let mut known: Vec<&str> = ALL.iter().flat_map(|f| names(f)).copied().collect();
        let mut seen = HashSet::new();
        known.retain(|name| seen.insert(*name));
        let why = format!("these are: {}", known.join(", "));
        crate::LoadError::unsupported(&config.checkpoint().path, format!("the architecture {arch:?}"), why)
    })
}
