//! Structured output: which tokens may come next in a text that has to conform to a JSON Schema, a regular expression
//! or a grammar.
//!
//! A [`Compiler`] turns a client's [`Grammar`] into a [`Compiled`] one, within [`Limits`], or says why not
//! ([`Refused`]). A [`Matcher`] of it has the mask of each step.

mod cache;
mod calls;
mod check;
mod compiled;
mod compiler;
mod engine;
mod expression;
mod gbnf;
mod grammar;
mod lark;
mod limits;
mod list;
mod matcher;
mod parts;
mod pattern;
mod refused;
mod rules;
mod schema;
mod tagged;
mod vocabulary;

pub use calls::{Beside, Callable, Calls};
pub use check::{Place, check_instance};
pub use compiled::Compiled;
pub use compiler::Compiler;
pub use grammar::{Grammar, List, Members, Tag, Tagged};
pub use limits::Limits;
pub use matcher::{MatchError, Matcher};
pub use refused::Refused;
pub use schema::refused_keywords;
pub use vocabulary::Vocabulary;

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
