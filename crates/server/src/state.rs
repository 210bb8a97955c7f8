//! [`Server`]: what all connections share.

use std::sync::Arc;
use std::time::Duration;

use tallow_engine::handle::EngineHandle;
use tallow_models::template::ChatTemplates;
use tokio::sync::{Semaphore, watch};

use crate::errors::ApiError;
use crate::guard::Guard;
use crate::metrics::Metrics;
use crate::{Served, Settings};

/// Large bodies in memory at one time, together at most 256 MiB.
const LARGE_BODIES: usize = 16;
/// How long streams have to say that they were cut off, once the time to finish has passed.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) handle: EngineHandle,
    pub(crate) templates: Option<ChatTemplates>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) settings: Settings,
    pub(crate) guard: Guard,
    pub(crate) metrics: Metrics,
    /// When it began, in seconds since the start of 1970.
    pub(crate) since: u64,
    /// For those who hold a large body.
    pub(crate) large: Arc<Semaphore>,
    /// For those who make prompts, which takes the whole of a processor.
    pub(crate) desks: Arc<Semaphore>,
    /// Requests that are being answered.
    open: watch::Sender<usize>,
    /// Is the time to finish over?
    over: watch::Sender<bool>,
}

impl Server {
    pub(crate) fn new(served: Served, settings: Settings, guard: Guard) -> Server {
        let Served { handle, templates, max_tokens } = served;
        let desks = std::thread::available_parallelism().map_or(1, usize::from);
        Server {
            metrics: Metrics::new(),
            since: crate::prompt::unix_time(),
            large: Arc::new(Semaphore::new(LARGE_BODIES)),
            desks: Arc::new(Semaphore::new(desks)),
            open: watch::Sender::new(0),
            over: watch::Sender::new(false),
            handle,
            templates,
            max_tokens,
            settings,
            guard,
        }
    }

    /// Are requests taken? If not, why.
    pub(crate) fn ready(&self) -> Result<(), ApiError> {
        self.handle.ready().map_err(|why| ApiError::engine(why, self.handle.is_alive()))
    }

    /// Takes no more requests, and returns once those under way are answered, or had the time they may take.
    pub(crate) async fn drain(&self) {
        self.handle.drain(self.settings.drain);
        let mut open = self.open.subscribe();
        if tokio::time::timeout(self.settings.drain, open.wait_for(|n| *n == 0)).await.is_err() {
            self.over.send_replace(true);
            // Whoever does not take even that much is cut off.
            let _ = tokio::time::timeout(LAST_WORDS, open.wait_for(|n| *n == 0)).await;
        }
    }

    /// Resolves when the time to finish is over.
    pub(crate) fn over(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut over = self.over.subscribe();
        async move {
            if over.wait_for(|over| *over).await.is_err() {
                std::future::pending().await
            }
        }
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Open(pub(crate) Arc<Server>);

impl Open {
    pub(crate) fn new(server: &Arc<Server>) -> Open {
        server.open.send_modify(|n| *n += 1);
        Open(server.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.send_modify(|n| *n -= 1);
    }
}
