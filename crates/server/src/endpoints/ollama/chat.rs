//! `/api/chat` and `/api/generate`.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};
use tallow_text::template::Ending;
use tallow_text::tokenizer::Around;

use super::{generation, is_empty, model};
use crate::body::read_json;
use crate::endpoints::chat::ChatRequest;
use crate::errors::{ApiError, json as json_response, quoted};
use crate::generation::lora;
use crate::generation::ollama::{Lines, loaded};
use crate::generation::params::Generation;
use crate::generation::prompt::{Messages, template_values, tokens_between, tokens_of_text};
use crate::generation::protocol::Protocol;
use crate::generation::run::{Job, Prompt, run};
use crate::generation::thinking::Thinking;
use crate::generation::tools::{ToolUse, call};
use crate::http::guard::Caller;
use crate::parse::fields::{Fields, text};
use crate::state::Server;

/// A parsed request.
enum Parsed {
    Chat(Box<ChatRequest>),
    /// A prompt without a template, and the text behind the answer, if that fills in what is between.
    Raw(String, Option<String>, Box<Generation>),
    /// Nothing but that the model is loaded.
    Load(Option<String>),
}

/// Parses the body of a request to `/api/chat` and checks all that can be checked without the model.
pub fn parse_ollama_chat(body: &[u8]) -> Result<(), ApiError> {
    parse_chat(body, (&[], usize::MAX)).map(drop)
}

/// Parses the body of a request to `/api/generate` and checks all that can be checked without the model.
pub fn parse_ollama_generate(body: &[u8]) -> Result<(), ApiError> {
    parse_generate(body, (&[], usize::MAX)).map(drop)
}

fn parse_chat(body: &[u8], (names, context): (&[String], usize)) -> Result<Parsed, ApiError> {
    let mut fields = Fields::body(body)?;
    if is_empty(fields.peek("messages")) && is_empty(fields.peek("tools")) {
        return Ok(Parsed::Load(model(&mut fields, names)?));
    }
    let mut messages = fields.list("messages", message)?.unwrap_or_default();
    name_calls(&mut messages);
    // A beginning of the answer may be given.
    let is_begun = messages.last().is_some_and(|m| m["role"] == "assistant" && m.get("tool_calls").is_none());
    let ending = if is_begun { Ending::Open } else { Ending::Prompt };
    let generation = generation(&mut fields, names, context)?;
    let (thinking, tools) = (Thinking::take(&mut fields)?, ToolUse::take(&mut fields)?);
    let messages =
        Messages::new(("messages", messages), ending, template_values(&mut fields)?, thinking, tools)?;
    fields.finish()?;
    Ok(Parsed::Chat(Box::new(ChatRequest { messages, generation })))
}

fn parse_generate(body: &[u8], (names, context): (&[String], usize)) -> Result<Parsed, ApiError> {
    let mut fields = Fields::body(body)?;
    if is_empty(fields.peek("prompt")) && is_empty(fields.peek("system")) && is_empty(fields.peek("suffix")) {
        return Ok(Parsed::Load(model(&mut fields, names)?));
    }
    let generation = generation(&mut fields, names, context)?;
    let prompt = fields.text("prompt")?.unwrap_or_default();
    let system = fields.text("system")?.filter(|text| !text.is_empty());
    let raw = fields.flag("raw")?.unwrap_or(false);
    let nothing = |value: &Value| is_empty(Some(value));
    fields.only("template", nothing, "the model's own is used; set raw to write the whole prompt")?;
    let suffix = fields.text("suffix")?.filter(|text| !text.is_empty());
    fields.only("images", nothing, "images are not supported yet")?;
    fields.only("context", nothing, "POST the earlier messages to /api/chat; their computation is cached")?;
    let thinking = Thinking::take(&mut fields)?;
    if raw || suffix.is_some() {
        fields.finish()?;
        if system.is_some() {
            let why = "such a prompt goes to the model as it is; leave system out";
            return Err(ApiError::field("system", why));
        }
        return Ok(Parsed::Raw(prompt, suffix, Box::new(generation)));
    }
    let system = system.map(|text| json!({"role": "system", "content": text}));
    let messages = system.into_iter().chain([json!({"role": "user", "content": prompt})]).collect();
    let values = template_values(&mut fields)?;
    let messages = Messages::new(("prompt", messages), Ending::Prompt, values, thinking, ToolUse::default())?;
    fields.finish()?;
    Ok(Parsed::Chat(Box::new(ChatRequest { messages, generation })))
}

/// One message as templates get it.
fn message(path: String, value: Value) -> Result<Value, ApiError> {
    let mut fields = Fields::within(path, value)?;
    let path = fields.path("role");
    let role = fields.text("role")?;
    let role = role.ok_or_else(|| ApiError::field(path.clone(), "every message needs a role"))?;
    if !["system", "user", "assistant", "tool"].contains(&role.as_str()) {
        let why = format!("there is no role {}; there are system, user, assistant and tool", quoted(&role));
        return Err(ApiError::field(path, why));
    }
    let content = fields.text("content")?.unwrap_or_default();
    fields.only("images", |images| is_empty(Some(images)), "images are not supported yet")?;
    let mut message = Map::from_iter([("role".to_owned(), role.clone().into())]);
    if role == "assistant" {
        fields.rename("reasoning_content", "thinking")?;
        if let Some(text) = fields.text("thinking")?.filter(|text| !text.is_empty()) {
            message.insert("reasoning_content".into(), text.into());
        }
        let calls = fields.list("tool_calls", called)?.unwrap_or_default();
        if !calls.is_empty() {
            message.insert("tool_calls".into(), calls.into());
        }
    }
    // Templates tell a call from text by a content that is null.
    let has_calls = message.contains_key("tool_calls");
    let content = if content.is_empty() && has_calls { Value::Null } else { content.into() };
    message.insert("content".into(), content);
    if role == "tool" {
        fields.rename("tool_name", "name")?;
        for name in ["name", "tool_call_id"] {
            message.extend(fields.text(name)?.map(|text| (name.to_owned(), text.into())));
        }
    }
    fields.finish()?;
    Ok(Value::Object(message))
}

/// An earlier call: its arguments are an object.
fn called(path: String, value: Value) -> Result<Value, ApiError> {
    let mut fields = Fields::within(path, value)?;
    let id = fields.text("id")?;
    fields.only("type", |kind| *kind == "function", "only functions are called")?;
    let path = fields.path("function");
    let function = fields.take("function").unwrap_or_default();
    fields.finish()?;
    let mut function = Fields::within(path, function)?;
    let name = function.needed("name")?;
    let path = function.path("arguments");
    let arguments = match function.take("arguments") {
        None => json!({}),
        Some(arguments @ Value::Object(_)) => arguments,
        Some(other) => crate::generation::tools::arguments_of(text(path, other)?),
    };
    function.integer("index", 0..=i64::MAX)?;
    function.finish()?;
    Ok(call(id.as_deref(), &name, arguments))
}

/// Gives ids to calls that have none, and to the results that follow them: some templates demand them.
fn name_calls(messages: &mut [Value]) {
    let mut open: VecDeque<(String, Value)> = VecDeque::new();
    let mut count = 0;
    for message in messages.iter_mut().filter_map(Value::as_object_mut) {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten().filter_map(Value::as_object_mut) {
            count += 1;
            let id = call.entry("id").or_insert_with(|| format!("call{count:05}").into()).clone();
            let name = call["function"]["name"].as_str().unwrap_or_default().to_owned();
            open.push_back((name, id));
        }
        if message["role"] == "tool" && !message.contains_key("tool_call_id") {
            let name = message.get("name").and_then(Value::as_str);
            let is_its = |(other, _): &(String, Value)| name.is_none_or(|name| name == other);
            let at = open.iter().position(is_its);
            if let Some((name, id)) = at.and_then(|at| open.remove(at)) {
                message.insert("tool_call_id".into(), id);
                message.entry("name").or_insert_with(|| name.into());
            }
        }
    }
}

pub(crate) async fn chat(State(server): State<Arc<Server>>, request: Request) -> Result<Response, ApiError> {
    answer(server, request, Lines::Chat, parse_chat).await
}

pub(crate) async fn generate(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, ApiError> {
    answer(server, request, Lines::Generate, parse_generate).await
}

type Parse = fn(&[u8], (&[String], usize)) -> Result<Parsed, ApiError>;

async fn answer(
    server: Arc<Server>,
    request: Request,
    lines: Lines,
    parse: Parse,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&request);
    let body = read_json(&server, request).await?;
    let job = body.process(&server, move |server, body| {
        let info = server.model.handle.info();
        let parsed = parse(&body, (&info.names, info.context))?;
        drop(body);
        match parsed {
            Parsed::Chat(request) => {
                let ChatRequest { messages, generation } = *request;
                Job::chat(server, &messages, generation, Protocol::Ollama(lines), caller).map(Ok)
            }
            Parsed::Raw(prompt, suffix, generation) => {
                raw(server, (&prompt, suffix.as_deref()), *generation, (lines, caller)).map(Ok)
            }
            Parsed::Load(model) => {
                lora::select(&server.model.handle, model.as_deref(), None)?;
                Ok(Err(model.or_else(|| info.names.first().cloned()).unwrap_or_default()))
            }
        }
    });
    match job.await? {
        Ok(job) => run(&server, job).await,
        Err(model) => Ok(json_response(StatusCode::OK, loaded(lines, model))),
    }
}

/// A prompt that is used as it is.
fn raw(
    server: &Server,
    (prompt, suffix): (&str, Option<&str>),
    mut generation: Generation,
    (lines, caller): (Lines, Caller),
) -> Result<Job, ApiError> {
    let info = server.model.handle.info();
    let adapter = generation.select_adapter(&server.model.handle)?;
    let bounds = (&info.tokenizer, info.context);
    let ids = match suffix {
        Some(suffix) => tokens_between("suffix", (prompt, suffix), &[], bounds)?,
        None => tokens_of_text("prompt", prompt, Around::Added, bounds)?,
    };
    let max_new = generation.max_new_tokens(server.model.max_tokens, info.context.saturating_sub(ids.len()));
    generation.separate_cache(caller);
    let prompt = Prompt { ids, echo: None, is_text: true };
    Job::new(server, generation, Protocol::Ollama(lines), vec![prompt], max_new, adapter)
}
