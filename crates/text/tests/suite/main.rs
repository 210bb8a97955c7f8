//! Tokenizers, chat templates and reasoning against references.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod answer_tokens;
mod reasoning;
mod template;
mod tokenizer;
mod tokenizer_files;
