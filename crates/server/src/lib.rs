//! The HTTP interface: routes and wire types of OpenAI's protocol, streams, errors, metrics.
//!
//! It maps what clients send to requests of the engine, and the engine's events to what clients are told. It knows no
//! tensor, and nothing below it knows JSON.

mod answers;
mod body;
mod chat;
mod completions;
mod connection;
mod errors;
mod fields;
mod generation;
mod guard;
mod json;
mod metrics;
mod prompt;
mod routes;
mod run;
mod state;
mod stream;
mod tokens;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use tallow_engine::handle::EngineHandle;
use tallow_models::template::ChatTemplates;
use tokio::net::TcpListener;

pub use chat::{ChatRequest, parse_chat_request};
pub use completions::{CompletionRequest, parse_completion_request};
pub use errors::ApiError;

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
    /// How long requests that are under way may take once the server is to stop.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            api_keys: Vec::new(),
            allow_hosts: Vec::new(),
            allow_origins: Vec::new(),
            template_values: false,
            drain: Duration::from_secs(30),
        }
    }
}

/// What is served.
#[derive(Clone, Debug)]
pub struct Served {
    /// The engine.
    pub handle: EngineHandle,
    /// How the model was taught to chat, if it was.
    pub templates: Option<ChatTemplates>,
    /// Tokens of an answer, where a request does not say.
    pub max_tokens: Option<usize>,
}

/// Serves until `stop` resolves, and then until the requests that are under way have been answered or the time for that
/// is over. New requests are refused meanwhile, and streams that do not end in time end with an error.
pub async fn serve(
    listener: TcpListener,
    served: Served,
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
    connection::accept(listener, routes::router(server), end).await;
    Ok(())
}
