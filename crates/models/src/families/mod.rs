//! The families: what each kind of model is, in terms of the shared blocks.
//!
//! A family has no forward pass. To add one, write its file and name it in [`ALL`].

mod bert;
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
mod roberta;
mod rope;
mod routed;
mod scribes;
mod smollm3;
mod stablelm;
mod starcoder2;
mod t5;
mod whisper;

use crate::error::Result;
use crate::formats::config::Config;
use crate::formats::names::Names;
use crate::spec::DecoderSpec;

pub use encoders::{EncoderFamily, encoder, find_encoder};
pub use scribes::{ScribeFamily, find_scribe, scribe};

/// A kind of model.
#[derive(Debug)]
pub struct Family {
    /// What to call it.
    pub name: &'static str,
    /// `architectures` in `config.json`.
    pub hf: &'static [&'static str],
    /// `general.architecture` in GGUF metadata.
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
    &smollm3::SMOLLM3,
    &stablelm::STABLELM,
    &starcoder2::STARCODER2,
];

/// Every family of encoders that we know.
pub static ENCODERS: &[&EncoderFamily] = &[
    &bert::BERT,
    &distilbert::DISTILBERT,
    &modernbert::MODERNBERT,
    &nomic_bert::NOMIC_BERT,
    &roberta::ROBERTA,
    &t5::T5_ENCODER,
];

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
        let known: Vec<&str> = ALL.iter().flat_map(|f| names(f)).copied().collect();
        let why = format!("these are: {}", known.join(", "));
        crate::LoadError::unsupported(&config.checkpoint().path, format!("the architecture {arch:?}"), why)
    })
}
