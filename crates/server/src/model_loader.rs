//! [`ModelLoader`]: how a server that manages several models loads them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::served::{ModelCard, ModelKind, Served, ServedEncoder, ServedSpeech};

/// A model that a server can load.
#[derive(Clone, Debug)]
pub struct ModelEntry {
    /// Names of the model; the first is the primary one, which no other model has.
    pub names: Vec<String>,
    /// Kind of the model.
    pub kind: ModelKind,
    /// Facts about its files.
    pub card: ModelCard,
    /// True if it is never unloaded to make room.
    pub pinned: bool,
    /// Time without a request after which it is unloaded; `None` for never.
    pub keep_alive: Option<Duration>,
}

/// A loaded model of any kind.
#[derive(Clone, Debug)]
pub enum AnyServed {
    /// A generative model.
    Generator(Served),
    /// An encoder.
    Encoder(ServedEncoder),
    /// A speech-to-text model.
    Speech(ServedSpeech),
}

/// A loaded model, and what it takes.
pub struct LoadedModel {
    /// The model.
    pub model: AnyServed,
    /// Name of the device.
    pub device: String,
    /// Memory that it takes on the device, in bytes.
    pub bytes: u64,
    /// Owner of its engine: dropping it ends the engine and frees the memory.
    pub owner: Box<dyn Any + Send>,
}

impl fmt::Debug for LoadedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedModel").field("model", &self.model).finish_non_exhaustive()
    }
}

impl LoadedModel {
    /// A model with the owner of its engine, of which it is not known where it is.
    pub fn new(model: impl Into<AnyServed>, owner: impl Any + Send) -> LoadedModel {
        LoadedModel { model: model.into(), device: String::new(), bytes: 0, owner: Box::new(owner) }
    }
}

/// Why a model cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// There is no room for it.
    NoRoom(String),
    /// Something is wrong with it.
    Failed(String),
}

/// Makes room on a device, by its name, where so many bytes are missing: unloads a model that is not in use. Returns false if
/// there is no such model.
pub type MakeRoom<'a> = dyn FnMut(&str, u64) -> bool + 'a;

/// Loads models.
pub trait ModelLoader: fmt::Debug + Send + Sync + 'static {
    /// Loads a model. Called for one model at a time, on a thread that may block.
    fn load(&self, entry: &ModelEntry, make_room: &mut MakeRoom<'_>) -> Result<LoadedModel, LoadError>;

    /// Finds a model that is not listed, if any model on the machine may be asked for. May block.
    fn find(&self, name: &str) -> Result<Option<ModelEntry>, LoadError>;

    /// True if models that are not listed may be asked for.
    fn finds(&self) -> bool;
}

/// Models of a server.
#[derive(Debug)]
pub struct Models {
    pub(crate) entries: Vec<(ModelEntry, Option<LoadedModel>)>,
    pub(crate) loader: Option<Arc<dyn ModelLoader>>,
}

impl Models {
    /// One model, which stays loaded as long as the server runs.
    pub fn one(model: impl Into<AnyServed>, card: ModelCard) -> Models {
        let model = model.into();
        let (names, kind) = (model.names().to_vec(), model.kind());
        let entry = ModelEntry { names, kind, card, pinned: true, keep_alive: None };
        Models::fixed(entry, LoadedModel::new(model, ()))
    }

    /// The same, with the owner of its engine.
    pub fn fixed(entry: ModelEntry, loaded: LoadedModel) -> Models {
        Models { entries: vec![(entry, Some(loaded))], loader: None }
    }

    /// Several models, some of which are loaded already. The others are loaded when they are asked for.
    pub fn several(entries: Vec<(ModelEntry, Option<LoadedModel>)>, loader: Arc<dyn ModelLoader>) -> Models {
        Models { entries, loader: Some(loader) }
    }
}

impl AnyServed {
    /// Names of the model.
    pub fn names(&self) -> &[String] {
        match self {
            AnyServed::Generator(model) => &model.handle.info().names,
            AnyServed::Encoder(model) => &model.handle.info().names,
            AnyServed::Speech(model) => &model.transcriber.handle.info().names,
        }
    }

    /// Kind of the model.
    pub fn kind(&self) -> ModelKind {
        match self {
            AnyServed::Generator(_) => ModelKind::Generator,
            AnyServed::Encoder(_) => ModelKind::Encoder,
            AnyServed::Speech(_) => ModelKind::Speech,
        }
    }
}

impl From<Served> for AnyServed {
    fn from(model: Served) -> AnyServed {
        AnyServed::Generator(model)
    }
}

impl From<ServedEncoder> for AnyServed {
    fn from(model: ServedEncoder) -> AnyServed {
        AnyServed::Encoder(model)
    }
}

impl From<ServedSpeech> for AnyServed {
    fn from(model: ServedSpeech) -> AnyServed {
        AnyServed::Speech(model)
    }
}

impl<M: Into<AnyServed>> From<M> for Models {
    fn from(model: M) -> Models {
        Models::one(model, ModelCard::default())
    }
}
