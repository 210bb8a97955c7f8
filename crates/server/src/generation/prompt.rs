//! Prompts: from messages and texts to tokens.

use serde_json::{Map, Value};
use tallow_text::reasoning::Reasoning;
use tallow_text::template::{Chat, ChatTemplates, Ending, Now};
use tallow_text::tokenizer::{Around, Shown, Special, TokenizeError, Tokenizer, Written};

use crate::clock::unix_time;
use crate::errors::{ApiError, quoted};
use crate::generation::thinking::{Reasoned, ReasoningOutput, Thinking, is_harmless};
use crate::parse::fields::{Fields, text, wrong};

const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];
/// Most messages in one chat.
const MAX_MESSAGES: usize = 16_384;

/// Messages of a chat request and how to render them.
#[derive(Clone, Debug)]
pub(crate) struct Messages {
    /// List of objects, each with a `role` and a `content` that is text.
    messages: Value,
    ending: Ending,
    values: Map<String, Value>,
    thinking: Thinking,
}

/// Tokens at the end of a prompt that are searched for the mark that opens a reasoning block.
const ENDING: usize = 16;

impl Messages {
    /// Takes a chat's fields.
    pub(crate) fn take(fields: &mut Fields) -> Result<Messages, ApiError> {
        let messages = fields.list("messages", message)?;
        let messages = messages.ok_or_else(|| ApiError::field("messages", "messages is missing"))?;
        if messages.is_empty() || messages.len() > MAX_MESSAGES {
            let why = format!("messages should have from 1 to {MAX_MESSAGES}, and has {}", messages.len());
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
        Ok(Messages { messages: Value::Array(messages), ending, values, thinking: Thinking::take(fields)? })
    }

    /// The chat's tokens; a chat of far more than `limit` is refused. Message contents never become special tokens; only
    /// the template writes those.
    ///
    /// A model without a template was not trained to chat. Its prompt is the contents of the messages, one per line, as
    /// text to continue.
    pub(crate) fn tokens(
        &self,
        templates: Option<&ChatTemplates>,
        template_values: bool,
        tokenizer: &Tokenizer,
        limit: usize,
    ) -> Result<Vec<u32>, ApiError> {
        let forbidden =
            self.values.iter().find(|(name, value)| !template_values && !is_harmless(name, value));
        if let Some((name, _)) = forbidden {
            let why = format!(
                "this server does not take {} in chat_template_kwargs; whoever runs it can allow it with \
                 --allow-template-kwargs",
                quoted(name)
            );
            return Err(ApiError::field("chat_template_kwargs", why));
        }
        let template = templates.and_then(|templates| templates.choose(false));
        let values = self.thinking.values(template, &self.values)?;
        let Some(template) = template else {
            let messages = self.messages.as_array().into_iter().flatten();
            let contents: Vec<&str> = messages.filter_map(|m| m.get("content")?.as_str()).collect();
            let tokens = tokenizer.encode_up_to(&contents.join("\n"), Special::PROMPT, limit);
            let tokens = tokens.map_err(|e| not_tokenized("messages", &e))?;
            return tokens.ok_or_else(|| ApiError::far_too_long("messages", limit));
        };
        if self.messages.as_array().into_iter().flatten().any(|m| exceeds(m, tokenizer, limit)) {
            return Err(ApiError::far_too_long("messages", limit));
        }
        let now = Now::local(unix_time() as i64);
        let chat = Chat { ending: self.ending, values: &values, ..Chat::new(&self.messages, now) };
        let tokens = template.prompt_up_to(&chat, tokenizer, limit);
        let tokens = tokens.map_err(|e| ApiError::field("messages", e.to_string()))?;
        tokens.ok_or_else(|| ApiError::far_too_long("messages", limit))
    }

    /// Splits reasoning from the answer to these prompt tokens, if the model marks it.
    pub(crate) fn reasoned(
        &self,
        templates: Option<&ChatTemplates>,
        tokens: &[u32],
        tokenizer: &Tokenizer,
    ) -> Option<Reasoned> {
        if self.thinking.output == ReasoningOutput::Inline {
            return None;
        }
        let reasoning = Reasoning::of(templates?.choose(false)?)?;
        let splitter = match self.ending {
            Ending::Open => {
                let last = self.messages.as_array().and_then(|all| all.last()?.get("content")?.as_str());
                reasoning.splitter_after(last.unwrap_or_default())
            }
            Ending::Prompt | Ending::Closed => {
                let ending = &tokens[tokens.len().saturating_sub(ENDING)..];
                reasoning.splitter(&tokenizer.decode(ending, Shown::All))
            }
        };
        let (marks, is_sent) =
            (reasoning.special_tokens(tokenizer), self.thinking.output == ReasoningOutput::Separate);
        Some(Reasoned { splitter, marks, is_sent })
    }
}

/// True if a message alone has far more than `limit` tokens. Then the chat need not be rendered, which takes several
/// times its memory. Assistant messages are exempt: templates drop their reasoning, so they may fit all the same.
fn exceeds(message: &Value, tokenizer: &Tokenizer, limit: usize) -> bool {
    let of = |name: &str| message.get(name).and_then(Value::as_str).unwrap_or_default();
    of("role") != "assistant" && tokenizer.exceeds(of("content").trim(), Special::BARE, limit)
}

/// A text's tokens; a text of far more than `limit` is refused. Special tokens written in the text are parsed: whoever
/// writes a whole prompt writes its special tokens too.
pub(crate) fn tokens_of_text(
    param: &str,
    text: &str,
    around: Around,
    (tokenizer, limit): (&Tokenizer, usize),
) -> Result<Vec<u32>, ApiError> {
    let tokens = tokenizer.encode_up_to(text, Special { around, written: Written::Parsed }, limit);
    let tokens = tokens.map_err(|e| not_tokenized(param, &e))?;
    let tokens = tokens.ok_or_else(|| ApiError::far_too_long(param, limit))?;
    Ok(if around == Around::Added { tokenizer.begun(tokens) } else { tokens })
}

fn not_tokenized(param: &str, e: &TokenizeError) -> ApiError {
    ApiError::field(param, format!("{param} cannot be tokenized: {e}"))
}

/// Validates one message; its content becomes a single text.
fn message(path: String, value: Value) -> Result<Value, ApiError> {
    let mut fields = Fields::within(path, value)?;
    let role = fields.text("role")?;
    let role = role.ok_or_else(|| ApiError::field(fields.path("role"), "every message needs a role"))?;
    if !ROLES.contains(&role.as_str()) {
        let why = format!("there is no role {}; there are {}", quoted(&role), ROLES.join(", "));
        return Err(ApiError::field(fields.path("role"), why));
    }
    let mut message = Map::new();
    // Templates know only one name of each role.
    let known = match role.as_str() {
        "developer" => "system",
        "function" => "tool",
        role => role,
    };
    let refusal = if role == "assistant" { fields.text("refusal")? } else { None };
    message.insert("role".into(), known.into());
    // A refusal is the whole content of its message.
    let text = match refusal {
        Some(refusal) if fields.peek("content").is_none() => refusal,
        _ => content(&mut fields)?,
    };
    message.insert("content".into(), text.into());
    if role == "assistant" {
        for theirs in ["reasoning", "thinking"] {
            fields.rename(theirs, "reasoning_content")?;
        }
    }
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
        not_replayed(&mut fields)?;
    }
    // Prefixes are cached in any case.
    fields.only("cache_control", Value::is_object, "it should be an object; or leave it out")?;
    fields.finish()?;
    Ok(Value::Object(message))
}

/// Takes fields that answers have besides their text, for when a client sends an answer back as part of a chat.
fn not_replayed(fields: &mut Fields) -> Result<(), ApiError> {
    fields.only_off("tool_calls", is_empty_list)?;
    fields.only_off("function_call", |_| false)?;
    fields.only_off("audio", |_| false)?;
    // Sources of the text or the model's confidence: nothing that goes into a prompt.
    for name in ["annotations", "reasoning_details"] {
        fields.only(name, Value::is_array, "it should be a list; or leave it out")?;
    }
    Ok(())
}

/// Content of a message: a text, or a list of text parts, which are joined by newlines.
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
    // A refusal part is the text of a model that refuses.
    if kind != "text" && kind != "refusal" {
        let why = format!("parts of type {} are not supported yet; only text is", quoted(&kind));
        return Err(ApiError::field(part.path("type"), why).code("unsupported_value"));
    }
    let path = part.path(&kind);
    let value = part.take(&kind).unwrap_or(Value::Null);
    part.only("cache_control", Value::is_object, "it should be an object; or leave it out")?;
    part.only("annotations", Value::is_array, "it should be a list; or leave it out")?;
    let content = text(path, value)?;
    part.finish()?;
    Ok(content)
}

/// True if the value is an empty list.
pub(crate) fn is_empty_list(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}
