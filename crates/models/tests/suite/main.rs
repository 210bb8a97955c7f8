//! Models against references.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod act_order;
mod adapters;
mod devices;
mod embedders;
mod encoders;
mod gguf_encoders;
mod goldens;
mod images;
mod launches;
mod mtp;
mod seq2seq;
