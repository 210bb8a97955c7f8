//! Chats and completions, from fields of the body to the answer's JSON.
//!
//! [`params`] and [`prompt`] take the request's fields, [`run`] submits it to the engine, and [`answers`] merges the
//! engine's events into [`outputs`]. A [`writer`] of the request's [`protocol`] writes these as JSON: whole, or piece by
//! piece in a [`stream`].

pub(crate) mod answers;
pub(crate) mod anthropic;
pub(crate) mod items;
pub(crate) mod lora;
pub(crate) mod memory;
pub(crate) mod native;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod outputs;
pub(crate) mod params;
pub(crate) mod prompt;
pub(crate) mod protocol;
pub(crate) mod responses;
pub(crate) mod run;
pub(crate) mod stream;
pub(crate) mod structure;
pub(crate) mod thinking;
pub(crate) mod tools;
pub(crate) mod writer;
