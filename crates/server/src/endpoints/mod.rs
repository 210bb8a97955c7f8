//! The endpoints of the API: a file each, and [`ENDPOINTS`], the table that says which models answer which.
//!
//! All else follows from the table: the routes, what a model says to requests for models of another kind, who needs an
//! API key, the methods that CORS allows, the text at `/`, and the list in `docs/reference.md`.

mod adapters;
mod chat;
mod classify;
mod completions;
mod embeddings;
mod health;
mod messages;
mod metrics;
mod models;
mod native;
mod ollama;
mod page;
mod rerank;
mod responses;
mod speech;
mod tokens;
mod version;

use std::fmt::Write as _;
use std::sync::Arc;

use axum::routing::{MethodFilter, MethodRouter, on};

use crate::Settings;
use crate::registry::Registry;
use crate::served::{Model, ModelKind, Served, ServedEncoder, ServedSpeech};
use crate::state::Server;

pub use chat::{ChatRequest, parse_chat_request};
pub use completions::{CompletionRequest, parse_completion_request};
pub use messages::parse_message_request;
pub use ollama::chat::{parse_ollama_chat, parse_ollama_generate};
pub use responses::parse_response_request;

/// Every endpoint.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    post("/v1/chat/completions", "chats").generator(|m| on(m, chat::chat)).is_task().is_main(),
    post("/v1/completions", "texts to be continued")
        .generator(|m| on(m, completions::completions))
        .is_task()
        .is_main(),
    post("/v1/responses", "chats, in the form of OpenAI's Responses API")
        .generator(|m| on(m, responses::create))
        .refused_at("/v1/responses"),
    get("/v1/responses/{id}", "a response that was kept").server(|m| on(m, responses::get)),
    delete("/v1/responses/{id}", "deletes one").server(|m| on(m, responses::delete)),
    post("/v1/responses/{id}/cancel", "ends one that is generated in the background")
        .server(|m| on(m, responses::cancel)),
    get("/v1/responses/{id}/input_items", "the items of its request")
        .server(|m| on(m, responses::input_items)),
    post("/v1/messages", "chats, in the form of Anthropic's API")
        .generator(|m| on(m, messages::messages))
        .refused_at("/v1/messages"),
    post("/v1/messages/count_tokens", "the number of a chat's tokens, in the form of Anthropic's API")
        .generator(|m| on(m, messages::count_tokens)),
    post("/api/chat", "chats, in the form of Ollama's API")
        .generator(|m| on(m, ollama::chat::chat))
        .refused_at("/api/chat"),
    post("/api/generate", "texts, in the form of Ollama's API")
        .generator(|m| on(m, ollama::chat::generate))
        .refused_at("/api/generate"),
    post("/api/embed", "embeddings, in the form of Ollama's API")
        .encoder(|m| on(m, ollama::embed::embed))
        .refused_at("/api/embed"),
    post("/api/embeddings", "the embedding of one text, in the older form of Ollama's API")
        .encoder(|m| on(m, ollama::embed::embeddings))
        .refused_at("/api/embeddings"),
    post("/api/show", "a model's facts, in the form of Ollama's API").server(|m| on(m, ollama::models::show)),
    post("/api/pull", "downloads a model, in the form of Ollama's API (`--allow-pull`)")
        .server(|m| on(m, ollama::pull::pull)),
    delete("/api/delete", "removes a downloaded model, in the form of Ollama's API (`--allow-pull`)")
        .server(|m| on(m, ollama::pull::delete)),
    get("/api/tags", "the models, in the form of Ollama's API").server(|m| on(m, ollama::models::tags)),
    get("/api/ps", "the models that are loaded, in the form of Ollama's API")
        .server(|m| on(m, ollama::models::ps)),
    get("/api/version", "the version of Ollama's API that is spoken")
        .server(|m| on(m, ollama::models::version)),
    post("/v1/embeddings", "embeddings of texts and images")
        .encoder(|m| on(m, embeddings::embeddings))
        .is_task(),
    post("/v1/rerank", "relevance of documents to a query").encoder(|m| on(m, rerank::rerank)).is_task(),
    post("/classify", "classes of texts").encoder(|m| on(m, classify::classify)).is_task(),
    post("/v1/audio/transcriptions", "text of speech")
        .speech(|m| on(m, speech::transcriptions))
        .is_task()
        .refused_at("/v1/audio/{*what}"),
    post("/v1/audio/translations", "text of speech, in English")
        .speech(|m| on(m, speech::translations))
        .is_task()
        .refused_at("/v1/audio/{*what}"),
    post("/completion", "texts to be continued, in llama-server's own form")
        .generator(|m| on(m, native::completion)),
    post("/completions", "the same").generator(|m| on(m, native::completion)),
    post("/infill", "the text between two others, in llama-server's form")
        .generator(|m| on(m, native::infill)),
    post("/apply-template", "a chat as the prompt that it becomes")
        .generator(|m| on(m, native::apply_template)),
    get("/props", "the model's settings, in llama-server's form").generator(|m| on(m, native::props)),
    post("/chat/completions", "as with /v1").generator(|m| on(m, chat::chat)),
    post("/responses", "as with /v1").generator(|m| on(m, responses::create)),
    post("/models/load", "loads a model, in llama-server's form").server(|m| on(m, models::load)),
    post("/models/unload", "unloads a model once it answers nobody, in llama-server's form")
        .server(|m| on(m, models::unload)),
    get("/models", "as with /v1").server(|m| on(m, models::models)),
    post("/embeddings", "as with /v1").encoder(|m| on(m, embeddings::embeddings)),
    post("/rerank", "as with /v1").encoder(|m| on(m, rerank::rerank)),
    post("/v2/rerank", "the same").encoder(|m| on(m, rerank::rerank)),
    post("/score", "relevance of pairs of texts, in vLLM's form").encoder(|m| on(m, rerank::score)),
    post("/v1/score", "the same").encoder(|m| on(m, rerank::score)),
    post("/tokenize", "tokens of a text or of a chat").generator(|m| on(m, tokens::tokenize)),
    post("/detokenize", "the text of tokens").generator(|m| on(m, tokens::detokenize)),
    get("/lora-adapters", "the LoRA adapters that are loaded").generator(|m| on(m, adapters::list)),
    post("/v1/load_lora_adapter", "loads a LoRA adapter").generator(|m| on(m, adapters::load)),
    post("/v1/unload_lora_adapter", "unloads a LoRA adapter").generator(|m| on(m, adapters::unload)),
    get("/v1/models", "the models that are served").server(|m| on(m, models::models)).is_main(),
    get("/v1/models/{*id}", "one of them").server(|m| on(m, models::model)),
    get("/health", "whether the server is well")
        .server(|m| on(m, health::health))
        .access(Access::Probe)
        .is_main(),
    get("/ready", "whether it takes requests").server(|m| on(m, health::ready)).access(Access::Probe),
    get("/metrics", "what it does, for Prometheus").server(|m| on(m, metrics::metrics)).is_main(),
    get("/version", "version and commit of the server").server(|m| on(m, version::version)),
    get("/", "the page, on which people chat and see what the server does; a text for other programs")
        .server(|m| on(m, page::page))
        .access(Access::Open),
    get("/page/{file}", "a file of the page").server(|m| on(m, page::part)).access(Access::Open),
];

/// A row of [`ENDPOINTS`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    pub(crate) method: Method,
    /// Path of its route; `{*id}` stands for any rest, `{file}` for a name.
    pub(crate) path: &'static str,
    /// Description of its answer.
    pub(crate) what: &'static str,
    generator: Option<Handler<Served>>,
    encoder: Option<Handler<ServedEncoder>>,
    speech: Option<Handler<ServedSpeech>>,
    /// Handler of the server as a whole, whatever its models are.
    pub(crate) server: Option<ServerHandler>,
    /// True if it is what its kind of model is for.
    is_task: bool,
    /// Route at which other kinds of model say what they do instead; if `None` they do not know its path.
    pub(crate) refused_at: Option<&'static str>,
    access: Access,
    /// True if the text at `/` lists it.
    pub(crate) is_main: bool,
}

/// HTTP method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Post,
    Delete,
}

/// Callers that an endpoint answers, where API keys are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Callers that have a key.
    Key,
    /// Everybody, unless [`Settings::private_health`] is set: probes seldom have a key.
    Probe,
    /// Everybody: that the server runs is no secret.
    Open,
}

/// Makes the route of a handler for a method.
pub(crate) type Handler<M> = fn(MethodFilter) -> MethodRouter<Arc<Server<M>>>;

/// The same for the server as a whole.
pub(crate) type ServerHandler = fn(MethodFilter) -> MethodRouter<Arc<Registry>>;

/// A kind of model, which has endpoints of its own.
pub(crate) trait Kind: Model + Sized {
    /// Handler of an endpoint for this kind of model.
    fn handler(endpoint: &Endpoint) -> Option<Handler<Self>>;
}

impl Kind for Served {
    fn handler(endpoint: &Endpoint) -> Option<Handler<Served>> {
        endpoint.generator
    }
}

impl Kind for ServedEncoder {
    fn handler(endpoint: &Endpoint) -> Option<Handler<ServedEncoder>> {
        endpoint.encoder
    }
}

impl Kind for ServedSpeech {
    fn handler(endpoint: &Endpoint) -> Option<Handler<ServedSpeech>> {
        endpoint.speech
    }
}

impl ModelKind {
    /// True if models of this kind answer an endpoint.
    pub(crate) fn answers(self, endpoint: &Endpoint) -> bool {
        match self {
            ModelKind::Generator => endpoint.generator.is_some(),
            ModelKind::Encoder => endpoint.encoder.is_some(),
            ModelKind::Speech => endpoint.speech.is_some(),
        }
    }

    /// What such a model says of itself where it is asked for what another kind does.
    fn instead(self) -> &'static str {
        match self {
            ModelKind::Generator => "computes no embeddings and classifies nothing",
            ModelKind::Encoder => "generates no text",
            ModelKind::Speech => "transcribes speech",
        }
    }

    /// The word before the last of its tasks: `or` where each model has only one of them.
    fn conjunction(self) -> &'static str {
        if self == ModelKind::Encoder { "or" } else { "and" }
    }
}

const fn get(path: &'static str, what: &'static str) -> Endpoint {
    row(Method::Get, path, what)
}

const fn delete(path: &'static str, what: &'static str) -> Endpoint {
    row(Method::Delete, path, what)
}

const fn post(path: &'static str, what: &'static str) -> Endpoint {
    row(Method::Post, path, what)
}

const fn row(method: Method, path: &'static str, what: &'static str) -> Endpoint {
    Endpoint {
        method,
        path,
        what,
        generator: None,
        encoder: None,
        speech: None,
        server: None,
        is_task: false,
        refused_at: None,
        access: Access::Key,
        is_main: false,
    }
}

impl Endpoint {
    /// Generative models answer it.
    const fn generator(self, handler: Handler<Served>) -> Endpoint {
        Endpoint { generator: Some(handler), ..self }
    }

    /// Encoders answer it.
    const fn encoder(self, handler: Handler<ServedEncoder>) -> Endpoint {
        Endpoint { encoder: Some(handler), ..self }
    }

    /// Speech-to-text models answer it.
    const fn speech(self, handler: Handler<ServedSpeech>) -> Endpoint {
        Endpoint { speech: Some(handler), ..self }
    }

    /// The server answers it, whatever its models are.
    const fn server(self, handler: ServerHandler) -> Endpoint {
        Endpoint { server: Some(handler), ..self }
    }

    /// It is what its kind of model is for: other kinds refuse it and say what they do.
    const fn is_task(self) -> Endpoint {
        Endpoint { is_task: true, refused_at: Some(self.path), ..self }
    }

    /// Other kinds of model refuse all of this route, of which it is a part.
    const fn refused_at(self, route: &'static str) -> Endpoint {
        Endpoint { refused_at: Some(route), ..self }
    }

    /// True if a path is one of its route.
    fn has(&self, path: &str) -> bool {
        match self.path.split_once("{file}") {
            Some((folder, _)) => path.strip_prefix(folder).is_some_and(|file| !file.contains('/')),
            None => self.path == path,
        }
    }

    const fn access(self, access: Access) -> Endpoint {
        Endpoint { access, ..self }
    }

    const fn is_main(self) -> Endpoint {
        Endpoint { is_main: true, ..self }
    }

    /// Why a model, described by `subject`, does not answer it.
    pub(crate) fn refusal(&self, kind: ModelKind, subject: &str) -> String {
        if self.speech.is_some() {
            return format!("{subject} does not transcribe audio; serve a speech model for that");
        }
        let tasks = ENDPOINTS.iter().filter(|e| e.is_task && kind.answers(e));
        let mut tasks: Vec<&str> = tasks.map(|e| e.path).collect();
        let last = tasks.pop().unwrap_or_default();
        let (instead, conjunction) = (kind.instead(), kind.conjunction());
        format!("{subject} {instead}; it has {} {conjunction} {last}", tasks.join(", "))
    }

    /// Kinds of model that answer it, for the documentation.
    fn kinds(&self) -> String {
        let kinds = [
            (self.generator.is_some(), "generative"),
            (self.encoder.is_some(), "encoder"),
            (self.speech.is_some(), "speech"),
            (self.server.is_some(), "all"),
        ];
        kinds.iter().filter(|(has, _)| *has).map(|(_, kind)| *kind).collect::<Vec<_>>().join(", ")
    }
}

impl Method {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Delete => "DELETE",
        }
    }

    pub(crate) fn filter(self) -> MethodFilter {
        match self {
            Method::Get => MethodFilter::GET,
            Method::Post => MethodFilter::POST,
            Method::Delete => MethodFilter::DELETE,
        }
    }
}

/// True if requests to a path need no API key.
pub(crate) fn is_open(path: &str, settings: &Settings) -> bool {
    ENDPOINTS.iter().filter(|endpoint| endpoint.has(path)).any(|endpoint| match endpoint.access {
        Access::Key => false,
        Access::Probe => !settings.private_health,
        Access::Open => true,
    })
}

/// Methods that endpoints have, separated by commas.
pub(crate) fn methods() -> String {
    let is_used = |method: &Method| ENDPOINTS.iter().any(|endpoint| endpoint.method == *method);
    let methods = [Method::Get, Method::Post, Method::Delete].into_iter().filter(is_used);
    methods.map(Method::name).collect::<Vec<_>>().join(", ")
}

/// The endpoints as a table in Markdown.
pub fn endpoints_as_markdown() -> String {
    let mut text = String::from("| endpoint | what it answers with or does | models |\n|---|---|---|\n");
    for endpoint in ENDPOINTS {
        let Endpoint { method, path, what, .. } = endpoint;
        let _ = writeln!(text, "| `{} {path}` | {what} | {} |", method.name(), endpoint.kinds());
    }
    text
}
