//! `/api/...`: Ollama's API.

pub(super) mod chat;
pub(super) mod embed;
pub(super) mod models;
pub(super) mod pull;

use serde_json::Value;

use crate::errors::ApiError;
use crate::generation::params::Generation;
use crate::generation::structure::Structure;
use crate::parse::fields::{Fields, wrong};

/// Options that say how a model is run, which is set when the server starts, and change no answer.
const OF_THE_SERVER: [&str; 11] = [
    "num_gpu",
    "main_gpu",
    "num_thread",
    "num_batch",
    "numa",
    "low_vram",
    "use_mmap",
    "use_mlock",
    "f16_kv",
    "vocab_only",
    "num_keep",
];

/// Takes `model`: the tag `latest` is that of names without one.
fn model(fields: &mut Fields, names: &[String]) -> Result<Option<String>, ApiError> {
    // The older name of the field.
    fields.rename("name", "model")?;
    let Some(model) = fields.text("model")? else { return Ok(None) };
    let known = |name: &str| names.iter().any(|other| other == name);
    Ok(Some(match model.strip_suffix(":latest") {
        Some(name) if !known(&model) => name.to_owned(),
        _ => model,
    }))
}

/// Takes the fields that say how an answer is generated. It is streamed unless the request says otherwise.
fn generation(fields: &mut Fields, names: &[String], context: usize) -> Result<Generation, ApiError> {
    let model = model(fields, names)?;
    let stream = fields.flag("stream")?.unwrap_or(true);
    let structure = format(fields)?;
    // The model stays loaded as long as the server runs.
    fields.take("keep_alive");
    // What does not fit is refused.
    fields.flag("truncate")?;
    fields.flag("shift")?;
    let logprobs = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=20)?.unwrap_or(0) as usize;
    let path = fields.path("options");
    let options = fields.take("options").unwrap_or_else(|| Value::Object(serde_json::Map::new()));
    let mut options = Fields::within(path, options)?;
    for name in OF_THE_SERVER {
        options.take(name);
    }
    if let Some(wanted) = options.integer("num_ctx", 0..=i64::from(u32::MAX))?
        && wanted as usize > context
    {
        let path = options.path("num_ctx");
        let why =
            format!("{path} is {wanted}, and the context here is {context}: tallow serve --context {wanted}");
        return Err(ApiError::field(path, why).code("unsupported_value"));
    }
    let mut generation = Generation::take(&mut options)?;
    let path = options.path("max_tokens");
    let most = options.integer("max_tokens", 0..=crate::parse::fields::MAX_TOKENS)?;
    if most == Some(0) {
        return Err(ApiError::field(path.clone(), format!("{path} is 0, which leaves nothing to do")));
    }
    options.finish()?;
    generation.model = model;
    generation.max_tokens = most.map(|n| n as usize);
    generation.stream = stream;
    generation.structure = structure;
    generation.logprobs = logprobs.then_some(top);
    if generation.n != 1 {
        return Err(ApiError::field("options.n", "there is one answer; leave n out"));
    }
    Ok(generation)
}

/// `format`: `json`, or a JSON Schema.
fn format(fields: &mut Fields) -> Result<Option<Structure>, ApiError> {
    let path = fields.path("format");
    match fields.take("format") {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => Ok(Some(Structure::json_object(path))),
        Some(schema @ Value::Object(_)) => Structure::json_schema(path, schema).map(Some),
        Some(other) => Err(wrong(path, "json or a JSON Schema", &other)),
    }
}

/// The JSON of an answer without anything in it.
fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None => true,
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    }
}
