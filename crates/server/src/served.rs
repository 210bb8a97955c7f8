//! [`Served`] and [`ServedEncoder`]: what a server has a model of.

use std::time::Duration;

use tallow_engine::embedder::EmbedderHandle;
use tallow_engine::handle::{EngineHandle, Failure};
use tallow_models::template::ChatTemplates;

use crate::metrics::Metrics;
use crate::state::Model;

/// A model that writes text.
#[derive(Clone, Debug)]
pub struct Served {
    /// The engine.
    pub handle: EngineHandle,
    /// How the model was taught to chat, if it was.
    pub templates: Option<ChatTemplates>,
    /// Tokens of an answer, where a request does not say.
    pub max_tokens: Option<usize>,
}

/// A model that makes vectors of texts, or scores.
#[derive(Clone, Debug)]
pub struct ServedEncoder {
    /// The engine.
    pub handle: EmbedderHandle,
}

impl Model for Served {
    fn names(&self) -> &[String] {
        &self.handle.info().names
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

    fn metrics(&self, of_server: &Metrics) -> String {
        of_server.page(&self.handle)
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

    fn metrics(&self, of_server: &Metrics) -> String {
        of_server.page_of_embedder(&self.handle)
    }
}
