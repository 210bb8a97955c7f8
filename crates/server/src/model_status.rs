//! [`ModelStatus`]: the state of a model, for clients; and [`Loaded`], what there is of one that is loaded.

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::routing::MethodRouter;

use crate::model_loader::ModelEntry;
use crate::state::AnyServer;

/// Handlers of a model's endpoints, in the order of the table of endpoints; `None` for those of other kinds of model.
pub(crate) type Handlers = Vec<Option<MethodRouter>>;

/// A model that is loaded.
pub(crate) struct Loaded {
    pub(crate) server: Arc<AnyServer>,
    pub(crate) handlers: Handlers,
    pub(crate) device: String,
    pub(crate) bytes: u64,
    /// `None` once it is being unloaded.
    pub(crate) owner: Mutex<Option<Box<dyn Any + Send>>>,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("device", &self.device).finish_non_exhaustive()
    }
}

/// State of a model, for clients.
#[derive(Clone, Debug)]
pub(crate) struct ModelStatus {
    pub(crate) entry: Arc<ModelEntry>,
    /// `unloaded`, `loading` or `loaded`, in llama-server's words.
    pub(crate) status: &'static str,
    /// Why it could not be loaded, if that was the last that was tried.
    pub(crate) failed: Option<String>,
    pub(crate) loaded: Option<Arc<Loaded>>,
    /// Requests under way.
    pub(crate) in_use: usize,
    /// Requests that wait for it to be loaded.
    pub(crate) waiting: usize,
    /// Times that it was loaded, or that was tried.
    pub(crate) loads: u64,
    /// Time after which it is unloaded if no request comes; `None` for never.
    pub(crate) expires_in: Option<Duration>,
}

impl ModelStatus {
    /// Primary name.
    pub(crate) fn name(&self) -> &str {
        self.entry.names.first().map_or("", String::as_str)
    }

    /// Capabilities, in Ollama's words. More of them are known when it is loaded.
    pub(crate) fn capabilities(&self) -> Vec<&'static str> {
        match &self.loaded {
            Some(loaded) => loaded.server.model.capabilities(),
            None => vec![self.entry.kind.capability()],
        }
    }

    /// All its names, and those of its adapters.
    pub(crate) fn names(&self) -> Vec<String> {
        let adapters = self.loaded.iter().flat_map(|loaded| loaded.server.model.adapters());
        self.entry.names.iter().cloned().chain(adapters).collect()
    }
}
