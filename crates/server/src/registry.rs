//! [`Registry`]: the models of a server. It finds the one that a request names, loads it if it is not, and unloads those
//! that have not been used for the longest time to make room.
//!
//! A model is unloaded only when no request is under way with it. If all are in use when room is needed, the one used least
//! recently takes no new requests until those under way are done (`Phase::Leaving`); they wait in line meanwhile.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use tallow_engine::handle::Failure;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::errors::ApiError;
use crate::metrics::Metrics;
use crate::model_loader::{AnyServed, LoadError, LoadedModel, ModelEntry, ModelLoader, Models};
use crate::model_status::{Handlers, Loaded, ModelStatus};
use crate::served::ModelKind;
use crate::state::{AnyServer, Endpoints, Shared};

/// Requests that may wait for a model to be loaded.
const MAX_WAITING: usize = 256;
/// A model that takes less than this part of what is missing makes no room to speak of.
const SMALL_SHARE: u64 = 16;
/// Time between looks for models that have been idle for long.
const TICK: Duration = Duration::from_millis(500);

/// Makes a server of a loaded model.
pub(crate) type Build = fn(Arc<Shared>, Arc<Metrics>, AnyServed) -> (Arc<AnyServer>, Handlers);

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Registry {
    shared: Arc<Shared>,
    /// `None` if there is one model, which stays loaded.
    loader: Option<Arc<dyn ModelLoader>>,
    build: Build,
    state: Mutex<State>,
    /// Told of each change of a phase or of the number of requests under way.
    changed: watch::Sender<()>,
    /// One model is loaded at a time: each needs to know what room the others have left.
    load_turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State {
    models: Vec<Managed>,
    /// Number of requests so far.
    uses: u64,
    stopping: bool,
}

/// A model and its state.
#[derive(Debug)]
struct Managed {
    entry: Arc<ModelEntry>,
    /// Metrics of its requests, which outlast its unloading.
    metrics: Arc<Metrics>,
    phase: Phase,
    /// Requests under way.
    in_use: usize,
    /// Requests that wait for it to be loaded.
    waiting: usize,
    /// Its last use, as a count of all uses.
    used: u64,
    idle_since: Instant,
    keep_alive: Option<Duration>,
    /// Number of times that it was loaded, or that was tried.
    loads: u64,
    /// Why loading failed, and for which of these times.
    failed: Option<(u64, ApiError)>,
}

#[derive(Debug)]
enum Phase {
    Unloaded,
    Loading,
    Loaded(Arc<Loaded>),
    /// Takes no new requests, since its memory is needed.
    Leaving(Arc<Loaded>),
    Unloading,
}

/// Keeps a model loaded, for a request that is under way with it.
#[derive(Debug)]
pub(crate) struct Lease {
    registry: Arc<Registry>,
    at: usize,
    pub(crate) loaded: Arc<Loaded>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.registry.state();
        if let Some(model) = state.models.get_mut(self.at) {
            model.in_use -= 1;
            model.idle_since = Instant::now();
        }
        drop(state);
        self.registry.changed.send_replace(());
    }
}

/// A request's place in the line for a model.
struct Waiting<'a>(&'a Registry, usize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(model) = self.0.state().models.get_mut(self.1) {
            model.waiting -= 1;
        }
    }
}

impl Managed {
    fn new(entry: ModelEntry) -> Managed {
        Managed {
            keep_alive: entry.keep_alive,
            entry: Arc::new(entry),
            metrics: Arc::new(Metrics::new()),
            phase: Phase::Unloaded,
            in_use: 0,
            waiting: 0,
            used: 0,
            idle_since: Instant::now(),
            loads: 0,
            failed: None,
        }
    }

    fn name(&self) -> &str {
        self.entry.names.first().map_or("", String::as_str)
    }

    fn loaded(&self) -> Option<&Arc<Loaded>> {
        match &self.phase {
            Phase::Loaded(loaded) | Phase::Leaving(loaded) => Some(loaded),
            Phase::Unloaded | Phase::Loading | Phase::Unloading => None,
        }
    }

    fn has_name(&self, name: &str) -> bool {
        let adapters = || self.loaded().is_some_and(|l| l.server.model.adapters().iter().any(|a| a == name));
        self.entry.names.iter().any(|own| own == name) || adapters()
    }

    fn status(&self) -> ModelStatus {
        let loaded = self.loaded().cloned();
        let expires_in = self.keep_alive.filter(|_| loaded.is_some());
        let idle = if self.in_use == 0 { self.idle_since.elapsed() } else { Duration::ZERO };
        ModelStatus {
            entry: self.entry.clone(),
            status: match &self.phase {
                Phase::Unloaded => "unloaded",
                Phase::Loading => "loading",
                Phase::Loaded(_) | Phase::Leaving(_) | Phase::Unloading => "loaded",
            },
            failed: self.failed.as_ref().map(|(_, error)| error.message().to_owned()),
            loaded,
            in_use: self.in_use,
            waiting: self.waiting,
            loads: self.loads,
            expires_in: expires_in.map(|after| after.saturating_sub(idle)),
        }
    }
}

impl Deref for Registry {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Endpoints for Registry {
    /// Fails with the reason if no requests are taken: the server is stopping, or its only model has failed.
    fn ready(&self) -> Result<(), ApiError> {
        let only = match &self.loader {
            None => self.statuses().into_iter().next().and_then(|status| status.loaded),
            Some(_) => None,
        };
        match only {
            Some(loaded) => loaded.server.ready(),
            None if self.state().stopping => Err(ApiError::engine(Failure::ShuttingDown, true)),
            None => Ok(()),
        }
    }
}

impl Registry {
    pub(crate) fn new(shared: Arc<Shared>, models: Models, build: Build) -> Arc<Registry> {
        let Models { entries, loader } = models;
        let make = |(entry, loaded): (ModelEntry, Option<LoadedModel>)| {
            let mut model = Managed::new(entry);
            if let Some(loaded) = loaded {
                model.loads = 1;
                model.phase = Phase::Loaded(Arc::new(made(build, &shared, &model, loaded)));
            }
            model
        };
        let models = entries.into_iter().map(make).collect();
        let state = Mutex::new(State { models, uses: 0, stopping: false });
        let (changed, load_turn) = (watch::Sender::new(()), tokio::sync::Mutex::new(()));
        let registry = Arc::new(Registry { shared, loader, build, state, changed, load_turn });
        if registry.loader.is_some() {
            let of_task = Arc::downgrade(&registry);
            tokio::spawn(async move {
                let mut ticks = tokio::time::interval(TICK);
                loop {
                    ticks.tick().await;
                    match of_task.upgrade() {
                        Some(registry) => registry.unload_expired(),
                        None => return,
                    }
                }
            });
        }
        registry
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if models are loaded and unloaded while the server runs.
    pub(crate) fn manages(&self) -> bool {
        self.loader.is_some()
    }

    /// All models.
    pub(crate) fn statuses(&self) -> Vec<ModelStatus> {
        self.state().models.iter().map(Managed::status).collect()
    }

    /// State of one model.
    pub(crate) fn status(&self, at: usize) -> Option<ModelStatus> {
        self.state().models.get(at).map(Managed::status)
    }

    /// Kinds of the models that may be asked for.
    pub(crate) fn kinds(&self) -> Vec<ModelKind> {
        match self.loader.as_ref().is_some_and(|loader| loader.finds()) {
            true => ModelKind::ALL.to_vec(),
            false => self.state().models.iter().map(|model| model.entry.kind).collect(),
        }
    }

    /// Names of all models and of their adapters.
    pub(crate) fn names(&self) -> Vec<String> {
        self.statuses().iter().flat_map(ModelStatus::names).collect()
    }

    /// Problems that do not keep requests from being answered.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = self.shared.problems();
        for status in self.statuses() {
            problems.extend(status.loaded.as_ref().and_then(|loaded| loaded.server.model_problem()));
            if let Some(why) = &status.failed {
                problems.push(format!("model {} could not be loaded: {why}", status.name()));
            }
        }
        problems
    }

    /// True if no engine that should run has ended.
    pub(crate) fn is_alive(&self) -> bool {
        // An engine that has ended among several is loaded again when it is asked for.
        self.manages() || self.statuses().iter().flat_map(|s| &s.loaded).all(|l| l.server.model.is_alive())
    }

    /// Index of the model or adapter with a name.
    pub(crate) async fn find(&self, name: &str) -> Result<usize, ApiError> {
        if let Some(at) = self.known(name) {
            return Ok(at);
        }
        if let Some(loader) = self.loader.clone().filter(|loader| loader.finds()) {
            let wanted = name.to_owned();
            let found = tokio::task::spawn_blocking(move || loader.find(&wanted)).await;
            if let Some(entry) = found.map_err(internal)?.map_err(|why| refused(name, why))? {
                return Ok(self.add(entry));
            }
        }
        Err(ApiError::no_model(name, &self.names()))
    }

    fn known(&self, name: &str) -> Option<usize> {
        let state = self.state();
        let at = |name: &str| state.models.iter().position(|model| model.has_name(name));
        // The tag of Ollama's names without one.
        at(name).or_else(|| at(name.strip_suffix(":latest")?))
    }

    /// Adds a model. Returns its index.
    fn add(&self, entry: ModelEntry) -> usize {
        let mut state = self.state();
        let same = |model: &Managed| model.entry.names.first() == entry.names.first();
        if let Some(at) = state.models.iter().position(same) {
            return at;
        }
        state.models.push(Managed::new(entry));
        state.models.len() - 1
    }

    /// Index of the model for a request that names none, by the kinds that can answer it.
    pub(crate) fn only(&self, answers: impl Fn(ModelKind) -> bool) -> Result<Option<usize>, ApiError> {
        let state = self.state();
        let mut able = state.models.iter().enumerate().filter(|(_, model)| answers(model.entry.kind));
        match (able.next(), able.next()) {
            (None, _) => Ok(None),
            (Some((at, _)), None) => Ok(Some(at)),
            (Some((_, first)), Some((_, second))) => {
                let more = if able.next().is_some() { ", …" } else { "" };
                let why = format!(
                    "model is missing: this server has several models for that: {}, {}{more}",
                    first.name(),
                    second.name()
                );
                Err(ApiError::field("model", why))
            }
        }
    }

    /// A lease of a model, which is loaded first if it is not. Waits while that takes place.
    pub(crate) async fn acquire(self: &Arc<Self>, at: usize) -> Result<Lease, ApiError> {
        let mut changed = self.changed.subscribe();
        let (mut place, mut load) = (None, None);
        loop {
            if let Some(lease) = self.try_acquire(at, &mut load, &mut place)? {
                return Ok(lease);
            }
            // The registry outlives this.
            let _ = changed.changed().await;
        }
    }

    /// A lease, if the model is loaded; otherwise it is loaded. `load`: the attempt to load it that is waited for.
    fn try_acquire<'a>(
        self: &'a Arc<Self>,
        at: usize,
        load: &mut Option<u64>,
        place: &mut Option<Waiting<'a>>,
    ) -> Result<Option<Lease>, ApiError> {
        let mut state = self.state();
        let State { models, uses, stopping } = &mut *state;
        if *stopping {
            return Err(ApiError::engine(Failure::ShuttingDown, true));
        }
        let Some(model) = models.get_mut(at) else { return Err(internal("a model is gone")) };
        let dead = match &model.phase {
            Phase::Loaded(loaded) if !self.manages() || loaded.server.model.is_alive() => {
                let loaded = loaded.clone();
                *uses += 1;
                (model.used, model.in_use) = (*uses, model.in_use + 1);
                return Ok(Some(Lease { registry: self.clone(), at, loaded }));
            }
            Phase::Loaded(dead) => Some(dead.clone()),
            Phase::Unloaded | Phase::Loading | Phase::Leaving(_) | Phase::Unloading => None,
        };
        if let (Some(number), Some((of, error))) = (*load, &model.failed)
            && *of >= number
        {
            return Err(error.clone());
        }
        if place.is_none() {
            if model.waiting >= MAX_WAITING {
                let why = format!("{MAX_WAITING} requests wait for model {} already", model.name());
                return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, why).code("queue_full"));
            }
            model.waiting += 1;
            *place = Some(Waiting(self, at));
        }
        match (dead, &model.phase) {
            (Some(dead), _) => {
                tracing::error!("the engine of model {} has ended; it is loaded again", model.name());
                model.phase = Phase::Unloading;
                self.spawn_unload(at, dead);
            }
            (None, Phase::Unloaded) => {
                model.phase = Phase::Loading;
                model.loads += 1;
                *load = Some(model.loads);
                tokio::spawn(self.clone().load(at));
            }
            (None, Phase::Loading) => *load = load.or(Some(model.loads)),
            (None, _) => {}
        }
        Ok(None)
    }

    /// Loads a model whose phase is `Loading`.
    async fn load(self: Arc<Self>, at: usize) {
        let _turn = self.load_turn.lock().await;
        let entry = self.state().models.get(at).map(|model| model.entry.clone());
        let (Some(entry), Some(loader)) = (entry, self.loader.clone()) else { return };
        let name = entry.names.first().cloned().unwrap_or_default();
        let (of_room, runtime, begun) = (self.clone(), Handle::current(), Instant::now());
        let loaded = tokio::task::spawn_blocking(move || {
            loader
                .load(&entry, &mut |device: &str, missing| of_room.make_room(at, (device, missing), &runtime))
        });
        let loaded = loaded.await.map_err(internal).and_then(|loaded| loaded.map_err(|e| refused(&name, e)));
        let mut late = None;
        {
            let mut state = self.state();
            let stopping = state.stopping;
            let Some(model) = state.models.get_mut(at) else { return };
            match loaded {
                Ok(loaded) => {
                    tracing::info!("loaded {name} in {:.1} s", begun.elapsed().as_secs_f64());
                    let loaded = Arc::new(made(self.build, &self.shared, model, loaded));
                    late = stopping.then(|| loaded.clone());
                    (model.phase, model.failed, model.idle_since) =
                        (Phase::Loaded(loaded), None, Instant::now());
                }
                Err(error) => {
                    tracing::warn!("{error}");
                    (model.phase, model.failed) = (Phase::Unloaded, Some((model.loads, error)));
                }
            }
            // Others need not leave any more.
            for model in &mut state.models {
                if let Phase::Leaving(loaded) = &model.phase {
                    model.phase = Phase::Loaded(loaded.clone());
                }
            }
        }
        if let Some(late) = late {
            late.server.model.drain(Duration::ZERO);
        }
        self.changed.send_replace(());
    }

    /// Unloads the model that was used least recently of those on a device; one that takes next to nothing of what is missing
    /// goes last. If all are in use, waits until the requests of that one are done. Returns false if there is none that may be
    /// unloaded.
    fn make_room(&self, wanted: usize, (device, missing): (&str, u64), runtime: &Handle) -> bool {
        let mut changed = self.changed.subscribe();
        loop {
            let idle = {
                let mut state = self.state();
                if state.stopping {
                    return false;
                }
                let may_go = |(at, model): &(usize, &mut Managed)| {
                    let there = model.loaded().is_some_and(|loaded| loaded.device == device);
                    *at != wanted && !model.entry.pinned && there
                };
                let candidates = state.models.iter_mut().enumerate().filter(may_go);
                let order = |(_, model): &(usize, &mut Managed)| {
                    let bytes = model.loaded().map_or(0, |loaded| loaded.bytes);
                    (bytes < missing / SMALL_SHARE, model.in_use > 0, model.used)
                };
                let first = candidates.min_by_key(order);
                let Some((at, model)) = first else { return false };
                let Some(loaded) = model.loaded().cloned() else { return false };
                let is_idle = model.in_use == 0;
                model.phase = if is_idle { Phase::Unloading } else { Phase::Leaving(loaded.clone()) };
                is_idle.then_some((at, loaded))
            };
            if let Some((at, loaded)) = idle {
                self.unload_now(at, &loaded);
                return true;
            }
            let _ = runtime.block_on(changed.changed());
        }
    }

    /// Unloads a model whose phase is `Unloading`. Returns once its memory is free.
    fn unload_now(&self, at: usize, loaded: &Loaded) {
        let owner = loaded.owner.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(owner);
        (self.settings.trim)();
        if let Some(model) = self.state().models.get_mut(at) {
            model.phase = Phase::Unloaded;
            tracing::info!("unloaded {}", model.name());
        }
        self.changed.send_replace(());
    }

    fn spawn_unload(self: &Arc<Self>, at: usize, loaded: Arc<Loaded>) {
        let registry = self.clone();
        tokio::task::spawn_blocking(move || registry.unload_now(at, &loaded));
    }

    /// Unloads the models that have been idle for long enough.
    fn unload_expired(self: &Arc<Self>) {
        let mut state = self.state();
        for (at, model) in state.models.iter_mut().enumerate() {
            let is_over = |keep: Duration| model.in_use == 0 && model.idle_since.elapsed() >= keep;
            if let (Phase::Loaded(loaded), true) = (&model.phase, model.keep_alive.is_some_and(is_over)) {
                let loaded = loaded.clone();
                model.phase = Phase::Unloading;
                self.spawn_unload(at, loaded);
            }
        }
    }

    /// Sets for how long a model stays loaded without a request.
    pub(crate) fn keep_alive(&self, at: usize, keep_alive: Option<Duration>) {
        if let Some(model) = self.state().models.get_mut(at) {
            model.keep_alive = keep_alive;
        }
    }

    /// Unloads a model once no request is under way with it. Returns false if it was not loaded.
    pub(crate) async fn unload(self: &Arc<Self>, at: usize) -> bool {
        let registry = self.clone();
        // Goes on if nobody waits for it any more: the model takes no requests meanwhile.
        tokio::spawn(async move { registry.unload_when_idle(at).await }).await.unwrap_or(false)
    }

    async fn unload_when_idle(self: &Arc<Self>, at: usize) -> bool {
        let mut changed = self.changed.subscribe();
        // Which of its loads is to end.
        let mut load = None;
        loop {
            {
                let mut state = self.state();
                let Some(model) = state.models.get_mut(at) else { return false };
                if load.is_some_and(|load| load != model.loads) {
                    // It is loaded again already, for whoever asked for it meanwhile.
                    return true;
                }
                match (&model.phase, model.in_use) {
                    (Phase::Unloaded, _) => return load.is_some(),
                    (Phase::Loading | Phase::Unloading, _) => {}
                    (Phase::Loaded(loaded) | Phase::Leaving(loaded), 0) => {
                        let loaded = loaded.clone();
                        model.phase = Phase::Unloading;
                        self.spawn_unload(at, loaded);
                    }
                    (Phase::Loaded(loaded) | Phase::Leaving(loaded), _) => {
                        model.phase = Phase::Leaving(loaded.clone());
                    }
                }
                load = Some(model.loads);
            }
            let _ = changed.changed().await;
        }
    }

    /// Takes no more requests, and returns once those in flight are answered or the drain time is over.
    pub(crate) async fn drain(&self) {
        self.state().stopping = true;
        self.changed.send_replace(());
        for status in self.statuses() {
            if let Some(loaded) = status.loaded {
                loaded.server.model.drain(self.settings.drain);
            }
        }
        self.shared.drain().await;
    }

    /// Frees all models. No requests are left.
    pub(crate) async fn close(&self) {
        // A model that is being loaded is freed by itself.
        let _turn = self.load_turn.lock().await;
        let owners: Vec<_> = self.statuses().into_iter().filter_map(|status| status.loaded).collect();
        let close = move || {
            for loaded in owners {
                drop(loaded.owner.lock().unwrap_or_else(PoisonError::into_inner).take());
            }
        };
        let _ = tokio::task::spawn_blocking(close).await;
    }
}

/// A model as it is kept here.
fn made(build: Build, shared: &Arc<Shared>, model: &Managed, loaded: LoadedModel) -> Loaded {
    let LoadedModel { model: served, device, bytes, owner } = loaded;
    let (server, handlers) = build(shared.clone(), model.metrics.clone(), served);
    Loaded { server, handlers, device, bytes, owner: Mutex::new(Some(owner)) }
}

fn internal(why: impl std::fmt::Display) -> ApiError {
    tracing::error!("a model could not be loaded: {why}");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "an internal error; please report it")
}

/// Error for a model that could not be loaded.
fn refused(name: &str, why: LoadError) -> ApiError {
    match why {
        LoadError::NoRoom(why) => {
            let why = format!("model {name} cannot be loaded now: {why}");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why).code("no_room")
        }
        LoadError::Failed(why) => {
            let why = format!("model {name} cannot be loaded: {why}");
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, why).code("load_failed")
        }
    }
}
