//! Serving engine: many requests, one model, one thread.
//!
//! A [`scheduler`] picks sequences, [`plan`] turns them into a step, a [`runner`] runs it and samples tokens, a
//! [`block_pool`] owns the pages of the KV cache, a [`cache_tier`] keeps them in memory or files, [`step_budget`] calibrates the tokens per step. An [`engine`] does
//! that step by step and is controlled through a [`handle`]. Requests may use LoRA adapters ([`lora`]), and have an
//! [`encoder_input`] in an encoder-decoder model; [`transcribe`] runs speech recognition on such an engine. An
//! [`embedder`] serves encoders (embeddings, reranking). Both run in one loop, the [`service`].

pub mod admission;
pub mod answer;
pub mod block_pool;
pub mod cache_tier;
pub mod counts;
pub mod embedder;
pub mod encoder_input;
pub mod engine;
pub mod failure;
pub mod handle;
pub mod kv_cache;
pub mod lora;
pub mod plan;
pub mod runner;
pub mod sampler;
pub mod scheduler;
pub mod service;
pub mod sim;
pub mod step_budget;
pub mod step_lock;
pub mod transcribe;
