//! [`ChatTemplate`]: messages to the text that a model was taught to go on from.
//!
//! Models bring their templates with them, in a language that is Python's in all but name: [Jinja], as the
//! `transformers` library sets it up. It is read and run here, character for character as there, but within limits: a
//! template is a file like any other, and nothing in it may take more time, memory or stack than it is given. That
//! needs a count of every byte that an expression makes, which no ready engine keeps.
//!
//! [Jinja]: https://jinja.palletsprojects.com/en/stable/templates/

mod ast;
mod checks;
mod eval;
mod expression;
mod filters;
mod format;
mod functions;
mod json;
mod lex;
mod lists;
mod methods;
mod now;
mod ops;
mod parse;
mod prompt;
mod run;
mod set;
mod value;

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

pub use now::Now;
pub use prompt::PromptError;
pub use set::ChatTemplates;

use run::Run;

/// Longest source that is read.
pub const MOST_SOURCE: usize = 1 << 20;
/// Longest text that a template may write.
pub const MOST_OUTPUT: usize = 16 << 20;
/// Memory that the values of a run may hold at one time.
const MOST_MEMORY: usize = 256 << 20;
/// What a run may do: bytes copied, where each step counts as some tens of them. About a second at most; a long chat
/// takes a hundredth of it.
const MOST_WORK: u64 = 1 << 29;

/// Why a template cannot be read, or a chat not be rendered by it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {failure}")]
pub struct TemplateError {
    /// The line of the template, from 1.
    pub line: u32,
    /// What is wrong there.
    pub failure: Failure,
}

/// What is wrong with a template, or with what it was given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The source is no template.
    #[error("{0}")]
    Syntax(String),
    /// The template itself refuses the chat, in these words.
    #[error("{0}")]
    Raised(String),
    /// Something cannot be done with the values that are there.
    #[error("{0}")]
    Wrong(String),
    /// The template goes past a limit.
    #[error("the template {0}")]
    Limit(&'static str),
}

impl Failure {
    fn wrong(why: impl Into<String>) -> Failure {
        Failure::Wrong(why.into())
    }

    fn undefined(name: &str) -> Failure {
        Failure::Wrong(format!("'{name}' is undefined"))
    }
}

/// A template, ready to render. Copies share it.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: Arc<str>,
    body: Arc<ast::Body>,
    tokens: Vec<(String, String)>,
}

/// What is rendered.
#[derive(Debug, Clone, Copy)]
pub struct Chat<'a> {
    /// A list of objects, each with a `role` and mostly a `content`.
    pub messages: &'a Json,
    /// A list of tools that the model may call.
    pub tools: Option<&'a Json>,
    /// A list of documents that the model may cite.
    pub documents: Option<&'a Json>,
    /// How the text ends.
    pub ending: Ending,
    /// Values that the template can ask for by name.
    pub values: &'a Map<String, Json>,
    /// The time that the template is told.
    pub now: Now,
}

/// How a rendered chat ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// After the last message.
    Closed,
    /// Where the model's answer begins.
    Prompt,
    /// Within the last message, which the model goes on with.
    Open,
}

impl<'a> Chat<'a> {
    /// Messages to be answered, and nothing else.
    pub fn new(messages: &'a Json, now: Now) -> Chat<'a> {
        static NONE: std::sync::LazyLock<Map<String, Json>> = std::sync::LazyLock::new(Map::new);
        Chat { messages, tools: None, documents: None, ending: Ending::Prompt, values: &NONE, now }
    }
}

/// What marks the place where an open message ends. Its last character shows whether the template trims messages.
const OPEN_MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
/// Names under which a message's thoughts are given. The first is the one that templates read.
const THOUGHTS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

impl ChatTemplate {
    /// Reads a template.
    pub fn new(source: &str) -> Result<ChatTemplate, TemplateError> {
        if source.len() > MOST_SOURCE {
            let why = format!("the source has {} bytes; at most {MOST_SOURCE} are read", source.len());
            return Err(TemplateError { line: 1, failure: Failure::Syntax(why) });
        }
        let body = parse::parse(lex::tokens(source)?)?;
        Ok(ChatTemplate { source: source.into(), body: body.into(), tokens: Vec::new() })
    }

    /// The same template, which knows what a token is called, such as `bos_token`.
    #[must_use]
    pub fn with_token(mut self, name: &str, text: &str) -> ChatTemplate {
        self.tokens.retain(|(known, _)| known != name);
        self.tokens.push((name.into(), text.into()));
        self
    }

    /// What it was read from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Does it read a variable of this name, which the values of a chat may set?
    pub fn reads(&self, name: &str) -> bool {
        // It has been read before, so there are tokens.
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

    /// The chat as text.
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
        for (name, text) in &self.tokens {
            let text = run.text(text.as_str())?;
            run.set(name, text);
        }
        for (name, value) in chat.values {
            let value = run.json(value)?;
            run.set(name, value);
        }
        let messages = messages.iter().map(|message| run.json(message)).collect::<Result<_, _>>()?;
        let messages = run.list(messages)?;
        run.set("messages", messages);
        for (name, value) in [("tools", chat.tools), ("documents", chat.documents)] {
            let value = run.json(value.unwrap_or(&Json::Null))?;
            run.set(name, value);
        }
        run.set("add_generation_prompt", value::Value::Bool(chat.ending == Ending::Prompt));
        run.template(&self.body)?;
        let rendered = std::mem::take(&mut run.out);
        match open {
            Some(last) => closed_off(rendered, &last),
            None => Ok(rendered),
        }
    }

    /// Marks the end of the last message, and gives its text.
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

/// The messages, with the thoughts of those that have some under every name that templates know.
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

/// The rendered chat up to the mark in its last message.
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
