//! [`Server`]: what all connections share.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use tallow_engine::handle::Failure;
use tokio::sync::watch;

use crate::budget::Budget;
use crate::errors::ApiError;
use crate::exposition::Page;
use crate::guard::Guard;
use crate::metrics::Metrics;
use crate::prepare_pool::PreparePool;
use crate::request_context::RequestContext;
use crate::table::{Filled, Table};
use crate::{Served, Settings};

/// How long streams have to say that they were cut off, once the time to finish has passed.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A model that is served, whatever it does.
pub(crate) trait Model: std::fmt::Debug + Send + Sync + 'static {
    /// Names it goes by; the first is the real one.
    fn names(&self) -> &[String];
    /// Names of adapters that go for its own.
    fn adapters(&self) -> Vec<String> {
        Vec::new()
    }
    /// Tokens that a sequence may have.
    fn context(&self) -> usize;
    /// Does its engine take requests? If not, why.
    fn ready(&self) -> Result<(), Failure>;
    /// Does its engine live?
    fn is_alive(&self) -> bool;
    /// Has its engine finish within some time, and end.
    fn drain(&self, within: Duration);
    /// Checks that found its cache out of order.
    fn page_faults(&self) -> u64 {
        0
    }
    /// Writes what is counted of it.
    fn metrics(&self, page: &mut Page, of_server: &Metrics);
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Server<M = Served> {
    pub(crate) model: M,
    pub(crate) settings: Settings,
    pub(crate) guard: Guard,
    pub(crate) metrics: Arc<Metrics>,
    /// When it began, in seconds since the start of 1970.
    pub(crate) since: u64,
    /// What requests may hold.
    pub(crate) budget: Arc<Budget>,
    /// For those who make prompts, which takes the whole of a processor.
    pub(crate) desks: Arc<PreparePool>,
    /// All connections.
    pub(crate) table: Arc<Table>,
    /// Requests that are being answered.
    open: watch::Sender<usize>,
    /// Is the time to finish over?
    over: watch::Sender<bool>,
}

impl<M: Model> Server<M> {
    pub(crate) fn new(model: M, settings: Settings, guard: Guard) -> Server<M> {
        let desks = std::thread::available_parallelism().map_or(1, usize::from);
        Server {
            metrics: Arc::new(Metrics::new()),
            since: crate::prompt::unix_time(),
            budget: Arc::new(Budget::new(settings.limits.memory)),
            desks: Arc::new(PreparePool::new(desks)),
            table: Arc::new(settings.limits.table()),
            open: watch::Sender::new(0),
            over: watch::Sender::new(false),
            model,
            settings,
            guard,
        }
    }

    /// Are requests taken? If not, why.
    pub(crate) fn ready(&self) -> Result<(), ApiError> {
        self.model.ready().map_err(|why| ApiError::engine(why, self.model.is_alive()))
    }

    /// What is wrong but does not keep requests from being answered.
    pub(crate) fn problems(&self) -> Vec<String> {
        let pages = match self.model.page_faults() {
            0 => None,
            n => Some(format!("the KV cache's pages were found out of order; please report it; times: {n}")),
        };
        let Filled { connections, most, .. } = self.table.filled();
        let full = connections >= most;
        let full =
            full.then(|| format!("all {most} connections are in use: idle ones are closed for new ones"));
        self.settings.log.problem().into_iter().chain(pages).chain(full).collect()
    }

    /// What is kept of a request: of the one that is being dealt with, or of a new one.
    pub(crate) fn visit(&self, request: &Request) -> Arc<RequestContext> {
        let new = || RequestContext::new(&self.budget, request, !self.settings.api_keys.is_empty());
        RequestContext::current().unwrap_or_else(new)
    }

    /// Takes no more requests, and returns once those under way are answered, or had the time they may take.
    pub(crate) async fn drain(&self) {
        self.model.drain(self.settings.drain);
        let mut open = self.open.subscribe();
        if tokio::time::timeout(self.settings.drain, open.wait_for(|n| *n == 0)).await.is_err() {
            self.over.send_replace(true);
            // Whoever does not take even that much is cut off.
            let _ = tokio::time::timeout(LAST_WORDS, open.wait_for(|n| *n == 0)).await;
        }
    }

    /// Resolves when the time to finish is over.
    pub(crate) fn over(&self) -> impl Future<Output = ()> + Send + use<M> {
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
pub(crate) struct Open<M = Served>(pub(crate) Arc<Server<M>>);

impl<M> Open<M> {
    pub(crate) fn new(server: &Arc<Server<M>>) -> Open<M> {
        server.open.send_modify(|n| *n += 1);
        Open(server.clone())
    }
}

impl<M> Drop for Open<M> {
    fn drop(&mut self) {
        self.0.open.send_modify(|n| *n -= 1);
    }
}
