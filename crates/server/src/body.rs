//! Request bodies: how they are read and where they are processed, within limits on memory and processors.

use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use hyper::body::{Body as _, Bytes, Frame};
use tokio::time::Instant;

use crate::budget::{Pace, SMALL, Stage, evicted};
use crate::errors::{ApiError, ErrorForm};
use crate::parse::json;
use crate::request_context::RequestContext;
use crate::state::Endpoints;

/// Longest body in bytes.
const MAX_BYTES: usize = 16 << 20;
/// Longest body of any endpoint.
const MOST_BYTES: usize = 32 << 20;
/// Bodies above this many bytes are followed by [`Settings::trim`](crate::Settings::trim).
const LARGE: usize = 4 << 20;
/// Initial capacity of a body's buffer.
const FIRST: usize = 16 << 10;

/// A body of JSON, and the claim to the memory that it and what is parsed from it take.
pub(crate) struct JsonBody {
    bytes: Vec<u8>,
    ctx: Arc<RequestContext>,
    bounds: Bounds,
}

/// Size limits of a body and of its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Longest body in bytes.
    pub(crate) body: usize,
    /// Bytes of an answer that is built while the body is processed, per byte of the body. They are claimed beforehand
    /// and stay claimed.
    pub(crate) answer: usize,
}

/// Reads the JSON body of a request.
pub(crate) async fn read_json<S: Endpoints>(server: &Arc<S>, request: Request) -> Result<JsonBody, ApiError> {
    read_json_within(server, request, Bounds { body: MAX_BYTES, answer: 0 }).await
}

/// [`read_json`] with other limits.
pub(crate) async fn read_json_within<S: Endpoints>(
    server: &Arc<S>,
    request: Request,
    bounds: Bounds,
) -> Result<JsonBody, ApiError> {
    server.ready()?;
    let ctx = server.request_context(&request);
    let (parts, body) = request.into_parts();
    check_content_type(&parts.headers, parts.uri.path())?;
    let bytes = read(body, &ctx, bounds.body).await?;
    // Texts are copied out of the body, and JSON values take more memory than their text does.
    ctx.claim.grow(json::max_memory(&bytes) + bounds.answer * bytes.len()).await?;
    Ok(JsonBody { bytes, ctx, bounds })
}

impl JsonBody {
    /// Runs `work` on the body when it is the client's turn, on a blocking thread because it may take a while.
    pub(crate) async fn process<S: Endpoints, T: Send + 'static>(
        self,
        server: &Arc<S>,
        work: impl FnOnce(&S, Vec<u8>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let JsonBody { bytes, ctx, bounds } = self;
        let length = bytes.len();
        let permit = server.prepare_pool.acquire(ctx.client, length > SMALL).await;
        let (server, held) = (server.clone(), ctx.clone());
        let done = tokio::task::spawn_blocking(move || {
            // All are released when this closure ends, even if nobody waits for it any more.
            let _permit = permit;
            let done = held.scope_sync(|| work(&server, bytes));
            if length > LARGE {
                (server.settings.trim)();
            }
            done
        });
        let done = done.await.map_err(lost)?;
        if bounds.answer == 0 || done.is_err() {
            ctx.claim.settle(length);
        }
        done
    }
}

/// The work on a body has panicked.
fn lost(why: tokio::task::JoinError) -> ApiError {
    tracing::error!("a request could not be prepared: {why}");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "an internal error; please report it")
}

fn check_content_type(headers: &HeaderMap, path: &str) -> Result<(), ApiError> {
    let unsupported = |why: &str| Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    // Ollama's clients seldom name it. Pages of others are told by their origin.
    let is_needed = ErrorForm::of(path) != ErrorForm::Ollama;
    if is_needed && !kind.eq_ignore_ascii_case("application/json") {
        return unsupported("the body should be JSON: send the header content-type: application/json");
    }
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => unsupported("compressed bodies are not taken"),
        _ => Ok(()),
    }
}

/// Reads a body of at most `max_bytes` bytes, or takes the one that [`read_ahead`] has read. Memory is claimed as it
/// arrives, so a stalled body holds only what it has sent.
pub(crate) async fn read(body: Body, ctx: &RequestContext, max_bytes: usize) -> Result<Vec<u8>, ApiError> {
    match ctx.take_body() {
        Some(bytes) if bytes.len() > max_bytes => Err(too_large(max_bytes)),
        Some(bytes) => Ok(bytes),
        None => read_now(body, ctx, max_bytes).await,
    }
}

/// Reads a body before it is known who processes it, and leaves it in the request's context.
pub(crate) async fn read_ahead<T: Send + 'static>(
    body: Body,
    ctx: &RequestContext,
    look: impl FnOnce(&[u8]) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let bytes = read_now(body, ctx, MOST_BYTES).await?;
    let is_large = bytes.len() > SMALL;
    let look = move || (look(&bytes), bytes);
    // A large one takes a while.
    let (seen, bytes) = match is_large {
        true => tokio::task::spawn_blocking(look).await.map_err(lost)?,
        false => look(),
    };
    ctx.leave_body(bytes);
    Ok(seen)
}

fn too_large(max_bytes: usize) -> ApiError {
    let why = format!("the body is larger than {max_bytes} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, why)
}

async fn read_now(mut body: Body, ctx: &RequestContext, max_bytes: usize) -> Result<Vec<u8>, ApiError> {
    let hint = body.size_hint();
    if hint.lower() > max_bytes as u64 {
        return Err(too_large(max_bytes));
    }
    let declared = hint.exact().map_or(max_bytes, |n| n as usize);
    let _reading = Reading::new(ctx);
    let (mut bytes, mut pace) = (Vec::<u8>::new(), Pace::new());
    loop {
        let frame = tokio::select! {
            biased;
            frame = next(&mut body) => frame,
            () = ctx.claim.evicted() => return Err(evicted()),
            slow = pace.too_slow() => return Err(slow),
        };
        let Some(frame) = frame else { return Ok(bytes) };
        let frame = frame.map_err(|e| ApiError::bad(format!("the body could not be read: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let length = bytes.len() + data.len();
        if length > max_bytes {
            return Err(too_large(max_bytes));
        }
        pace.arrived(data.len());
        ctx.claim.transferred(data.len());
        if length > bytes.capacity() {
            let since = Instant::now();
            let capacity = (bytes.capacity() * 2).max(FIRST).min(declared).max(length);
            // While it waits for memory it is not the client that is slow.
            ctx.connection.working();
            ctx.claim.grow(capacity - bytes.capacity()).await?;
            ctx.connection.arriving();
            pace.excuse(since);
            bytes.try_reserve_exact(capacity - bytes.len()).map_err(|_| no_memory(capacity))?;
        }
        bytes.extend_from_slice(&data);
    }
}

async fn next(body: &mut Body) -> Option<Result<Frame<Bytes>, axum::Error>> {
    std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
}

/// The allocator is out of memory.
fn no_memory(bytes: usize) -> ApiError {
    let why = format!("there is no memory for a body of {bytes} bytes; try again in a while");
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why)
}

/// While this lives the request is in [`Stage::Arriving`], and a slow client is to blame.
struct Reading<'a>(&'a RequestContext);

impl<'a> Reading<'a> {
    fn new(ctx: &'a RequestContext) -> Reading<'a> {
        ctx.claim.stage(Stage::Arriving);
        ctx.connection.arriving();
        Reading(ctx)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.connection.working();
        self.0.claim.stage(Stage::Working);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};
    use std::time::Duration;

    use super::*;
    use crate::budget::Budget;

    fn ctx(budget: &Arc<Budget>) -> Arc<RequestContext> {
        RequestContext::new(budget, &Request::new(Body::empty()), false)
    }

    /// A body that sends one chunk and then nothing.
    struct Stalled(Option<Bytes>);

    impl hyper::body::Body for Stalled {
        type Data = Bytes;
        type Error = std::io::Error;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
            match self.0.take() {
                Some(some) => Poll::Ready(Some(Ok(Frame::data(some)))),
                None => Poll::Pending,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_times_out() {
        let budget = Arc::new(Budget::new(64 << 20));
        for sent in [0, 70_000] {
            let body = Body::new(Stalled(Some(vec![b' '; sent].into())));
            let error = read(body, &ctx(&budget), MAX_BYTES).await.unwrap_err();
            assert_eq!(error.status, StatusCode::REQUEST_TIMEOUT);
        }
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_bodies_keep_nobody_waiting() {
        let budget = Arc::new(Budget::new(64 << 20));
        // They take the whole share of large bodies.
        let stalled: Vec<_> = (0..48)
            .map(|_| {
                let ctx = ctx(&budget);
                tokio::spawn(async move {
                    read(Body::new(Stalled(Some(vec![b' '; 1 << 20].into()))), &ctx, MAX_BYTES).await
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(budget.used() >= 40 << 20, "{}", budget.used());
        let body = |n: usize| Body::from(vec![b' '; n]);
        let begun = Instant::now();
        assert_eq!(read(body(91_000), &ctx(&budget), MAX_BYTES).await.unwrap().len(), 91_000);
        assert!(begun.elapsed() < Duration::from_millis(10), "a small one has room at once");
        assert_eq!(read(body(10 << 20), &ctx(&budget), MAX_BYTES).await.unwrap().len(), 10 << 20);
        assert!(begun.elapsed() < Duration::from_secs(3), "a large one waits for {:?}", begun.elapsed());
        let mut ends = Vec::new();
        for one in stalled {
            ends.push(one.await.unwrap().unwrap_err().to_string());
        }
        assert!(ends.iter().any(|why| why.contains("while others waited")), "{ends:?}");
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_may_have_so_many_bytes() {
        let budget = Arc::new(Budget::new(64 << 20));
        let body = |n: usize| Body::from(vec![b' '; n]);
        assert_eq!(read(body(1000), &ctx(&budget), 1000).await.unwrap().len(), 1000);
        let error = read(body(1001), &ctx(&budget), 1000).await.unwrap_err();
        assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE);
    }
}
