//! [`ParsedResponse`]: the fields of a request for a response.

use serde_json::{Map, Value, json};

use crate::errors::{ApiError, quoted};
use crate::generation::params::Generation;
use crate::generation::prompt::template_values;
use crate::generation::structure::Structure;
use crate::generation::thinking::Thinking;
use crate::generation::tools::{Choice, Tool, ToolUse};
use crate::parse::fields::{Fields, MAX_TOKENS, text, wrong};
use crate::response_store::Item;

/// Values of `include`. Only the log-probabilities are there.
const INCLUDED: [&str; 8] = [
    LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
];
const LOGPROBS: &str = "message.output_text.logprobs";
/// A parsed request.
#[derive(Debug)]
pub(super) struct ParsedResponse {
    pub(super) instructions: Option<String>,
    pub(super) previous: Option<String>,
    pub(super) input: Vec<Item>,
    pub(super) tools: ToolUse,
    pub(super) thinking: Thinking,
    pub(super) generation: Generation,
    /// Values for the chat template.
    pub(super) values: Map<String, Value>,
    pub(super) is_stored: bool,
    pub(super) background: bool,
    /// Members that the response repeats.
    pub(super) echo: Map<String, Value>,
}

/// Parses the body of a request for a response and checks all that can be checked without the model.
pub fn parse_response_request(body: &[u8]) -> Result<(), ApiError> {
    parse(body).map(drop)
}

pub(super) fn parse(body: &[u8]) -> Result<ParsedResponse, ApiError> {
    let mut fields = Fields::body(body)?;
    let mut echo = echo(&fields);
    let instructions = fields.text("instructions")?;
    let previous = fields.text("previous_response_id")?;
    let input = input(&mut fields)?;
    if input.is_empty() && previous.is_none() {
        return Err(ApiError::field("input", "input is empty; there is nothing to answer"));
    }
    let is_stored = fields.flag("store")?.unwrap_or(true);
    let background = fields.flag("background")?.unwrap_or(false);
    if background && !is_stored {
        return Err(ApiError::field("background", "a response in the background is stored; leave store out"));
    }
    let structure = format(&mut fields)?;
    let tools = tool_use(&mut fields)?;
    let thinking = Thinking::take(&mut fields)?;
    let max_tokens = fields.integer("max_output_tokens", 1..=MAX_TOKENS)?;
    let logprobs = logprobs(&mut fields)?;
    fields.only("conversation", |_| false, "give previous_response_id, or the earlier items")?;
    fields.only("prompt", |_| false, "give instructions and input themselves")?;
    fields.only("max_tool_calls", |_| false, "tools are called by the client, who can count")?;
    fields.only("truncation", |v| *v == "disabled", "leave items out yourself")?;
    if let Some(options) = fields.take("stream_options") {
        let mut options = Fields::within("stream_options".into(), options)?;
        // Padding against those who read encrypted traffic.
        options.only("include_obfuscation", Value::is_boolean, "it should be true or false")?;
        options.finish()?;
    }
    let values = template_values(&mut fields)?;
    let mut generation = Generation::take(&mut fields)?;
    fields.finish()?;
    if generation.n != 1 {
        return Err(ApiError::field("n", "there is one response; leave n out"));
    }
    if background && generation.stream {
        let why = "a response in the background is not streamed: GET it until it is complete";
        return Err(ApiError::field("stream", why));
    }
    generation.structure = structure.or(generation.structure);
    generation.max_tokens = max_tokens.map(|n| n as usize);
    generation.logprobs = logprobs;
    echo.insert("store".into(), is_stored.into());
    Ok(ParsedResponse {
        instructions,
        previous,
        input,
        tools,
        thinking,
        generation,
        values,
        is_stored,
        background,
        echo,
    })
}

/// Members of a response that repeat fields of its request, or the values that these have without.
fn echo(fields: &Fields) -> Map<String, Value> {
    let given = |name: &str, usual: Value| (name.to_owned(), fields.peek(name).cloned().unwrap_or(usual));
    let tools = fields.peek("tools").and_then(Value::as_array);
    let tools: Vec<Value> = tools.into_iter().flatten().map(told).collect();
    let reasoning = fields.peek("reasoning").cloned().unwrap_or_default();
    let reasoning = json!({"effort": reasoning["effort"], "summary": reasoning["summary"]});
    let mut format = fields.peek("text").cloned().unwrap_or_else(|| json!({}));
    if format.is_object() && format["format"].is_null() {
        format["format"] = json!({"type": "text"});
    }
    Map::from_iter([
        given("instructions", Value::Null),
        given("max_output_tokens", Value::Null),
        given("max_tool_calls", Value::Null),
        given("metadata", json!({})),
        given("parallel_tool_calls", true.into()),
        given("presence_penalty", json!(0.0)),
        given("frequency_penalty", json!(0.0)),
        given("prompt_cache_key", Value::Null),
        given("safety_identifier", Value::Null),
        ("service_tier".to_owned(), "default".into()),
        given("temperature", Value::Null),
        ("text".to_owned(), format),
        given("tool_choice", "auto".into()),
        ("tools".to_owned(), tools.into()),
        given("top_logprobs", json!(0)),
        given("top_p", Value::Null),
        given("truncation", "disabled".into()),
        given("user", Value::Null),
        ("reasoning".to_owned(), reasoning),
    ])
}

/// A tool with all members that it has in a response.
fn told(tool: &Value) -> Value {
    let mut tool = tool.clone();
    if let Value::Object(members) = &mut tool {
        for name in ["description", "parameters"] {
            members.entry(name).or_insert(Value::Null);
        }
        members.entry("strict").or_insert(Value::Bool(false));
    }
    tool
}

/// `input`: a text of the user, or items.
fn input(fields: &mut Fields) -> Result<Vec<Item>, ApiError> {
    match fields.take("input") {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![Item::Message { role: "user".into(), text }]),
        Some(Value::Array(items)) => {
            let each = |(i, value)| item(format!("input[{i}]"), value);
            let items: Vec<Option<Item>> =
                items.into_iter().enumerate().map(each).collect::<Result<_, _>>()?;
            Ok(items.into_iter().flatten().collect())
        }
        Some(other) => Err(wrong("input".into(), "text or a list of items", &other)),
    }
}

/// One item. `None` if there is nothing in it that a model reads.
fn item(path: String, value: Value) -> Result<Option<Item>, ApiError> {
    let mut fields = Fields::within(path, value)?;
    let at = fields.path("type");
    let kind = fields.text("type")?.unwrap_or_else(|| "message".into());
    // Of items that were answers.
    fields.text("id")?;
    fields.text("status")?;
    let item = match kind.as_str() {
        "message" => {
            let path = fields.path("role");
            let role = fields.needed("role")?;
            let role = match role.as_str() {
                "developer" => "system".to_owned(),
                "user" | "assistant" | "system" => role,
                other => {
                    let why = format!(
                        "there is no role {}; there are user, assistant, system, developer",
                        quoted(other)
                    );
                    return Err(ApiError::field(path, why));
                }
            };
            fields.text("phase")?;
            Some(Item::Message { role, text: content(&mut fields)? })
        }
        "reasoning" => {
            fields.text("encrypted_content")?;
            let parts = |fields: &mut Fields, name: &str| -> Result<Vec<String>, ApiError> {
                let part = |path, value| {
                    let mut part = Fields::within(path, value)?;
                    part.text("type")?;
                    let text = part.needed("text")?;
                    part.finish()?;
                    Ok(text)
                };
                Ok(fields.list(name, part)?.unwrap_or_default())
            };
            let (content, summary) = (parts(&mut fields, "content")?, parts(&mut fields, "summary")?);
            let text = if content.is_empty() { summary } else { content }.join("\n");
            (!text.is_empty()).then_some(Item::Reasoning(text))
        }
        "function_call" => Some(Item::Call {
            id: fields.needed("call_id")?,
            name: fields.needed("name")?,
            arguments: fields.needed("arguments")?,
        }),
        "function_call_output" => {
            let id = fields.needed("call_id")?;
            Some(Item::Output { id, text: output(&mut fields)? })
        }
        _ => {
            let why = format!("items of type {} are not supported", quoted(&kind));
            return Err(ApiError::field(at, why).code("unsupported_value"));
        }
    };
    fields.finish()?;
    Ok(item)
}

/// Content of a message.
fn content(fields: &mut Fields) -> Result<String, ApiError> {
    let path = fields.path("content");
    parts(path.clone(), fields.take("content"))?
        .ok_or_else(|| ApiError::field(path, "every message needs a content"))
}

/// Result of a call.
fn output(fields: &mut Fields) -> Result<String, ApiError> {
    let path = fields.path("output");
    Ok(parts(path, fields.take("output"))?.unwrap_or_default())
}

/// A text, or a list of parts that are texts, joined by newlines.
fn parts(path: String, value: Option<Value>) -> Result<Option<String>, ApiError> {
    let part = |(i, value)| {
        let mut part = Fields::within(format!("{path}[{i}]"), value)?;
        let kind = part.text("type")?.unwrap_or_default();
        let name = match kind.as_str() {
            "input_text" | "output_text" | "text" => "text",
            "refusal" => "refusal",
            _ => {
                let why = format!("parts of type {} are not supported yet; only text is", quoted(&kind));
                return Err(ApiError::field(part.path("type"), why).code("unsupported_value"));
            }
        };
        let text = part.needed(name)?;
        part.only("annotations", Value::is_array, "it should be a list; or leave it out")?;
        part.only("logprobs", Value::is_array, "it should be a list; or leave it out")?;
        part.finish()?;
        Ok(text)
    };
    match value {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Array(parts)) => {
            let texts: Vec<String> = parts.into_iter().enumerate().map(part).collect::<Result<_, _>>()?;
            Ok(Some(texts.join("\n")))
        }
        Some(other) => Err(wrong(path, "text or a list of parts", &other)),
    }
}

/// `text`: the structure of the answer.
fn format(fields: &mut Fields) -> Result<Option<Structure>, ApiError> {
    let path = fields.path("text");
    let Some(value) = fields.take("text") else { return Ok(None) };
    let mut within = Fields::within(path, value)?;
    within.only("verbosity", |v| *v == "medium", "say in the instructions how long answers should be")?;
    let structure = Structure::take_text_format(&mut within)?;
    within.finish()?;
    Ok(structure)
}

fn tool_use(fields: &mut Fields) -> Result<ToolUse, ApiError> {
    let tools = fields.list("tools", |path, value| {
        let mut tool = Fields::within(path, value)?;
        let path = tool.path("type");
        let kind = tool.text("type")?.unwrap_or_default();
        if kind != "function" {
            let why = format!("tools of type {} are not supported; only functions are", quoted(&kind));
            return Err(ApiError::field(path, why).code("unsupported_value"));
        }
        let taken = Tool::take(&mut tool, "parameters")?;
        tool.finish()?;
        Ok(taken)
    })?;
    let mut tools = tools.unwrap_or_default();
    let is_single = fields.flag("parallel_tool_calls")? == Some(false);
    let path = fields.path("tool_choice");
    let choice = fields.take("tool_choice").map(|value| choice(path, value, &mut tools)).transpose()?;
    ToolUse::new(tools, "tools", ("tool_choice", choice.unwrap_or(Choice::Auto)), is_single)
}

/// `tool_choice`. Tools that are not among those that it allows are left out.
fn choice(path: String, value: Value, tools: &mut Vec<Tool>) -> Result<Choice, ApiError> {
    let mode = |path: String, mode: &str| match mode {
        "auto" => Ok(Choice::Auto),
        "none" => Ok(Choice::None),
        "required" => Ok(Choice::Required),
        other => {
            let why = format!("{path} should be auto, none or required, and is {}", quoted(other));
            Err(ApiError::field(path, why))
        }
    };
    if let Value::String(name) = &value {
        return mode(path, name);
    }
    let mut fields = Fields::within(path, value)?;
    let at = fields.path("type");
    let kind = fields.text("type")?.unwrap_or_default();
    let choice = match kind.as_str() {
        "function" => Choice::Named(fields.path("name"), fields.needed("name")?),
        "allowed_tools" => {
            let at = fields.path("mode");
            let how = fields.needed("mode")?;
            let allowed = fields.list("tools", |path, value| {
                let mut tool = Fields::within(path, value)?;
                tool.only("type", |kind| *kind == "function", "only functions are called")?;
                let found = (tool.path("name"), tool.needed("name")?);
                tool.finish()?;
                Ok(found)
            })?;
            let allowed = allowed.unwrap_or_default();
            if let Some((path, name)) =
                allowed.iter().find(|(_, name)| tools.iter().all(|t| t.name() != name))
            {
                let why = format!("{path} is {}, and no tool has this name", quoted(name));
                return Err(ApiError::field(path.clone(), why));
            }
            tools.retain(|tool| allowed.iter().any(|(_, name)| name == tool.name()));
            mode(at, &how)?
        }
        _ => {
            let why = format!("{at} should be function or allowed_tools, and is {}", quoted(&kind));
            return Err(ApiError::field(at, why));
        }
    };
    fields.finish()?;
    Ok(choice)
}

/// The number of top log-probabilities, if any are included.
fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let included = fields.list("include", |path, value| {
        let name = text(path.clone(), value)?;
        if !INCLUDED.contains(&name.as_str()) {
            let why = format!("{path} is {}, which is not known", quoted(&name));
            return Err(ApiError::field(path, why));
        }
        Ok(name)
    })?;
    let wanted = included.is_some_and(|names| names.iter().any(|name| name == LOGPROBS));
    let top = fields.integer("top_logprobs", 0..=20)?.map(|n| n as usize);
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            let why = format!("top_logprobs needs {LOGPROBS} in include");
            Err(ApiError::field("top_logprobs", why))
        }
    }
}
