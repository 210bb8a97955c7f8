//! The engine on faulty and on real devices.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod adapters;
mod ahead;
mod bad_weights;
mod candidates;
mod common;
mod constraints;
mod disk_cache;
mod disk_states;
mod drafts;
mod embedder;
mod engine;
mod invariants;
mod lost;
mod pipelined;
mod ram_cache;
mod reads;
mod replays;
mod sampler;
mod scheduler;
mod schedules;
mod seq2seq;
mod snapshots;
mod spawn;
mod swa;
mod transcribe;
