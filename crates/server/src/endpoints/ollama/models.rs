//! `/api/tags`, `/api/ps`, `/api/show` and `/api/version`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::body::read_json;
use crate::clock::{rfc3339_of, unix_time};
use crate::errors::{ApiError, respond};
use crate::model_status::ModelStatus;
use crate::parse::fields::Fields;
use crate::registry::Registry;
use crate::served::ModelCard;

/// Version of Ollama's API that is spoken: clients ask for it to learn which fields they may use.
const API_VERSION: &str = "0.12.11";
/// Expiry of a model that stays loaded.
const NEVER: &str = "9999-12-31T23:59:59Z";

#[derive(Serialize)]
struct Models {
    models: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified_at: Option<String>,
    size: u64,
    /// Hash of the name, not of the files.
    digest: String,
    details: Details,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<usize>,
}

#[derive(Serialize)]
struct Details {
    parent_model: &'static str,
    format: &'static str,
    family: String,
    families: Vec<String>,
    parameter_size: String,
    quantization_level: String,
}

#[derive(Serialize)]
struct Shown {
    modelfile: String,
    parameters: &'static str,
    template: String,
    details: Details,
    model_info: Map<String, Value>,
    capabilities: Vec<&'static str>,
    modified_at: String,
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
    /// Ours.
    tallow: &'static str,
}

fn details(card: &ModelCard) -> Details {
    Details {
        parent_model: "",
        format: card.format,
        family: card.family.clone(),
        families: vec![card.family.clone()],
        parameter_size: card.parameter_size(),
        quantization_level: card.types.clone(),
    }
}

/// A number for a name, as long as a digest is.
pub(super) fn digest(name: &str) -> String {
    // FNV-1a, the same on each machine.
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let word = |i: u8| name.bytes().chain([i]).fold(0xcbf2_9ce4_8422_2325, step);
    (0..4).map(|i| format!("{:016x}", word(i))).collect()
}

fn listed(card: &ModelCard, name: &str) -> Listed {
    Listed {
        name: name.to_owned(),
        model: name.to_owned(),
        modified_at: None,
        size: card.bytes,
        digest: digest(name),
        details: details(card),
        expires_at: None,
        context_length: None,
    }
}

pub(crate) async fn tags(State(server): State<Arc<Registry>>) -> Result<Response, ApiError> {
    let modified = rfc3339_of(server.since);
    let of_model = |status: &ModelStatus| -> Vec<Listed> {
        let one = |name: &String| Listed {
            modified_at: Some(modified.clone()),
            ..listed(&status.entry.card, name)
        };
        status.names().iter().map(one).collect()
    };
    respond(&Models { models: server.statuses().iter().flat_map(of_model).collect() })
}

pub(crate) async fn ps(State(server): State<Arc<Registry>>) -> Result<Response, ApiError> {
    let of_model = |status: &ModelStatus| -> Vec<Listed> {
        let Some(loaded) = &status.loaded else { return Vec::new() };
        let after = |expires_in: Duration| rfc3339_of(unix_time() + expires_in.as_secs());
        let expires_at = status.expires_in.map_or(NEVER.to_owned(), after);
        let one = |name: &String| Listed {
            expires_at: Some(expires_at.clone()),
            context_length: Some(loaded.server.model.context()),
            ..listed(&status.entry.card, name)
        };
        status.names().iter().map(one).collect()
    };
    respond(&Models { models: server.statuses().iter().flat_map(of_model).collect() })
}

pub(crate) async fn version() -> Result<Response, ApiError> {
    respond(&Version { version: API_VERSION, tallow: env!("CARGO_PKG_VERSION") })
}

pub(crate) async fn show(
    State(server): State<Arc<Registry>>,
    request: Request,
) -> Result<Response, ApiError> {
    let read = |server: &Registry, body: Vec<u8>| {
        let mut fields = Fields::body(&body)?;
        let model = super::model(&mut fields, &server.names())?;
        fields.flag("verbose")?;
        fields.text("system")?;
        fields.text("template")?;
        fields.take("options");
        fields.finish()?;
        model.ok_or_else(|| ApiError::field("model", "model is missing"))
    };
    let model = read_json(&server, request).await?.process(&server, read).await?;
    let status = server.status(server.find(&model).await?);
    let status = status.ok_or_else(|| ApiError::no_model(&model, &server.names()))?;
    let card = &status.entry.card;
    let family = card.family.as_str();
    let mut model_info = Map::from_iter([
        ("general.architecture".to_owned(), json!(family)),
        ("general.parameter_count".to_owned(), json!(card.parameters)),
    ]);
    let of_loaded = status.loaded.as_ref().map(|loaded| &loaded.server.model);
    if let Some(loaded) = of_loaded {
        model_info.insert(format!("{family}.context_length"), json!(loaded.context()));
    }
    respond(&Shown {
        modelfile: format!("FROM {model}\n"),
        parameters: "",
        template: of_loaded.and_then(|loaded| loaded.template()).unwrap_or_default(),
        details: details(card),
        model_info,
        capabilities: status.capabilities(),
        modified_at: rfc3339_of(server.since),
    })
}
