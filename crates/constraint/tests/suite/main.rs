//! Tests of structured output.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod calls;
mod docs;
mod gbnf;
mod hostile;
mod lists;
mod random;
mod schemas;
mod texts;
mod vectors;
mod vocabularies;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use tallow_constraint::{Compiler, Grammar, Limits, Refused, Vocabulary, check_instance};
use tallow_text::tokenizer::Tokenizer;

/// A compiler for a tokenizer of the shared data, which is built once.
fn compiler(tokenizer: &str) -> Option<Compiler> {
    let folder = tallow_support::shared(tokenizer)?;
    Some(Compiler::new(Arc::new(vocabulary(&folder)), Limits::default()))
}

fn vocabulary(folder: &Path) -> Vocabulary {
    Vocabulary::new(&Tokenizer::from_folder(folder).unwrap()).unwrap()
}

/// A compiler for a vocabulary of 512 tokens.
fn tiny() -> Option<&'static Compiler> {
    static TINY: OnceLock<Option<Compiler>> = OnceLock::new();
    TINY.get_or_init(|| compiler("stories260K-hf")).as_ref()
}

/// True if the text conforms to the grammar, token by token.
fn accepts(grammar: &Grammar, text: &str) -> bool {
    let compiled = tiny().unwrap().compile(grammar).unwrap_or_else(|e| panic!("{grammar:?}: {e}"));
    check_instance(&compiled, text).is_ok()
}

/// The message of a grammar that is refused.
fn refusal(grammar: &Grammar) -> String {
    match tiny().unwrap().compile(grammar) {
        Ok(_) => panic!("{grammar:?} is not refused"),
        Err(refused @ Refused { .. }) => refused.to_string(),
    }
}

fn schema(schema: serde_json::Value) -> Grammar {
    Grammar::JsonSchema { schema, best_effort: false }
}
