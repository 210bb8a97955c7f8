//! [`AnyModel`]: a checkpoint of any kind.

use tallow_checkpoint::Checkpoint;
use tallow_checkpoint::config::Config;

use crate::encoder::EncoderModel;
use crate::error::Result;
use crate::families;
use crate::model::Model;
use crate::seq2seq::Seq2SeqModel;

/// A checkpoint of any kind.
#[derive(Debug, Clone)]
pub enum AnyModel {
    /// Generates text.
    Decoder(Box<Model>),
    /// Computes embeddings or scores.
    Encoder(Box<EncoderModel>),
    /// Encodes a text or audio, then generates text.
    Seq2Seq(Box<Seq2SeqModel>),
}

impl AnyModel {
    /// Detects the kind and family of a checkpoint.
    pub fn new(checkpoint: Checkpoint) -> Result<AnyModel> {
        let config = Config::new(&checkpoint)?;
        if families::seq2seq_family(&config).is_some() {
            return Ok(AnyModel::Seq2Seq(Box::new(Seq2SeqModel::new(checkpoint)?)));
        }
        match families::encoder(&config)? {
            Some(_) => Ok(AnyModel::Encoder(Box::new(EncoderModel::new(checkpoint)?))),
            None => Ok(AnyModel::Decoder(Box::new(Model::new(checkpoint)?))),
        }
    }
}
