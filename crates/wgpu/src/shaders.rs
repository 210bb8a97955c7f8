//! The WGSL files of `shaders`, compiled into the program.

use crate::preprocess::File;

/// All files: kernels, and what they include.
pub(crate) static FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/shaders.rs"));
