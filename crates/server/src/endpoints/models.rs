//! `/v1/models`.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;

use crate::errors::{ApiError, respond};
use crate::state::AnyServer;

#[derive(Serialize)]
struct Models {
    object: &'static str,
    data: Vec<Model>,
}

/// A model in `/v1/models`.
#[derive(Serialize)]
struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
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
    let (object, created, owned_by) = ("model", server.since, "tallow");
    let model = |id: &String| {
        let (id, root, parent) = (id.clone(), first.cloned(), None);
        Model { id, object, created, owned_by, root, parent, max_model_len }
    };
    let adapter = |id: String| {
        let (root, parent) = (Some(id.clone()), first.cloned());
        Model { id, object, created, owned_by, root, parent, max_model_len }
    };
    names.iter().map(model).chain(server.model.adapters().into_iter().map(adapter)).collect()
}

pub(crate) async fn models(State(server): State<Arc<AnyServer>>) -> Result<Response, ApiError> {
    respond(&Models { object: "list", data: list(&server) })
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
