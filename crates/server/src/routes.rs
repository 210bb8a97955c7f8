//! All routes, what every request goes through before them, and the small ones.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;

use crate::connection::contained;
use crate::errors::{ApiError, quoted, respond};
use crate::guard::{REQUEST_ID, is_preflight, request_id};
use crate::state::Server;
use crate::{chat, completions, tokens};

pub(crate) fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/version", get(version))
        .method_not_allowed_fallback(wrong_method)
        .fallback(no_route)
        .layer(from_fn_with_state(server.clone(), every))
        .with_state(server)
}

/// What every request goes through.
async fn every(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let (method, path) = (request.method().clone(), quoted(request.uri().path()));
    let id = request_id(request.headers());
    let (mut response, reader) = match server.guard.origin(request.headers()) {
        Err(error) => (error.into_response(), None),
        Ok(Some(reader)) if is_preflight(&method, request.headers()) => (reader.preflight(), Some(reader)),
        Ok(reader) => (admitted(&server, request, next).await, reader),
    };
    let headers = response.headers_mut();
    if let Some(reader) = reader {
        reader.allow(headers);
    }
    if !server.handle.is_ready() {
        // So that the client asks elsewhere.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let (status, took) = (response.status().as_u16(), begun.elapsed().as_millis());
    // Everything that clients chose is escaped.
    let line = format!("{method} {path}: {status} after {took} ms, request {id:?}");
    // Probes come every few seconds.
    if method == Method::GET {
        tracing::debug!("{line}")
    } else {
        tracing::info!("{line}")
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// What every request with a key goes through.
async fn admitted(server: &Server, request: Request, next: Next) -> Response {
    if let Err(error) = server.guard.key(request.headers()) {
        return error.into_response();
    }
    contained(next.run(request)).await.unwrap_or_else(|| {
        let why = "an internal error; please report it";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, why).into_response()
    })
}

async fn no_route(request: Request) -> ApiError {
    let why = format!("there is nothing at {}", quoted(request.uri().path()));
    ApiError::new(StatusCode::NOT_FOUND, why)
}

async fn wrong_method(request: Request) -> ApiError {
    let why = format!("{} does not take {}", quoted(request.uri().path()), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, why)
}

#[derive(Serialize)]
struct Models<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

/// A model as clients see it.
#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// What it goes by first.
    root: Option<&'a str>,
    max_model_len: usize,
}

fn list(server: &Server) -> Vec<Model<'_>> {
    let info = server.handle.info();
    let model = |id| Model {
        id,
        object: "model",
        created: server.since,
        owned_by: "tallow",
        root: info.names.first().map(String::as_str),
        max_model_len: info.context,
    };
    info.names.iter().map(|name| model(name)).collect()
}

async fn models(State(server): State<Arc<Server>>) -> Result<Response, ApiError> {
    respond(&Models { object: "list", data: list(&server) })
}

async fn model(
    State(server): State<Arc<Server>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(asked) = path.map_err(|e| ApiError::bad(e.body_text()))?;
    let found = list(&server).into_iter().find(|model| model.id == asked);
    respond(&found.ok_or_else(|| ApiError::no_model(&asked, &server.handle.info().names))?)
}

#[derive(Serialize)]
struct Fine {
    status: &'static str,
}

/// Does the engine live?
async fn health(State(server): State<Arc<Server>>) -> Result<Response, ApiError> {
    if !server.handle.is_alive() {
        server.ready()?;
    }
    respond(&Fine { status: "ok" })
}

/// Are requests taken?
async fn ready(State(server): State<Arc<Server>>) -> Result<Response, ApiError> {
    server.ready()?;
    respond(&Fine { status: "ready" })
}

async fn metrics(State(server): State<Arc<Server>>) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], server.metrics.page(&server.handle)).into_response()
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
}

async fn version() -> Result<Response, ApiError> {
    respond(&Version { version: env!("CARGO_PKG_VERSION") })
}
