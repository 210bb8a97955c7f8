//! The families: what each kind of model is, in terms of the shared blocks.
//!
//! A family has no forward pass. To add one, write its file and name it in `families!`, below.

mod common;
mod encoders;
pub(crate) mod rope;
mod routed;
mod seq2seq;
mod towers;

/// Makes a module of each family's file, and lists what they have. `cargo fmt` does not see these modules:
/// CONTRIBUTING.md says what does.
macro_rules! families {
    ($($file:ident,)*) => {
        $(mod $file;)*

        const FILES: &[&[Declared]] = &[$($file::FAMILIES),*];
    };
}

families! {
    arcee,
    bert,
    clip,
    cohere,
    deepseek,
    distilbert,
    ernie4_5,
    exaone4,
    gemma,
    gemma4,
    glm4,
    gpt2,
    gpt_neox,
    gpt_oss,
    granite,
    llama,
    llama4,
    mistral,
    mixtral,
    modernbert,
    nemotron,
    nomic_bert,
    olmo,
    olmoe,
    phi,
    phimoe,
    qwen,
    qwen_moe,
    qwen_next,
    roberta,
    seed_oss,
    siglip,
    smollm3,
    stablelm,
    starcoder2,
    t5,
    whisper,
}

use std::collections::HashSet;

use crate::blocks::rope::RopeSpec;
use crate::error::Result;
use crate::formats::config::{Config, Key, TEXT, key};
use crate::formats::names::Names;
use crate::spec::DecoderSpec;

pub use encoders::{EncoderFamily, encoder, encoder_of_images, find_encoder};
pub use seq2seq::{Seq2SeqFamily, find_seq2seq, seq2seq_family};

/// A kind of model.
#[derive(Debug)]
pub struct Family {
    /// What to call it.
    pub name: &'static str,
    /// `architectures` in `config.json`: the first is that of the text model alone, others may be of models that it is
    /// within.
    pub hf: &'static [&'static str],
    /// `general.architecture` in GGUF metadata. Where several families share one, the first reads
    /// such files.
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
        let mut spec = (self.spec)(&config.of_text())?;
        if let Some((longest, _)) = spec.ropes.iter().find_map(RopeSpec::dynamic) {
            spec.context = spec.context.max(longest.min(common::SANE));
        }
        Ok(spec)
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

/// What a family's file has, as its `FAMILIES`.
#[derive(Debug, Clone, Copy)]
enum Declared {
    /// What writes text.
    Decoder(&'static Family),
    /// What makes vectors or scores, in Hugging Face folders. Where two name the same architecture, it has two encoders:
    /// the first is that of texts, the second that of images.
    Encoder(&'static EncoderFamily),
    /// The same in GGUF files.
    GgufEncoder(&'static EncoderFamily),
    /// What takes in all of a text or a sound, and then writes.
    Seq2Seq(&'static Seq2SeqFamily),
}

fn declared() -> impl Iterator<Item = Declared> {
    FILES.iter().copied().flatten().copied()
}

/// Every family of decoders that we know.
pub(crate) fn decoders() -> impl Iterator<Item = &'static Family> {
    declared().filter_map(|d| if let Declared::Decoder(family) = d { Some(family) } else { None })
}

const MODEL_TYPE: Key = key("model_type", "");

/// The family of a checkpoint, by what its settings call it.
pub fn find(config: &Config<'_>) -> Result<&'static Family> {
    let arch = config.arch();
    if encoder(config).is_some() {
        return Err(encoders::writes_no_text(config));
    }
    if seq2seq_family(config).is_some() {
        return Err(seq2seq::has_an_encoder(config));
    }
    let names = |f: &Family| if config.is_gguf() { f.gguf } else { f.hf };
    // What sees pictures has one name with text models of several kinds. Some folders have no name but that of the kind.
    let inner = config.under(TEXT).find_text(MODEL_TYPE)?.or((!config.is_gguf()).then_some(arch));
    let listed: Vec<&Family> = decoders().filter(|f| names(f).contains(&arch)).collect();
    let called = |f: &&&Family| inner.is_some_and(|kind| f.is_called(kind));
    let found = match listed.as_slice() {
        [] => decoders().find(|f| !config.is_gguf() && f.is_called(arch)),
        [one] => Some(*one),
        several if config.is_gguf() => several.first().copied(),
        several => several.iter().find(called).copied(),
    };
    found.ok_or_else(|| {
        let mut known: Vec<&str> = decoders().flat_map(names).copied().collect();
        let mut seen = HashSet::new();
        known.retain(|name| seen.insert(*name));
        let why = format!("these are: {}", known.join(", "));
        crate::LoadError::unsupported(&config.checkpoint().path, format!("the architecture {arch:?}"), why)
    })
}
