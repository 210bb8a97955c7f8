//! Input that is not text, from files to what encoders take.
//!
//! [`audio`] decodes sound files to samples, of which [`mel`] computes log-mel frames; [`image`] decodes, resizes, crops
//! and normalises pictures.

pub mod audio;
mod fft;
pub mod image;
pub mod mel;

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
