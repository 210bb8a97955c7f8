//! [`Model`]: what a server can serve. [`Served`], [`ServedEncoder`] and [`ServedSpeech`] are its kinds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tallow_engine::embedder::EmbedderHandle;
use tallow_engine::handle::{EngineHandle, Failure};
use tallow_engine::step_lock::StepLock;
use tallow_engine::transcribe::Transcriber;
use tallow_text::output::{OutputFormat, ToolFormat};
use tallow_text::template::{ChatTemplate, ChatTemplates};
use tokio::sync::Semaphore;

use crate::exposition::Page;
use crate::metrics::Metrics;
use crate::receipts::Receipts;

/// A served model of any kind.
pub(crate) trait Model: std::fmt::Debug + Send + Sync + 'static {
    /// Names of the model; the first is the primary one.
    fn names(&self) -> &[String];
    /// Names of loaded adapters, which requests may give as the model.
    fn adapters(&self) -> Vec<String> {
        Vec::new()
    }
    /// Context length in tokens.
    fn context(&self) -> usize;
    /// Its capabilities, in Ollama's words.
    fn capabilities(&self) -> Vec<&'static str>;
    /// Its chat template, if it has one.
    fn template(&self) -> Option<String> {
        None
    }
    /// Fails with the reason if its engine does not take requests.
    fn ready(&self) -> Result<(), Failure>;
    /// True if its engine is running.
    fn is_alive(&self) -> bool;
    /// Tells its engine to finish within some time and end.
    fn drain(&self, within: Duration);
    /// Number of checks that found its KV cache's pages inconsistent.
    fn page_faults(&self) -> u64 {
        0
    }
    /// Writes its metrics.
    fn metrics(&self, page: &mut Page, of_requests: &Metrics);
}

/// Kind of a model, by what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ModelKind {
    /// Generates text.
    Generator,
    /// Computes embeddings, the scores of a reranker, or classes.
    Encoder,
    /// Transcribes speech.
    Speech,
}

impl ModelKind {
    pub(crate) const ALL: [ModelKind; 3] = [ModelKind::Generator, ModelKind::Encoder, ModelKind::Speech];

    /// The capability that all models of it have, in Ollama's word.
    pub(crate) fn capability(self) -> &'static str {
        match self {
            ModelKind::Generator => "completion",
            ModelKind::Encoder => "embedding",
            ModelKind::Speech => "audio",
        }
    }
}

/// Facts about a model's files, for clients.
#[derive(Clone, Debug, Default)]
pub struct ModelCard {
    /// Model family.
    pub family: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Types of the weights, in short.
    pub types: String,
    /// Size of the weights in bytes.
    pub bytes: u64,
    /// `gguf` or `safetensors`.
    pub format: &'static str,
}

impl ModelCard {
    /// Number of parameters, in short: `7.6B`.
    pub(crate) fn parameter_size(&self) -> String {
        let n = self.parameters as f64;
        match self.parameters {
            0..1_000_000 => format!("{:.0}K", n / 1e3),
            1_000_000..1_000_000_000 => format!("{:.1}M", n / 1e6),
            _ => format!("{:.1}B", n / 1e9),
        }
    }
}

/// A generative model.
#[derive(Clone, Debug)]
pub struct Served {
    /// The engine.
    pub handle: EngineHandle,
    /// Chat templates, if the model has any.
    pub templates: Option<ChatTemplates>,
    /// Format of tool calls; `None` for that which the template shows.
    pub tool_format: Option<&'static ToolFormat>,
    /// Limit and default of `max_tokens`; `None` for as many as fit.
    pub max_tokens: Option<usize>,
    /// Receipts of its answers, if any are written.
    pub receipts: Option<Receipts>,
}

impl Served {
    /// The template for chats with tools, or without.
    pub(crate) fn template(&self, with_tools: bool) -> Option<&ChatTemplate> {
        self.templates.as_ref()?.choose(with_tools)
    }

    /// Output format of the model in such chats.
    pub(crate) fn output_format(&self, with_tools: bool) -> OutputFormat {
        match (self.template(with_tools), self.tool_format) {
            (None, _) => OutputFormat::plain(),
            (Some(template), None) => OutputFormat::of(template),
            (Some(template), Some(format)) => OutputFormat::with(format, template),
        }
    }
}

/// An encoder: embeddings, reranker scores or classes.
#[derive(Clone, Debug)]
pub struct ServedEncoder {
    /// The engine.
    pub handle: EmbedderHandle,
}

/// A speech-to-text model.
#[derive(Clone, Debug)]
pub struct ServedSpeech {
    /// Transcribes audio.
    pub(crate) transcriber: Transcriber,
    /// Most requests in flight or waiting, and a permit for each.
    pub(crate) queue: usize,
    pub(crate) permits: Arc<Semaphore>,
}

impl ServedSpeech {
    /// A model for up to `queue` concurrent requests.
    pub fn new(transcriber: Transcriber, queue: usize) -> ServedSpeech {
        let queue = queue.min(Semaphore::MAX_PERMITS);
        ServedSpeech { transcriber, queue, permits: Arc::new(Semaphore::new(queue)) }
    }

    /// Has its engine compute its steps in turn with others that share the lock.
    pub fn take_turns(&self, lock: StepLock) {
        self.transcriber.handle.take_turns(lock);
    }
}

impl Model for ServedSpeech {
    fn names(&self) -> &[String] {
        &self.transcriber.handle.info().names
    }

    fn context(&self) -> usize {
        self.transcriber.speech.context
    }

    fn capabilities(&self) -> Vec<&'static str> {
        vec!["audio"]
    }

    fn ready(&self) -> Result<(), Failure> {
        match self.permits.is_closed() {
            true => Err(Failure::ShuttingDown),
            false => self.transcriber.handle.ready(),
        }
    }

    fn is_alive(&self) -> bool {
        self.transcriber.handle.is_alive()
    }

    fn drain(&self, _within: Duration) {
        // Requests in flight need the engine for their next windows. New ones get no permit.
        self.permits.close();
    }

    fn page_faults(&self) -> u64 {
        self.transcriber.handle.stats().page_faults.load(Ordering::Relaxed)
    }

    fn metrics(&self, page: &mut Page, of_requests: &Metrics) {
        let taken = self.queue.saturating_sub(self.permits.available_permits());
        of_requests.of_speech(page, &self.transcriber.handle, taken);
    }
}

impl Model for Served {
    fn names(&self) -> &[String] {
        &self.handle.info().names
    }

    fn adapters(&self) -> Vec<String> {
        self.handle.loras().into_iter().map(|a| a.name).collect()
    }

    fn context(&self) -> usize {
        self.handle.info().context
    }

    fn capabilities(&self) -> Vec<&'static str> {
        let takes_tools = self.template(true).is_some_and(|template| template.reads("tools"));
        let thinks = self.output_format(false).reasons();
        let all = [(true, "completion"), (takes_tools, "tools"), (thinks, "thinking")];
        all.into_iter().filter_map(|(has, name)| has.then_some(name)).collect()
    }

    fn template(&self) -> Option<String> {
        Some(Served::template(self, false)?.source().to_owned())
    }

    fn ready(&self) -> Result<(), Failure> {
        self.handle.ready()
    }

    fn is_alive(&self) -> bool {
        self.handle.is_alive()
    }

    fn drain(&self, within: Duration) {
        self.handle.drain(within);
    }

    fn page_faults(&self) -> u64 {
        self.handle.stats().page_faults.load(Ordering::Relaxed)
    }

    fn metrics(&self, page: &mut Page, of_requests: &Metrics) {
        of_requests.of_generator(page, &self.handle);
    }
}

impl Model for ServedEncoder {
    fn names(&self) -> &[String] {
        &self.handle.info().names
    }

    fn context(&self) -> usize {
        self.handle.info().inputs.most()
    }

    fn capabilities(&self) -> Vec<&'static str> {
        vec!["embedding"]
    }

    fn ready(&self) -> Result<(), Failure> {
        self.handle.ready()
    }

    fn is_alive(&self) -> bool {
        self.handle.is_alive()
    }

    fn drain(&self, within: Duration) {
        self.handle.drain(within);
    }

    fn metrics(&self, page: &mut Page, of_requests: &Metrics) {
        of_requests.of_encoder(page, &self.handle);
    }
}
