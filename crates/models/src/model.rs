//! [`Model`]: a checkpoint whose family is known, not yet on a device.

use std::path::Path;

use crate::error::Result;
use crate::families::{self, Family};
use crate::formats::Checkpoint;
use crate::formats::config::Config;
use crate::formats::names::Names;
use crate::spec::DecoderSpec;

/// A model as its files describe it.
#[derive(Debug, Clone)]
pub struct Model {
    /// Its files.
    pub checkpoint: Checkpoint,
    /// What kind it is.
    pub family: &'static Family,
    /// How it is built.
    pub spec: DecoderSpec,
}

impl Model {
    /// Opens a GGUF file or a Hugging Face folder.
    pub fn open(path: &Path) -> Result<Model> {
        Model::new(Checkpoint::open(path)?)
    }

    /// Finds out what a checkpoint is.
    pub fn new(checkpoint: Checkpoint) -> Result<Model> {
        let config = Config::new(&checkpoint)?;
        let family = families::find(&config)?;
        let spec = (family.spec)(&config)?;
        Ok(Model { checkpoint, family, spec })
    }

    pub(crate) fn names(&self) -> Names {
        match self.checkpoint.settings {
            crate::formats::Settings::Gguf(_) => self.family.gguf_names,
            crate::formats::Settings::Hf(_) => self.family.hf_names,
        }
    }
}
