//! The server as its clients see it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod access;
mod adapters;
mod attacks;
mod chats;
mod common;
mod embeddings;
mod fields;
mod grammars;
mod habits;
mod limits;
mod messages;
mod metrics;
mod native;
mod ollama;
mod pulls;
mod requests;
mod responses;
mod routes;
mod running;
mod several;
mod streams;
mod thinking;
mod tools;
mod turns;
