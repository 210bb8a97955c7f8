//! [`Loading`]: the server while the model is loading.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::errors::ApiError;
use crate::http::connection::{OpenConnections, accept};
use crate::http::limits::Limits;

/// Answers all requests with 503, so that probes and clients see that the server is up.
#[derive(Debug)]
pub struct Loading {
    end: oneshot::Sender<()>,
    task: JoinHandle<(TcpListener, OpenConnections)>,
}

impl Loading {
    /// Starts answering, on the runtime's threads.
    pub fn begin(runtime: &Handle, listener: TcpListener, limits: Limits) -> Loading {
        let (end, ended) = oneshot::channel();
        let table = Arc::new(limits.connection_table());
        let task = runtime.spawn(async move {
            let end = async { drop(ended.await) };
            let open = accept(&listener, Router::new().fallback(still_loading), table, end).await;
            (listener, open)
        });
        Loading { end, task }
    }

    /// Returns the listener. Does not wait for connections that are still open.
    pub async fn finish(self) -> std::io::Result<TcpListener> {
        let _ = self.end.send(());
        let (listener, open) = self.task.await.map_err(std::io::Error::other)?;
        tokio::spawn(open.close());
        Ok(listener)
    }
}

async fn still_loading() -> Response {
    let why = "the model is being loaded; try again in a moment";
    let mut response =
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why).code("model_loading").into_response();
    // The next request is for the loaded model, which uses new connections.
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}
