//! [`Grammar`]: a client's demand on a text.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A client's demand on a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Grammar {
    /// A JSON object.
    JsonObject,
    /// JSON that is valid under a JSON Schema.
    JsonSchema {
        /// The schema.
        schema: Value,
        /// True if keywords that cannot be enforced are left out; if not, they refuse the schema.
        best_effort: bool,
    },
    /// JSON that is valid under a JSON Schema, with the blanks of Python's `json.dumps`: so templates write the arguments of
    /// earlier calls.
    Arguments {
        /// The schema.
        schema: Value,
        /// True if keywords that cannot be enforced are left out; if not, they refuse the schema.
        best_effort: bool,
    },
    /// A regular expression in the syntax of Rust's `regex` crate, which matches the whole text.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in llama.cpp's notation.
    Gbnf(String),
    /// A grammar in `llguidance`'s variant of Lark.
    Lark(String),
    /// Any text.
    Text,
    /// Free text with parts that conform to grammars.
    Tagged(Tagged),
    /// Parts that conform to grammars, one behind the other.
    List(List),
    /// The members of an object that is valid under a JSON Schema, each between texts of its own.
    Members(Members),
}

/// Free text in which certain words begin a part that conforms to a grammar (structural tags; tools use it).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tagged {
    /// Once one of these has been written, a tag that begins with it must follow.
    pub triggers: Vec<String>,
    /// The parts that may stand in the text.
    pub tags: Vec<Tag>,
    /// At least one tag must be written.
    pub at_least_one: bool,
    /// The text ends after the first tag.
    pub stop_after_first: bool,
}

/// A part of a text that conforms to a grammar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tag {
    /// The text in front of it; it begins with a trigger.
    pub begin: String,
    /// The grammar of what is between.
    pub grammar: Grammar,
    /// The text behind it.
    pub end: String,
}

/// One or more parts in a row. In the texts around them and around their grammars, special tokens that are written out are
/// those tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct List {
    /// Parts that may stand in front of it, each any number of times.
    pub before: Vec<Tag>,
    /// The text in front of the first part.
    pub open: String,
    /// The parts, each any number of times.
    pub items: Vec<Tag>,
    /// The text between two parts; without it there is one part.
    pub between: Option<String>,
    /// The text behind the last part.
    pub close: String,
}

/// The members of an object that is valid under a JSON Schema, each between texts of its own, in which special tokens that are
/// written out are those tokens. Strings are written as they are, and other values as JSON with the blanks of Python's
/// `json.dumps`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Members {
    /// The schema.
    pub schema: Value,
    /// True if keywords that cannot be enforced are left out; if not, they refuse the schema.
    pub best_effort: bool,
    /// The text in front of a name.
    pub before_key: String,
    /// The text between a name and a string.
    pub before_text: String,
    /// The text between a name and another value. Where it is the same, the schema alone tells strings from other values.
    pub before_json: String,
    /// The text behind a value.
    pub after_value: String,
    /// Texts that are in no value: a reader would take them for its end.
    pub ends: Vec<String>,
}
