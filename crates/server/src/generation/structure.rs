//! [`Structure`]: the structure that an answer must have, and the fields of four APIs that ask for one.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tallow_constraint::{Compiled, Compiler, Grammar, Limits, Refused, Tag, Tagged, Vocabulary};

use crate::errors::{ApiError, quoted};
use crate::parse::fields::{Fields, text, wrong};
use crate::state::Server;

/// Most choices of `guided_choice`.
const MAX_CHOICES: usize = 10_000;

/// The structure that an answer must have.
#[derive(Clone, Debug)]
pub(crate) struct Structure {
    pub(crate) grammar: Grammar,
    /// Path of the field that asks for it.
    pub(crate) path: String,
    /// Places in the grammar, and the paths of the fields that they come from.
    pub(crate) parts: Vec<(String, String)>,
    /// True if the grammar has the reasoning in front of the answer, too.
    pub(crate) covers_reasoning: bool,
}

impl Structure {
    /// A structure that is one field's.
    pub(crate) fn new(grammar: Grammar, path: String) -> Structure {
        Structure { grammar, path, parts: Vec::new(), covers_reasoning: false }
    }

    /// Takes the fields that ask for a structure: at most one of them.
    pub(crate) fn take(fields: &mut Fields) -> Result<Option<Structure>, ApiError> {
        let mut found = Vec::new();
        let mut add = |path: String, grammar: Option<Grammar>| {
            found.extend(grammar.map(|grammar| Structure::new(grammar, path)));
        };
        let path = fields.path("response_format");
        add(
            path.clone(),
            fields.take("response_format").map(|value| format(path, value)).transpose()?.flatten(),
        );
        let path = fields.path("structured_outputs");
        if let Some(value) = fields.take("structured_outputs").filter(|value| *value != json!({})) {
            let mut members = Fields::within(path, value)?;
            for name in ["json", "regex", "choice", "grammar", "json_object", "structural_tag"] {
                let path = members.path(name);
                add(
                    path.clone(),
                    members.take(name).map(|value| guided(path, name, value)).transpose()?.flatten(),
                );
            }
            // Choices of vLLM's that change nothing here.
            for name in [
                "disable_fallback",
                "disable_any_whitespace",
                "disable_additional_properties",
                "whitespace_pattern",
            ] {
                members.only_off(name, |value| *value == false)?;
            }
            members.finish()?;
        }
        for (name, kind) in [
            ("guided_json", "json"),
            ("guided_regex", "regex"),
            ("guided_choice", "choice"),
            ("guided_grammar", "grammar"),
            ("json_schema", "json"),
            ("grammar", "grammar"),
            ("regex", "regex"),
            ("ebnf", "grammar"),
        ] {
            let path = fields.path(name);
            // llama-server's clients send an empty grammar for none.
            let value = fields.take(name).filter(|value| name != "grammar" || *value != "");
            add(path.clone(), value.map(|value| guided(path, kind, value)).transpose()?.flatten());
        }
        let mut found = found.into_iter();
        let (first, second) = (found.next(), found.next());
        if let (Some(first), Some(second)) = (&first, &second) {
            let why = format!(
                "{} and {} both say what the answer must be; give one of them",
                first.path, second.path
            );
            return Err(ApiError::field(second.path.clone(), why));
        }
        Ok(first)
    }

    /// Takes `format` of the Responses API's `text`, in which a schema stands beside its type.
    pub(crate) fn take_text_format(text: &mut Fields) -> Result<Option<Structure>, ApiError> {
        let path = text.path("format");
        let Some(format) = text.take("format") else { return Ok(None) };
        let mut fields = Fields::within(path.clone(), format)?;
        let kind = fields.text("type")?.unwrap_or_default();
        let grammar = match kind.as_str() {
            "text" => None,
            "json_object" => Some(Grammar::JsonObject),
            "json_schema" => {
                let grammar = json_schema(fields)?;
                return Ok(Some(Structure::new(grammar, path)));
            }
            other => {
                let path = fields.path("type");
                let why =
                    format!("{path} should be text, json_object or json_schema, and is {}", quoted(other));
                return Err(ApiError::field(path, why));
            }
        };
        fields.finish()?;
        Ok(grammar.map(|grammar| Structure::new(grammar, path)))
    }

    /// JSON objects, from the field at a path.
    pub(crate) fn json_object(path: String) -> Structure {
        Structure::new(Grammar::JsonObject, path)
    }

    /// A schema that all answers must satisfy, from the field at a path.
    pub(crate) fn json_schema(path: String, schema: Value) -> Result<Structure, ApiError> {
        let grammar = Grammar::JsonSchema { schema: schema_of(path.clone(), schema)?, best_effort: false };
        Ok(Structure::new(grammar, path))
    }

    /// Why it cannot be honoured.
    pub(crate) fn refused(&self, refused: &Refused) -> ApiError {
        let inside = |(place, path): &(String, String)| {
            let rest = refused.pointer.strip_prefix(place.as_str())?;
            (rest.is_empty() || rest.starts_with('/'))
                .then(|| (path.clone(), rest.strip_prefix("/grammar").unwrap_or(rest)))
        };
        match self.parts.iter().find_map(inside) {
            Some((path, "")) => ApiError::field(path.clone(), format!("{path}: {}", refused.why)),
            Some((path, rest)) => ApiError::field(path.clone(), format!("{path}: {rest}: {}", refused.why)),
            None => ApiError::field(self.path.clone(), format!("{}: {refused}", self.path)),
        }
    }

    /// Compiles it, which may take a while: it is not for the thread of a connection.
    pub(crate) fn compiled(&self, server: &Server) -> Result<Arc<Compiled>, ApiError> {
        let compiler = server.compiler.get_or_init(|| {
            let vocabulary = Vocabulary::new(&server.model.handle.info().tokenizer)?;
            Ok(Compiler::new(Arc::new(vocabulary), Limits::default()))
        });
        let compiler = compiler.as_ref().map_err(|why| self.refused(why))?;
        compiler.compile(&self.grammar).map_err(|why| self.refused(&why))
    }
}

/// OpenAI's `response_format`, and vLLM's structural tags in it.
fn format(path: String, value: Value) -> Result<Option<Grammar>, ApiError> {
    let mut fields = Fields::within(path, value)?;
    let kind = fields.text("type")?.ok_or_else(|| {
        let path = fields.path("type");
        ApiError::field(path.clone(), format!("{path} is missing: text, json_object or json_schema"))
    })?;
    let grammar = match kind.as_str() {
        "text" => None,
        "json_object" => Some(match fields.take("schema") {
            // llama-server's.
            Some(schema) => Grammar::JsonSchema { schema, best_effort: false },
            None => Grammar::JsonObject,
        }),
        "json_schema" => {
            let path = fields.path("json_schema");
            let inner = fields.take("json_schema");
            let inner = inner.ok_or_else(|| ApiError::field(path.clone(), format!("{path} is missing")))?;
            Some(json_schema(Fields::within(path, inner)?)?)
        }
        "structural_tag" => Some(structural_tag(&mut fields)?),
        other => {
            let path = fields.path("type");
            let why = format!("{path} should be text, json_object or json_schema, and is {}", quoted(other));
            return Err(ApiError::field(path, why));
        }
    };
    fields.finish()?;
    Ok(grammar)
}

fn json_schema(mut fields: Fields) -> Result<Grammar, ApiError> {
    // A name and a description are for models that are told of the schema by the server.
    fields.text("name")?;
    fields.text("description")?;
    let best_effort = fields.flag("strict")? == Some(false);
    let path = fields.path("schema");
    let schema = fields.take("schema");
    let schema = schema.ok_or_else(|| ApiError::field(path.clone(), format!("{path} is missing")))?;
    fields.finish()?;
    Ok(Grammar::JsonSchema { schema: schema_of(path, schema)?, best_effort })
}

/// A schema: an object or a boolean, or one of these as text, as some clients send it.
fn schema_of(path: String, value: Value) -> Result<Value, ApiError> {
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(value),
        Value::String(text) => match serde_json::from_str(&text) {
            Ok(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(schema),
            Ok(other) => Err(wrong(path, "a JSON Schema", &other)),
            Err(e) => Err(ApiError::field(path.clone(), format!("{path} is text that is no JSON: {e}"))),
        },
        other => Err(wrong(path, "a JSON Schema", &other)),
    }
}

/// A member of `structured_outputs`, or a field with the same meaning.
fn guided(path: String, kind: &str, value: Value) -> Result<Option<Grammar>, ApiError> {
    Ok(Some(match kind {
        "json" => Grammar::JsonSchema { schema: schema_of(path, value)?, best_effort: false },
        "regex" => Grammar::Regex(text(path, value)?),
        "choice" => Grammar::Choice(choices(path, value)?),
        "grammar" => grammar(text(path, value)?),
        "json_object" => match value {
            Value::Bool(true) => Grammar::JsonObject,
            Value::Bool(false) => return Ok(None),
            other => return Err(wrong(path, "true or false", &other)),
        },
        _ => {
            // As text in vLLM's own clients.
            let value = match value {
                Value::String(text) => serde_json::from_str(&text).map_err(|e| {
                    ApiError::field(path.clone(), format!("{path} is text that is no JSON: {e}"))
                })?,
                value => value,
            };
            let mut fields = Fields::within(path, value)?;
            fields.only("type", |kind| *kind == "structural_tag", "it should be structural_tag")?;
            let grammar = structural_tag(&mut fields)?;
            fields.finish()?;
            grammar
        }
    }))
}

/// A grammar in llama.cpp's notation, or in that of Lark, which knows no `::=`.
fn grammar(text: String) -> Grammar {
    if text.contains("::=") { Grammar::Gbnf(text) } else { Grammar::Lark(text) }
}

fn choices(path: String, value: Value) -> Result<Vec<String>, ApiError> {
    let Value::Array(values) = value else { return Err(wrong(path, "a list of texts", &value)) };
    if values.is_empty() || values.len() > MAX_CHOICES {
        let why = format!("{path} should have from 1 to {MAX_CHOICES} choices, and has {}", values.len());
        return Err(ApiError::field(path, why));
    }
    values.into_iter().enumerate().map(|(i, value)| text(format!("{path}[{i}]"), value)).collect()
}

/// `structures` and `triggers`: text is free until a trigger, and then one of the structures must follow.
fn structural_tag(fields: &mut Fields) -> Result<Grammar, ApiError> {
    let tags = fields.list("structures", |path, value| {
        let mut fields = Fields::within(path, value)?;
        let path = fields.path("schema");
        let schema = fields.take("schema").unwrap_or(Value::Object(Map::new()));
        let mut needed = |name: &str| {
            let path = fields.path(name);
            fields.text(name)?.ok_or_else(|| ApiError::field(path.clone(), format!("{path} is missing")))
        };
        let (begin, end) = (needed("begin")?, needed("end")?);
        let grammar = Grammar::JsonSchema { schema: schema_of(path, schema)?, best_effort: false };
        fields.finish()?;
        Ok(Tag { begin, grammar, end })
    })?;
    let triggers = fields.list("triggers", text)?;
    match (tags, triggers) {
        (Some(tags), Some(triggers)) if !tags.is_empty() && !triggers.is_empty() => {
            Ok(Grammar::Tagged(Tagged { triggers, tags, at_least_one: false, stop_after_first: false }))
        }
        _ => {
            let path = fields.path("structures");
            Err(ApiError::field(path, "a structural tag has structures and triggers: a list of each"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(body: Value) -> Result<Option<(String, Grammar)>, String> {
        let mut fields = Fields::body(body.to_string().as_bytes()).unwrap();
        let taken = Structure::take(&mut fields).map_err(|e| e.to_string())?;
        fields.finish().map_err(|e| e.to_string())?;
        Ok(taken.map(|structure| (structure.path, structure.grammar)))
    }

    #[test]
    fn every_api_asks_in_its_own_way() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let of_schema = |best_effort| Grammar::JsonSchema { schema: schema.clone(), best_effort };
        let openai = |more: Value| {
            let mut inner = json!({"name": "x", "schema": schema});
            inner.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"response_format": {"type": "json_schema", "json_schema": inner}})
        };
        let choice = Grammar::Choice(vec!["yes".into(), "no".into()]);
        let tag = Tag { begin: "<f>".into(), grammar: of_schema(false), end: "</f>".into() };
        let tagged = Tagged {
            triggers: vec!["<f".into()],
            tags: vec![tag],
            at_least_one: false,
            stop_after_first: false,
        };
        let structural = json!({
            "type": "structural_tag",
            "structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}],
            "triggers": ["<f"],
        });
        for (body, path, grammar) in [
            (openai(json!({})), "response_format", of_schema(false)),
            (openai(json!({"strict": true, "description": "d"})), "response_format", of_schema(false)),
            (openai(json!({"strict": false})), "response_format", of_schema(true)),
            (json!({"response_format": {"type": "json_object"}}), "response_format", Grammar::JsonObject),
            (
                json!({"response_format": {"type": "json_object", "schema": schema}}),
                "response_format",
                of_schema(false),
            ),
            (json!({"response_format": structural}), "response_format", Grammar::Tagged(tagged.clone())),
            (json!({"guided_json": schema}), "guided_json", of_schema(false)),
            (json!({"guided_json": schema.to_string()}), "guided_json", of_schema(false)),
            (json!({"guided_regex": "a+"}), "guided_regex", Grammar::Regex("a+".into())),
            (json!({"guided_choice": ["yes", "no"]}), "guided_choice", choice.clone()),
            (
                json!({"guided_grammar": "start: \"a\""}),
                "guided_grammar",
                Grammar::Lark("start: \"a\"".into()),
            ),
            (json!({"json_schema": schema}), "json_schema", of_schema(false)),
            (json!({"grammar": "root ::= \"a\""}), "grammar", Grammar::Gbnf("root ::= \"a\"".into())),
            (json!({"ebnf": "root ::= \"a\""}), "ebnf", Grammar::Gbnf("root ::= \"a\"".into())),
            (json!({"structured_outputs": {"json": schema}}), "structured_outputs.json", of_schema(false)),
            (json!({"structured_outputs": {"choice": ["yes", "no"]}}), "structured_outputs.choice", choice),
            (
                json!({"structured_outputs": {"json_object": true}}),
                "structured_outputs.json_object",
                Grammar::JsonObject,
            ),
            (
                json!({"structured_outputs": {"structural_tag": structural.to_string()}}),
                "structured_outputs.structural_tag",
                Grammar::Tagged(tagged),
            ),
        ] {
            assert_eq!(taken(body.clone()), Ok(Some((path.to_owned(), grammar))), "{body}");
        }
        for none in [
            json!({}),
            json!({"response_format": {"type": "text"}}),
            json!({"response_format": null, "grammar": "", "structured_outputs": {}}),
            json!({"structured_outputs": {"json_object": false}}),
        ] {
            assert_eq!(taken(none.clone()), Ok(None), "{none}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let said: Vec<String> = [
            json!({"response_format": "json"}),
            json!({"response_format": {}}),
            json!({"response_format": {"type": "xml"}}),
            json!({"response_format": {"type": "json_schema"}}),
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}),
            json!({"response_format": {"type": "json_object", "more": 1}}),
            json!({"response_format": {"type": "structural_tag", "structures": []}}),
            json!({"guided_json": "{"}),
            json!({"guided_choice": []}),
            json!({"guided_choice": [1]}),
            json!({"structured_outputs": {"whatever": 1}}),
            json!({"guided_regex": "a", "guided_json": {}}),
            json!({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}),
        ]
        .into_iter()
        .map(|body| taken(body).unwrap_err())
        .collect();
        insta::assert_snapshot!(said.join("\n"));
    }
}
