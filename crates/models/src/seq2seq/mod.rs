//! [`Seq2Seq`]: a model that takes in all of a text or a sound, and then writes. Its encoder is an encoder like others, and
//! its decoder a decoder whose layers look at what the encoder gave, too.

use std::path::Path;

use tallow_core::{Backend, Result, StepPlan, Tensor};

use crate::blocks::cache::LayerCache;
use crate::decoder::Decoder;
use crate::encoder::Encoder;
use crate::encoder::spec::EncoderSpec;
use crate::error::Result as LoadResult;
use crate::families::{self, Seq2SeqFamily};
use crate::formats::Checkpoint;
use crate::formats::config::Config;
use crate::generation::Generation;
use crate::spec::DecoderSpec;
use crate::tokenizer::Tokenizer;
use crate::weights::{Common, Progress, Source, Weights, named};

/// What tells one from another.
#[derive(Debug, Clone, PartialEq)]
pub struct Seq2SeqSpec {
    /// What takes in.
    pub encoder: EncoderSpec,
    /// What writes.
    pub decoder: DecoderSpec,
    /// The token that writing begins with.
    pub start: u32,
    /// Do both have one embedding?
    pub shares_embedding: bool,
}

/// Such a model as its files describe it.
#[derive(Debug, Clone)]
pub struct Seq2SeqModel {
    /// Its files.
    pub checkpoint: Checkpoint,
    /// What kind it is.
    pub family: &'static Seq2SeqFamily,
    /// How it is built.
    pub spec: Seq2SeqSpec,
}

impl Seq2SeqModel {
    /// Opens a Hugging Face folder.
    pub fn open(path: &Path) -> LoadResult<Seq2SeqModel> {
        Seq2SeqModel::new(Checkpoint::open(path)?)
    }

    /// Finds out what a checkpoint is.
    pub fn new(checkpoint: Checkpoint) -> LoadResult<Seq2SeqModel> {
        let config = Config::new(&checkpoint)?;
        let family = families::find_seq2seq(&config)?;
        let spec = (family.spec)(&config)?;
        Ok(Seq2SeqModel { checkpoint, family, spec })
    }

    fn source(&self) -> Source<'_> {
        let (dim, norm) = (self.spec.decoder.dim, self.spec.decoder.norm);
        let spec = Common { dim, norm, side: None };
        Source { checkpoint: &self.checkpoint, names: self.family.encoder, spec, quantizing: None }
    }

    /// Does it take what is heard? Else it takes tokens.
    pub fn hears(&self) -> bool {
        self.spec.encoder.sound.is_some()
    }

    /// Bytes that a device is given of all tensors.
    pub fn weight_bytes(&self) -> usize {
        self.source().bytes()
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> LoadResult<Tokenizer> {
        let tokenizer = Tokenizer::from_folder(&self.checkpoint.path)?;
        tokenizer.belongs_to(&self.checkpoint.path, self.spec.decoder.vocab)?;
        Ok(tokenizer.ending_with(&self.generation()?.ends))
    }

    /// How its makers would have tokens chosen.
    pub fn generation(&self) -> LoadResult<Generation> {
        Generation::read(&self.checkpoint)
    }
}

/// Such a model on a device.
#[derive(Debug)]
pub struct Seq2Seq<B: Backend> {
    /// What takes in.
    pub encoder: Encoder<B>,
    /// What writes.
    pub decoder: Decoder<B>,
}

impl<B: Backend> Seq2Seq<B> {
    /// Brings a model's weights to a device.
    pub fn load(b: &B, model: &Seq2SeqModel, progress: Progress<'_>) -> LoadResult<Seq2Seq<B>> {
        let (spec, family) = (&model.spec, model.family);
        let mut w = Weights::new(b, model.source(), progress);
        let encoder = Encoder::read(&mut w, &spec.encoder, &family.parts, spec.encoder.context)?;
        w.turn_to(family.decoder);
        let shared = encoder.embedding().filter(|_| spec.shares_embedding);
        let decoder = Decoder::read(&mut w, &spec.decoder, spec.decoder.context, shared)?;
        w.finish(family.name, |name| {
            let tied_head = spec.decoder.tied_embeddings && name == named(family.decoder.head);
            tied_head || family.spare.iter().any(|start| name.starts_with(start))
        })?;
        Ok(Seq2Seq { encoder, decoder })
    }

    /// The logits of a step's outputs. `given` is where what was taken in is kept, and which tokens look at what of it.
    pub fn write(
        &self,
        b: &B,
        plan: &StepPlan<B>,
        caches: &[LayerCache<B>],
        given: (&StepPlan<B>, &[LayerCache<B>]),
    ) -> Result<Tensor<B>> {
        let x = self.decoder.forward_across(b, plan, caches, Some(given), |_, _| Ok(()))?;
        self.decoder.logits(b, plan, &x)
    }
}
