//! `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tallow_text::template::Ending;

use crate::body::read_json;
use crate::endpoints::chat::ChatRequest;
use crate::errors::{ApiError, quoted, respond};
use crate::generation::params::Generation;
use crate::generation::prompt::{Messages, template_values};
use crate::generation::protocol::Protocol;
use crate::generation::run::{Job, run};
use crate::generation::structure::Structure;
use crate::generation::thinking::Thinking;
use crate::generation::tools::{Choice, Tool, ToolUse, call};
use crate::http::guard::Caller;
use crate::parse::fields::{Fields, MAX_TOKENS, wrong};
use crate::state::Server;

/// Parses the body of a request for a message and checks all that can be checked without the model.
pub fn parse_message_request(body: &[u8]) -> Result<ChatRequest, ApiError> {
    let mut fields = Fields::body(body)?;
    let max_tokens = fields.integer("max_tokens", 1..=MAX_TOKENS)?;
    let max_tokens = max_tokens.ok_or_else(|| ApiError::field("max_tokens", "max_tokens is missing"))?;
    let mut request = message_request(&mut fields)?;
    fields.finish()?;
    request.generation.max_tokens = Some(max_tokens as usize);
    Ok(request)
}

/// Takes all fields but `max_tokens`.
fn message_request(fields: &mut Fields) -> Result<ChatRequest, ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = fields.take("system") {
        let content = texts(fields.path("system"), system)?;
        messages.push(json!({"role": "system", "content": content}));
    }
    let given = fields.list("messages", message)?;
    let given = given.ok_or_else(|| ApiError::field("messages", "messages is missing"))?;
    messages.extend(given.into_iter().flatten());
    // The answer goes on from a beginning that the request gives.
    let is_begun = messages.last().is_some_and(|m| m["role"] == "assistant" && m.get("tool_calls").is_none());
    let ending = if is_begun { Ending::Open } else { Ending::Prompt };
    let structure = output(fields)?;
    let tools = tool_use(fields)?;
    let thinking = thinking(fields)?;
    fields.only("metadata", Value::is_object, "it should be an object; or leave it out")?;
    let tier = |v: &Value| *v == "auto" || *v == "standard_only";
    fields.only("service_tier", tier, "all requests are served alike; leave it out")?;
    // Prefixes are cached in any case.
    fields.only("cache_control", Value::is_object, "it should be an object; or leave it out")?;
    let is_empty = |v: &Value| v.as_array().is_some_and(Vec::is_empty);
    fields.only("mcp_servers", is_empty, "give the tools themselves, and call the servers yourself")?;
    fields.only("container", |_| false, "nothing is executed here; leave it out")?;
    fields.only("context_management", edits_nothing, "shorten the messages yourself")?;
    let messages = Messages::new(("messages", messages), ending, template_values(fields)?, thinking, tools)?;
    let mut generation = Generation::take(fields)?;
    if generation.n != 1 {
        return Err(ApiError::field("n", "a message has one answer; leave n out"));
    }
    generation.structure = structure.or(generation.structure);
    Ok(ChatRequest { messages, generation })
}

/// True if a context is kept as it is: earlier reasoning is left out as the model's template has it.
fn edits_nothing(value: &Value) -> bool {
    let Some(edits) = value.get("edits").and_then(Value::as_array) else { return *value == json!({}) };
    edits.iter().all(|edit| {
        edit.get("type").and_then(Value::as_str).is_some_and(|kind| kind.starts_with("clear_thinking"))
    })
}

/// One message as templates get it: a user's is several where it has results of tools.
fn message(path: String, value: Value) -> Result<Vec<Value>, ApiError> {
    let mut fields = Fields::within(path, value)?;
    let path = fields.path("role");
    let role = fields.text("role")?;
    let role = role.ok_or_else(|| ApiError::field(path.clone(), "every message needs a role"))?;
    let at = fields.path("content");
    let content =
        fields.take("content").ok_or_else(|| ApiError::field(at.clone(), format!("{at} is missing")))?;
    fields.finish()?;
    match role.as_str() {
        "user" => from_user(at, content),
        "assistant" => from_assistant(at, content).map(|message| vec![message]),
        "system" => Ok(vec![json!({"role": "system", "content": texts(at, content)?})]),
        other => {
            let why = format!("there is no role {}; there are user and assistant", quoted(other));
            Err(ApiError::field(path, why))
        }
    }
}

/// The blocks of a content, each with its path and its kind; a text is one of them.
fn blocks(path: String, content: Value) -> Result<Vec<(String, Fields)>, ApiError> {
    let blocks = match content {
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        Value::Array(blocks) => blocks,
        other => return Err(wrong(path, "text or a list of content blocks", &other)),
    };
    let block = |(i, block)| {
        let mut block = Fields::within(format!("{path}[{i}]"), block)?;
        let kind = block.text("type")?.unwrap_or_default();
        block.only("cache_control", Value::is_object, "it should be an object; or leave it out")?;
        Ok((kind, block))
    };
    blocks.into_iter().enumerate().map(block).collect()
}

/// A block that is not supported.
fn unsupported(kind: &str, block: &Fields) -> ApiError {
    let why = format!("content blocks of type {} are not supported", quoted(kind));
    ApiError::field(block.path("type"), why).code("unsupported_value")
}

/// The text of a block of text.
fn text_of(mut block: Fields) -> Result<String, ApiError> {
    let text = block.needed("text")?;
    block.only("citations", Value::is_array, "it should be a list; or leave it out")?;
    block.finish()?;
    Ok(text)
}

/// A content of nothing but text.
fn texts(path: String, content: Value) -> Result<String, ApiError> {
    let text = |(kind, block): (String, Fields)| match kind.as_str() {
        "text" => text_of(block),
        _ => Err(unsupported(&kind, &block)),
    };
    let all: Vec<String> = blocks(path, content)?.into_iter().map(text).collect::<Result<_, _>>()?;
    Ok(all.join("\n"))
}

fn from_user(path: String, content: Value) -> Result<Vec<Value>, ApiError> {
    let mut messages: Vec<Value> = Vec::new();
    let mut written = Vec::new();
    let flush = |written: &mut Vec<String>, messages: &mut Vec<Value>| {
        if !written.is_empty() {
            messages.push(json!({"role": "user", "content": std::mem::take(written).join("\n")}));
        }
    };
    for (kind, mut block) in blocks(path, content)? {
        match kind.as_str() {
            "text" => written.push(text_of(block)?),
            "document" => written.push(document(block)?),
            "tool_result" => {
                flush(&mut written, &mut messages);
                let id = block.needed("tool_use_id")?;
                let path = block.path("content");
                let content = block.take("content").map(|content| texts(path, content)).transpose()?;
                let content = content.unwrap_or_default();
                let failed = block.flag("is_error")?.unwrap_or(false);
                block.finish()?;
                let content = if failed { format!("Error: {content}") } else { content };
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
            }
            _ => return Err(unsupported(&kind, &block)),
        }
    }
    flush(&mut written, &mut messages);
    Ok(messages)
}

/// The text of a document that is text.
fn document(mut block: Fields) -> Result<String, ApiError> {
    let (title, context) = (block.text("title")?, block.text("context")?);
    block.only("citations", |v| *v == json!({"enabled": false}), "sources are not cited; leave it out")?;
    let path = block.path("source");
    let source = block.take("source").unwrap_or_default();
    block.finish()?;
    let mut source = Fields::within(path, source)?;
    let kind = source.text("type")?.unwrap_or_default();
    let body = match kind.as_str() {
        "text" => {
            source.only("media_type", |kind| *kind == "text/plain", "only text/plain is supported")?;
            source.needed("data")?
        }
        "content" => {
            let path = source.path("content");
            let content = source.take("content").unwrap_or_default();
            texts(path, content)?
        }
        _ => {
            let why = format!("documents of type {} are not supported; only text is", quoted(&kind));
            return Err(ApiError::field(source.path("type"), why).code("unsupported_value"));
        }
    };
    source.finish()?;
    Ok([title, context, Some(body)].into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

fn from_assistant(path: String, content: Value) -> Result<Value, ApiError> {
    let (mut written, mut reasoning, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for (kind, mut block) in blocks(path, content)? {
        match kind.as_str() {
            "text" => written.push(text_of(block)?),
            "thinking" => {
                reasoning.push(block.needed("thinking")?);
                block.text("signature")?;
                block.finish()?;
            }
            // Reasoning of another model that none can read.
            "redacted_thinking" => {}
            "tool_use" => {
                let (id, name) = (block.needed("id")?, block.needed("name")?);
                let input = block.take("input").unwrap_or_else(|| Value::Object(Map::new()));
                block.only("caller", Value::is_object, "it should be an object; or leave it out")?;
                block.finish()?;
                calls.push(call(Some(&id), &name, input));
            }
            _ => return Err(unsupported(&kind, &block)),
        }
    }
    let mut message = Map::from_iter([("role".to_owned(), Value::from("assistant"))]);
    // Templates tell a call from text by a content that is null.
    let content =
        if written.is_empty() && !calls.is_empty() { Value::Null } else { written.join("\n").into() };
    message.insert("content".into(), content);
    if !reasoning.is_empty() {
        message.insert("reasoning_content".into(), reasoning.join("\n").into());
    }
    if !calls.is_empty() {
        message.insert("tool_calls".into(), calls.into());
    }
    Ok(Value::Object(message))
}

/// `output_config.format`, or the older `output_format`. `output_config.effort` becomes `reasoning_effort`.
fn output(fields: &mut Fields) -> Result<Option<Structure>, ApiError> {
    let path = fields.path("output_format");
    let mut format = fields.take("output_format").map(|format| (path, format));
    let path = fields.path("output_config");
    if let Some(config) = fields.take("output_config") {
        let mut config = Fields::within(path, config)?;
        if let Some(effort) = config.text("effort")? {
            let effort = if effort == "max" { "xhigh".to_owned() } else { effort };
            fields.set("reasoning_effort", effort.into());
        }
        let path = config.path("format");
        format = config.take("format").map(|format| (path, format)).or(format);
        config.finish()?;
    }
    let Some((path, format)) = format else { return Ok(None) };
    let mut format = Fields::within(path, format)?;
    format.only("type", |kind| *kind == "json_schema", "it should be json_schema")?;
    let path = format.path("schema");
    let schema = format.take("schema");
    format.finish()?;
    let schema = schema.ok_or_else(|| ApiError::field(path.clone(), format!("{path} is missing")))?;
    Structure::json_schema(path, schema).map(Some)
}

fn thinking(fields: &mut Fields) -> Result<Thinking, ApiError> {
    // The model decides, as it does without the field.
    if fields.peek("thinking").is_some_and(|thinking| thinking["type"] == "adaptive") {
        let path = fields.path("thinking");
        let mut thinking = Fields::within(path, fields.take("thinking").unwrap_or_default())?;
        thinking.text("type")?;
        thinking.text("display")?;
        thinking.finish()?;
    }
    Thinking::take(fields)
}

fn tool_use(fields: &mut Fields) -> Result<ToolUse, ApiError> {
    let tools = fields.list("tools", |path, value| {
        let mut tool = Fields::within(path, value)?;
        let path = tool.path("type");
        if let Some(kind) = tool.text("type")?.filter(|kind| kind != "custom") {
            let why =
                format!("tools of type {} are not executed here; only custom tools are taken", quoted(&kind));
            return Err(ApiError::field(path, why).code("unsupported_value"));
        }
        let taken = Tool::take(&mut tool, "input_schema")?;
        tool.only("cache_control", Value::is_object, "it should be an object; or leave it out")?;
        tool.only("input_examples", Value::is_array, "it should be a list; or leave it out")?;
        tool.flag("eager_input_streaming")?;
        tool.only("defer_loading", |v| *v == false, "all tools are in the prompt; leave it out")?;
        tool.finish()?;
        Ok(taken)
    })?;
    let path = fields.path("tool_choice");
    let (mut choice, mut is_single) = (Choice::Auto, false);
    if let Some(value) = fields.take("tool_choice") {
        let mut chosen = Fields::within(path, value)?;
        is_single = chosen.flag("disable_parallel_tool_use")?.unwrap_or(false);
        let kind = chosen.text("type")?.unwrap_or_default();
        choice = match kind.as_str() {
            "auto" => Choice::Auto,
            "any" => Choice::Required,
            "none" => Choice::None,
            "tool" => Choice::Named(chosen.path("name"), chosen.needed("name")?),
            _ => {
                let path = chosen.path("type");
                let why = format!("{path} should be auto, any, tool or none, and is {}", quoted(&kind));
                return Err(ApiError::field(path, why));
            }
        };
        chosen.finish()?;
    }
    ToolUse::new(tools.unwrap_or_default(), "tools", ("tool_choice", choice), is_single)
}

pub(crate) async fn messages(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&request);
    let body = read_json(&server, request).await?;
    let job = body.process(&server, move |server, body| {
        let ChatRequest { messages, generation } = parse_message_request(&body)?;
        drop(body);
        Job::chat(server, &messages, generation, Protocol::Messages, caller)
    });
    run(&server, job.await?).await
}

/// Answer of `/v1/messages/count_tokens`.
#[derive(Serialize)]
struct Counted {
    input_tokens: usize,
}

pub(crate) async fn count_tokens(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = read_json(&server, request).await?;
    let count = body.process(&server, |server, body| {
        let mut fields = Fields::body(&body)?;
        fields.integer("max_tokens", 1..=MAX_TOKENS)?;
        let ChatRequest { messages, generation } = message_request(&mut fields)?;
        fields.finish()?;
        generation.select_adapter(&server.model.handle)?;
        Ok(messages.tokens(server)?.len())
    });
    respond(&Counted { input_tokens: count.await? })
}
