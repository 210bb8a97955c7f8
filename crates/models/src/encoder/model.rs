//! [`EncoderModel`]: an encoder's checkpoint with its family and spec, not yet on a device.

use std::path::Path;

use tallow_checkpoint::config::Config;
use tallow_checkpoint::{Checkpoint, Settings};
use tallow_text::tokenizer::Tokenizer;

use super::Classes;
use super::clip_similarity::ClipSimilarity;
use super::sentence_transformers::SentenceTransformers;
use crate::error::{LoadError, Result};
use crate::families::{self, EncoderArch};
use crate::spec::encoder::{DenseSpec, EncoderSpec};
use crate::weights::{Common, Source};

/// Checks that each dense layer takes as many inputs as the one before returns.
fn fitting(checkpoint: &Checkpoint, dense: Vec<DenseSpec>, spec: &EncoderSpec) -> Result<Vec<DenseSpec>> {
    let mut width = spec.width();
    for dense in &dense {
        let what = format!("{}: in_features = {}", dense.name, dense.inputs);
        if spec.pooling_head.is_some() || spec.head.is_some() {
            let why = "only vectors that are pooled of hidden states go through such layers";
            return Err(LoadError::unsupported(&checkpoint.path, what, why));
        }
        if dense.inputs != width {
            let why = format!("{width} numbers come out before it");
            return Err(LoadError::bad(&checkpoint.path, what, why));
        }
        width = dense.width;
    }
    Ok(dense)
}

/// An encoder as its files describe it.
#[derive(Debug, Clone)]
pub struct EncoderModel {
    /// The files.
    pub checkpoint: Checkpoint,
    /// The model family, by which it is read.
    pub family: EncoderArch,
    /// The architecture.
    pub spec: EncoderSpec,
    /// Pooling, length limit and lowercasing as sentence-transformers stores them.
    pub sentence: SentenceTransformers,
    /// In a dual encoder of texts, the image encoder of the same checkpoint.
    pub image_encoder: Option<Box<EncoderModel>>,
    /// Similarity of texts and images, if the checkpoint has its parameters.
    pub matching: Option<ClipSimilarity>,
    /// True to load heads that only `dump` shows (masked language model head, pooler).
    pub extras: bool,
}

impl EncoderModel {
    /// Opens a Hugging Face folder.
    pub fn open(path: &Path) -> Result<EncoderModel> {
        EncoderModel::new(Checkpoint::open(path)?)
    }

    /// Detects a checkpoint's family and reads its spec.
    pub fn new(mut checkpoint: Checkpoint) -> Result<EncoderModel> {
        let config = Config::new(&checkpoint)?;
        let family = families::find_encoder(&config)?;
        if family.is_decoder() {
            checkpoint.keep_text();
        }
        let config = Config::new(&checkpoint)?;
        let usual = family.usual_pooling(&family.read(&config)?);
        let sentence = SentenceTransformers::read(&config, usual)?;
        let mut dense = DenseSpec::of_gguf(&checkpoint)?;
        for folder in &sentence.dense {
            dense.push(DenseSpec::read(&mut checkpoint, folder)?);
        }
        let config = Config::new(&checkpoint)?;
        let made = |family: EncoderArch, image_encoder| {
            let (checkpoint, mut spec) = (checkpoint.clone(), family.read(&config)?);
            // The length limit of texts does not apply to images.
            let most_tokens = sentence.most_tokens.filter(|_| spec.patches.is_none());
            let sentence = SentenceTransformers { most_tokens, ..sentence.clone() };
            spec.dense = fitting(&checkpoint, dense.clone(), &spec)?;
            Ok(EncoderModel {
                checkpoint,
                family,
                spec,
                sentence,
                image_encoder,
                matching: None,
                extras: false,
            })
        };
        let Some(images) = families::encoder_of_images(&config) else { return made(family, None) };
        let images = made(images, None)?;
        let both = EncoderModel {
            matching: ClipSimilarity::read(&checkpoint)?,
            ..made(family, Some(Box::new(images)))?
        };
        both.alike()?;
        Ok(both)
    }

    /// Vectors of texts and of images are comparable only if they are equally wide.
    fn alike(&self) -> Result<()> {
        let widths =
            (self.spec.width(), self.image_encoder.as_ref().map_or(self.spec.width(), |m| m.spec.width()));
        match widths {
            (texts, images) if texts == images => Ok(()),
            (texts, images) => {
                let what =
                    format!("a model whose vectors have {texts} numbers for texts and {images} for images");
                Err(LoadError::unsupported(&self.checkpoint.path, what, "as many for both are"))
            }
        }
    }

    /// The text encoder, if there is one.
    pub fn of_texts(&self) -> Option<&EncoderModel> {
        self.spec.patches.is_none().then_some(self)
    }

    /// The image encoder, if there is one.
    pub fn of_images(&self) -> Option<&EncoderModel> {
        if self.spec.patches.is_some() { Some(self) } else { self.image_encoder.as_deref() }
    }

    pub(crate) fn source(&self) -> Source<'_> {
        let spec = Common { dim: self.spec.dim, norm: self.spec.norm, per_layer_dim: None };
        Source { checkpoint: &self.checkpoint, names: self.family.names(), spec, quantizing: None }
    }

    /// Bytes of all tensors as handed to the device.
    pub fn weight_bytes(&self) -> usize {
        let source = self.source();
        let is_unused = |name: &str| source.names.is_unused(name) || self.family.is_unused(name);
        let needed = self.checkpoint.tensors().filter(|(name, _)| !is_unused(name));
        needed.map(|(name, stored)| source.size(name, stored)).sum()
    }

    /// The longest text in tokens; for an image encoder, the rows of an image.
    pub fn context(&self) -> usize {
        self.sentence.most_tokens.map_or(self.spec.context, |most| most.min(self.spec.context))
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let tokenizer = match &self.checkpoint.settings {
            Settings::Gguf(meta) => Tokenizer::from_gguf(meta)?,
            Settings::Hf(_) => Tokenizer::from_folder(&self.checkpoint.path)?,
        };
        tokenizer.belongs_to(&self.checkpoint.path, self.spec.vocab)?;
        Ok(tokenizer)
    }

    /// Labels of its scores; `None` without a classification head.
    pub fn classes(&self) -> Result<Option<Classes>> {
        let Some(head) = self.spec.head else { return Ok(None) };
        Ok(Some(Classes::read(&Config::new(&self.checkpoint)?, head.labels)?))
    }

    /// Checks that it computes embeddings; the error says why not.
    pub fn embeds(&self) -> Result<()> {
        match self.spec.head.map(|head| head.labels) {
            None => Ok(()),
            Some(labels) => {
                let command = if labels == 1 { "rerank" } else { "classify" };
                let why = format!(
                    "its hidden states are made for that head: use `tallow {command}`, or take an embedding model"
                );
                let what = "computing embeddings by a model with a classification head";
                Err(LoadError::unsupported(&self.checkpoint.path, what, why))
            }
        }
    }

    /// Its labels; if it is no classifier, the error says why not.
    pub fn classifies(&self) -> Result<Classes> {
        self.classes()?.ok_or_else(|| {
            let what = "classifying by a model without a classification head";
            let why = "it computes embeddings, for `tallow embed`; take a model whose architecture ends in ForSequenceClassification";
            LoadError::unsupported(&self.checkpoint.path, what, why)
        })
    }

    /// Checks that it is a reranker (scores pairs of texts); the error says why not.
    pub fn ranks(&self) -> Result<()> {
        let refuse = |what: &str, why: &str| Err(LoadError::unsupported(&self.checkpoint.path, what, why));
        match self.spec.head.map(|head| head.labels) {
            Some(1) => Ok(()),
            Some(n) => {
                let what = format!("reranking by a model that gives {n} scores for a text");
                refuse(
                    &what,
                    "it is a classifier: use `tallow classify`, or take a reranker, which gives one score",
                )
            }
            None => {
                let why = "it computes embeddings, for `tallow embed`; take a reranker, whose architecture ends in ForSequenceClassification";
                refuse("reranking by a model without a head for scores", why)
            }
        }
    }
}
