//! The router, made from the table of endpoints, and the middleware in front of it.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use hyper::body::Body as _;

use crate::access::Entry;
use crate::endpoints::{self, ENDPOINTS, Endpoint, Kind};
use crate::errors::{ApiError, ErrorForm, quoted};
use crate::foreign;
use crate::http::guard::is_preflight;
use crate::request_id::{REQUEST_ID, request_id};
use crate::state::{AnyServer, Server};

/// All routes of a server whose model is of kind `M`.
pub(crate) fn router<M: Kind>(server: Arc<Server<M>>) -> Router {
    let any_server: Arc<AnyServer> = server.clone();
    let mut router = Router::new();
    for endpoint in ENDPOINTS {
        let Endpoint { method, path, every, .. } = endpoint;
        if let Some(handler) = every {
            router = router.route(path, handler(method.filter()).with_state(any_server.clone()));
        }
        if let Some(handler) = M::handler(endpoint) {
            router = router.route(path, handler(method.filter()).with_state(server.clone()));
        }
    }
    for (route, why) in refusals::<M>() {
        let error = ApiError::new(StatusCode::NOT_FOUND, why);
        router = router.route(route, any(move || async move { error }));
    }
    router
        .method_not_allowed_fallback(wrong_method)
        .fallback(no_route)
        .layer(from_fn_with_state(any_server, every_request))
}

/// Routes that only other kinds of model answer, and why `M` does not.
fn refusals<M: Kind>() -> BTreeSet<(&'static str, String)> {
    let others = ENDPOINTS.iter().filter(|e| e.every.is_none() && M::handler(e).is_none());
    others.filter_map(|endpoint| Some((endpoint.refused_at?, endpoint.refusal::<M>()))).collect()
}

/// Middleware of every request: host and origin check, request id, access log, accounting.
async fn every_request(State(server): State<Arc<AnyServer>>, mut request: Request, next: Next) -> Response {
    // An absolute-form request target overrides the `Host` header.
    let target = request.uri().authority().map(|to| HeaderValue::try_from(to.as_str()));
    if let Some(Ok(host)) = target
        && request.headers().get_all(header::HOST).iter().count() == 1
    {
        request.headers_mut().insert(header::HOST, host);
    }
    let ctx = server.request_context(&request);
    let id = request_id(request.headers());
    let form = ErrorForm::of(request.uri().path());
    let has_body = !request.body().is_end_stream();
    let entry = Entry::new(&server.metrics, &request, &id);
    let (mut response, reader) = match server.guard.origin(request.headers()) {
        Err(error) => (error.into_response(), None),
        Ok(Some(reader)) if is_preflight(request.method(), request.headers()) => {
            (reader.preflight(request.headers(), endpoints::methods()), Some(reader))
        }
        Ok(reader) => (entry.scope(ctx.scope(authorized(&server, request, next))).await, reader),
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
    if server.model.ready().is_err() {
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
async fn authorized(server: &AnyServer, mut request: Request, next: Next) -> Response {
    let open = endpoints::is_open(request.uri().path(), &server.settings);
    match server.guard.key(request.headers()) {
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
    use crate::{Served, ServedEncoder, ServedSpeech};

    fn own<M: Kind>() -> Vec<(&'static str, &'static str)> {
        let answered = ENDPOINTS.iter().filter(|e| e.every.is_some() || M::handler(e).is_some());
        answered.map(|e| (e.method.name(), e.path)).collect()
    }

    /// Checks that axum would take the routes, and returns what the kind refuses.
    fn refused<M: Kind>() -> Vec<String> {
        let (own, refusals) = (own::<M>(), refusals::<M>());
        let different: BTreeSet<_> = own.iter().collect();
        assert_eq!(different.len(), own.len(), "an endpoint is there twice");
        let routes: BTreeSet<_> = refusals.iter().map(|(route, _)| route).collect();
        assert_eq!(routes.len(), refusals.len(), "a route is refused for two reasons");
        assert!(own.iter().all(|(_, path)| !routes.contains(path)), "a route is answered and refused");
        refusals.into_iter().map(|(route, why)| format!("{route}: {why}")).collect()
    }

    #[test]
    fn models_refuse_what_other_kinds_are_for() {
        let text = [refused::<Served>(), refused::<ServedEncoder>(), refused::<ServedSpeech>()];
        insta::assert_snapshot!(text.map(|all| all.join("\n")).join("\n\n"), @r#"
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
        let all = [own::<Served>(), own::<ServedEncoder>(), own::<ServedSpeech>()].concat();
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
