//! All routes, the middleware in front of them, and the small handlers.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use serde::Serialize;

use crate::access::Entry;
use crate::connection::contained;
use crate::errors::{ApiError, quoted, respond};
use crate::exposition::{Format, Labels, Page};
use crate::guard::{REQUEST_ID, is_preflight, request_id};
use crate::health::{health, ready};
use crate::state::{self, Server};
use crate::{
    Served, ServedEncoder, ServedSpeech, adapters, chat, classify, completions, embeddings, foreign, page,
    rerank, speech, tokens,
};

/// Routes of liveness and readiness probes.
const PROBES: [&str; 2] = ["/health", "/ready"];

/// Routes of a generative model.
pub(crate) fn of_writer() -> Router<Arc<Server<Served>>> {
    let other = || async {
        other(
            "computes no embeddings and classifies nothing; it has /v1/chat/completions and /v1/completions",
        )
    };
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
        .route("/classify", any(other))
        .route("/v1/audio/{*what}", any(deaf))
}

/// Routes of an encoder.
pub(crate) fn of_encoder() -> Router<Arc<Server<ServedEncoder>>> {
    let other = || async { other("generates no text; it has /v1/embeddings, /v1/rerank or /classify") };
    Router::new()
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/rerank", post(rerank::rerank))
        .route("/classify", post(classify::classify))
        .route("/v1/chat/completions", any(other))
        .route("/v1/completions", any(other))
        .route("/v1/audio/{*what}", any(deaf))
}

/// Routes of a speech-to-text model.
pub(crate) fn of_speech() -> Router<Arc<Server<ServedSpeech>>> {
    let other = || async { other("hears; it has /v1/audio/transcriptions and /v1/audio/translations") };
    Router::new()
        .route("/v1/audio/transcriptions", post(speech::transcriptions))
        .route("/v1/audio/translations", post(speech::translations))
        .route("/v1/chat/completions", any(other))
        .route("/v1/completions", any(other))
        .route("/v1/embeddings", any(other))
        .route("/v1/rerank", any(other))
        .route("/classify", any(other))
}

async fn deaf() -> ApiError {
    other("does not transcribe audio; serve a speech model for that")
}

/// 404 for a route that only another kind of model has.
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
        .route("/version", get(version::<M>))
        .method_not_allowed_fallback(wrong_method)
        .fallback(no_route)
        .layer(from_fn_with_state(server.clone(), every::<M>))
        .with_state(server)
}

/// Middleware of every request: host and origin check, request id, access log, accounting.
async fn every<M: state::Model>(
    State(server): State<Arc<Server<M>>>,
    mut request: Request,
    next: Next,
) -> Response {
    // An absolute-form request target overrides the `Host` header.
    let target = request.uri().authority().map(|to| HeaderValue::try_from(to.as_str()));
    if let Some(Ok(host)) = target
        && request.headers().get_all(header::HOST).iter().count() == 1
    {
        request.headers_mut().insert(header::HOST, host);
    }
    let visit = server.request_context(&request);
    let id = request_id(request.headers());
    let entry = Entry::new(&server.metrics, &request, &id);
    let (mut response, reader) = match server.guard.origin(request.headers()) {
        Err(error) => (error.into_response(), None),
        Ok(Some(reader)) if is_preflight(request.method(), request.headers()) => {
            (reader.preflight(request.headers()), Some(reader))
        }
        Ok(reader) => (entry.scope(visit.scope(admitted(&server, request, next))).await, reader),
    };
    let headers = response.headers_mut();
    if let Some(reader) = reader {
        reader.allow(headers);
    }
    if server.model.ready().is_err() {
        // Makes the client reconnect elsewhere.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response.headers_mut().insert(REQUEST_ID, id);
    entry.answered(visit.hold(response))
}

/// Middleware of requests whose host and origin are allowed: API key check, panic containment.
async fn admitted<M: state::Model>(server: &Server<M>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    // That the server runs is no secret, and probes seldom have a key.
    let open = path == "/" || (PROBES.contains(&path) && !server.settings.private_health);
    match server.guard.key(request.headers()) {
        Ok(caller) => drop(request.extensions_mut().insert(caller)),
        Err(_) if open => {}
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

async fn metrics<M: state::Model>(State(server): State<Arc<Server<M>>>, headers: HeaderMap) -> Response {
    let format = Format::accepted(&headers);
    let mut page = Page::new(format, server.model.names().first().map_or("", String::as_str));
    server.model.metrics(&mut page, &server.metrics);
    server.metrics.of_requests(&mut page);
    let (log, version) = (&server.settings.log, env!("CARGO_PKG_VERSION"));
    page.counter("vllm:log_lines_dropped", "Log lines dropped.", log.total_dropped());
    let filled = server.table.filled();
    page.gauge("vllm:connections", "Open connections.", filled.connections);
    page.gauge("vllm:connections_max", "Limit of open connections.", filled.most);
    page.counter(
        "vllm:connections_given_up",
        "Idle or stalled connections closed for new ones.",
        filled.given_up,
    );
    let refused = "Connections turned away since their address had too many.";
    page.counter("vllm:connections_refused", refused, filled.refused);
    let memory = "Memory that requests hold: bodies, prompts and answers that are not sent yet.";
    page.gauge("vllm:memory_in_flight_bytes", memory, server.budget.used());
    let build: Labels<'_> = &[("version", version), ("commit", server.settings.commit.unwrap_or_default())];
    page.gauges("vllm:build_info", "Version and commit of this build.", [(build, 1)]);
    crate::process::write(&mut page, server.since);
    ([(header::CONTENT_TYPE, format.content_type())], page.finish()).into_response()
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
    /// Commit of the source, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<&'static str>,
}

async fn version<M: state::Model>(State(server): State<Arc<Server<M>>>) -> Result<Response, ApiError> {
    respond(&Version { version: env!("CARGO_PKG_VERSION"), commit: server.settings.commit })
}
