//! Between text and tokens, as a model's files say.
//!
//! [`tokenizer`] encodes and decodes; [`template`] renders a chat to the prompt that a model was trained on;
//! [`output`] divides what a model writes into reasoning, content and tool calls; [`reasoning`] separates a model's
//! reasoning from its answer; [`answer_tokens`] keeps the tokens of answers; [`generation`] reads a model's default
//! sampling settings.

pub mod answer_tokens;
pub mod generation;
pub mod output;
pub mod reasoning;
pub mod template;
pub mod tokenizer;

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
