//! Chats and completions, from fields of the body to the answer's JSON.
//!
//! [`params`] and [`prompt`] take the request's fields, [`run`] submits it to the engine, [`answers`] merges the engine's
//! events into [`outputs`], and [`wire`] writes these as JSON: whole, or chunk by chunk in a [`stream`].

pub(crate) mod answers;
pub(crate) mod constraint;
pub(crate) mod lora;
pub(crate) mod outputs;
pub(crate) mod params;
pub(crate) mod prompt;
pub(crate) mod run;
pub(crate) mod stream;
pub(crate) mod structure;
pub(crate) mod thinking;
pub(crate) mod tools;
pub(crate) mod wire;
