//! `/v1/models`, in the form of OpenAI's API and of Anthropic's at once; `/models/load` and `/models/unload`, in
//! llama-server's.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::json;

use crate::body::read_json;
use crate::clock::rfc3339_of;
use crate::errors::{ApiError, respond};
use crate::model_status::ModelStatus;
use crate::parse::fields::Fields;
use crate::registry::Registry;

#[derive(Serialize)]
struct Models {
    object: &'static str,
    data: Vec<Model>,
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

/// A model in `/v1/models`.
#[derive(Serialize)]
struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    r#type: &'static str,
    display_name: String,
    created_at: String,
    /// Primary name; for an adapter, its own name.
    root: Option<String>,
    /// Base model of an adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    /// Capabilities, in Ollama's words: all of them if it is loaded, else those of its kind.
    capabilities: Vec<&'static str>,
    /// Context length, of a model that is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<usize>,
    /// State, where models are loaded when they are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

/// State of a model, in llama-server's form.
#[derive(Clone, Serialize)]
struct Status {
    value: &'static str,
    /// True if it could not be loaded when that was last tried.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    failed: bool,
    /// Why, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Requests under way, and requests that wait for it to be loaded.
    requests: usize,
    waiting: usize,
    /// Device that it is loaded on, and memory that it takes there, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<u64>,
    /// Seconds after which it is unloaded if no request comes.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in: Option<u64>,
}

fn of_model(server: &Registry, status: &ModelStatus) -> Vec<Model> {
    let names = &status.entry.names;
    let max_model_len = status.loaded.as_ref().map(|loaded| loaded.server.model.context());
    let state = server.manages().then(|| Status {
        value: status.status,
        failed: status.failed.is_some(),
        error: status.failed.clone(),
        requests: status.in_use,
        waiting: status.waiting,
        device: status.loaded.as_ref().map(|loaded| loaded.device.clone()),
        memory: status.loaded.as_ref().map(|loaded| loaded.bytes),
        expires_in: status.expires_in.map(|left| left.as_secs()),
    });
    let first = names.first();
    let model = |id: String, root: Option<String>, parent: Option<String>| Model {
        display_name: id.clone(),
        id,
        object: "model",
        created: server.since,
        owned_by: "tallow",
        r#type: "model",
        created_at: rfc3339_of(server.since),
        root,
        parent,
        capabilities: status.capabilities(),
        max_model_len,
        status: state.clone(),
    };
    let own = names.iter().map(|id| model(id.clone(), first.cloned(), None));
    let adapters = status.names().split_off(names.len()).into_iter();
    own.chain(adapters.map(|id| model(id.clone(), Some(id), first.cloned()))).collect()
}

fn list(server: &Registry) -> Vec<Model> {
    server.statuses().iter().flat_map(|status| of_model(server, status)).collect()
}

pub(crate) async fn models(State(server): State<Arc<Registry>>) -> Result<Response, ApiError> {
    let data = list(&server);
    let id = |model: Option<&Model>| model.map(|model| model.id.clone());
    let (first_id, last_id) = (id(data.first()), id(data.last()));
    respond(&Models { object: "list", data, has_more: false, first_id, last_id })
}

pub(crate) async fn model(
    State(server): State<Arc<Registry>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = path.map_err(|e| ApiError::bad(e.body_text()))?;
    let all = list(&server);
    let names: Vec<String> = all.iter().map(|model| model.id.clone()).collect();
    let found = all.into_iter().find(|model| model.id == id);
    respond(&found.ok_or_else(|| ApiError::no_model(&id, &names))?)
}

/// The model that a request names.
async fn named(server: &Arc<Registry>, request: Request) -> Result<usize, ApiError> {
    let read = |_: &Registry, body: Vec<u8>| {
        let mut fields = Fields::body(&body)?;
        let name = fields.needed("model")?;
        fields.finish()?;
        Ok(name)
    };
    let name = read_json(server, request).await?.process(server, read).await?;
    if !server.manages() {
        let why = "this server has one model, which stays loaded; start it with several models, or with --on-demand";
        return Err(ApiError::new(StatusCode::FORBIDDEN, why));
    }
    server.find(&name).await
}

/// Returns once the model is loaded.
pub(crate) async fn load(
    State(server): State<Arc<Registry>>,
    request: Request,
) -> Result<Response, ApiError> {
    let at = named(&server, request).await?;
    drop(server.acquire(at).await?);
    respond(&json!({"success": true}))
}

/// Returns once the model is unloaded, which it is when the requests under way with it are done.
pub(crate) async fn unload(
    State(server): State<Arc<Registry>>,
    request: Request,
) -> Result<Response, ApiError> {
    let at = named(&server, request).await?;
    if !server.unload(at).await {
        return Err(ApiError::bad("the model is not loaded").code("not_loaded"));
    }
    respond(&json!({"success": true}))
}
