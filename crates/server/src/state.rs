//! [`Shared`]: state of the whole server; [`Server`]: that of one of its models.

use std::ops::Deref;
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
use crate::http_metrics::HttpMetrics;
use crate::metrics::Metrics;
use crate::prepare_pool::PreparePool;
use crate::request_context::RequestContext;
use crate::response_store::ResponseStore;
use crate::served::{Model, Served};

/// Time that streams have to report that they were cut off, once the drain time is over.
const ABORT_GRACE: Duration = Duration::from_secs(1);

/// Models that are downloaded at a time: each of them takes all of the network.
const MAX_PULLS: usize = 2;

/// State shared by all connections and models.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) guard: Guard,
    pub(crate) http_metrics: Arc<HttpMetrics>,
    /// Start time (Unix time in seconds).
    pub(crate) since: u64,
    /// Memory budget of requests.
    pub(crate) budget: Arc<Budget>,
    /// Permits for preparing prompts, which takes a whole core.
    pub(crate) prepare_pool: Arc<PreparePool>,
    /// Responses that are kept.
    pub(crate) responses: Arc<ResponseStore>,
    /// All connections.
    pub(crate) connection_table: Arc<ConnectionTable>,
    /// Permits for downloads of models.
    pub(crate) pulls: Arc<Semaphore>,
    /// Number of requests being answered.
    open: watch::Sender<usize>,
    /// True if the drain time is over.
    drain_over: watch::Sender<bool>,
}

/// A model that is loaded, and state of its own.
#[derive(Debug)]
pub(crate) struct Server<M: ?Sized = Served> {
    shared: Arc<Shared>,
    /// Metrics of its requests.
    pub(crate) metrics: Arc<Metrics>,
    /// Tokens of answers, for chats that send their text back.
    pub(crate) answer_tokens: Arc<AnswerTokens>,
    /// Compiles the structures that answers must have. Made for the first of them: it knows the whole vocabulary.
    pub(crate) compiler: OnceLock<Result<Compiler, Refused>>,
    pub(crate) model: M,
}

/// A model of any kind.
pub(crate) type AnyServer = Server<dyn Model>;

/// What takes requests: one model, or the server as a whole.
pub(crate) trait Endpoints: Deref<Target = Shared> + Send + Sync + 'static {
    /// Fails with the reason if requests are not taken.
    fn ready(&self) -> Result<(), ApiError>;
}

impl Shared {
    pub(crate) fn new(settings: Settings, guard: Guard) -> Shared {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Shared {
            http_metrics: Arc::default(),
            since: crate::clock::unix_time(),
            budget: Arc::new(Budget::new(settings.limits.memory)),
            prepare_pool: Arc::new(PreparePool::new(processors)),
            responses: Arc::default(),
            connection_table: Arc::new(settings.limits.connection_table()),
            pulls: Arc::new(Semaphore::new(MAX_PULLS)),
            open: watch::Sender::new(0),
            drain_over: watch::Sender::new(false),
            settings,
            guard,
        }
    }

    /// Problems that do not keep requests from being answered.
    pub(crate) fn problems(&self) -> Vec<String> {
        let Occupancy { connections, capacity, .. } = self.connection_table.occupancy();
        let full = connections >= capacity;
        let full =
            full.then(|| format!("all {capacity} connections are in use: idle ones are closed for new ones"));
        self.settings.log.problem().into_iter().chain(full).collect()
    }

    /// Context of a request: the current task's, or a new one.
    pub(crate) fn request_context(&self, request: &Request) -> Arc<RequestContext> {
        let new = || RequestContext::new(&self.budget, request, !self.settings.api_keys.is_empty());
        RequestContext::current().unwrap_or_else(new)
    }

    /// Returns once the requests in flight are answered or the drain time is over.
    pub(crate) async fn drain(&self) {
        let mut open = self.open.subscribe();
        if tokio::time::timeout(self.settings.drain, open.wait_for(|n| *n == 0)).await.is_err() {
            self.drain_over.send_replace(true);
            // Clients that do not read even that much are cut off.
            let _ = tokio::time::timeout(ABORT_GRACE, open.wait_for(|n| *n == 0)).await;
        }
    }

    /// Resolves when the drain time is over.
    pub(crate) fn drain_over(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut drain_over = self.drain_over.subscribe();
        async move {
            if drain_over.wait_for(|drain_over| *drain_over).await.is_err() {
                std::future::pending().await
            }
        }
    }
}

impl<M: Model> Server<M> {
    pub(crate) fn new(shared: Arc<Shared>, metrics: Arc<Metrics>, model: M) -> Server<M> {
        Server { shared, metrics, answer_tokens: Arc::default(), compiler: OnceLock::new(), model }
    }
}

impl<M: ?Sized> Deref for Server<M> {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl<M: Model + ?Sized> Endpoints for Server<M> {
    fn ready(&self) -> Result<(), ApiError> {
        self.model.ready().map_err(|why| ApiError::engine(why, self.model.is_alive()))
    }
}

impl<M: Model + ?Sized> Server<M> {
    /// Problems of the model that do not keep requests from being answered.
    pub(crate) fn model_problem(&self) -> Option<String> {
        match self.model.page_faults() {
            0 => None,
            n => Some(format!("the KV cache's pages were found out of order; please report it; times: {n}")),
        }
    }
}

/// A request being answered; counts it in [`Shared`] while it lives.
#[derive(Debug)]
pub(crate) struct ActiveRequest<S: Endpoints = Server>(pub(crate) Arc<S>);

impl<S: Endpoints> ActiveRequest<S> {
    pub(crate) fn new(server: &Arc<S>) -> ActiveRequest<S> {
        server.open.send_modify(|n| *n += 1);
        ActiveRequest(server.clone())
    }
}

impl<S: Endpoints> Drop for ActiveRequest<S> {
    fn drop(&mut self) {
        self.0.open.send_modify(|n| *n -= 1);
    }
}
