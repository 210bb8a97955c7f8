//! `/api/pull` and `/api/delete`.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Bytes, Frame};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::models::digest;
use crate::body::read_json;
use crate::errors::{ApiError, ErrorForm, respond};
use crate::model_store::{ModelStore, PullProgress, StoreError};
use crate::parse::fields::Fields;
use crate::registry::Registry;
use crate::state::ActiveRequest;

/// Longest name in bytes.
const MAX_NAME: usize = 1024;
/// Time between lines about a file, but for its first and its last.
const EVERY: Duration = Duration::from_millis(100);
/// Lines that may wait for a client; while they do, progress is not told.
const WAITING: usize = 16;

/// A line of a stream.
#[derive(Debug, Serialize)]
struct Line {
    status: String,
    /// Hash of the file's name: clients show a bar for each.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
}

impl Line {
    fn new(status: &str) -> Line {
        Line { status: status.to_owned(), digest: None, total: None, completed: None }
    }

    fn of(progress: PullProgress<'_>) -> Line {
        match progress {
            PullProgress::Note(text) => Line::new(text),
            PullProgress::File { file, done, total } => Line {
                digest: Some(digest(file)),
                total: Some(total),
                completed: Some(done),
                ..Line::new(&format!("pulling {file}"))
            },
        }
    }

    fn json(&self) -> String {
        // Serialization of texts and numbers cannot fail.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

type Told = Result<Line, ApiError>;

/// `POST /api/pull`
pub(crate) async fn pull(
    State(server): State<Arc<Registry>>,
    request: Request,
) -> Result<Response, ApiError> {
    let read = |server: &Registry, body: Vec<u8>| {
        let (store, mut fields) = (allowed(server)?, Fields::body(&body)?);
        let name = named(&mut fields)?;
        let stream = fields.flag("stream")?.unwrap_or(true);
        fields.only_off("insecure", |value| *value == false)?;
        fields.finish()?;
        Ok((store, name, stream))
    };
    let (store, name, stream) = read_json(&server, request).await?.process(&server, read).await?;
    let permit = server.pulls.clone().try_acquire_owned().map_err(|_| {
        let why = "other models are being downloaded; try again when they are here";
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, why)
    })?;
    let (tell, told) = mpsc::channel(WAITING);
    let mut lines =
        Lines { told, drain_over: Box::pin(server.drain_over()), _active: ActiveRequest::new(&server) };
    // No thread of the runtime, which could not end before this does.
    let builder = thread::Builder::new().name("pull".into());
    builder.spawn(move || download(&*store, &name, &tell, permit)).map_err(|e| {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, format!("there is no thread to download: {e}"))
    })?;
    if !stream {
        while let Some(line) = lines.next().await {
            line?;
        }
        return respond(&Line::new(SUCCESS));
    }
    // What fails at once has a status of its own.
    let first = lines.next().await.transpose()?.unwrap_or_else(|| Line::new(SUCCESS));
    let body = Body::new(Streamed { lines, next: Some(first.json()) });
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-cache")];
    Ok((StatusCode::OK, headers, body).into_response())
}

/// The last line of a download.
const SUCCESS: &str = "success";

/// Downloads a model, as long as somebody wants to know about it.
fn download(store: &dyn ModelStore, name: &str, tell: &mpsc::Sender<Told>, _permit: OwnedSemaphorePermit) {
    let mut last: Option<(String, Instant)> = None;
    let mut watch = |progress: PullProgress<'_>| {
        if tell.is_closed() {
            return ControlFlow::Break(());
        }
        if let PullProgress::File { file, done, total } = progress {
            let is_recent = |(name, at): &(String, Instant)| name == file && at.elapsed() < EVERY;
            if done < total && last.as_ref().is_some_and(is_recent) {
                return ControlFlow::Continue(());
            }
            last = Some((file.to_owned(), Instant::now()));
        }
        // A client that does not read learns less.
        let _ = tell.try_send(Ok(Line::of(progress)));
        ControlFlow::Continue(())
    };
    let pulled = store.pull(name, &mut watch).map(|()| Line::new(SUCCESS)).map_err(failed);
    let _ = tell.blocking_send(pulled);
}

/// `DELETE /api/delete`
pub(crate) async fn delete(
    State(server): State<Arc<Registry>>,
    request: Request,
) -> Result<Response, ApiError> {
    let remove = |server: &Registry, body: Vec<u8>| {
        let (store, mut fields) = (allowed(server)?, Fields::body(&body)?);
        let name = named(&mut fields)?;
        fields.finish()?;
        store.delete(&name).map_err(failed)
    };
    read_json(&server, request).await?.process(&server, remove).await?;
    Ok(StatusCode::OK.into_response())
}

/// The models, if clients may change them.
fn allowed(server: &Registry) -> Result<Arc<dyn ModelStore>, ApiError> {
    server.settings.models.clone().ok_or_else(|| {
        let why = "clients may not download or remove models here; start the server with --allow-pull to allow it, or use \
                   `tallow pull` and `tallow rm`";
        ApiError::new(StatusCode::FORBIDDEN, why)
    })
}

/// Takes the name of a model. The tag `latest` is that of names without one.
fn named(fields: &mut Fields) -> Result<String, ApiError> {
    // The older name of the field.
    fields.rename("name", "model")?;
    let name = fields.short_text("model", MAX_NAME)?.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| ApiError::field("model", "model is missing"))?;
    Ok(name.strip_suffix(":latest").unwrap_or(&name).to_owned())
}

fn failed(error: StoreError) -> ApiError {
    match error {
        StoreError::Missing(why) => ApiError::new(StatusCode::NOT_FOUND, why),
        StoreError::Refused(why) => ApiError::field("model", why),
        StoreError::Failed(why) => ApiError::new(StatusCode::BAD_GATEWAY, why),
    }
}

/// What is told of a download. Dropping it ends the download.
struct Lines {
    told: mpsc::Receiver<Told>,
    drain_over: Pin<Box<dyn Future<Output = ()> + Send>>,
    _active: ActiveRequest<Registry>,
}

impl Lines {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Told>> {
        if let Poll::Ready(line) = self.told.poll_recv(cx) {
            return Poll::Ready(line);
        }
        self.drain_over.as_mut().poll(cx).map(|()| {
            self.told.close();
            let why = "the server is stopping; what has arrived is kept for the next time";
            Some(Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why).code("shutting_down")))
        })
    }

    async fn next(&mut self) -> Option<Told> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }
}

/// The body of a stream: the lines, of which the next may be here already.
struct Streamed {
    lines: Lines,
    next: Option<String>,
}

impl hyper::body::Body for Streamed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let line = match this.next.take() {
            Some(line) => Poll::Ready(Some(line)),
            None => this.lines.poll_next(cx).map(|line| {
                Some(match line? {
                    Ok(line) => line.json(),
                    Err(error) => {
                        this.lines.told.close();
                        error.json_of(ErrorForm::Ollama) + "\n"
                    }
                })
            }),
        };
        line.map(|line| Some(Ok(Frame::data(Bytes::from(line?)))))
    }
}
