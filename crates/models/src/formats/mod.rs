//! Model files: mapped, checked, and read as named tensors and metadata.

pub mod gguf;
pub mod map;
