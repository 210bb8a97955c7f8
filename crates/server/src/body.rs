//! Bodies of requests: how they are read, and where what they ask for is prepared.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use hyper::body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::errors::ApiError;
use crate::state::{Model, Server};

/// Longest body.
const MOST_BYTES: usize = 16 << 20;
/// Bodies up to this length are never kept waiting.
const SMALL: usize = 64 << 10;
/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads a request's body and makes something of it, on a thread where that may take a while.
pub(crate) async fn prepare<M: Model, T: Send + 'static>(
    server: &Arc<Server<M>>,
    request: Request,
    make: impl FnOnce(&Server<M>, &[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    server.ready()?;
    let (parts, body) = request.into_parts();
    check_kind(&parts.headers)?;
    let (bytes, large) = read(body, &server.large, MOST_BYTES).await?;
    let gone = |what: &dyn std::fmt::Display| {
        tracing::error!("a request could not be prepared: {what}");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "an internal error; please report it")
    };
    let desk = server.desks.clone().acquire_owned().await.map_err(|e| gone(&e))?;
    let server = server.clone();
    let made = tokio::task::spawn_blocking(move || {
        // Both are given back when this is done, even if nobody waits for it any more.
        let _held = (large, desk);
        make(&server, &bytes)
    });
    made.await.map_err(|e| gone(&e))?
}

fn check_kind(headers: &HeaderMap) -> Result<(), ApiError> {
    let unsupported = |why: &str| Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        return unsupported("the body should be JSON: send the header content-type: application/json");
    }
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => unsupported("compressed bodies are not taken"),
        _ => Ok(()),
    }
}

/// Reads a body of up to so many bytes, and takes a permit if it is large.
pub(crate) async fn read(
    body: Body,
    large: &Arc<Semaphore>,
    most: usize,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), ApiError> {
    match tokio::time::timeout(PATIENCE, read_all(body, large, most)).await {
        Ok(read) => read,
        Err(_) => {
            let why = format!("the body did not arrive within {} s", PATIENCE.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, why))
        }
    }
}

async fn read_all(
    mut body: Body,
    large: &Arc<Semaphore>,
    most: usize,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), ApiError> {
    let too_large = || {
        let why = format!("the body is larger than {most} bytes");
        Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, why))
    };
    if body.size_hint().lower() > most as u64 {
        return too_large();
    }
    let (mut bytes, mut permit) = (Vec::new(), None);
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|e| ApiError::bad(format!("the body could not be read: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > most {
            return too_large();
        }
        if bytes.len() + data.len() > SMALL && permit.is_none() {
            // The semaphore is never closed.
            permit = large.clone().acquire_owned().await.ok();
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes, permit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_times_out() {
        struct Silent;
        impl hyper::body::Body for Silent {
            type Data = hyper::body::Bytes;
            type Error = std::io::Error;
            fn poll_frame(
                self: Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Result<hyper::body::Frame<Self::Data>, Self::Error>>> {
                std::task::Poll::Pending
            }
        }
        let large = Arc::new(Semaphore::new(1));
        let error = read(Body::new(Silent), &large, MOST_BYTES).await.unwrap_err();
        assert_eq!(error.status, StatusCode::REQUEST_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_wait_for_each_other_and_small_ones_do_not() {
        let large = Arc::new(Semaphore::new(1));
        let body = |n: usize| Body::from(vec![b' '; n]);
        let (bytes, first) = read(body(SMALL + 1), &large, MOST_BYTES).await.unwrap();
        assert_eq!((bytes.len(), first.is_some()), (SMALL + 1, true));
        let (_, none) = read(body(SMALL), &large, MOST_BYTES).await.unwrap();
        assert!(none.is_none());
        assert_eq!(
            read(body(SMALL + 1), &large, MOST_BYTES).await.unwrap_err().status,
            StatusCode::REQUEST_TIMEOUT
        );
        drop(first);
        assert!(read(body(SMALL + 1), &large, MOST_BYTES).await.unwrap().1.is_some());
        assert_eq!(
            read(body(MOST_BYTES + 1), &large, MOST_BYTES).await.unwrap_err().status,
            StatusCode::PAYLOAD_TOO_LARGE
        );
    }
}
