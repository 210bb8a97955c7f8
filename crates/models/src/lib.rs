//! From files to a running model: checkpoints in, [`Decoder`](crate::decoder::Decoder) out.

mod error;
pub mod formats;

pub use error::LoadError;
