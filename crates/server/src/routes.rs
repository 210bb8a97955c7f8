//! All routes, what every request goes through before them, and the small ones.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use serde::Serialize;

use crate::connection::contained;
use crate::errors::{ApiError, quoted, respond};
use crate::guard::{REQUEST_ID, is_preflight, request_id};
use crate::state::{self, Server};
use crate::{
    Served, ServedEncoder, ServedSpeech, adapters, chat, completions, embeddings, foreign, page, rerank,
    speech, tokens,
};

/// What a model that writes text is asked for.
pub(crate) fn of_writer() -> Router<Arc<Server<Served>>> {
    let other =
        || async { other("makes no vectors of texts; it has /v1/chat/completions and /v1/completions") };
    Router::new()
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/v1/load_lora_adapter", post(adapters::load))
        .route("/v1/unload_lora_adapter", post(adapters::unload))
        .route("/lora-adapters", get(adapters::list))
        .route("/v1/embeddings", any(other))
        .route("/v1/rerank", any(other))
        .route("/v1/audio/{*what}", any(deaf))
}

/// What an encoder is asked for.
pub(crate) fn of_encoder() -> Router<Arc<Server<ServedEncoder>>> {
    let other = || async { other("writes no text; it has /v1/embeddings and /v1/rerank") };
    Router::new()
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/rerank", post(rerank::rerank))
        .route("/v1/chat/completions", any(other))
        .route("/v1/completions", any(other))
        .route("/v1/audio/{*what}", any(deaf))
}

/// What a model that hears is asked for.
pub(crate) fn of_speech() -> Router<Arc<Server<ServedSpeech>>> {
    let other = || async { other("hears; it has /v1/audio/transcriptions and /v1/audio/translations") };
    Router::new()
        .route("/v1/audio/transcriptions", post(speech::transcriptions))
        .route("/v1/audio/translations", post(speech::translations))
        .route("/v1/chat/completions", any(other))
        .route("/v1/completions", any(other))
        .route("/v1/embeddings", any(other))
        .route("/v1/rerank", any(other))
}

async fn deaf() -> ApiError {
    other("hears nothing; serve a model of speech for that")
}

/// What only the other kind of model has.
fn other(what: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("the model of this server {what}"))
}

pub(crate) fn router<M: state::Model>(own: Router<Arc<Server<M>>>, server: Arc<Server<M>>) -> Router {
    own.route("/", get(page::page::<M>))
        .route("/v1/models", get(models::<M>))
        .route("/v1/models/{*id}", get(model::<M>))
        .route("/health", get(health::<M>))
        .route("/ready", get(ready::<M>))
        .route("/metrics", get(metrics::<M>))
        .route("/version", get(version))
        .method_not_allowed_fallback(wrong_method)
        .fallback(no_route)
        .layer(from_fn_with_state(server.clone(), every::<M>))
        .with_state(server)
}

/// What every request goes through.
async fn every<M: state::Model>(
    State(server): State<Arc<Server<M>>>,
    mut request: Request,
    next: Next,
) -> Response {
    // A request whose target names a host is for that one, whatever the header says.
    let target = request.uri().authority().map(|to| HeaderValue::try_from(to.as_str()));
    if let Some(Ok(host)) = target
        && request.headers().get_all(header::HOST).iter().count() == 1
    {
        request.headers_mut().insert(header::HOST, host);
    }
    let visit = server.visit(&request);
    let begun = Instant::now();
    let (method, path) = (request.method().clone(), quoted(request.uri().path()));
    let id = request_id(request.headers());
    let (mut response, reader) = match server.guard.origin(request.headers()) {
        Err(error) => (error.into_response(), None),
        Ok(Some(reader)) if is_preflight(&method, request.headers()) => {
            (reader.preflight(request.headers()), Some(reader))
        }
        Ok(reader) => (visit.scope(admitted(&server, request, next)).await, reader),
    };
    let headers = response.headers_mut();
    if let Some(reader) = reader {
        reader.allow(headers);
    }
    if server.model.ready().is_err() {
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
    visit.hold(response)
}

/// What every request with a key goes through.
async fn admitted<M: state::Model>(server: &Server<M>, mut request: Request, next: Next) -> Response {
    match server.guard.key(request.headers()) {
        Ok(caller) => drop(request.extensions_mut().insert(caller)),
        // That the server runs is no secret.
        Err(_) if request.uri().path() == "/" => {}
        Err(error) => return error.into_response(),
    }
    contained(next.run(request)).await.unwrap_or_else(|| {
        let why = "an internal error; please report it";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, why).into_response()
    })
}

async fn no_route(request: Request) -> ApiError {
    let path = request.uri().path();
    let instead = foreign::route(path).map(|instead| format!(": {instead}")).unwrap_or_default();
    let why = format!("there is nothing at {}{instead}", quoted(path));
    ApiError::new(StatusCode::NOT_FOUND, why)
}

async fn wrong_method(request: Request) -> ApiError {
    let why = format!("{} does not take {}", quoted(request.uri().path()), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, why)
}

#[derive(Serialize)]
struct Models {
    object: &'static str,
    data: Vec<Model>,
}

/// A model as clients see it.
#[derive(Serialize)]
struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// What it goes by first.
    root: Option<String>,
    /// Of an adapter, the model that it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    max_model_len: usize,
}

fn list<M: state::Model>(server: &Server<M>) -> Vec<Model> {
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

async fn models<M: state::Model>(State(server): State<Arc<Server<M>>>) -> Result<Response, ApiError> {
    respond(&Models { object: "list", data: list(&server) })
}

async fn model<M: state::Model>(
    State(server): State<Arc<Server<M>>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(asked) = path.map_err(|e| ApiError::bad(e.body_text()))?;
    let all = list(&server);
    let names: Vec<String> = all.iter().map(|model| model.id.clone()).collect();
    let found = all.into_iter().find(|model| model.id == asked);
    respond(&found.ok_or_else(|| ApiError::no_model(&asked, &names))?)
}

#[derive(Serialize)]
struct Fine {
    status: &'static str,
}

/// Does the engine live?
async fn health<M: state::Model>(State(server): State<Arc<Server<M>>>) -> Result<Response, ApiError> {
    if !server.model.is_alive() {
        server.ready()?;
    }
    respond(&Fine { status: "ok" })
}

/// Are requests taken?
async fn ready<M: state::Model>(State(server): State<Arc<Server<M>>>) -> Result<Response, ApiError> {
    server.ready()?;
    respond(&Fine { status: "ready" })
}

async fn metrics<M: state::Model>(State(server): State<Arc<Server<M>>>) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], server.model.metrics(&server.metrics)).into_response()
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
}

async fn version() -> Result<Response, ApiError> {
    respond(&Version { version: env!("CARGO_PKG_VERSION") })
}
