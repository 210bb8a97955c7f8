//! [`Server`]: state shared by all connections.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::Request;
use tallow_constraint::{Compiler, Refused};
use tallow_text::answer_tokens::AnswerTokens;
use tokio::sync::{Semaphore, watch};

use crate::Settings;
use crate::budget::Budget;
use crate::errors::ApiError;
use crate::http::connection_table::{ConnectionTable, Occupancy};
use crate::http::guard::Guard;
use crate::metrics::Metrics;
use crate::prepare_pool::PreparePool;
use crate::request_context::RequestContext;
use crate::response_store::ResponseStore;
use crate::served::{Model, Served};

/// Time that streams have to report that they were cut off, once the drain time is over.
const ABORT_GRACE: Duration = Duration::from_secs(1);

/// Models that are downloaded at a time: each of them takes all of the network.
const MAX_PULLS: usize = 2;

/// State shared by all connections.
#[derive(Debug)]
pub(crate) struct Server<M: ?Sized = Served> {
    pub(crate) settings: Settings,
    pub(crate) guard: Guard,
    pub(crate) metrics: Arc<Metrics>,
    /// Start time (Unix time in seconds).
    pub(crate) since: u64,
    /// Memory budget of requests.
    pub(crate) budget: Arc<Budget>,
    /// Permits for preparing prompts, which takes a whole core.
    pub(crate) prepare_pool: Arc<PreparePool>,
    /// Tokens of answers, for chats that send their text back.
    pub(crate) answer_tokens: Arc<AnswerTokens>,
    /// Responses that are kept.
    pub(crate) responses: Arc<ResponseStore>,
    /// Compiles the structures that answers must have. Made for the first of them: it knows the whole vocabulary.
    pub(crate) compiler: OnceLock<Result<Compiler, Refused>>,
    /// All connections.
    pub(crate) connection_table: Arc<ConnectionTable>,
    /// Permits for downloads of models.
    pub(crate) pulls: Arc<Semaphore>,
    /// Number of requests being answered.
    open: watch::Sender<usize>,
    /// True if the drain time is over.
    drain_over: watch::Sender<bool>,
    pub(crate) model: M,
}

/// A server of any kind of model.
pub(crate) type AnyServer = Server<dyn Model>;

impl<M: Model> Server<M> {
    pub(crate) fn new(model: M, settings: Settings, guard: Guard) -> Server<M> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Server {
            metrics: Arc::new(Metrics::new()),
            since: crate::clock::unix_time(),
            budget: Arc::new(Budget::new(settings.limits.memory)),
            prepare_pool: Arc::new(PreparePool::new(processors)),
            answer_tokens: Arc::default(),
            responses: Arc::default(),
            compiler: OnceLock::new(),
            connection_table: Arc::new(settings.limits.connection_table()),
            pulls: Arc::new(Semaphore::new(MAX_PULLS)),
            open: watch::Sender::new(0),
            drain_over: watch::Sender::new(false),
            settings,
            guard,
            model,
        }
    }
}

impl<M: Model + ?Sized> Server<M> {
    /// Fails with the reason if requests are not taken.
    pub(crate) fn ready(&self) -> Result<(), ApiError> {
        self.model.ready().map_err(|why| ApiError::engine(why, self.model.is_alive()))
    }

    /// Problems that do not keep requests from being answered.
    pub(crate) fn problems(&self) -> Vec<String> {
        let pages = match self.model.page_faults() {
            0 => None,
            n => Some(format!("the KV cache's pages were found out of order; please report it; times: {n}")),
        };
        let Occupancy { connections, capacity, .. } = self.connection_table.occupancy();
        let full = connections >= capacity;
        let full =
            full.then(|| format!("all {capacity} connections are in use: idle ones are closed for new ones"));
        self.settings.log.problem().into_iter().chain(pages).chain(full).collect()
    }

    /// Context of a request: the current task's, or a new one.
    pub(crate) fn request_context(&self, request: &Request) -> Arc<RequestContext> {
        let new = || RequestContext::new(&self.budget, request, !self.settings.api_keys.is_empty());
        RequestContext::current().unwrap_or_else(new)
    }

    /// Takes no more requests, and returns once those in flight are answered or the drain time is over.
    pub(crate) async fn drain(&self) {
        self.model.drain(self.settings.drain);
        let mut open = self.open.subscribe();
        if tokio::time::timeout(self.settings.drain, open.wait_for(|n| *n == 0)).await.is_err() {
            self.drain_over.send_replace(true);
            // Clients that do not read even that much are cut off.
            let _ = tokio::time::timeout(ABORT_GRACE, open.wait_for(|n| *n == 0)).await;
        }
    }

    /// Resolves when the drain time is over.
    pub(crate) fn drain_over(&self) -> impl Future<Output = ()> + Send + use<M> {
        let mut drain_over = self.drain_over.subscribe();
        async move {
            if drain_over.wait_for(|drain_over| *drain_over).await.is_err() {
                std::future::pending().await
            }
        }
    }
}

/// A request being answered; counts it in [`Server`] while it lives.
#[derive(Debug)]
pub(crate) struct ActiveRequest<M: ?Sized = Served>(pub(crate) Arc<Server<M>>);

impl<M: ?Sized> ActiveRequest<M> {
    pub(crate) fn new(server: &Arc<Server<M>>) -> ActiveRequest<M> {
        server.open.send_modify(|n| *n += 1);
        ActiveRequest(server.clone())
    }
}

impl<M: ?Sized> Drop for ActiveRequest<M> {
    fn drop(&mut self) {
        self.0.open.send_modify(|n| *n -= 1);
    }
}
