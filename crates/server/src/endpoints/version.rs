//! `/version`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use crate::errors::{ApiError, respond};
use crate::registry::Registry;

#[derive(Serialize)]
struct Version {
    version: &'static str,
    /// Commit of the source, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<&'static str>,
}

pub(crate) async fn version(State(server): State<Arc<Registry>>) -> Result<Response, ApiError> {
    respond(&Version { version: env!("CARGO_PKG_VERSION"), commit: server.settings.commit })
}
