//! HTTP server: routes and wire types of OpenAI's, Anthropic's and Ollama's APIs, streams, errors, metrics.
//!
//! It maps HTTP requests to engine requests, and engine events to HTTP responses. It knows nothing of tensors, and
//! nothing below it knows JSON.

mod access;
mod body;
mod budget;
mod clock;
mod constraint;
mod endpoints;
mod errors;
mod exposition;
mod foreign;
mod generation;
mod http;
mod http_metrics;
mod log_health;
mod metrics;
mod model_loader;
mod model_name;
mod model_status;
mod model_store;
mod parse;
mod prepare_pool;
mod process;
mod receipts;
mod registry;
mod request_context;
mod request_id;
mod response_store;
mod routes;
mod served;
mod state;
pub mod transcript;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

pub use constraint::{ReasoningLimit, ReasoningPart, constraint};
pub use endpoints::{
    ChatRequest, CompletionRequest, endpoints_as_markdown, parse_chat_request, parse_completion_request,
    parse_message_request, parse_ollama_chat, parse_ollama_generate, parse_response_request,
};
pub use errors::ApiError;
pub use http::limits::Limits;
pub use http::loading::Loading;
pub use log_health::LogHealth;
pub use model_loader::{AnyServed, LoadError, LoadedModel, MakeRoom, ModelEntry, ModelLoader, Models};
pub use model_store::{ModelStore, PullProgress, StoreError};
pub use receipts::{
    Receipt, ReceiptAnswer, ReceiptLog, ReceiptModel, ReceiptRequest, ReceiptSampling, Receipts,
};
pub use served::{ModelCard, ModelKind, Served, ServedEncoder, ServedSpeech};

/// Server configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// API keys, one of which every request must send; empty for an open server.
    pub api_keys: Vec<String>,
    /// Allowed `Host` values besides this machine's own address: names without a port, or `*` for any.
    pub allow_hosts: Vec<String>,
    /// Allowed CORS origins, such as `https://chat.example`, or `*` for any.
    pub allow_origins: Vec<String>,
    /// True if requests may pass arbitrary values to the chat template.
    pub template_values: bool,
    /// Folder from which clients may load LoRA adapters; `None` if they may not.
    pub adapters: Option<PathBuf>,
    /// The models on this machine, if clients may download and remove them.
    pub models: Option<Arc<dyn ModelStore>>,
    /// Time that requests in flight have to finish once the server is stopping.
    pub drain: Duration,
    /// True if `/health` and `/ready` need an API key too.
    pub private_health: bool,
    /// Health of the log writer.
    pub log: Arc<LogHealth>,
    /// Commit this binary was built from, if known.
    pub commit: Option<&'static str>,
    /// Limits on memory and connections.
    pub limits: Limits,
    /// Returns free memory to the system. Called after large requests, which otherwise leave what they used with the
    /// allocator.
    pub trim: fn(),
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            api_keys: Vec::new(),
            allow_hosts: Vec::new(),
            allow_origins: Vec::new(),
            template_values: false,
            adapters: None,
            models: None,
            drain: Duration::from_secs(30),
            private_health: false,
            log: Arc::default(),
            commit: None,
            limits: Limits::default(),
            trim: || {},
        }
    }
}

impl Settings {
    /// Rejects settings that can never take effect; the error says what to type instead.
    pub fn check(&self) -> Result<(), String> {
        if self.api_keys.iter().any(String::is_empty) {
            return Err("an API key is empty, which everybody knows".into());
        }
        self.allow_hosts.iter().try_for_each(|host| http::origin::check_host(host))?;
        self.allow_origins.iter().try_for_each(|origin| http::origin::check_origin(origin))
    }
}

/// Serves models until `stop` resolves, then until the requests in flight are answered or the drain time is over. New
/// requests are refused meanwhile, and streams that do not finish in time end with an error.
pub async fn serve(
    listener: TcpListener,
    models: impl Into<Models>,
    settings: Settings,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), std::io::Error> {
    let guard = http::guard::Guard::new(&settings, listener.local_addr()?)?;
    let shared = Arc::new(state::Shared::new(settings, guard));
    let registry = registry::Registry::new(shared, models.into(), routes::build);
    let end = {
        let registry = registry.clone();
        async move {
            stop.await;
            registry.drain().await;
        }
    };
    let table = registry.connection_table.clone();
    let open = http::connection::accept(&listener, routes::router(registry.clone()), table, end).await;
    drop(listener);
    open.close().await;
    registry.close().await;
    Ok(())
}
