//! Settings common to encoder-decoder families.

use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names::Names;
use tallow_checkpoint::{FileError, Result};

use super::{Declared, declared, find};
use crate::spec::seq2seq::Seq2SeqSpec;

/// An encoder-decoder architecture (T5, Whisper): encodes a text or audio, then decodes text.
#[derive(Debug)]
pub struct Seq2SeqFamily {
    /// Display name.
    pub name: &'static str,
    /// `architectures` in `config.json`.
    pub hf: &'static [&'static str],
    /// Tensor names of the encoder, in Hugging Face folders.
    pub encoder: Names,
    /// Tensor names of the decoder.
    pub decoder: Names,
    /// Prefixes of duplicate or unused tensors.
    pub spare: &'static [&'static str],
    /// Reads the settings.
    pub spec: fn(&Config<'_>) -> Result<Seq2SeqSpec>,
}

/// All encoder-decoder families.
fn all() -> impl Iterator<Item = &'static Seq2SeqFamily> {
    declared().filter_map(|d| if let Declared::Seq2Seq(family) = d { Some(family) } else { None })
}

/// The encoder-decoder family of a checkpoint, if it has one.
pub fn seq2seq_family(c: &Config<'_>) -> Option<&'static Seq2SeqFamily> {
    all().find(|f| !c.is_gguf() && f.hf.contains(&c.arch()))
}

/// [`seq2seq_family`], or an error that says why there is none.
pub fn find_seq2seq(c: &Config<'_>) -> Result<&'static Seq2SeqFamily> {
    seq2seq_family(c).ok_or_else(|| {
        let known: Vec<&str> = all().flat_map(|f| f.hf).copied().collect();
        let what = format!("encoder-decoder inference with the architecture {:?}", c.arch());
        let why = match find(c) {
            Ok(_) => "it has a decoder alone: `tallow run` and `tallow serve` are for it".to_owned(),
            Err(_) => format!("these are: {}", known.join(", ")),
        };
        FileError::unsupported(&c.checkpoint().path, what, why)
    })
}

/// Error for decoder-only text generation with an encoder-decoder checkpoint.
pub(super) fn has_an_encoder(c: &Config<'_>) -> FileError {
    let what = format!("text generation with the architecture {:?}", c.arch());
    let why = "it has an encoder: `tallow run` takes one prompt at a time for it if it reads text, `tallow transcribe` if it takes audio";
    FileError::unsupported(&c.checkpoint().path, what, why)
}
