//! [`RequestContext`]: server state of one request, from its head to the last byte of its answer.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::Response;
use hyper::body::{Body as _, Bytes, Frame, SizeHint};
use tallow_engine::handle::Unread;
use tallow_engine::scheduler::ClientId;

use crate::budget::{Budget, Claim, Stage};
use crate::http::connection_table::ConnectionSlot;

/// Answers are handed to the connection in pieces of at most this many bytes, so that unsent bytes stay accounted. A
/// stream's frames are shorter, so its events stay whole.
const PIECE: usize = 64 << 10;

tokio::task_local! {
    static CURRENT: Arc<RequestContext>;
}

/// State of a request while it lasts.
#[derive(Debug)]
pub(crate) struct RequestContext {
    pub(crate) client: ClientId,
    pub(crate) claim: Claim,
    pub(crate) connection: Arc<ConnectionSlot>,
    /// Body that was read before it was known who processes it.
    body: Mutex<Option<Vec<u8>>>,
    /// Kept until the request has ended.
    kept: Mutex<Option<Box<dyn Debug + Send>>>,
}

/// Headers that carry API keys.
const KEYS: [HeaderName; 3] =
    [header::AUTHORIZATION, HeaderName::from_static("x-api-key"), HeaderName::from_static("api-key")];

/// Client id for fairness: from the API key where keys are configured, else from the address.
fn client(connection: &ConnectionSlot, headers: &HeaderMap, has_keys: bool) -> ClientId {
    let mut hasher = DefaultHasher::new();
    // The key is not checked yet: a wrong one gets no further than the comparison.
    match KEYS.iter().find_map(|name| headers.get(name)).filter(|_| has_keys) {
        Some(key) => key.as_bytes().hash(&mut hasher),
        None => connection.address().hash(&mut hasher),
    }
    ClientId(hasher.finish())
}

impl Unread for RequestContext {
    fn add(&self, bytes: usize) -> bool {
        self.claim.add_unread(bytes)
    }
}

impl RequestContext {
    /// Context of a new request. With `has_keys`, clients are told apart by their API key.
    pub(crate) fn new(budget: &Arc<Budget>, request: &Request, has_keys: bool) -> Arc<RequestContext> {
        let connection = request.extensions().get::<Arc<ConnectionSlot>>().cloned();
        let connection = connection.unwrap_or_else(|| Arc::new(ConnectionSlot::detached()));
        let client = client(&connection, request.headers(), has_keys);
        let (body, kept) = (Mutex::default(), Mutex::default());
        Arc::new(RequestContext { client, claim: budget.claim(connection.clone()), connection, body, kept })
    }

    /// Context of the request that this task handles.
    pub(crate) fn current() -> Option<Arc<RequestContext>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Runs `work` with this as the current context.
    pub(crate) async fn scope<T>(self: &Arc<RequestContext>, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self.clone(), work).await
    }

    /// [`RequestContext::scope`] for synchronous work.
    pub(crate) fn scope_sync<T>(self: &Arc<RequestContext>, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), work)
    }

    /// Leaves the request's body here for [`take_body`](Self::take_body).
    pub(crate) fn leave_body(&self, bytes: Vec<u8>) {
        *self.body.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
    }

    /// The body, if it was read before.
    pub(crate) fn take_body(&self) -> Option<Vec<u8>> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps something until the client has read the response.
    pub(crate) fn keep(&self, what: impl Debug + Send + 'static) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(what));
    }

    /// Keeps the claim until the client has read the response.
    pub(crate) fn hold(self: Arc<RequestContext>, response: Response) -> Response {
        let kind = response.headers().get(header::CONTENT_TYPE);
        if kind.is_some_and(|kind| kind == "text/event-stream") {
            self.connection.streaming();
        }
        response.map(|body| {
            if let Some(bytes) = body.size_hint().exact() {
                self.claim.settle(bytes as usize);
                self.claim.stage(Stage::Leaving);
            }
            Body::new(CountedBody { body, left: Bytes::new(), ctx: self })
        })
    }
}

/// Body of an answer, accounted as it is sent.
struct CountedBody {
    body: Body,
    /// Rest of the body's last frame.
    left: Bytes,
    ctx: Arc<RequestContext>,
}

impl hyper::body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if this.left.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.left = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            }
        }
        let piece = this.left.split_to(this.left.len().min(PIECE));
        this.ctx.claim.transferred(piece.len());
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, left) = (self.body.size_hint(), self.left.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + left);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + left);
        }
        hint
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        self.ctx.connection.idle();
    }
}
