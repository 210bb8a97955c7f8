//! `/api/tags`, `/api/ps`, `/api/show` and `/api/version`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::body::read_json;
use crate::clock::rfc3339_of;
use crate::errors::{ApiError, respond};
use crate::parse::fields::Fields;
use crate::state::AnyServer;

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
    expires_at: Option<&'static str>,
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

fn details(server: &AnyServer) -> Details {
    let card = &server.settings.card;
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

fn listed(server: &AnyServer, name: &str) -> Listed {
    Listed {
        name: name.to_owned(),
        model: name.to_owned(),
        modified_at: None,
        size: server.settings.card.bytes,
        digest: digest(name),
        details: details(server),
        expires_at: None,
        context_length: None,
    }
}

fn names(server: &AnyServer) -> Vec<String> {
    server.model.names().iter().cloned().chain(server.model.adapters()).collect()
}

pub(crate) async fn tags(State(server): State<Arc<AnyServer>>) -> Result<Response, ApiError> {
    let modified = rfc3339_of(server.since);
    let one = |name: &String| Listed { modified_at: Some(modified.clone()), ..listed(&server, name) };
    respond(&Models { models: names(&server).iter().map(one).collect() })
}

pub(crate) async fn ps(State(server): State<Arc<AnyServer>>) -> Result<Response, ApiError> {
    let one = |name: &String| Listed {
        expires_at: Some(NEVER),
        context_length: Some(server.model.context()),
        ..listed(&server, name)
    };
    respond(&Models { models: names(&server).iter().map(one).collect() })
}

pub(crate) async fn version() -> Result<Response, ApiError> {
    respond(&Version { version: API_VERSION, tallow: env!("CARGO_PKG_VERSION") })
}

pub(crate) async fn show(
    State(server): State<Arc<AnyServer>>,
    request: Request,
) -> Result<Response, ApiError> {
    let shown = read_json(&server, request).await?.process(&server, |server, body| {
        let mut fields = Fields::body(&body)?;
        let names = names(server);
        let model = super::model(&mut fields, &names)?;
        fields.flag("verbose")?;
        fields.text("system")?;
        fields.text("template")?;
        fields.take("options");
        fields.finish()?;
        let model = model.ok_or_else(|| ApiError::field("model", "model is missing"))?;
        if !names.contains(&model) {
            return Err(ApiError::no_model(&model, &names));
        }
        let card = &server.settings.card;
        let family = card.family.as_str();
        let model_info = [
            ("general.architecture".to_owned(), json!(family)),
            ("general.parameter_count".to_owned(), json!(card.parameters)),
            (format!("{family}.context_length"), json!(server.model.context())),
        ];
        Ok(Shown {
            modelfile: format!("FROM {model}\n"),
            parameters: "",
            template: server.model.template().unwrap_or_default(),
            details: details(server),
            model_info: model_info.into_iter().collect(),
            capabilities: server.model.capabilities(),
            modified_at: rfc3339_of(server.since),
        })
    });
    respond(&shown.await?)
}
