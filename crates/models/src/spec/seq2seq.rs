//! [`Seq2SeqSpec`]: the architecture of an encoder-decoder model as plain values.

use super::DecoderSpec;
use super::encoder::EncoderSpec;

/// Architecture of an encoder-decoder model.
#[derive(Debug, Clone, PartialEq)]
pub struct Seq2SeqSpec {
    /// The encoder.
    pub encoder: EncoderSpec,
    /// The decoder.
    pub decoder: DecoderSpec,
    /// Decoder start token.
    pub start: u32,
    /// True if encoder and decoder share the token embedding.
    pub shares_embedding: bool,
}
