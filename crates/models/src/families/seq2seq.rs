//! What families of encoders with decoders have in common.

use super::{Declared, declared, find};
use crate::encoder::Parts;
use crate::error::{LoadError, Result};
use crate::formats::config::Config;
use crate::formats::names::Names;
use crate::seq2seq::Seq2SeqSpec;

/// A kind of model that takes in all of a text or a sound, and then writes.
#[derive(Debug)]
pub struct Seq2SeqFamily {
    /// What to call it.
    pub name: &'static str,
    /// `architectures` in `config.json`.
    pub hf: &'static [&'static str],
    /// Tensor names of the encoder, in Hugging Face folders.
    pub encoder: Names,
    /// Other tensors of the encoder.
    pub(crate) parts: Parts,
    /// Tensor names of the decoder.
    pub decoder: Names,
    /// What names begin with of tensors that are there twice.
    pub spare: &'static [&'static str],
    /// Reads the settings.
    pub spec: fn(&Config<'_>) -> Result<Seq2SeqSpec>,
}

/// Every family of encoders with decoders that we know.
fn all() -> impl Iterator<Item = &'static Seq2SeqFamily> {
    declared().filter_map(|d| if let Declared::Seq2Seq(family) = d { Some(family) } else { None })
}

/// The family of encoders with decoders that a checkpoint is of, if it is of one.
pub fn seq2seq_family(c: &Config<'_>) -> Option<&'static Seq2SeqFamily> {
    all().find(|f| !c.is_gguf() && f.hf.contains(&c.arch()))
}

/// The same; a refusal where it is of none.
pub fn find_seq2seq(c: &Config<'_>) -> Result<&'static Seq2SeqFamily> {
    seq2seq_family(c).ok_or_else(|| {
        let known: Vec<&str> = all().flat_map(|f| f.hf).copied().collect();
        let what = format!("encoder-decoder inference with the architecture {:?}", c.arch());
        let why = match find(c) {
            Ok(_) => "it has a decoder alone: `tallow run` and `tallow serve` are for it".to_owned(),
            Err(_) => format!("these are: {}", known.join(", ")),
        };
        LoadError::unsupported(&c.checkpoint().path, what, why)
    })
}

/// Why a checkpoint with an encoder is no decoder.
pub(super) fn has_an_encoder(c: &Config<'_>) -> LoadError {
    let what = format!("text generation with the architecture {:?}", c.arch());
    let why = "it has an encoder: `tallow run` takes one prompt at a time for it if it reads text, `tallow transcribe` if it hears";
    LoadError::unsupported(&c.checkpoint().path, what, why)
}
