//! [`Seq2Seq`]: encoder-decoder models (T5, Whisper). The encoder encodes a text or audio; the layers of the decoder
//! have cross-attention to its output.

use std::path::Path;

use tallow_checkpoint::Checkpoint;
use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names::Slot;
use tallow_core::Backend;
use tallow_text::generation::Generation;
use tallow_text::tokenizer::Tokenizer;

use crate::Result as LoadResult;
use crate::decoder::Decoder;
use crate::encoder::Encoder;
use crate::families::{self, Seq2SeqFamily};
use crate::spec::seq2seq::Seq2SeqSpec;
use crate::weights::{Common, Progress, Source, Weights};

/// An encoder-decoder model as its files describe it.
#[derive(Debug, Clone)]
pub struct Seq2SeqModel {
    /// The files.
    pub checkpoint: Checkpoint,
    /// The model family.
    pub family: &'static Seq2SeqFamily,
    /// The architecture.
    pub spec: Seq2SeqSpec,
}

impl Seq2SeqModel {
    /// Opens a Hugging Face folder.
    pub fn open(path: &Path) -> LoadResult<Seq2SeqModel> {
        Seq2SeqModel::new(Checkpoint::open(path)?)
    }

    /// Detects a checkpoint's family and reads its spec.
    pub fn new(checkpoint: Checkpoint) -> LoadResult<Seq2SeqModel> {
        let config = Config::new(&checkpoint)?;
        let family = families::find_seq2seq(&config)?;
        let spec = (family.spec)(&config)?;
        Ok(Seq2SeqModel { checkpoint, family, spec })
    }

    fn source(&self) -> Source<'_> {
        let (dim, norm) = (self.spec.decoder.dim, self.spec.decoder.norm);
        let spec = Common { dim, norm, per_layer_dim: None };
        Source { checkpoint: &self.checkpoint, names: &self.family.encoder, spec, quantizing: None }
    }

    /// True if it takes audio; otherwise it takes tokens.
    pub fn takes_audio(&self) -> bool {
        self.spec.encoder.audio.is_some()
    }

    /// Bytes of all tensors as handed to the device.
    pub fn weight_bytes(&self) -> usize {
        self.source().bytes()
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> LoadResult<Tokenizer> {
        let tokenizer = Tokenizer::from_folder(&self.checkpoint.path)?;
        tokenizer.belongs_to(&self.checkpoint.path, self.spec.decoder.vocab)?;
        Ok(tokenizer.ending_with(&self.generation()?.ends))
    }

    /// Default sampling settings (`generation_config.json`).
    pub fn generation(&self) -> tallow_checkpoint::Result<Generation> {
        Generation::read(&self.checkpoint)
    }
}

/// An encoder-decoder model on a device.
#[derive(Debug)]
pub struct Seq2Seq<B: Backend> {
    /// The encoder.
    pub encoder: Encoder<B>,
    /// The decoder.
    pub decoder: Decoder<B>,
}

impl<B: Backend> Seq2Seq<B> {
    /// Loads a model's weights onto a device.
    pub fn load(b: &B, model: &Seq2SeqModel, progress: Progress<'_>) -> LoadResult<Seq2Seq<B>> {
        let (spec, family) = (&model.spec, model.family);
        let mut w = Weights::new(b, model.source(), progress);
        let encoder = Encoder::read(&mut w, &spec.encoder, spec.encoder.context)?;
        w.with_names(&family.decoder);
        let shared = encoder.embedding().filter(|_| spec.shares_embedding);
        let decoder = Decoder::read(&mut w, &spec.decoder, spec.decoder.context, shared)?;
        w.finish(family.name, |name| {
            let tied_head = spec.decoder.tied_embeddings
                && family.decoder.weight(Slot::Output, 0).as_deref() == Some(name);
            tied_head || family.spare.iter().any(|start| name.starts_with(start))
        })?;
        Ok(Seq2Seq { encoder, decoder })
    }
}
