//! [`EncoderModel`]: a checkpoint whose family of encoders is known, not yet on a device.

use std::path::Path;

use super::Classes;
use super::clip_similarity::ClipSimilarity;
use super::sentence_transformers::SentenceTransformers;
use super::spec::{DenseSpec, EncoderSpec};
use crate::error::{LoadError, Result};
use crate::families::{self, EncoderFamily};
use crate::formats::config::Config;
use crate::formats::{Checkpoint, Settings};
use crate::tokenizer::Tokenizer;
use crate::weights::{Common, Source};

/// Linear layers each of which takes what comes out before it.
fn fitting(checkpoint: &Checkpoint, dense: Vec<DenseSpec>, spec: &EncoderSpec) -> Result<Vec<DenseSpec>> {
    let mut width = spec.width();
    for dense in &dense {
        let what = format!("{}: in_features = {}", dense.name, dense.inputs);
        if spec.ending.is_some() || spec.head.is_some() {
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
    /// Its files.
    pub checkpoint: Checkpoint,
    /// What kind it is.
    pub family: &'static EncoderFamily,
    /// How it is built.
    pub spec: EncoderSpec,
    /// How its makers would have texts made into vectors.
    pub sentence: SentenceTransformers,
    /// What the same checkpoint sees images with, if this is for texts and there is something.
    pub beside: Option<Box<EncoderModel>>,
    /// How well texts and images go together, if the checkpoint says that.
    pub matching: Option<ClipSimilarity>,
    /// Are heads loaded too of which only `dump` shows what they give?
    pub extras: bool,
}

impl EncoderModel {
    /// Opens a Hugging Face folder.
    pub fn open(path: &Path) -> Result<EncoderModel> {
        EncoderModel::new(Checkpoint::open(path)?)
    }

    /// Finds out what a checkpoint is.
    pub fn new(mut checkpoint: Checkpoint) -> Result<EncoderModel> {
        let config = Config::new(&checkpoint)?;
        let family = families::find_encoder(&config)?;
        let sentence = SentenceTransformers::read(&config)?;
        let dense = sentence.dense.iter().map(|folder| DenseSpec::read(&mut checkpoint, folder));
        let dense = dense.collect::<Result<Vec<_>>>()?;
        let config = Config::new(&checkpoint)?;
        let made = |family: &'static EncoderFamily, beside| {
            let (checkpoint, mut spec) = (checkpoint.clone(), (family.spec)(&config)?);
            // The longest text has nothing to do with images.
            let most_tokens = sentence.most_tokens.filter(|_| spec.patches.is_none());
            let sentence = SentenceTransformers { most_tokens, ..sentence.clone() };
            spec.dense = fitting(&checkpoint, dense.clone(), &spec)?;
            Ok(EncoderModel { checkpoint, family, spec, sentence, beside, matching: None, extras: false })
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

    /// Vectors of texts and of images can only be compared if they are as long.
    fn alike(&self) -> Result<()> {
        let widths = (self.spec.width(), self.beside.as_ref().map_or(self.spec.width(), |m| m.spec.width()));
        match widths {
            (texts, images) if texts == images => Ok(()),
            (texts, images) => {
                let what =
                    format!("a model whose vectors have {texts} numbers for texts and {images} for images");
                Err(LoadError::unsupported(&self.checkpoint.path, what, "as many for both are"))
            }
        }
    }

    /// What it sees texts with, if it sees any.
    pub fn of_texts(&self) -> Option<&EncoderModel> {
        self.spec.patches.is_none().then_some(self)
    }

    /// What it sees images with, if it sees any.
    pub fn of_images(&self) -> Option<&EncoderModel> {
        if self.spec.patches.is_some() { Some(self) } else { self.beside.as_deref() }
    }

    pub(crate) fn source(&self) -> Source<'_> {
        let spec = Common { dim: self.spec.dim, norm: self.spec.norm, side: None };
        Source { checkpoint: &self.checkpoint, names: self.family.names, spec, quantizing: None }
    }

    /// Bytes that a device is given of all tensors.
    pub fn weight_bytes(&self) -> usize {
        self.source().bytes()
    }

    /// The longest text that it takes, in tokens; rows of an image, if it takes those.
    pub fn context(&self) -> usize {
        self.sentence.most_tokens.map_or(self.spec.context, |most| most.min(self.spec.context))
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let tokenizer = match &self.checkpoint.settings {
            Settings::Gguf(meta) => Tokenizer::from_gguf(meta)?,
            Settings::Hf(_) => Tokenizer::from_folder(&self.checkpoint.path)?,
        };
        tokenizer.belongs_to(&self.checkpoint.path, self.spec.vocab)?;
        Ok(tokenizer)
    }

    /// What its scores mean; `None` where it gives none.
    pub fn classes(&self) -> Result<Option<Classes>> {
        let Some(head) = self.spec.head else { return Ok(None) };
        Classes::read(&Config::new(&self.checkpoint)?, head.labels).map(Some)
    }

    /// Does it compute embeddings? If not, why.
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

    /// Does it classify texts? If not, why.
    pub fn classifies(&self) -> Result<Classes> {
        self.classes()?.ok_or_else(|| {
            let what = "classifying by a model without a classification head";
            let why = "it computes embeddings, for `tallow embed`; take a model whose architecture ends in ForSequenceClassification";
            LoadError::unsupported(&self.checkpoint.path, what, why)
        })
    }

    /// Does it score pairs of texts? If not, why.
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
