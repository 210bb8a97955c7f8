//! `/health` and `/ready`, with problems that do not stop the server.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use crate::errors::{ApiError, respond};
use crate::registry::Registry;
use crate::state::Endpoints;

#[derive(Serialize)]
struct Health {
    status: &'static str,
    /// Problems that do not keep requests from being answered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

/// Liveness: 200 while the engine runs.
pub(crate) async fn health(State(server): State<Arc<Registry>>) -> Result<Response, ApiError> {
    if !server.is_alive() {
        server.ready()?;
    }
    respond(&Health { status: "ok", problems: server.problems() })
}

/// Readiness: 200 while requests are taken.
pub(crate) async fn ready(State(server): State<Arc<Registry>>) -> Result<Response, ApiError> {
    server.ready()?;
    respond(&Health { status: "ready", problems: server.problems() })
}
