//! [`Writing`]: how a model writes calls where it is made to call.

use super::step::Raw;
use super::tools::ends_name;

/// The texts around the names of tools and their arguments.
#[derive(Debug, Clone, Copy)]
pub struct Writing {
    /// A text of the templates whose models write so; of all templates if it is empty.
    pub(super) shown_by: &'static str,
    /// In front of the first call.
    pub(super) open: &'static str,
    /// In front of a name.
    pub(super) before_name: &'static str,
    /// Between a name and its arguments.
    pub(super) before_arguments: &'static str,
    /// The syntax of the arguments.
    pub(super) arguments: Arguments,
    /// Behind the arguments.
    pub(super) after_arguments: &'static str,
    /// Between two calls; `None` if there is one alone.
    pub(super) between: Option<&'static str>,
    /// Behind the last call.
    pub(super) close: &'static str,
    /// The messages beside calls, where a model writes several in one answer.
    pub(super) channels: Option<&'static Channels>,
}

/// The messages beside calls of models that write several in one answer: the text around each.
#[derive(Debug, Clone, Copy)]
pub struct Channels {
    /// Around reasoning, of which there may be none.
    pub reasoning: (&'static str, &'static str),
    /// Around text in front of calls.
    pub preamble: (&'static str, &'static str),
    /// In front of an answer, which is the last message.
    pub answer: &'static str,
}

/// The syntax of arguments.
#[derive(Debug, Clone, Copy)]
pub enum Arguments {
    /// As a JSON object.
    Object,
    /// One by one.
    Each(Each),
}

/// The texts around arguments that are written one by one: strings as they are, other values as JSON.
#[derive(Debug, Clone, Copy)]
pub struct Each {
    /// In front of a name.
    pub before_key: &'static str,
    /// Between a name and a string.
    pub before_text: &'static str,
    /// Between a name and another value.
    pub before_json: &'static str,
    /// Behind a value.
    pub after_value: &'static str,
    /// How a value is read.
    pub(super) raw: &'static Raw,
}

impl Each {
    /// Texts that no value contains, since it is read as ending there.
    pub fn ends(&self) -> impl Iterator<Item = &'static str> {
        self.raw.never.iter().copied().chain([self.raw.end])
    }
}

/// Objects with `name` and `arguments`.
pub(super) const OBJECT: Writing = Writing {
    shown_by: "",
    open: "",
    before_name: "{\"name\": \"",
    before_arguments: "\", \"arguments\": ",
    arguments: Arguments::Object,
    after_arguments: "}",
    between: None,
    close: "",
    channels: None,
};

/// Objects with `name` and `arguments` in a list, without its brackets.
pub(super) const OBJECTS: Writing = Writing { between: Some(", "), ..OBJECT };

/// Objects with `name` and `parameters`.
pub(super) const PARAMETERS: Writing = Writing { before_arguments: "\", \"parameters\": ", ..OBJECT };

impl Writing {
    /// The text by which calls begin in free text.
    pub fn trigger(&self) -> &'static str {
        let first = if self.open.is_empty() { self.before_name } else { self.open };
        first.lines().next().unwrap_or_default().trim_end()
    }

    /// The text in front of the first call.
    pub fn open(&self) -> &'static str {
        self.open
    }

    /// The syntax of arguments.
    pub fn arguments(&self) -> Arguments {
        self.arguments
    }

    /// The text between two calls; `None` if there is one alone.
    pub fn between(&self) -> Option<&'static str> {
        self.between
    }

    /// The text behind the last call.
    pub fn close(&self) -> &'static str {
        self.close
    }

    /// The messages beside calls, where a model writes several in one answer: calls stand at the end.
    pub fn channels(&self) -> Option<&'static Channels> {
        self.channels
    }

    /// The texts in front of a call's arguments and behind them. `None` if a name like this cannot be written.
    pub fn around(&self, name: &str) -> Option<(String, &'static str)> {
        let is_json = matches!(self.arguments, Arguments::Object) && self.before_name.ends_with('"');
        let name = if is_json {
            let quoted = serde_json::Value::from(name).to_string();
            quoted[1..quoted.len() - 1].to_owned()
        } else {
            let plain = |c: char| !ends_name(c) && !matches!(c, '[' | ']' | '<' | '>' | '{' | ':');
            Some(name).filter(|name| !name.is_empty() && name.chars().all(plain))?.to_owned()
        };
        Some((format!("{}{name}{}", self.before_name, self.before_arguments), self.after_arguments))
    }
}
