//! Model families: each architecture described in terms of the shared blocks.
//!
//! A family has no forward pass. To add one, write its file and list it in `families!`, below.

mod common;
mod embedders;
mod encoders;
pub mod rope;
mod routed;
mod seq2seq;
mod sizes;
mod towers;

/// Declares a module for each family's file and collects their `FAMILIES`. `cargo fmt` does not see these modules;
/// CONTRIBUTING.md names the command that does.
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
    dots1,
    ernie4_5,
    exaone4,
    gemma,
    gemma4,
    glm4,
    glm4_moe_lite,
    gpt2,
    gpt_neox,
    gpt_oss,
    granite,
    llama,
    llama4,
    minimax_m2,
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

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, TEXT, key};
use tallow_checkpoint::tensor_names::Names;

use crate::spec::DecoderSpec;
use crate::spec::rope::RopeSpec;

pub use embedders::{EncoderArch, encoder, encoder_of_images, find_encoder};
pub use encoders::EncoderFamily;
pub use seq2seq::{Seq2SeqFamily, find_seq2seq, seq2seq_family};

/// A decoder architecture.
#[derive(Debug)]
pub struct Family {
    /// Display name.
    pub name: &'static str,
    /// `architectures` in `config.json`: first that of the text model alone, then those of models that contain it.
    pub hf: &'static [&'static str],
    /// `general.architecture` in GGUF metadata. Where several families share one, the first reads such files.
    pub gguf: &'static [&'static str],
    /// Tensor names in Hugging Face folders.
    pub hf_names: Names,
    /// Tensor names in GGUF files.
    pub gguf_names: Names,
    /// Reads the settings.
    pub spec: fn(&Config<'_>) -> Result<DecoderSpec>,
}

impl Family {
    /// Reads the settings of such a model, or of the text model inside a multimodal one.
    pub fn read(&self, config: &Config<'_>) -> Result<DecoderSpec> {
        let mut spec = (self.spec)(&config.of_text())?;
        if let Some((longest, _)) = spec.ropes.iter().find_map(RopeSpec::dynamic) {
            spec.context = spec.context.max(longest.min(sizes::SANE));
        }
        Ok(spec)
    }

    /// True if `kind`, a `model_type`, names this family: `qwen3_moe` matches `Qwen3MoeForCausalLM`.
    fn is_called(&self, kind: &str) -> bool {
        let plain = |name: &str| name.replace('_', "").to_lowercase();
        let kind = plain(kind.strip_suffix("_text").unwrap_or(kind));
        self.hf.iter().any(|arch| arch.strip_suffix("ForCausalLM").is_some_and(|name| plain(name) == kind))
    }

    /// True if the tensor is one that the settings were read from.
    pub fn reads(&self, name: &str) -> bool {
        rope::TENSORS.contains(&name)
    }
}

/// An entry of a family file's `FAMILIES`.
#[derive(Debug, Clone, Copy)]
enum Declared {
    /// Decoder-only text generation.
    Decoder(&'static Family),
    /// Encoder in Hugging Face folders (embeddings or scores). Where two entries name the same architecture, it has two
    /// encoders: the first is for text, the second for images.
    Encoder(&'static EncoderFamily),
    /// Encoder in GGUF files.
    GgufEncoder(&'static EncoderFamily),
    /// Encoder-decoder for text or audio.
    Seq2Seq(&'static Seq2SeqFamily),
}

fn declared() -> impl Iterator<Item = Declared> {
    FILES.iter().copied().flatten().copied()
}

/// All decoder families.
pub fn decoders() -> impl Iterator<Item = &'static Family> {
    declared().filter_map(|d| if let Declared::Decoder(family) = d { Some(family) } else { None })
}

const MODEL_TYPE: Key = key("model_type", "");

/// The decoder family that has a checkpoint's architecture, if there is one.
fn decoder(config: &Config<'_>) -> Result<Option<&'static Family>> {
    let arch = config.arch();
    let names = |f: &Family| if config.is_gguf() { f.gguf } else { f.hf };
    // Multimodal models share one name for several kinds of text model, so the inner `model_type` decides. Some folders
    // have only a `model_type`.
    let inner = config.under(TEXT).find_text(MODEL_TYPE)?.or((!config.is_gguf()).then_some(arch));
    let listed: Vec<&Family> = decoders().filter(|f| names(f).contains(&arch)).collect();
    let called = |f: &&&Family| inner.is_some_and(|kind| f.is_called(kind));
    Ok(match listed.as_slice() {
        [] => decoders().find(|f| !config.is_gguf() && f.is_called(arch)),
        [one] => Some(*one),
        several if config.is_gguf() => several.first().copied(),
        several => several.iter().find(called).copied(),
    })
}

/// The family of a checkpoint that generates text as a decoder alone, or an error that says why there is none.
pub fn find(config: &Config<'_>) -> Result<&'static Family> {
    if let Some(why) = embedders::writes_no_text(config)? {
        return Err(why);
    }
    if seq2seq_family(config).is_some() {
        return Err(seq2seq::has_an_encoder(config));
    }
    decoder(config)?.ok_or_else(|| {
        let names = |f: &'static Family| if config.is_gguf() { f.gguf } else { f.hf };
        let mut known: Vec<&str> = decoders().flat_map(names).copied().collect();
        let mut seen = HashSet::new();
        known.retain(|name| seen.insert(*name));
        let why = format!("these are: {}", known.join(", "));
        tallow_checkpoint::FileError::unsupported(
            &config.checkpoint().path,
            format!("the architecture {:?}", config.arch()),
            why,
        )
    })
}

#[cfg(test)]
mod tests {
    use tallow_checkpoint::tensor_names::{Index, Indices, Slot};

    use super::*;

    #[test]
    fn names_are_read_back_as_their_slots() {
        let names = declared().flat_map(|declared| match declared {
            Declared::Decoder(f) => vec![f.hf_names, f.gguf_names],
            Declared::Encoder(f) | Declared::GgufEncoder(f) => vec![f.names],
            Declared::Seq2Seq(f) => vec![f.encoder, f.decoder],
        });
        for names in names {
            for (slot, pattern) in names.iter() {
                let number = |index, n| if pattern.has(index) { n } else { 0 };
                let layer = number(Index::Layer, 12);
                let at = Indices { layer, expert: number(Index::Expert, 345), head: number(Index::Head, 67) };
                let name = names.weight(slot, at).unwrap();
                assert!(!name.contains(['{', '}']), "{name}");
                assert!(names.find(&name).any(|found| found == (slot, at)), "{slot:?}: {name}");
                let short = name.strip_prefix(names.base).unwrap_or(&name);
                assert!(names.find(short).any(|found| found == (slot, at)), "{slot:?}: {short}");
                assert!(names.find(&name).all(|(_, found)| found == at), "{name}");
                if pattern
                    .text()
                    .starts_with(names.get(Slot::AttnNorm).unwrap().text().split('{').next().unwrap())
                {
                    assert_eq!(names.layer(&name), Some(layer), "{name}");
                }
            }
        }
    }
}
