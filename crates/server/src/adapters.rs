//! LoRA adapters: selection per request, and routes to load and unload them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use tallow_engine::handle::{EngineHandle, LoadLora};
use tallow_engine::lora::{LoadedLora, LoraError, LoraRef};
use tallow_models::adapter::AdapterFile;

use crate::body::prepare;
use crate::errors::{ApiError, quoted, respond};
use crate::fields::{Fields, number, whole};
use crate::state::Server;

/// Longest name and path in bytes.
const MOST_NAME: usize = 256;
const MOST_PATH: usize = 4096;
/// Most entries of a request's `lora`.
const MOST_ENTRIES: usize = 256;

/// A request's `lora` field, as in llama.cpp's server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wanted {
    /// Index in the list of adapters.
    id: usize,
    scale: f32,
}

impl Wanted {
    /// Takes the field. Entries whose scale is 0 are ignored.
    pub(crate) fn take(fields: &mut Fields) -> Result<Option<Wanted>, ApiError> {
        let entry = |path: String, value: Value| {
            let mut entry = Fields::within(path.clone(), value)?;
            let missing =
                |name: &str| ApiError::field(format!("{path}.{name}"), format!("{path}.{name} is missing"));
            let (id, scale) = (entry.take("id"), entry.take("scale"));
            entry.finish()?;
            let id = whole(format!("{path}.id"), &id.ok_or_else(|| missing("id"))?, 0..=i64::from(u32::MAX))?;
            let scale = scale.ok_or_else(|| missing("scale"))?;
            let scale = number(format!("{path}.scale"), &scale, -1000.0..=1000.0)?;
            Ok(Wanted { id: id as usize, scale })
        };
        let all = fields.list("lora", entry)?.unwrap_or_default();
        if all.len() > MOST_ENTRIES {
            return Err(ApiError::field("lora", format!("lora should have at most {MOST_ENTRIES} entries")));
        }
        let mut some = all.into_iter().filter(|wanted| wanted.scale != 0.0);
        let one = some.next();
        match some.next() {
            None => Ok(one),
            Some(_) => {
                let why =
                    "several adapters in one request are not supported: give one a scale, and the others 0";
                Err(ApiError::field("lora", why))
            }
        }
    }
}

/// The adapter that a request selects, by its `model` or by `lora`.
pub(crate) fn chosen(
    handle: &EngineHandle,
    model: Option<&str>,
    wanted: Option<Wanted>,
) -> Result<Option<LoraRef>, ApiError> {
    let (adapters, names) = (handle.loras(), &handle.info().names);
    let named = match model {
        Some(model) if !names.iter().any(|name| name == model) => {
            let found = adapters.iter().find(|a| a.name == model);
            Some(found.ok_or_else(|| unknown(model, handle))?.lora)
        }
        _ => None,
    };
    match (named, wanted) {
        (worn, None) => Ok(worn),
        (Some(_), Some(_)) => {
            Err(ApiError::field("lora", "model names an adapter already; give one of model and lora"))
        }
        (None, Some(Wanted { id, scale })) => {
            let found = adapters.get(id).map(|a| LoraRef { id: a.lora.id, scale });
            let why = || format!("lora: there is no adapter {id}; {} are loaded", adapters.len());
            found.map(Some).ok_or_else(|| ApiError::field("lora", why()))
        }
    }
}

/// Error for an unknown model name.
pub(crate) fn unknown(model: &str, handle: &EngineHandle) -> ApiError {
    let adapters = handle.loras().into_iter().map(|a| a.name);
    let names: Vec<String> = handle.info().names.iter().cloned().chain(adapters).collect();
    ApiError::no_model(model, &names)
}

/// An adapter in `/lora-adapters`, as in llama.cpp's server.
#[derive(Serialize)]
struct Shown {
    id: usize,
    name: String,
    scale: f32,
}

pub(crate) async fn list(State(server): State<Arc<Server>>) -> Result<Response, ApiError> {
    let shown = |(id, LoadedLora { name, lora, .. })| Shown { id, name, scale: lora.scale };
    let all: Vec<Shown> = server.model.handle.loras().into_iter().enumerate().map(shown).collect();
    respond(&all)
}

/// `POST /v1/load_lora_adapter`
pub(crate) async fn load(State(server): State<Arc<Server>>, request: Request) -> Result<Response, ApiError> {
    prepare(&server, request, |server, body| {
        let folder = allowed(server)?;
        let mut fields = Fields::body(&body)?;
        let (name, path) =
            (needed(&mut fields, "lora_name", MOST_NAME)?, needed(&mut fields, "lora_path", MOST_PATH)?);
        fields.only_off("load_inplace", |value| *value == false)?;
        fields.finish()?;
        let path = beneath(folder, &path)?;
        // File errors contain whole paths, and the folder's location must not leak.
        let file = AdapterFile::open(&path).map_err(|e| ApiError::field("lora_path", without(folder, e)))?;
        let said = server.model.handle.load_lora(LoadLora { name: name.clone(), file, scale: 1.0 });
        loaded(server, said, folder)?;
        Ok(done(format!("Success: LoRA adapter {} added successfully.", quoted(&name))))
    })
    .await
}

/// `POST /v1/unload_lora_adapter`
pub(crate) async fn unload(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, ApiError> {
    prepare(&server, request, |server, body| {
        let folder = allowed(server)?;
        let mut fields = Fields::body(&body)?;
        let name = needed(&mut fields, "lora_name", MOST_NAME)?;
        // vLLM also numbers adapters; the name is enough.
        fields.take("lora_int_id");
        fields.finish()?;
        loaded(server, server.model.handle.unload_lora(&name), folder)?;
        Ok(done(format!("Success: LoRA adapter {} removed successfully.", quoted(&name))))
    })
    .await
}

fn done(text: String) -> Response {
    (StatusCode::OK, text).into_response()
}

/// The folder that clients may load adapters from.
fn allowed(server: &Server) -> Result<&Path, ApiError> {
    server.settings.adapters.as_deref().ok_or_else(|| {
        let why =
            "clients may not load or unload adapters here; start the server with --lora-dir to allow it";
        ApiError::new(StatusCode::FORBIDDEN, why)
    })
}

fn needed(fields: &mut Fields, name: &str, most: usize) -> Result<String, ApiError> {
    let text = fields.short_text(name, most)?.filter(|text| !text.is_empty());
    text.ok_or_else(|| ApiError::field(name, format!("{name} is missing")))
}

/// Resolves a path beneath a folder. For paths elsewhere the error is the same whether or not they exist.
fn beneath(folder: &Path, path: &str) -> Result<PathBuf, ApiError> {
    let real =
        folder.join(path).canonicalize().ok().filter(|real| real.starts_with(folder) && real != folder);
    real.ok_or_else(|| {
        let why =
            format!("there is no {} beneath the folder of adapters that this server was given", quoted(path));
        ApiError::field("lora_path", why)
    })
}

/// Removes the folder's path from a message.
fn without(folder: &Path, message: impl std::fmt::Display) -> String {
    let folder = folder.to_string_lossy();
    let folder = folder.trim_end_matches(std::path::MAIN_SEPARATOR);
    let message = message.to_string().replace(&format!("{folder}{}", std::path::MAIN_SEPARATOR), "");
    message.replace(folder, "the folder of adapters")
}

/// Maps the engine's result.
fn loaded(server: &Server, said: Result<(), LoraError>, folder: &Path) -> Result<(), ApiError> {
    said.map_err(|fault| match fault {
        LoraError::Unknown(_) => {
            let mut error = ApiError::field("lora_name", fault);
            error.status = StatusCode::NOT_FOUND;
            error
        }
        LoraError::Taken(_) => ApiError::field("lora_name", fault),
        LoraError::Full { .. } | LoraError::Refused(_) => {
            ApiError::field("lora_path", without(folder, fault))
        }
        LoraError::Ended(failure) => ApiError::engine(failure, server.model.handle.is_alive()),
    })
}
