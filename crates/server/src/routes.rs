//! The router, made from the table of endpoints, and the middleware in front of it.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::handler::Handler as _;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, on};
use hyper::body::Body as _;

use crate::access::Entry;
use crate::endpoints::{self, ENDPOINTS, Endpoint, Kind};
use crate::errors::{ApiError, ErrorForm, quoted};
use crate::foreign;
use crate::http::guard::is_preflight;
use crate::metrics::Metrics;
use crate::model_loader::AnyServed;
use crate::model_name::{Named, named};
use crate::model_status::Handlers;
use crate::registry::Registry;
use crate::request_id::{REQUEST_ID, request_id};
use crate::served::ModelKind;
use crate::state::{AnyServer, Endpoints, Server, Shared};

/// The server of a loaded model, and its handlers of the endpoints.
pub(crate) fn build(
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
    model: AnyServed,
) -> (Arc<AnyServer>, Handlers) {
    match model {
        AnyServed::Generator(model) => build_kind(Server::new(shared, metrics, model)),
        AnyServed::Encoder(model) => build_kind(Server::new(shared, metrics, model)),
        AnyServed::Speech(model) => build_kind(Server::new(shared, metrics, model)),
    }
}

fn build_kind<M: Kind>(server: Server<M>) -> (Arc<AnyServer>, Handlers) {
    let server = Arc::new(server);
    let of_endpoint = |endpoint: &Endpoint| {
        Some(M::handler(endpoint)?(endpoint.method.filter()).with_state(server.clone()))
    };
    let handlers = ENDPOINTS.iter().map(of_endpoint).collect();
    (server, handlers)
}

/// All routes of a server.
pub(crate) fn router(registry: Arc<Registry>) -> Router {
    let (mut router, kinds) = (Router::new(), registry.kinds());
    for (at, endpoint) in ENDPOINTS.iter().enumerate() {
        let (method, path) = (endpoint.method.filter(), endpoint.path);
        if let Some(handler) = endpoint.server {
            router = router.route(path, handler(method).with_state(registry.clone()));
        } else if kinds.iter().any(|kind| kind.answers(endpoint)) {
            let registry = registry.clone();
            let handler = move |request| async move { of_model(&registry, at, request).await };
            router = router.route(path, on(method, handler));
        }
    }
    for (route, why) in refusals(&kinds) {
        let error = ApiError::new(StatusCode::NOT_FOUND, why);
        router = router.route(route, any(move || async move { error }));
    }
    router
        .method_not_allowed_fallback(wrong_method)
        .fallback(no_route)
        .layer(from_fn_with_state(registry, every_request))
}

/// Routes that only other kinds of model answer, and why those of the server do not.
fn refusals(kinds: &[ModelKind]) -> BTreeSet<(&'static str, String)> {
    let Some(first) = kinds.first() else { return BTreeSet::new() };
    let is_answered = |e: &Endpoint| e.server.is_some() || kinds.iter().any(|kind| kind.answers(e));
    let others = ENDPOINTS.iter().filter(|e| !is_answered(e));
    let refusal = |e: &Endpoint| Some((e.refused_at?, e.refusal(*first, "the model of this server")));
    others.filter_map(refusal).collect()
}

/// Has the model that a request names answer it.
async fn of_model(registry: &Arc<Registry>, at: usize, request: Request) -> Result<Response, ApiError> {
    let endpoint = &ENDPOINTS[at];
    let ctx = registry.request_context(&request);
    let (request, named) = match registry.manages() {
        true => named(request, &ctx).await?,
        // The only model checks the name itself.
        false => (request, Named::default()),
    };
    let model = match &named.model {
        _ if !registry.manages() => Some(0),
        Some(name) => Some(registry.find(name).await?),
        None => registry.only(|kind| kind.answers(endpoint))?,
    };
    let status = model.and_then(|model| Some((model, registry.status(model)?)));
    let Some((model, status)) = status else { return Err(no_answer(endpoint)) };
    if !status.entry.kind.answers(endpoint) {
        let why = endpoint.refusal(status.entry.kind, &format!("model {}", quoted(status.name())));
        return Err(ApiError::new(StatusCode::NOT_FOUND, why));
    }
    let lease = registry.acquire(model).await?;
    if let Some(keep_alive) = named.keep_alive {
        registry.keep_alive(model, keep_alive);
    }
    let Some(handler) = lease.loaded.handlers.get(at).cloned().flatten() else {
        return Err(no_answer(endpoint));
    };
    ctx.keep(lease);
    Ok(ctx.scope(handler.call(request, ())).await)
}

/// None of the models is for an endpoint.
fn no_answer(endpoint: &Endpoint) -> ApiError {
    let why = format!("no model of this server answers at {}", endpoint.path);
    ApiError::new(StatusCode::NOT_FOUND, why)
}

/// Middleware of every request: host and origin check, request id, access log, accounting.
async fn every_request(State(registry): State<Arc<Registry>>, mut request: Request, next: Next) -> Response {
    // An absolute-form request target overrides the `Host` header.
    let target = request.uri().authority().map(|to| HeaderValue::try_from(to.as_str()));
    if let Some(Ok(host)) = target
        && request.headers().get_all(header::HOST).iter().count() == 1
    {
        request.headers_mut().insert(header::HOST, host);
    }
    let ctx = registry.request_context(&request);
    let id = request_id(request.headers());
    let form = ErrorForm::of(request.uri().path());
    let has_body = !request.body().is_end_stream();
    let entry = Entry::new(&registry.http_metrics, &request, &id);
    let (mut response, reader) = match registry.guard.origin(request.headers()) {
        Err(error) => (error.into_response(), None),
        Ok(Some(reader)) if is_preflight(request.method(), request.headers()) => {
            (reader.preflight(request.headers(), endpoints::methods()), Some(reader))
        }
        Ok(reader) => (entry.scope(ctx.scope(authorized(&registry, request, next))).await, reader),
    };
    if let Some(error) = response.extensions().get::<ApiError>().filter(|_| form != ErrorForm::OpenAi) {
        *response.body_mut() = Body::from(error.json_of(form));
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    let closes = has_body && is_early(response.status());
    let headers = response.headers_mut();
    if let Some(reader) = reader {
        reader.allow(headers);
    }
    if closes {
        // The body may not have been read: the connection is of no use for another request.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if registry.ready().is_err() {
        // Makes the client reconnect elsewhere.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response.headers_mut().insert(REQUEST_ID, id);
    entry.answered(ctx.hold(response))
}

/// True if a request with this status may have been refused before its body was read.
fn is_early(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 404 | 405 | 415)
}

/// Middleware of requests whose host and origin are allowed: API key check, panic containment.
async fn authorized(registry: &Registry, mut request: Request, next: Next) -> Response {
    let open = endpoints::is_open(request.uri().path(), &registry.settings);
    match registry.guard.key(request.headers()) {
        Ok(caller) => drop(request.extensions_mut().insert(caller)),
        Err(_) if open => {}
        Err(error) => return error.into_response(),
    }
    catch_panic(next.run(request)).await.unwrap_or_else(|| {
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
    // This one looks like that of a response.
    if request.uri().path().ends_with("/responses/compact") {
        return no_route(request).await;
    }
    let why = format!("{} does not take {}", quoted(request.uri().path()), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, why)
}

/// Runs a future that may panic; `None` if it did.
pub(crate) async fn catch_panic<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let poll = |cx: &mut Context<'_>| {
        let polled = std::panic::AssertUnwindSafe(|| work.as_mut().poll(cx));
        match std::panic::catch_unwind(polled) {
            Ok(polled) => polled.map(Some),
            Err(_) => Poll::Ready(None),
        }
    };
    poll_fn(poll).await
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    fn answered(kinds: &[ModelKind]) -> Vec<(&'static str, &'static str)> {
        let is_answered = |e: &&Endpoint| e.server.is_some() || kinds.iter().any(|kind| kind.answers(e));
        ENDPOINTS.iter().filter(is_answered).map(|e| (e.method.name(), e.path)).collect()
    }

    /// Checks that axum would take the routes, and returns what is refused.
    fn refused(kind: ModelKind) -> String {
        let (own, refusals) = (answered(&[kind]), refusals(&[kind]));
        let different: BTreeSet<_> = own.iter().collect();
        assert_eq!(different.len(), own.len(), "an endpoint is there twice");
        let routes: BTreeSet<_> = refusals.iter().map(|(route, _)| route).collect();
        assert_eq!(routes.len(), refusals.len(), "a route is refused for two reasons");
        assert!(own.iter().all(|(_, path)| !routes.contains(path)), "a route is answered and refused");
        let lines: Vec<String> = refusals.into_iter().map(|(route, why)| format!("{route}: {why}")).collect();
        lines.join("\n")
    }

    #[test]
    fn models_refuse_what_other_kinds_are_for() {
        insta::assert_snapshot!(ModelKind::ALL.map(refused).join("\n\n"), @r#"
        /api/embed: the model of this server computes no embeddings and classifies nothing; it has /v1/chat/completions and /v1/completions
        /api/embeddings: the model of this server computes no embeddings and classifies nothing; it has /v1/chat/completions and /v1/completions
        /classify: the model of this server computes no embeddings and classifies nothing; it has /v1/chat/completions and /v1/completions
        /v1/audio/{*what}: the model of this server does not transcribe audio; serve a speech model for that
        /v1/embeddings: the model of this server computes no embeddings and classifies nothing; it has /v1/chat/completions and /v1/completions
        /v1/rerank: the model of this server computes no embeddings and classifies nothing; it has /v1/chat/completions and /v1/completions

        /api/chat: the model of this server generates no text; it has /v1/embeddings, /v1/rerank or /classify
        /api/generate: the model of this server generates no text; it has /v1/embeddings, /v1/rerank or /classify
        /v1/audio/{*what}: the model of this server does not transcribe audio; serve a speech model for that
        /v1/chat/completions: the model of this server generates no text; it has /v1/embeddings, /v1/rerank or /classify
        /v1/completions: the model of this server generates no text; it has /v1/embeddings, /v1/rerank or /classify
        /v1/messages: the model of this server generates no text; it has /v1/embeddings, /v1/rerank or /classify
        /v1/responses: the model of this server generates no text; it has /v1/embeddings, /v1/rerank or /classify

        /api/chat: the model of this server transcribes speech; it has /v1/audio/transcriptions and /v1/audio/translations
        /api/embed: the model of this server transcribes speech; it has /v1/audio/transcriptions and /v1/audio/translations
        /api/embeddings: the model of this server transcribes speech; it has /v1/audio/transcriptions and /v1/audio/translations
        /api/generate: the model of this server transcribes speech; it has /v1/audio/transcriptions and /v1/audio/translations
        /classify: the model of this server transcribes speech; it has /v1/audio/transcriptions and /v1/audio/translations
        /v1/chat/completions: the model of this server transcribes speech; it has /v1/audio/transcriptions and /v1/audio/translations
        /v1/completions: the model of this server transcribes speech; it has /v1/audio/transcriptions and /v1/audio/translations
        /v1/embeddings: the model of this server transcribes speech; it has /v1/audio/transcriptions and /v1/audio/translations
        /v1/messages: the model of this server transcribes speech; it has /v1/audio/transcriptions and /v1/audio/translations
        /v1/rerank: the model of this server transcribes speech; it has /v1/audio/transcriptions and /v1/audio/translations
        /v1/responses: the model of this server transcribes speech; it has /v1/audio/transcriptions and /v1/audio/translations
        "#);
    }

    #[test]
    fn every_endpoint_is_answered_by_some_kind() {
        let all = answered(&ModelKind::ALL);
        for Endpoint { method, path, .. } in ENDPOINTS {
            assert!(all.contains(&(method.name(), path)), "{path}");
        }
    }

    #[tokio::test]
    async fn panics_are_contained() {
        let worked = catch_panic(async {
            tokio::task::yield_now().await;
            5
        });
        assert_eq!(worked.await, Some(5));
        let failed = catch_panic(async {
            tokio::task::yield_now().await;
            panic!("on purpose");
        });
        assert_eq!(failed.await, None);
    }
}
