//! [`Model`]: what a server can serve. [`Served`], [`ServedEncoder`] and [`ServedSpeech`] are its kinds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tallow_engine::embedder::EmbedderHandle;
use tallow_engine::handle::{EngineHandle, Failure};
use tallow_engine::transcribe::Transcriber;
use tallow_text::template::ChatTemplates;
use tokio::sync::Semaphore;

use crate::exposition::Page;
use crate::metrics::Metrics;

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
    fn metrics(&self, page: &mut Page, of_server: &Metrics);
}

/// A generative model.
#[derive(Clone, Debug)]
pub struct Served {
    /// The engine.
    pub handle: EngineHandle,
    /// Chat templates, if the model has any.
    pub templates: Option<ChatTemplates>,
    /// Limit and default of `max_tokens`; `None` for as many as fit.
    pub max_tokens: Option<usize>,
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
}

impl Model for ServedSpeech {
    fn names(&self) -> &[String] {
        &self.transcriber.handle.info().names
    }

    fn context(&self) -> usize {
        self.transcriber.speech.context
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

    fn metrics(&self, page: &mut Page, of_server: &Metrics) {
        let taken = self.queue.saturating_sub(self.permits.available_permits());
        of_server.of_speech(page, &self.transcriber.handle, taken);
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

    fn metrics(&self, page: &mut Page, of_server: &Metrics) {
        of_server.of_generator(page, &self.handle);
    }
}

impl Model for ServedEncoder {
    fn names(&self) -> &[String] {
        &self.handle.info().names
    }

    fn context(&self) -> usize {
        self.handle.info().inputs.most()
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

    fn metrics(&self, page: &mut Page, of_server: &Metrics) {
        of_server.of_encoder(page, &self.handle);
    }
}
