//! [`Grammar::calls`]: calls of tools, as a family of models writes them.

use serde_json::Value;
use tallow_text::output::{Arguments, Writing};

use crate::grammar::{Grammar, List, Members, Tag, Tagged};
use crate::refused::Refused;

/// A tool that may be called.
#[derive(Debug, Clone, PartialEq)]
pub struct Callable {
    /// Its name.
    pub name: String,
    /// The JSON Schema of its arguments, which are an object.
    pub parameters: Value,
    /// True if keywords that cannot be enforced are left out; if not, they refuse the schema.
    pub best_effort: bool,
}

impl Grammar {
    /// Texts of this grammar or of another.
    #[must_use]
    pub fn or(self, other: Grammar) -> Grammar {
        let tag = |grammar| Tag { begin: String::new(), grammar, end: String::new() };
        let tags = vec![tag(self), tag(other)];
        Grammar::Tagged(Tagged { triggers: Vec::new(), tags, at_least_one: true, stop_after_first: true })
    }

    /// Free text, in which a call may begin at any time; then it is one of these tools. Refusals as those of
    /// [`calls`](Grammar::calls).
    pub fn text_with_calls(
        writing: &Writing,
        tools: &[Callable],
        is_single: bool,
    ) -> Result<Grammar, Refused> {
        let Grammar::List(List { open, items, between, close }) = Grammar::calls(writing, tools, is_single)?
        else {
            return Ok(Grammar::Text);
        };
        // Calls that stand alone need no list.
        let tags = if open.is_empty() && close.is_empty() {
            items
        } else {
            let grammar = Grammar::List(List { open: String::new(), items, between, close });
            vec![Tag { begin: open, grammar, end: String::new() }]
        };
        let triggers = vec![writing.trigger().to_owned()];
        Ok(Grammar::Tagged(Tagged { triggers, tags, at_least_one: false, stop_after_first: is_single }))
    }

    /// Calls of these tools and nothing else, one after another, or one alone. A refusal has the place of the tool in the list:
    /// `/items/2/grammar`, and the place in its schema behind that.
    pub fn calls(writing: &Writing, tools: &[Callable], is_single: bool) -> Result<Grammar, Refused> {
        let item = |(i, tool): (usize, &Callable)| {
            let (begin, end) = writing.around(&tool.name).ok_or_else(|| {
                let why = format!(
                    "the name {:?} cannot be written in this model's calls: use letters and digits",
                    tool.name
                );
                Refused::at(format!("/items/{i}"), why)
            })?;
            let (schema, best_effort) = (tool.parameters.clone(), tool.best_effort);
            let grammar = match writing.arguments() {
                Arguments::Object => Grammar::JsonSchema { schema, best_effort },
                Arguments::Each(each) => Grammar::Members(Members {
                    schema,
                    best_effort,
                    before_key: each.before_key.into(),
                    before_text: each.before_text.into(),
                    before_json: each.before_json.into(),
                    after_value: each.after_value.into(),
                    ends: each.ends().map(str::to_owned).collect(),
                }),
            };
            Ok::<_, Refused>(Tag { begin, grammar, end: end.into() })
        };
        Ok(Grammar::List(List {
            open: writing.open().into(),
            items: tools.iter().enumerate().map(item).collect::<Result<_, _>>()?,
            between: writing.between().filter(|_| !is_single).map(str::to_owned),
            close: writing.close().into(),
        }))
    }
}
