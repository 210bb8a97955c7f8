//! [`Entry`]: the access log. Each request gets one line, written when its answer has ended, not when it begins.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::Response;
use hyper::body::{Body as _, Bytes, Frame, SizeHint};

use crate::errors::{ApiError, quoted};
use crate::http::connection::Client;
use crate::http_metrics::HttpMetrics;

/// Logged status of a request whose client disconnected before the answer, as in nginx.
const CLIENT_CLOSED: u16 = 499;
/// Longest logged reason in characters.
const MAX_REASON: usize = 300;
/// Reason logged for an incomplete answer without an error.
const CLOSED: &str = "the connection was closed before the answer ended";

tokio::task_local! {
    static CURRENT: Notes;
}

/// Notes about a request while it is answered. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Arc<Mutex<Noted>>);

/// Outcome of a request, for its log line.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    /// Request id.
    pub(crate) id: String,
    /// Id in the body of its answer, such as `chatcmpl-…`.
    pub(crate) completion: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) adapter: Option<String>,
    pub(crate) prompt_tokens: Option<usize>,
    pub(crate) cached_tokens: Option<usize>,
    pub(crate) completion_tokens: Option<usize>,
    /// Time in the engine's queue.
    pub(crate) queue: Option<Duration>,
    /// Time to first token.
    pub(crate) first_token: Option<Duration>,
    /// Finish reason of each choice.
    pub(crate) finish: Vec<&'static str>,
    /// Why it was refused or failed.
    pub(crate) error: Option<String>,
}

impl Notes {
    /// Notes of the request that this task answers; fresh ones outside of requests.
    pub(crate) fn current() -> Notes {
        CURRENT.try_with(Clone::clone).unwrap_or_default()
    }

    /// Updates the notes.
    pub(crate) fn note<T>(&self, with: impl FnOnce(&mut Noted) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The request's id if it is fit for an answer's id, else a new one.
    pub(crate) fn answer_id(&self) -> String {
        let plain = |id: &String| {
            !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        self.note(|noted| Some(noted.id.clone()).filter(plain)).unwrap_or_else(crate::request_id::unique)
    }
}

/// The log line of a request in flight, written on drop.
#[derive(Debug)]
pub(crate) struct Entry {
    notes: Notes,
    metrics: Arc<HttpMetrics>,
    begun: Instant,
    method: Method,
    path: String,
    /// The matched route.
    handler: Option<String>,
    client: Option<SocketAddr>,
    trace: Option<String>,
    status: Option<StatusCode>,
    /// True if the client has read the whole answer.
    ended: bool,
}

impl Entry {
    /// Starts the line of a request.
    pub(crate) fn new(metrics: &Arc<HttpMetrics>, request: &Request, id: &HeaderValue) -> Entry {
        let notes = Notes::default();
        notes.note(|noted| noted.id = id.to_str().unwrap_or_default().to_owned());
        let entry = Entry {
            notes,
            metrics: metrics.clone(),
            begun: Instant::now(),
            method: request.method().clone(),
            path: shown(request.uri().path()),
            handler: request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned()),
            client: request.extensions().get::<Client>().map(|client| client.0),
            trace: trace_id(request.headers()),
            status: None,
            ended: false,
        };
        tracing::debug!(id = entry.notes.note(|n| n.id.clone()), "{} {} begins", entry.method, entry.path);
        entry
    }

    /// Runs `work` with this line's notes as the current ones.
    pub(crate) async fn scope<T>(&self, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self.notes.clone(), work).await
    }

    /// Wraps the response so that its line is written once its body has been read.
    pub(crate) fn answered(mut self, response: Response) -> Response {
        self.status = Some(response.status());
        if let Some(error) = response.extensions().get::<ApiError>() {
            self.metrics.refused(error);
            self.notes.note(|noted| noted.error = Some(error.to_string()));
        }
        // The body of an answer to HEAD is not sent.
        self.ended = self.method == Method::HEAD;
        response.map(|body| Body::new(Logged { body, entry: self }))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let took = self.begun.elapsed();
        let status = self.status.map_or(CLIENT_CLOSED, |status| status.as_u16());
        self.metrics.answered(&self.method, self.handler.as_deref(), status);
        let noted = self.notes.note(std::mem::take);
        let failed = noted.error.is_some();
        let closed = (!self.ended && !failed).then_some(CLOSED);
        let reason = noted.error.as_deref().map(shortened);
        let (method, path) = (self.method.as_str(), self.path.as_str());
        let client = self.client.map(|client| client.to_string());
        let finish = if closed.is_some() { "abort".to_owned() } else { noted.finish.join(",") };
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    method,
                    path,
                    status,
                    total_ms = milliseconds(took),
                    id = noted.id,
                    completion = noted.completion.as_deref(),
                    client = client.as_deref(),
                    trace = self.trace.as_deref(),
                    model = noted.model.as_deref(),
                    adapter = noted.adapter.as_deref(),
                    prompt_tokens = noted.prompt_tokens,
                    cached_tokens = noted.cached_tokens,
                    completion_tokens = noted.completion_tokens,
                    queue_ms = noted.queue.map(milliseconds),
                    first_token_ms = noted.first_token.map(milliseconds),
                    finish = (!finish.is_empty()).then_some(finish.as_str()),
                    reason = reason.as_deref().or(closed),
                    "{method} {path} {status}"
                )
            };
        }
        match status {
            500.. => line!(warn),
            // A stream that failed after its status was sent.
            ..400 if failed => line!(warn),
            // Probes come every few seconds.
            ..400 if self.method.is_safe() => line!(debug),
            _ => line!(info),
        }
    }
}

/// Body of an answer, which ends the log line.
struct Logged {
    body: Body,
    entry: Entry,
}

impl hyper::body::Body for Logged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        self.entry.ended |= matches!(frame, Poll::Ready(None));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        // With a known length, the body is not polled again after its last byte.
        self.entry.ended |= self.body.is_end_stream();
    }
}

/// Milliseconds, rounded to tenths.
fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

/// The path as it is if short and printable, else quoted.
fn shown(path: &str) -> String {
    match path.len() <= 64 && path.bytes().all(|b| b.is_ascii_graphic()) {
        true => path.to_owned(),
        false => quoted(path),
    }
}

/// Truncates a reason for the log.
fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_REASON).collect();
    if short.len() < text.len() {
        // Writing to a string does not fail.
        let _ = write!(short, "…");
    }
    short
}

/// Trace id of the W3C `traceparent` header.
fn trace_id(headers: &HeaderMap) -> Option<String> {
    let parent = headers.get("traceparent")?.to_str().ok()?;
    let mut parts = parent.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_valid = hex(version, 2) && hex(trace, 32) && hex(span, 16) && hex(flags, 2) && version != "ff";
    // Later versions may have more parts.
    let is_valid = is_valid && (version != "00" || parts.next().is_none());
    let there = |id: &str| id.bytes().any(|b| b != b'0');
    (is_valid && there(trace) && there(span)).then(|| trace.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_ids_are_read_as_the_standard_says() {
        const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
        let read = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", HeaderValue::from_str(value).unwrap());
            trace_id(&headers)
        };
        assert_eq!(read(&format!("00-{TRACE}-00f067aa0ba902b7-01")).as_deref(), Some(TRACE));
        assert_eq!(read(&format!("cc-{TRACE}-00f067aa0ba902b7-01-more")).as_deref(), Some(TRACE));
        for wrong in [
            format!("00-{TRACE}-00f067aa0ba902b7"),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{TRACE}-0000000000000000-01"),
            "x".into(),
        ] {
            assert_eq!(read(&wrong), None, "{wrong}");
        }
    }
}
