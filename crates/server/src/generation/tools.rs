//! Tools: those that a request offers, and the calls in its messages.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tallow_constraint::{Beside, Callable, Calls, Grammar};
use tallow_text::output::{Tools, Writing};
use tallow_text::template::{Chat, ChatTemplate, Ending, Now};

use crate::errors::{ApiError, quoted};
use crate::generation::structure::Structure;
use crate::parse::fields::{Fields, text, wrong};

/// Most tools of a request.
const MAX_TOOLS: usize = 1024;
/// Longest name of a tool.
const MAX_NAME: usize = 256;

/// The tools that a model may call.
#[derive(Clone, Debug, Default)]
pub(crate) struct ToolUse {
    /// The list that its template is given, if there is one.
    pub(crate) offered: Option<Value>,
    /// The field that offers them.
    pub(crate) field: &'static str,
    /// Their names and parameters.
    pub(crate) known: Arc<Tools>,
    /// The calls of an answer, if there are tools.
    pub(crate) calls: Option<CallRules>,
}

/// Rules for the calls of an answer.
#[derive(Clone, Debug)]
pub(crate) struct CallRules {
    /// The field that says how tools are used.
    field: &'static str,
    /// The tools that may be called.
    tools: Vec<Tool>,
    /// One call alone.
    is_single: bool,
    /// The answer is calls and nothing else.
    must: bool,
}

/// A tool of a request.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    /// The tool as templates get it.
    told: Value,
    callable: Callable,
    /// The path of its parameters in the request.
    path: String,
    /// The path of the field that holds its arguments to them wherever it is called, if it does.
    strict: Option<String>,
}

impl CallRules {
    /// The structure of an answer with these calls, as a model writes them. `wanted` is the structure of an answer without.
    pub(crate) fn structure(
        &self,
        writing: Option<&Writing>,
        wanted: Option<Structure>,
    ) -> Result<Option<Structure>, ApiError> {
        let strict = self.tools.iter().find_map(|tool| tool.strict.clone());
        let path = match (&wanted, strict) {
            _ if self.must => self.field.to_owned(),
            (Some(wanted), _) => wanted.path.clone(),
            (None, Some(strict)) => strict,
            (None, None) => return Ok(None),
        };
        let Some(writing) = writing else {
            let why = format!(
                "{path} cannot be honoured: calls as this model writes them cannot be constrained yet; leave it out"
            );
            return Err(ApiError::field(path, why).code("unsupported_value"));
        };
        let callable: Vec<Callable> = self.tools.iter().map(|tool| tool.callable.clone()).collect();
        let (beside, other) = match wanted {
            // An answer of another kind is no calls.
            _ if self.must => (Beside::Nothing, None),
            None => (Beside::Text, None),
            Some(wanted) => (Beside::Instead(wanted.grammar), Some(wanted.path)),
        };
        let place = |list: &str| {
            let place = |(i, tool): (usize, &Tool)| (format!("{list}/{i}"), tool.path.clone());
            self.tools.iter().enumerate().map(place).collect::<Vec<_>>()
        };
        match Grammar::calls(writing, &callable, self.is_single, beside) {
            Ok(Calls { grammar, tools, instead, covers_reasoning }) => {
                let parts = place(tools).into_iter().chain(instead.zip(other)).collect();
                Ok(Some(Structure { grammar, path, parts, covers_reasoning }))
            }
            Err(refused) => {
                Err(Structure { parts: place("/items"), ..Structure::new(Grammar::Text, path) }
                    .refused(&refused))
            }
        }
    }
}

impl ToolUse {
    /// True if there are any.
    pub(crate) fn is_offered(&self) -> bool {
        self.offered.is_some()
    }

    /// Takes the fields: `tools` and how they may be used, or the older `functions`.
    pub(crate) fn take(fields: &mut Fields) -> Result<ToolUse, ApiError> {
        let tools = fields.list("tools", tool)?;
        let functions = fields.list("functions", function)?;
        let field = if functions.is_some() { "functions" } else { "tools" };
        let tools = match (tools, functions) {
            (Some(tools), Some(functions)) if !tools.is_empty() && !functions.is_empty() => {
                let why = "functions is the older form of tools; give one of them";
                return Err(ApiError::field("functions", why));
            }
            (tools, functions) => [tools, functions].into_iter().flatten().flatten().collect::<Vec<_>>(),
        };
        // Where calls are not forced it is the model's to say how many there are.
        let is_single = fields.flag("parallel_tool_calls")? == Some(false);
        let mut chosen = ("tool_choice", Choice::Auto);
        for name in ["tool_choice", "function_call"] {
            if let Some(value) = fields.take(name) {
                chosen = (name, choice(name, value)?);
            }
        }
        ToolUse::new(tools, field, chosen, is_single)
    }

    /// The use of tools, by the name of the field that has them. `chosen`: the field that says how they are used, and what it says.
    pub(crate) fn new(
        tools: Vec<Tool>,
        field: &'static str,
        (chooser, choice): (&'static str, Choice),
        is_single: bool,
    ) -> Result<ToolUse, ApiError> {
        if tools.len() > MAX_TOOLS {
            let why = format!("{field} should have at most {MAX_TOOLS}, and has {}", tools.len());
            return Err(ApiError::field(field, why));
        }
        if tools.is_empty() && !matches!(choice, Choice::Auto | Choice::None) {
            return Err(ApiError::field(
                chooser,
                format!("{chooser} asks for a call, and there are no tools"),
            ));
        }
        if tools.is_empty() || matches!(choice, Choice::None) {
            return Ok(ToolUse::default());
        }
        let offered = tools.iter().map(|tool| tool.told.clone()).collect();
        let calls = match choice {
            Choice::Auto | Choice::None => CallRules { field: chooser, tools, is_single, must: false },
            Choice::Required => CallRules { field: chooser, tools, is_single, must: true },
            Choice::Named(path, name) => {
                let Some(tool) = tools.into_iter().find(|tool| tool.callable.name == name) else {
                    let why = format!("{path} is {}, and no tool has this name", quoted(&name));
                    return Err(ApiError::field(path, why));
                };
                CallRules { field: chooser, tools: vec![tool], is_single: true, must: true }
            }
        };
        let known = Tools::from_json(&offered).map_err(|e| ApiError::field(field, e.to_string()))?;
        Ok(ToolUse { offered: Some(offered), field, known: Arc::new(known), calls: Some(calls) })
    }
}

/// `tool_choice`, in each API.
#[derive(Clone, Debug)]
pub(crate) enum Choice {
    /// The model chooses.
    Auto,
    /// Not at all.
    None,
    /// At least one is called.
    Required,
    /// This one is called: the path of its name, and the name.
    Named(String, String),
}

/// `tool_choice`, or the older `function_call`, which has the name without a type.
fn choice(field: &'static str, value: Value) -> Result<Choice, ApiError> {
    match value.as_str() {
        Some("auto") => return Ok(Choice::Auto),
        Some("none") => return Ok(Choice::None),
        // Mistral's name for it.
        Some("required" | "any") if field == "tool_choice" => return Ok(Choice::Required),
        _ => {}
    }
    if !value.is_object() {
        return Err(wrong(field.into(), "auto, none, required or a function", &value));
    }
    let mut fields = Fields::within(field.into(), value)?;
    let mut path = fields.path("name");
    let mut name = fields.text("name")?;
    fields.only("type", |kind| *kind == "function", "only functions are called")?;
    let inner = (fields.path("function"), fields.take("function"));
    fields.finish()?;
    if let (at, Some(inner)) = inner {
        let mut fields = Fields::within(at, inner)?;
        path = fields.path("name");
        name = fields.text("name")?;
        fields.finish()?;
    }
    let name = name.ok_or_else(|| ApiError::field(path.clone(), format!("{path} is missing")))?;
    Ok(Choice::Named(path, name))
}

fn wrapped(function: Value) -> Value {
    json!({"type": "function", "function": function})
}

fn tool(path: String, value: Value) -> Result<Tool, ApiError> {
    let mut fields = Fields::within(path, value)?;
    let path = fields.path("type");
    match fields.text("type")?.as_deref() {
        None | Some("function") => {}
        Some(other) => {
            let why = format!("tools of type {} are not supported; only functions are", quoted(other));
            return Err(ApiError::field(path, why).code("unsupported_value"));
        }
    }
    let path = fields.path("function");
    let inner = fields.take("function");
    let inner = inner.ok_or_else(|| ApiError::field(path.clone(), format!("{path} is missing")))?;
    fields.only("cache_control", Value::is_object, "it should be an object; or leave it out")?;
    fields.finish()?;
    function(path, inner)
}

/// A function's name, description and parameters.
fn function(path: String, value: Value) -> Result<Tool, ApiError> {
    let mut fields = Fields::within(path, value)?;
    let tool = Tool::take(&mut fields, "parameters")?;
    fields.finish()?;
    Ok(tool)
}

impl Tool {
    /// Takes a tool's fields; `schema` has the JSON Schema of its parameters.
    pub(crate) fn take(fields: &mut Fields, schema: &str) -> Result<Tool, ApiError> {
        let path = fields.path("name");
        let name = fields.short_text("name", MAX_NAME)?;
        let name = name.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| ApiError::field(path.clone(), format!("{path} is missing")))?;
        let mut function = Map::from_iter([("name".to_owned(), name.clone().into())]);
        let description = fields.text("description")?;
        function.extend(description.map(|text| ("description".to_owned(), text.into())));
        let place = fields.path(schema);
        let mut parameters = json!({"additionalProperties": false});
        match fields.take(schema) {
            None => {}
            Some(given @ Value::Object(_)) => {
                parameters = given.clone();
                function.insert("parameters".to_owned(), given);
            }
            Some(other) => return Err(wrong(place, "an object", &other)),
        }
        // Arguments are an object, whatever else the schema says.
        parameters["type"] = "object".into();
        if names_all(&parameters) {
            parameters["additionalProperties"] = false.into();
        }
        let path = Some(fields.path("strict"));
        let strict = fields.flag("strict")?;
        let callable = Callable { name, parameters, best_effort: strict == Some(false) };
        Ok(Tool {
            told: wrapped(Value::Object(function)),
            callable,
            path: place,
            strict: path.filter(|_| strict == Some(true)),
        })
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.callable.name
    }
}

/// True if a tool names its parameters and says nothing of others: a function takes none that it does not name.
fn names_all(parameters: &Value) -> bool {
    const OF_OTHERS: [&str; 10] = [
        "additionalProperties",
        "unevaluatedProperties",
        "patternProperties",
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "allOf",
        "anyOf",
        "oneOf",
        "if",
    ];
    parameters.get("properties").is_some_and(Value::is_object)
        && OF_OTHERS.iter().all(|keyword| parameters.get(keyword).is_none())
}

/// The calls of an earlier answer: each a function's name and its arguments, a JSON object as text.
pub(crate) fn calls(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let path = fields.path("function_call");
    let older = fields.take("function_call");
    let older = older.map(|value| Ok(wrapped(called(path, value)?))).transpose()?;
    let calls = fields.list("tool_calls", |path, value| {
        let mut fields = Fields::within(path, value)?;
        let id = fields.text("id")?;
        fields.only("type", |kind| *kind == "function", "only functions are called")?;
        fields.integer("index", 0..=i64::MAX)?;
        let path = fields.path("function");
        let inner = fields.take("function");
        let inner = inner.ok_or_else(|| ApiError::field(path.clone(), format!("{path} is missing")))?;
        fields.finish()?;
        let mut call = wrapped(called(path, inner)?);
        if let (Value::Object(members), Some(id)) = (&mut call, id) {
            members.insert("id".into(), id.into());
        }
        Ok(call)
    })?;
    let all: Vec<Value> = calls.into_iter().flatten().chain(older).collect();
    Ok((!all.is_empty()).then_some(Value::Array(all)))
}

/// A call's function: the arguments become the object that they are the text of.
fn called(path: String, value: Value) -> Result<Value, ApiError> {
    let mut fields = Fields::within(path, value)?;
    let path = fields.path("name");
    let name =
        fields.text("name")?.ok_or_else(|| ApiError::field(path.clone(), format!("{path} is missing")))?;
    let path = fields.path("arguments");
    let arguments = match fields.take("arguments") {
        None => json!({}),
        Some(arguments @ Value::Object(_)) => arguments,
        Some(value) => arguments_of(text(path.clone(), value)?),
    };
    fields.finish()?;
    Ok(json!({"name": name, "arguments": arguments}))
}

/// The arguments of an earlier call from their text.
pub(crate) fn arguments_of(text: String) -> Value {
    match text.trim() {
        "" => json!({}),
        // A call that was cut off stays as it is.
        trimmed => serde_json::from_str(trimmed).unwrap_or(Value::String(text)),
    }
}

/// An earlier call, as templates get it.
pub(crate) fn call(id: Option<&str>, name: &str, arguments: Value) -> Value {
    let mut call = wrapped(json!({"name": name, "arguments": arguments}));
    if let (Value::Object(members), Some(id)) = (&mut call, id) {
        members.insert("id".into(), id.into());
    }
    call
}

/// Messages with the arguments of calls as a template expects them: as an object, or as its JSON text.
pub(crate) fn with_arguments_for<'a>(
    template: &ChatTemplate,
    messages: &'a Value,
    now: Now,
) -> std::borrow::Cow<'a, Value> {
    let has_calls = |message: &Value| message.get("tool_calls").is_some();
    let any = messages.as_array().is_some_and(|all| all.iter().any(has_calls));
    if !any || takes_objects(template, now) {
        return std::borrow::Cow::Borrowed(messages);
    }
    let mut messages = messages.clone();
    let all = messages.as_array_mut().into_iter().flatten();
    let calls = all.filter_map(|message| message.get_mut("tool_calls")?.as_array_mut()).flatten();
    for arguments in calls.filter_map(|call| call.get_mut("function")?.get_mut("arguments")) {
        if !arguments.is_string() {
            *arguments = arguments.to_string().into();
        }
    }
    std::borrow::Cow::Owned(messages)
}

/// True if a template writes arguments that are an object as JSON. Some put their text in as it is, which an object has not.
fn takes_objects(template: &ChatTemplate, now: Now) -> bool {
    let call = json!({
        "id": "abcdefghi",
        "type": "function",
        "function": {"name": "probe", "arguments": {"probed": "value"}},
    });
    let messages = json!([
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
    ]);
    let chat = Chat { ending: Ending::Closed, ..Chat::new(&messages, now) };
    // Other syntaxes write the name and the value apart.
    template.render(&chat).is_ok_and(|text| text.contains("probed") && !text.contains("{'probed'"))
}
