//! From files to a running model.
//!
//! [`tallow_checkpoint`] opens files; [`families`] detect the architecture and build a [`spec::DecoderSpec`];
//! [`decoder::Decoder`] loads it onto a device and runs it, out of shared [`blocks`]. [`encoder::Encoder`] does the
//! same for encoders, [`seq2seq::Seq2Seq`] for encoder-decoder models.

pub mod adapter;
mod any_model;
pub mod blocks;
pub mod decoder;
pub mod encoder;
mod error;
pub mod families;
pub mod file_type;
mod like;
mod model;
pub mod mtp;
pub mod recipe;
pub mod seq2seq;
pub mod spec;
pub mod speech;
pub mod weights;

pub use any_model::AnyModel;
pub use error::{LoadError, Result};
pub use like::like;
pub use model::Model;

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
