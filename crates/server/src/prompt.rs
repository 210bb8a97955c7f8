//! From messages and texts to the tokens of a prompt.

use std::time::SystemTime;

use serde_json::{Map, Value};
use tallow_models::template::{Chat, ChatTemplates, Ending, Now};
use tallow_models::tokenizer::{Around, Special, TokenizeError, Tokenizer, Written};

use crate::errors::ApiError;
use crate::fields::{Fields, text, wrong};

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
/// Messages of one chat.
const MOST_MESSAGES: usize = 16_384;

/// A chat as a request has it.
#[derive(Clone, Debug)]
pub(crate) struct Messages {
    /// A list of objects, each with a `role` and a `content` that is text.
    messages: Value,
    ending: Ending,
    values: Map<String, Value>,
}

impl Messages {
    /// Takes the fields of a chat.
    pub(crate) fn take(fields: &mut Fields) -> Result<Messages, ApiError> {
        let messages = fields.list("messages", message)?;
        let messages = messages.ok_or_else(|| ApiError::field("messages", "messages is missing"))?;
        if messages.is_empty() || messages.len() > MOST_MESSAGES {
            let why = format!("messages should have from 1 to {MOST_MESSAGES}, and has {}", messages.len());
            return Err(ApiError::field("messages", why));
        }
        let open = fields.flag("continue_final_message")?.unwrap_or(false);
        let ending = match (open, fields.flag("add_generation_prompt")?) {
            (true, Some(true)) => {
                let why = "the last message cannot be gone on with and be answered: set add_generation_prompt to false";
                return Err(ApiError::field("continue_final_message", why));
            }
            (true, _) => Ending::Open,
            (false, Some(false)) => Ending::Closed,
            (false, _) => Ending::Prompt,
        };
        let values = match fields.take("chat_template_kwargs") {
            None => Map::new(),
            Some(Value::Object(values)) => values,
            Some(other) => return Err(wrong("chat_template_kwargs".into(), "an object", &other)),
        };
        Ok(Messages { messages: Value::Array(messages), ending, values })
    }

    /// The chat's tokens. Nothing that the messages contain becomes a special token; only the template writes those.
    ///
    /// A model without a template was not taught to chat. Its chats are the messages' contents, one to a line, as a
    /// text to go on with.
    pub(crate) fn tokens(
        &self,
        templates: Option<&ChatTemplates>,
        template_values: bool,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<u32>, ApiError> {
        if !self.values.is_empty() && !template_values {
            let why = "this server takes no chat_template_kwargs; whoever runs it can allow them";
            return Err(ApiError::field("chat_template_kwargs", why));
        }
        let Some(template) = templates.and_then(|templates| templates.choose(false)) else {
            let messages = self.messages.as_array().into_iter().flatten();
            let contents: Vec<&str> = messages.filter_map(|m| m.get("content")?.as_str()).collect();
            let tokens = tokenizer.encode(&contents.join("\n"), Special::PROMPT);
            return tokens.map_err(|e| not_tokenized("messages", &e));
        };
        let now = Now::local(unix_time() as i64);
        let chat = Chat { ending: self.ending, values: &self.values, ..Chat::new(&self.messages, now) };
        template.prompt(&chat, tokenizer).map_err(|e| ApiError::field("messages", e.to_string()))
    }
}

/// A text's tokens. Whoever writes a whole prompt writes its special tokens too.
pub(crate) fn tokens_of_text(
    param: &str,
    text: &str,
    around: Around,
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>, ApiError> {
    let tokens = tokenizer.encode(text, Special { around, written: Written::Parsed });
    let tokens = tokens.map_err(|e| not_tokenized(param, &e))?;
    Ok(if around == Around::Added { tokenizer.begun(tokens) } else { tokens })
}

fn not_tokenized(param: &str, e: &TokenizeError) -> ApiError {
    ApiError::field(param, format!("{param} cannot be tokenized: {e}"))
}

/// Seconds since the start of 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A message, checked, its content one text.
fn message(path: String, value: Value) -> Result<Value, ApiError> {
    let mut fields = Fields::within(path, value)?;
    let role = fields.text("role")?;
    let role = role.ok_or_else(|| ApiError::field(fields.path("role"), "every message needs a role"))?;
    if !ROLES.contains(&role.as_str()) {
        let why =
            format!("there is no role {}; there are {}", crate::errors::quoted(&role), ROLES.join(", "));
        return Err(ApiError::field(fields.path("role"), why));
    }
    let mut message = Map::new();
    // Templates know the older of the two names.
    let known = if role == "developer" { "system" } else { &role };
    message.insert("role".into(), known.into());
    message.insert("content".into(), content(&mut fields)?.into());
    let more: &[&str] = match role.as_str() {
        "assistant" => &["name", "reasoning_content"],
        "tool" => &["name", "tool_call_id"],
        _ => &["name"],
    };
    for name in more {
        if let Some(text) = fields.text(name)? {
            message.insert((*name).into(), text.into());
        }
    }
    if role == "assistant" {
        fields.only_off("tool_calls", is_empty_list)?;
        fields.only_off("refusal", |_| false)?;
        fields.only_off("function_call", |_| false)?;
        fields.only_off("audio", |_| false)?;
    }
    fields.finish()?;
    Ok(Value::Object(message))
}

/// What a message says: text, or parts that are text, each on a line of its own.
fn content(fields: &mut Fields) -> Result<String, ApiError> {
    let path = fields.path("content");
    match fields.take("content") {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => {
            let parts =
                parts.into_iter().enumerate().map(|(i, part)| text_part(format!("{path}[{i}]"), part));
            Ok(parts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        Some(other) => Err(wrong(path, "text or a list of parts", &other)),
        None => Err(ApiError::field(path, "every message needs a content")),
    }
}

fn text_part(path: String, part: Value) -> Result<String, ApiError> {
    let mut part = Fields::within(path, part)?;
    let kind = part.text("type")?.unwrap_or_default();
    if kind != "text" {
        let why =
            format!("parts of type {} are not supported yet; only text is", crate::errors::quoted(&kind));
        return Err(ApiError::field(part.path("type"), why).code("unsupported_value"));
    }
    let path = part.path("text");
    let said = part.take("text").unwrap_or(Value::Null);
    let said = text(path, said)?;
    part.finish()?;
    Ok(said)
}

/// A list without anything in it.
pub(crate) fn is_empty_list(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}
