//! [`Store`]: the cache of downloaded models and the hub, for clients of a server that may download and remove models.

use std::ops::ControlFlow;
use std::path::PathBuf;

use tallow_hub::{CachedModel, Event, HubError, ModelRef};
use tallow_server::{ModelStore, PullProgress, StoreError};

use crate::Failed;
use crate::hub::{self, Offline};
use crate::memory::size;
use crate::model_name::DEMO;

/// The models on this machine.
#[derive(Debug)]
pub(crate) struct Store {
    /// Why nothing is to be downloaded, if so.
    pub offline: Option<Offline>,
    /// The files and folders of the models that are served, which are not removed.
    pub served: Vec<PathBuf>,
}

impl ModelStore for Store {
    fn pull(
        &self,
        name: &str,
        watch: &mut dyn FnMut(PullProgress<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        if name == DEMO {
            return Ok(());
        }
        if let Some(why) = self.offline {
            return Err(StoreError::Refused(format!("nothing is downloaded here: {why}")));
        }
        let model = ModelRef::parse(name).map_err(stored)?;
        let mut tell = |event: Event<'_>| match event {
            Event::Progress { file, done, total } => watch(PullProgress::File { file, done, total }),
            other => match hub::in_words(other) {
                Some(text) => watch(PullProgress::Note(&text)),
                None => ControlFlow::Continue(()),
            },
        };
        let pulled = hub::hub().map_err(unknown)?.pull(&model, &mut tell).map_err(stored)?;
        tracing::info!("pulled {model} to {}", pulled.path.display());
        Ok(())
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        if name == DEMO {
            return Err(StoreError::Refused("demo is part of the program, and cannot be removed".into()));
        }
        let (cache, model) = (hub::cache().map_err(unknown)?, ModelRef::parse(name).map_err(stored)?);
        let is_served = |m: &CachedModel| {
            self.served.iter().any(|served| served.starts_with(&m.path) || m.path.starts_with(served))
        };
        if hub::named(&cache, &model).map_err(stored)?.iter().any(is_served) {
            let why = format!("{name} is served here; it can be removed when the server has stopped");
            return Err(StoreError::Refused(why));
        }
        let removed = cache.remove(&model).map_err(stored)?;
        tracing::info!("removed {model}: {} files, {} bytes", removed.files, removed.bytes);
        Ok(())
    }
}

fn unknown(why: Failed) -> StoreError {
    StoreError::Failed(why.to_string())
}

fn stored(error: HubError) -> StoreError {
    let why = error.to_string();
    match error {
        HubError::NoModel { .. }
        | HubError::NoRevision { .. }
        | HubError::NoFile { .. }
        | HubError::NoQuant { .. }
        | HubError::Alias { .. }
        | HubError::NotCached { .. } => StoreError::Missing(why),
        HubError::Name(_)
        | HubError::Ambiguous { .. }
        | HubError::Gated { .. }
        | HubError::FileName { .. }
        | HubError::MissingPart { .. }
        | HubError::NoTokenizer { .. }
        | HubError::NoWeights { .. } => StoreError::Refused(why),
        // Where the cache is does not concern clients.
        HubError::DiskFull { needed, free, .. } => {
            let (needed, free) = (size(needed), size(free));
            StoreError::Failed(format!("the disk is full: {needed} more are needed, and {free} are free"))
        }
        HubError::Io { .. } | HubError::Outside { .. } => {
            tracing::warn!("{why}");
            StoreError::Failed(
                "the models on this machine cannot be read or changed; the log says why".into(),
            )
        }
        _ => StoreError::Failed(why),
    }
}
