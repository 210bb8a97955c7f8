//! `/v1/models`, in the form of OpenAI's API and of Anthropic's at once.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;

use crate::clock::rfc3339_of;
use crate::errors::{ApiError, respond};
use crate::state::AnyServer;

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
    max_model_len: usize,
}

fn list(server: &AnyServer) -> Vec<Model> {
    let (names, max_model_len) = (server.model.names(), server.model.context());
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
        max_model_len,
    };
    let own = names.iter().map(|id| model(id.clone(), first.cloned(), None));
    let adapters = server.model.adapters().into_iter();
    own.chain(adapters.map(|id| model(id.clone(), Some(id), first.cloned()))).collect()
}

pub(crate) async fn models(State(server): State<Arc<AnyServer>>) -> Result<Response, ApiError> {
    let data = list(&server);
    let id = |model: Option<&Model>| model.map(|model| model.id.clone());
    let (first_id, last_id) = (id(data.first()), id(data.last()));
    respond(&Models { object: "list", data, has_more: false, first_id, last_id })
}

pub(crate) async fn model(
    State(server): State<Arc<AnyServer>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = path.map_err(|e| ApiError::bad(e.body_text()))?;
    let all = list(&server);
    let names: Vec<String> = all.iter().map(|model| model.id.clone()).collect();
    let found = all.into_iter().find(|model| model.id == id);
    respond(&found.ok_or_else(|| ApiError::no_model(&id, &names))?)
}
