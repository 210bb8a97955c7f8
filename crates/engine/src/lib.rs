//! Many requests, one model, one thread.
//!
//! A [`scheduler`] picks sequences, a [`plan`] turns them into a step, a [`runner`] runs it and samples tokens, a
//! [`pool`] lends pages of the cache, [`pace`] says how large a step may be. An [`engine`] does that in a loop and talks
//! to the world through a [`handle`]. Requests may have [`adapters`] of the model. An [`embedder`] does the same for
//! models that make vectors of texts, [`seq2seq`] for those that take in all of a text or a sound and then write.
//! [`transcribe`] has a scribe go through a long sound.

mod admission;
pub mod answer;
pub mod block_pool;
pub mod counts;
pub mod embedder;
pub mod engine;
pub mod handle;
pub mod kv_cache;
pub mod lora;
pub mod plan;
pub mod runner;
pub mod sampler;
pub mod scheduler;
pub mod seq2seq;
pub mod sim;
pub mod step_budget;
pub mod transcribe;
