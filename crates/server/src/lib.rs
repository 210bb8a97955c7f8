//! The HTTP interface: routes and wire types of OpenAI's protocol, streams, errors, metrics.
//!
//! It maps what clients send to requests of the engine, and the engine's events to what clients are told. It knows no
//! tensor, and nothing below it knows JSON.

mod access;
mod adapters;
mod answers;
mod base64;
mod body;
mod budget;
mod chat;
mod classify;
mod completions;
mod connection;
mod embeddings;
mod errors;
mod exposition;
mod fields;
mod foreign;
mod generation;
mod guard;
mod health;
mod json;
mod limits;
mod loading;
mod metrics;
mod multipart;
mod origin;
mod page;
mod prepare_pool;
mod process;
mod prompt;
mod request_context;
mod rerank;
mod routes;
mod run;
mod served;
mod socket;
mod speech;
mod state;
mod stream;
mod table;
mod thinking;
mod tokens;
pub mod transcript;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;

pub use chat::{ChatRequest, parse_chat_request};
pub use completions::{CompletionRequest, parse_completion_request};
pub use errors::ApiError;
pub use health::LogHealth;
pub use limits::Limits;
pub use loading::Loading;
pub use served::{Served, ServedEncoder, ServedSpeech};

/// How the server deals with its clients.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Keys, one of which every request must give; none for an open server.
    pub api_keys: Vec<String>,
    /// Hosts that requests may be for, besides this machine's own address: names without a port, or `*` for any.
    pub allow_hosts: Vec<String>,
    /// Origins of web pages that may use this server, such as `https://chat.example`, or `*` for any.
    pub allow_origins: Vec<String>,
    /// May requests give values to the chat template?
    pub template_values: bool,
    /// The folder beneath which adapters lie that clients may have loaded, if they may.
    pub adapters: Option<PathBuf>,
    /// How long requests that are under way may take once the server is to stop.
    pub drain: Duration,
    /// Do `/health` and `/ready` need a key too?
    pub private_health: bool,
    /// How the log fares.
    pub log: Arc<LogHealth>,
    /// The commit that this program was built of, if that is known.
    pub commit: Option<&'static str>,
    /// What clients may take of the machine.
    pub limits: Limits,
    /// Gives memory that is free back to the system. Called after large requests, which would otherwise leave what they
    /// took with the allocator.
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
    /// Looks for settings that can never have the effect that is wanted of them. Gives what to type instead.
    pub fn check(&self) -> Result<(), String> {
        if self.api_keys.iter().any(String::is_empty) {
            return Err("an API key is empty, which everybody knows".into());
        }
        self.allow_hosts.iter().try_for_each(|host| origin::check_host(host))?;
        self.allow_origins.iter().try_for_each(|origin| origin::check_origin(origin))
    }
}

/// Serves until `stop` resolves, and then until the requests that are under way have been answered or the time for that
/// is over. New requests are refused meanwhile, and streams that do not end in time end with an error.
pub async fn serve(
    listener: TcpListener,
    served: Served,
    settings: Settings,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), std::io::Error> {
    serve_model(listener, served, routes::of_writer(), settings, stop).await
}

/// The same for an encoder.
pub async fn serve_encoder(
    listener: TcpListener,
    served: ServedEncoder,
    settings: Settings,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), std::io::Error> {
    serve_model(listener, served, routes::of_encoder(), settings, stop).await
}

/// The same for a model that hears.
pub async fn serve_speech(
    listener: TcpListener,
    served: ServedSpeech,
    settings: Settings,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), std::io::Error> {
    serve_model(listener, served, routes::of_speech(), settings, stop).await
}

async fn serve_model<M: state::Model>(
    listener: TcpListener,
    served: M,
    own: Router<Arc<state::Server<M>>>,
    settings: Settings,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), std::io::Error> {
    let guard = guard::Guard::new(&settings, listener.local_addr()?)?;
    let server = Arc::new(state::Server::new(served, settings, guard));
    let end = {
        let server = server.clone();
        async move {
            stop.await;
            server.drain().await;
        }
    };
    let table = server.table.clone();
    let open = connection::accept(&listener, routes::router(own, server), table, end).await;
    drop(listener);
    open.close().await;
    Ok(())
}
