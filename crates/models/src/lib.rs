//! From files to a running model.
//!
//! [`formats`] opens files as a checkpoint; [`families`] detect its architecture and build a [`spec::DecoderSpec`];
//! [`decoder::Decoder`] loads it onto a device and runs it, out of shared [`blocks`]. [`encoder::Encoder`] does the
//! same for encoders, [`seq2seq::Seq2Seq`] for encoder-decoder models.

pub mod adapter;
pub mod blocks;
pub mod convert;
pub mod decoder;
pub mod encoder;
mod error;
pub mod families;
pub mod file_type;
pub mod formats;
pub mod generation;
pub mod images;
mod model;
pub mod reasoning;
pub mod recipe;
pub mod seq2seq;
pub mod spec;
pub mod speech;
pub mod template;
pub mod tokenizer;
pub mod weights;

pub use error::LoadError;
pub use model::{AnyModel, Model};
