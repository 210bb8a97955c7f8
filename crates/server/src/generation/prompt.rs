//! Prompts: from messages and texts to tokens.

use serde_json::{Map, Value};
use tallow_text::template::{Chat, ChatTemplate, Ending, Now};
use tallow_text::tokenizer::{Around, Shown, Special, TokenizeError, Tokenizer, Written};

use crate::clock::unix_time;
use crate::constraint::ReasoningPart;
use crate::errors::{ApiError, quoted};
use crate::generation::structure::Structure;
use crate::generation::thinking::{OutputParts, ReasoningOutput, Thinking, is_harmless};
use crate::generation::tools::{self, ToolUse};
use crate::parse::fields::{Fields, text, wrong};
use crate::served::Served;
use crate::state::Server;

const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];
/// Most messages in one chat.
const MAX_MESSAGES: usize = 16_384;

/// Messages of a chat request and how to render them.
#[derive(Clone, Debug)]
pub(crate) struct Messages {
    /// The field that has them.
    field: &'static str,
    /// List of objects, each with a `role` and a `content` that is text.
    messages: Value,
    ending: Ending,
    values: Map<String, Value>,
    thinking: Thinking,
    tools: ToolUse,
}

/// Tokens at the end of a prompt that are searched for the mark that opens a reasoning block.
const ENDING: usize = 16;

impl Messages {
    /// Takes a chat's fields.
    pub(crate) fn take(fields: &mut Fields) -> Result<Messages, ApiError> {
        let messages = fields.list("messages", message)?;
        let messages = messages.ok_or_else(|| ApiError::field("messages", "messages is missing"))?;
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
        let (thinking, tools) = (Thinking::take(fields)?, ToolUse::take(fields)?);
        Messages::new(("messages", messages), ending, template_values(fields)?, thinking, tools)
    }

    /// Messages as templates get them, and the field that they come from. `values` are for the template.
    pub(crate) fn new(
        (field, messages): (&'static str, Vec<Value>),
        ending: Ending,
        values: Map<String, Value>,
        thinking: Thinking,
        tools: ToolUse,
    ) -> Result<Messages, ApiError> {
        if messages.is_empty() || messages.len() > MAX_MESSAGES {
            let why = format!("{field} should have from 1 to {MAX_MESSAGES}, and has {}", messages.len());
            return Err(ApiError::field(field, why));
        }
        Ok(Messages { field, messages: Value::Array(messages), ending, values, thinking, tools })
    }

    /// The chat's tokens; a chat that is far longer than the context is refused.
    pub(crate) fn tokens(&self, server: &Server) -> Result<Vec<u32>, ApiError> {
        self.tokens_up_to(server, server.model.handle.info().context)
    }

    /// The chat's tokens; a chat of far more than `limit` is refused. Message contents never become special tokens; only
    /// the template writes those.
    ///
    /// A model without a template was not trained to chat. Its prompt is the contents of the messages, one per line, as
    /// text to continue.
    pub(crate) fn tokens_up_to(&self, server: &Server, limit: usize) -> Result<Vec<u32>, ApiError> {
        let tokenizer = &server.model.handle.info().tokenizer;
        self.check_values(server.settings.template_values)?;
        let template = self.template(server)?;
        let values = self.thinking.values(template, &self.values)?;
        let Some(template) = template else {
            let messages = self.messages.as_array().into_iter().flatten();
            let contents: Vec<&str> = messages.filter_map(|m| m.get("content")?.as_str()).collect();
            let tokens = tokenizer.encode_up_to(&contents.join("\n"), Special::PROMPT, limit);
            let tokens = tokens.map_err(|e| not_tokenized(self.field, &e))?;
            return tokens.ok_or_else(|| ApiError::far_too_long(self.field, limit));
        };
        if self.messages.as_array().into_iter().flatten().any(|m| exceeds(m, tokenizer, limit)) {
            return Err(ApiError::far_too_long(self.field, limit));
        }
        let now = Now::local(unix_time() as i64);
        let messages = tools::with_arguments_for(template, &self.messages, now);
        let (ending, tools) = (self.ending, self.tools.offered.as_ref());
        let chat = Chat { ending, tools, values: &values, ..Chat::new(&messages, now) };
        let tokens = template.prompt_up_to(&chat, tokenizer, limit);
        let tokens = tokens.map_err(|e| ApiError::field(self.field, e.to_string()))?;
        tokens.ok_or_else(|| ApiError::far_too_long(self.field, limit))
    }

    /// The chat's prompt as text.
    pub(crate) fn text(&self, server: &Server) -> Result<String, ApiError> {
        self.check_values(server.settings.template_values)?;
        let template = self.template(server)?;
        let template =
            template.ok_or_else(|| ApiError::field("messages", "the model has no chat template"))?;
        let values = self.thinking.values(Some(template), &self.values)?;
        let now = Now::local(unix_time() as i64);
        let messages = tools::with_arguments_for(template, &self.messages, now);
        let (ending, tools) = (self.ending, self.tools.offered.as_ref());
        let chat = Chat { ending, tools, values: &values, ..Chat::new(&messages, now) };
        template.render(&chat).map_err(|e| ApiError::field(self.field, e.to_string()))
    }

    /// The template for this chat, if the model has one. It must have a place for tools, if there are any.
    fn template<'s>(&self, server: &'s Server) -> Result<Option<&'s ChatTemplate>, ApiError> {
        let template = server.model.template(self.tools.is_offered());
        match template {
            _ if !self.tools.is_offered() => Ok(template),
            None => Err(deaf(self.tools.field, "the model has no chat template")),
            Some(template) if !template.reads("tools") => {
                Err(deaf(self.tools.field, "the model's chat template has no place for tools"))
            }
            Some(_) => Ok(template),
        }
    }

    /// Refuses values for the template that only some servers take.
    fn check_values(&self, template_values: bool) -> Result<(), ApiError> {
        let forbidden =
            self.values.iter().find(|(name, value)| !template_values && !is_harmless(name, value));
        let Some((name, _)) = forbidden else { return Ok(()) };
        let why = format!(
            "this server does not take {} in chat_template_kwargs; whoever runs it can allow it with \
             --allow-template-kwargs",
            quoted(name)
        );
        Err(ApiError::field("chat_template_kwargs", why))
    }

    /// The structure of the answer: of its calls, and that which an answer without calls is `wanted` to have.
    pub(crate) fn structure(
        &self,
        model: &Served,
        wanted: Option<Structure>,
    ) -> Result<Option<Structure>, ApiError> {
        let Some(calls) = &self.tools.calls else { return Ok(wanted) };
        calls.structure(model.output_format(true).writing(), wanted)
    }

    /// Divides the answer to these prompt tokens, if the model's template shows how it writes it.
    pub(crate) fn output_parts(
        &self,
        model: &Served,
        tokens: &[u32],
    ) -> Result<Option<OutputParts>, ApiError> {
        let calls = self.tools.is_offered();
        let (whole, tokenizer) = (model.output_format(calls), &model.handle.info().tokenizer);
        let limit = self.thinking.limit(whole, tokenizer)?;
        let is_inline = self.thinking.output == ReasoningOutput::Inline;
        let format = if is_inline { whole.inline() } else { whole };
        if !whole.reasons() && !calls {
            return Ok(None);
        }
        let (end, begun) = match self.ending {
            Ending::Open => {
                let last = self.messages.as_array().and_then(|all| all.last()?.get("content")?.as_str());
                (String::new(), Some(last.unwrap_or_default().to_owned()))
            }
            Ending::Prompt | Ending::Closed => {
                let ending = &tokens[tokens.len().saturating_sub(ENDING)..];
                (tokenizer.decode(ending, Shown::All), None)
            }
        };
        // Without tools nothing is a call.
        let mut parser = format.parser(&end, Some(self.tools.known.clone()));
        if let Some(begun) = &begun {
            parser.resume(begun);
        }
        let before = whole.reasons().then(|| ReasoningPart {
            begun,
            opening: whole.opening_token(tokenizer),
            limit,
            ..ReasoningPart::new(whole, end)
        });
        Ok(Some(OutputParts {
            parser,
            before,
            markers: format.special_tokens(tokenizer, calls),
            counts: format.reasons(),
            is_sent: self.thinking.output != ReasoningOutput::Hidden,
        }))
    }
}

/// Takes values for the template.
pub(crate) fn template_values(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    match fields.take("chat_template_kwargs") {
        None => Ok(Map::new()),
        Some(Value::Object(values)) => Ok(values),
        Some(other) => Err(wrong("chat_template_kwargs".into(), "an object", &other)),
    }
}

/// The model cannot be told of tools.
fn deaf(field: &str, why: &str) -> ApiError {
    let why = format!("{why}, so it cannot be told of them; describe them in a message, or leave them out");
    ApiError::field(field, why).code("unsupported_value")
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

/// The tokens of a prompt for the text between two others, behind other files that it may use. `param` has the suffix.
pub(crate) fn tokens_between(
    param: &str,
    (prefix, suffix): (&str, &str),
    files: &[(String, String)],
    (tokenizer, limit): (&Tokenizer, usize),
) -> Result<Vec<u32>, ApiError> {
    let marks = tokenizer.fill_in_middle().ok_or_else(|| {
        let why = "the model has no tokens for filling in the middle; leave it out";
        ApiError::field(param, format!("{param} cannot be honoured: {why}")).code("unsupported_value")
    })?;
    let texts = files.iter().flat_map(|(name, text)| [name, text]).map(String::as_str);
    if texts.chain([prefix, suffix]).any(|text| tokenizer.exceeds(text, Special::BARE, limit)) {
        return Err(ApiError::far_too_long(param, limit));
    }
    marks.prompt(tokenizer, (prefix, suffix), files).map_err(|e| not_tokenized(param, &e))
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
    let calls = if role == "assistant" { tools::calls(&mut fields)? } else { None };
    let has_content = fields.peek("content").is_some();
    // A refusal is the whole content of its message.
    let text = match refusal {
        Some(refusal) if !has_content => refusal.into(),
        // Templates tell a call from text by that.
        _ if calls.is_some() && !has_content => Value::Null,
        _ => content(&mut fields)?.into(),
    };
    message.insert("content".into(), text);
    message.extend(calls.map(|calls| ("tool_calls".to_owned(), calls)));
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
