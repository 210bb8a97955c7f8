//! [`ChatTemplate`]: renders chat messages to the prompt format that a model was trained on.
//!
//! Models ship their templates in [Jinja], a language close to Python, as the `transformers` library configures it.
//! This interpreter matches it character for character, but within limits: a template is a file like any other, and
//! nothing in it may take more time, memory or stack than its budget. That needs a count of every byte that an
//! expression creates, which no existing engine keeps.
//!
//! [Jinja]: https://jinja.palletsprojects.com/en/stable/templates/

mod ast;
mod chars;
mod checks;
mod eval;
mod expression;
mod filters;
mod format;
mod functions;
mod html;
mod json;
mod lex;
mod lists;
mod methods;
mod now;
mod numbers;
mod objects;
mod ops;
mod parse;
mod prompt;
mod run;
mod set;
mod spec;
mod value;

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

pub use now::Now;
pub use prompt::PromptError;
pub use set::ChatTemplates;

use run::Run;

/// Longest template source that is parsed, in bytes.
pub const MOST_SOURCE: usize = 1 << 20;
/// Longest text that a template may write, in bytes.
pub const MOST_OUTPUT: usize = 16 << 20;
/// Bytes of memory that the values of a run may hold at one time.
const MOST_MEMORY: usize = 256 << 20;
/// Base work budget of a run, in units of about a nanosecond: steps, and bytes that are inspected or copied. About half
/// a second for a small chat; most templates take a thousandth of it.
const LEAST_WORK: u64 = 1 << 29;
/// Additional work budget per byte of memory that the chat takes: some templates look back over all messages at each
/// message.
const WORK_PER_BYTE: u64 = 1 << 10;
/// Upper bound of the budget, however long the chat is: some seconds.
const MOST_WORK: u64 = 1 << 33;

/// Why a template cannot be parsed, or a chat cannot be rendered with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {failure}")]
pub struct TemplateError {
    /// Line of the template, from 1.
    pub line: u32,
    /// Cause of the error.
    pub failure: Failure,
}

/// Cause of a [`TemplateError`]: the template, or its input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The source is not a valid template.
    #[error("{0}")]
    Syntax(String),
    /// The template itself rejects the chat, with this message (`raise_exception`).
    #[error("{0}")]
    Raised(String),
    /// An operation that the given values do not support.
    #[error("{0}")]
    Wrong(String),
    /// The template exceeds a limit.
    #[error("the template {0}")]
    Limit(&'static str),
    /// The template does more work than its budget for a chat of that length.
    #[error("the template takes too long for a chat of {} {}", .messages, if *.messages == 1 { "message" } else { "messages" })]
    TooLong {
        /// Number of messages in the chat.
        messages: usize,
    },
}

impl Failure {
    fn wrong(why: impl Into<String>) -> Failure {
        Failure::Wrong(why.into())
    }

    fn undefined(name: &str) -> Failure {
        Failure::Wrong(format!("'{name}' is undefined"))
    }
}

/// A parsed template, ready to render. Clones share its source and syntax tree.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: Arc<str>,
    body: Arc<ast::Body>,
    tokens: Vec<(String, String)>,
}

/// Input of a template: a chat and its options.
#[derive(Debug, Clone, Copy)]
pub struct Chat<'a> {
    /// A list of objects, each with a `role` and usually a `content`.
    pub messages: &'a Json,
    /// A list of tools that the model may call.
    pub tools: Option<&'a Json>,
    /// A list of documents that the model may cite.
    pub documents: Option<&'a Json>,
    /// End of the rendered text.
    pub ending: Ending,
    /// Additional variables of the template (`chat_template_kwargs`).
    pub values: &'a Map<String, Json>,
    /// The time that the template sees (`strftime_now`).
    pub now: Now,
}

/// End of a rendered chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// After the last message.
    Closed,
    /// Start of the model's answer (`add_generation_prompt`).
    Prompt,
    /// Inside the last message, which the model continues (`continue_final_message`).
    Open,
}

impl<'a> Chat<'a> {
    /// A chat of `messages` that is to be answered, without tools, documents or variables.
    pub fn new(messages: &'a Json, now: Now) -> Chat<'a> {
        static NONE: std::sync::LazyLock<Map<String, Json>> = std::sync::LazyLock::new(Map::new);
        Chat { messages, tools: None, documents: None, ending: Ending::Prompt, values: &NONE, now }
    }
}

/// Marker for the place where an open message ends. Its trailing space shows whether the template trims messages.
const OPEN_MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
/// Keys under which a message's reasoning is given. The first is the one that templates read.
const THOUGHTS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

impl ChatTemplate {
    /// Parses a template.
    pub fn new(source: &str) -> Result<ChatTemplate, TemplateError> {
        if source.len() > MOST_SOURCE {
            let why = format!("the source has {} bytes; at most {MOST_SOURCE} are read", source.len());
            return Err(TemplateError { line: 1, failure: Failure::Syntax(why) });
        }
        let body = parse::parse(lex::tokens(source)?)?;
        Ok(ChatTemplate { source: source.into(), body: body.into(), tokens: Vec::new() })
    }

    /// The same template with the text of a special token, such as `bos_token`, as a variable.
    #[must_use]
    pub fn with_token(mut self, name: &str, text: &str) -> ChatTemplate {
        self.tokens.retain(|(known, _)| known != name);
        self.tokens.push((name.into(), text.into()));
        self
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// True if the template reads a variable of this name, which the values of a chat may set.
    pub fn reads(&self, name: &str) -> bool {
        // The source has been parsed before, so lexing it does not fail.
        let tokens = lex::tokens(&self.source).unwrap_or_default();
        let is = |i: Option<usize>, marks: &[&str]| {
            let token = i.and_then(|i| tokens.get(i));
            token.is_some_and(|t| matches!(&t.kind, lex::Kind::Mark(mark) if marks.contains(mark)))
        };
        tokens.iter().enumerate().any(|(i, token)| {
            let before = i.checked_sub(1);
            let set = before.is_some_and(|i| tokens[i].kind == lex::Kind::Name("set".into()));
            let argument = is(before, &["(", ","]) && is(Some(i + 1), &["="]);
            token.kind == lex::Kind::Name(name.into()) && !set && !argument && !is(before, &["."])
        })
    }

    /// Renders a chat to text.
    pub fn render(&self, chat: &Chat<'_>) -> Result<String, TemplateError> {
        let mut run = Run::new(&chat.now);
        let rendered = self.run(&mut run, chat);
        let line = run.line;
        rendered.map_err(|failure| TemplateError { line, failure })
    }

    fn run(&self, run: &mut Run<'_>, chat: &Chat<'_>) -> Result<String, Failure> {
        let mut messages = messages(chat.messages)?;
        let open = match chat.ending {
            Ending::Open => Some(self.open(&mut messages)?),
            Ending::Closed | Ending::Prompt => None,
        };
        run.messages = messages.len();
        for (name, text) in &self.tokens {
            let text = run.text(text.as_str())?;
            run.set_new(name, text);
        }
        for (name, value) in chat.values {
            let value = run.json(value)?;
            run.set_new(name, value);
        }
        let messages = messages.iter().map(|message| run.json(message)).collect::<Result<_, _>>()?;
        let messages = run.list(messages)?;
        run.set_new("messages", messages);
        for (name, value) in [("tools", chat.tools), ("documents", chat.documents)] {
            let value = run.json(value.unwrap_or(&Json::Null))?;
            run.set_new(name, value);
        }
        run.set_new("add_generation_prompt", value::Value::Bool(chat.ending == Ending::Prompt));
        run.allow_for_what_was_given();
        run.template(&self.body)?;
        let rendered = std::mem::take(&mut run.out);
        match open {
            Some(last) => closed_off(rendered, &last),
            None => Ok(rendered),
        }
    }

    /// Appends `OPEN_MARK` to the last message's text, and returns the text without it.
    fn open(&self, messages: &mut [Cow<'_, Json>]) -> Result<String, Failure> {
        let wrong =
            |why: &str| Err(Failure::wrong(format!("the last message cannot be gone on with: {why}")));
        if !self.source.contains("content") {
            return wrong("the template does not read its content");
        }
        let Some(content) = messages.last_mut().and_then(|last| last.to_mut().get_mut("content")) else {
            return wrong("it has no content");
        };
        let text = match content {
            Json::Array(parts) => parts.iter_mut().rev().find_map(|part| part.get_mut("text")),
            content => Some(content),
        };
        let Some(Json::String(text)) = text else { return wrong("it has no text") };
        let whole = text.clone();
        text.push_str(OPEN_MARK);
        Ok(whole)
    }
}

/// The messages, with the reasoning of those that have it under every key that templates know.
fn messages(messages: &Json) -> Result<Vec<Cow<'_, Json>>, Failure> {
    let Json::Array(list) = messages else { return Err(Failure::wrong("the messages are no list")) };
    list.iter().map(with_thoughts).collect()
}

fn with_thoughts(message: &Json) -> Result<Cow<'_, Json>, Failure> {
    let Json::Object(members) = message else { return Err(Failure::wrong("a message is no object")) };
    let thoughts = THOUGHTS.iter().find_map(|name| members.get(*name).filter(|value| !value.is_null()));
    let Some(thoughts) = thoughts else { return Ok(Cow::Borrowed(message)) };
    let mut all = Map::new();
    all.insert("thinking".into(), thoughts.clone());
    all.extend(members.iter().map(|(name, value)| (name.clone(), value.clone())));
    all.insert(THOUGHTS[0].into(), thoughts.clone());
    Ok(Cow::Owned(Json::Object(all)))
}

/// The rendered chat up to the marker in its last message.
fn closed_off(mut rendered: String, last: &str) -> Result<String, Failure> {
    let mark = OPEN_MARK.trim_end();
    let at = rendered.rfind(mark).filter(|_| rendered.contains(last.trim_matches(value::is_space)));
    let Some(at) = at else {
        return Err(Failure::wrong(
            "the last message cannot be gone on with: the template leaves parts of it out",
        ));
    };
    let trims = !rendered[at..].starts_with(OPEN_MARK);
    rendered.truncate(at);
    if trims {
        rendered.truncate(rendered.trim_end_matches(value::is_space).len());
    }
    Ok(rendered)
}
