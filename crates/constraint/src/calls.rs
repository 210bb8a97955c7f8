//! [`Grammar::calls`]: calls of tools, as a family of models writes them.

use serde_json::Value;
use tallow_text::output::{Arguments, Channels, Writing};

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

/// Answers that are allowed besides calls.
#[derive(Debug, Clone, PartialEq)]
pub enum Beside {
    /// Nothing.
    Nothing,
    /// Free text, in which calls may begin at any time.
    Text,
    /// Text of this grammar, instead of calls.
    Instead(Grammar),
}

/// A grammar of calls, and where in it its parts are.
#[derive(Debug, Clone, PartialEq)]
pub struct Calls {
    /// The grammar.
    pub grammar: Grammar,
    /// Pointer of the list whose first elements are those of the tools, in their order.
    pub tools: &'static str,
    /// Pointer of the grammar that an answer may have instead.
    pub instead: Option<String>,
    /// True if the grammar has the reasoning in front of the answer, too.
    pub covers_reasoning: bool,
}

impl Grammar {
    /// Calls of these tools, one after another, or one alone. A refusal has the place of the tool in a list,
    /// `/items/2/grammar`, and the place in its schema behind that.
    pub fn calls(
        writing: &Writing,
        tools: &[Callable],
        is_single: bool,
        beside: Beside,
    ) -> Result<Calls, Refused> {
        let item = |(i, tool): (usize, &Callable)| {
            let (begin, end) = writing.around(&tool.name).ok_or_else(|| {
                let why = format!(
                    "the name {:?} cannot be written in this model's calls: use letters and digits",
                    tool.name
                );
                Refused::at(format!("/items/{i}"), why)
            })?;
            Ok::<_, Refused>(Tag { begin, grammar: arguments(writing, tool), end: end.into() })
        };
        let items: Vec<Tag> = tools.iter().enumerate().map(item).collect::<Result<_, _>>()?;
        if let Some(channels) = writing.channels() {
            return Ok(in_channels(channels, items, beside));
        }
        let list = List {
            before: Vec::new(),
            open: writing.open().into(),
            items,
            between: writing.between().filter(|_| !is_single).map(str::to_owned),
            close: writing.close().into(),
        };
        let calls = |grammar, tools, instead| Calls { grammar, tools, instead, covers_reasoning: false };
        Ok(match beside {
            Beside::Nothing => calls(Grammar::List(list), "/items", None),
            Beside::Instead(other) => {
                let tag = |grammar| Tag { begin: String::new(), grammar, end: String::new() };
                let tags = vec![tag(Grammar::List(list)), tag(other)];
                let either =
                    Tagged { triggers: Vec::new(), tags, at_least_one: true, stop_after_first: true };
                calls(Grammar::Tagged(either), "/tags/0/grammar/items", Some("/tags/1/grammar".into()))
            }
            Beside::Text => {
                // Calls that stand alone need no list.
                let is_plain = list.open.is_empty() && list.close.is_empty();
                let (tags, tools) = if is_plain {
                    (list.items, "/tags")
                } else {
                    let begin = list.open.clone();
                    let grammar = Grammar::List(List { open: String::new(), ..list });
                    (vec![Tag { begin, grammar, end: String::new() }], "/tags/0/grammar/items")
                };
                let triggers = vec![writing.trigger().to_owned()];
                let tagged = Tagged { triggers, tags, at_least_one: false, stop_after_first: is_single };
                calls(Grammar::Tagged(tagged), tools, None)
            }
        })
    }
}

/// The arguments of a tool, as they are written.
fn arguments(writing: &Writing, tool: &Callable) -> Grammar {
    let (schema, best_effort) = (tool.parameters.clone(), tool.best_effort);
    match writing.arguments() {
        Arguments::Object => Grammar::Arguments { schema, best_effort },
        Arguments::Each(each) => Grammar::Members(Members {
            schema,
            best_effort,
            before_key: each.before_key.into(),
            before_text: each.before_text.into(),
            before_json: each.before_json.into(),
            after_value: each.after_value.into(),
            ends: each.ends().map(str::to_owned).collect(),
        }),
    }
}

/// A call in a message of its own, behind the messages that may come first.
fn in_channels(channels: &Channels, mut items: Vec<Tag>, beside: Beside) -> Calls {
    let message =
        |(begin, end): (&str, &str)| Tag { begin: begin.into(), grammar: Grammar::Text, end: end.into() };
    let mut before = vec![message(channels.reasoning)];
    let answer = |grammar| Tag { begin: channels.answer.into(), grammar, end: String::new() };
    let mut instead = None;
    match beside {
        Beside::Nothing => {}
        Beside::Text => {
            before.push(message(channels.preamble));
            items.push(answer(Grammar::Text));
        }
        Beside::Instead(other) => {
            instead = Some(format!("/items/{}/grammar", items.len()));
            items.push(answer(other));
        }
    }
    let list = List { before, open: String::new(), items, between: None, close: String::new() };
    Calls { grammar: Grammar::List(list), tools: "/items", instead, covers_reasoning: true }
}
