//! [`Loader`]: loads a server's models when they are asked for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tallow_engine::step_lock::StepLock;
use tallow_hub::ModelRef;
use tallow_server::{AnyServed, LoadError, LoadedModel, MakeRoom, ModelEntry, ModelLoader};

use super::sharing::{MemoryLedger, Reservation, SharingHost};
use super::source::ModelSource;
use super::start::{Common, Opened};
use crate::args::Serve;
use crate::settings::{Origin, Setting, Sources};
use crate::{Failed, hub};

/// Loads the models of a server, within one memory plan and on one set of CPU cores.
pub(super) struct Loader {
    args: Serve,
    common: Common,
    /// Settings for models that are not listed.
    settings: Sources,
    /// The models by their primary names.
    models: Mutex<BTreeMap<String, Source>>,
    ledger: MemoryLedger,
    /// Taken in turn by the engines on the CPU.
    step_lock: StepLock,
}

/// A model that can be loaded.
struct Source {
    source: ModelSource,
    /// Context that was chosen for it to fit: it stays that when the model is loaded again.
    context: Option<usize>,
}

/// Engine and memory of a loaded model, freed in this order.
struct Owner {
    _engine: Box<dyn std::any::Any + Send>,
    _reservation: Reservation,
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").field("ledger", &self.ledger).finish_non_exhaustive()
    }
}

impl Loader {
    /// A loader without models.
    pub(super) fn new(args: &Serve, sources: &Sources, common: &Common) -> Loader {
        Loader {
            args: args.clone(),
            common: common.clone(),
            settings: sources.clone(),
            models: Mutex::default(),
            ledger: MemoryLedger::default(),
            step_lock: StepLock::default(),
        }
    }

    /// The same with these models.
    pub(super) fn of(self, opened: Vec<Opened>) -> Loader {
        let source = |opened: Opened| (opened.name, Source { source: opened.source, context: None });
        Loader { models: Mutex::new(opened.into_iter().map(source).collect()), ..self }
    }

    fn models(&self) -> MutexGuard<'_, BTreeMap<String, Source>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has an engine on the CPU compute in turn with the others there.
    fn take_turns(&self, model: &AnyServed) {
        let lock = self.step_lock.clone();
        match model {
            AnyServed::Generator(model) => model.handle.take_turns(lock),
            AnyServed::Encoder(model) => model.handle.take_turns(lock),
            AnyServed::Speech(model) => model.take_turns(lock),
        }
    }

    /// The models in the cache that are not listed, as far as they can be served.
    pub(super) fn cached(&self) -> Result<Vec<ModelEntry>, Failed> {
        let mut entries = Vec::new();
        for cached in hub::cache()?.list()?.into_iter().filter(|cached| cached.complete) {
            match self.entry_of(&cached.name) {
                Ok(entry) => entries.extend(entry),
                Err(why) => tracing::warn!("{} is not served: {why}", cached.name),
            }
        }
        Ok(entries)
    }

    /// A model in the cache; `None` if it is listed already.
    fn entry_of(&self, name: &str) -> Result<Option<ModelEntry>, Failed> {
        // As many share the memory as are listed, and at least two.
        let (models, listed) = {
            let models = self.models();
            let listed =
                models.values().any(|m| m.source.model == name || m.source.names.contains(&name.to_owned()));
            (models.len().max(2), listed)
        };
        if listed {
            return Ok(None);
        }
        // A request does not make the server download it again if it is removed meanwhile.
        let source = ModelSource { is_cached: true, ..ModelSource::new(name, models, &self.settings)? };
        let opened = Opened::new(&source, &self.args, &self.common)?;
        let entry = opened.entry()?;
        self.models().insert(opened.name, Source { source, context: None });
        Ok(Some(entry))
    }
}

impl ModelLoader for Loader {
    fn load(&self, entry: &ModelEntry, make_room: &mut MakeRoom<'_>) -> Result<LoadedModel, LoadError> {
        let failed = |why: Failed| match why.no_room {
            true => LoadError::NoRoom(why.to_string()),
            false => LoadError::Failed(why.to_string()),
        };
        let name = entry.names.first().cloned().unwrap_or_default();
        let (source, context) = match self.models().get(&name) {
            Some(Source { source, context }) => (source.clone(), *context),
            None => return Err(LoadError::Failed(format!("{name} is not one of the models"))),
        };
        let mut opened = Opened::new(&source, &self.args, &self.common).map_err(failed)?;
        opened.context = context.map(|value| Setting { value, origin: Origin::Memory });
        let host = SharingHost::new(&self.ledger, make_room);
        let loaded = opened.start(&host).map_err(failed)?;
        let Some((reservation, is_on_cpu, context)) = host.placed() else { return Ok(loaded) };
        if is_on_cpu {
            self.take_turns(&loaded.model);
        }
        if let Some(source) = self.models().get_mut(&name) {
            source.context = Some(context);
        }
        let (device, bytes) = (reservation.device.clone(), reservation.bytes);
        let owner = Owner { _engine: loaded.owner, _reservation: reservation };
        Ok(LoadedModel { device, bytes, owner: Box::new(owner), ..loaded })
    }

    fn find(&self, name: &str) -> Result<Option<ModelEntry>, LoadError> {
        // Nothing is downloaded, and no file is opened by its path.
        let Ok(model) = ModelRef::parse(name) else { return Ok(None) };
        let found = hub::cache().and_then(|cache| Ok(cache.find(&model)?));
        match found.map_err(|why| LoadError::Failed(why.to_string()))? {
            None => Ok(None),
            Some(_) => self.entry_of(name).map_err(|why| LoadError::Failed(why.to_string())),
        }
    }

    fn finds(&self) -> bool {
        self.args.on_demand
    }
}
