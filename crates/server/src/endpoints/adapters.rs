//! `/lora-adapters`, and routes that load and unload LoRA adapters.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tallow_engine::handle::LoadLora;
use tallow_engine::lora::{LoadedLora, LoraError};
use tallow_models::adapter::AdapterFile;

use crate::body::read_json;
use crate::errors::{ApiError, quoted, respond};
use crate::parse::fields::Fields;
use crate::state::Server;

/// Longest name and path in bytes.
const MAX_NAME: usize = 256;
const MAX_PATH: usize = 4096;

/// An adapter in `/lora-adapters`, as in llama.cpp's server.
#[derive(Serialize)]
struct ListedAdapter {
    id: usize,
    name: String,
    scale: f32,
}

pub(crate) async fn list(State(server): State<Arc<Server>>) -> Result<Response, ApiError> {
    let shown = |(id, LoadedLora { name, lora, .. })| ListedAdapter { id, name, scale: lora.scale };
    let all: Vec<ListedAdapter> = server.model.handle.loras().into_iter().enumerate().map(shown).collect();
    respond(&all)
}

/// `POST /v1/load_lora_adapter`
pub(crate) async fn load(State(server): State<Arc<Server>>, request: Request) -> Result<Response, ApiError> {
    read_json(&server, request).await?.process(&server, load_adapter).await
}

fn load_adapter(server: &Server, body: Vec<u8>) -> Result<Response, ApiError> {
    let folder = allowed(server)?;
    let mut fields = Fields::body(&body)?;
    let (name, path) =
        (needed(&mut fields, "lora_name", MAX_NAME)?, needed(&mut fields, "lora_path", MAX_PATH)?);
    fields.only_off("load_inplace", |value| *value == false)?;
    base_model(server, &mut fields)?;
    fields.finish()?;
    let path = beneath(folder, &path)?;
    // File errors contain whole paths, and the folder's location must not leak.
    let file = AdapterFile::open(&path).map_err(|e| ApiError::field("lora_path", without(folder, e)))?;
    let result = server.model.handle.load_lora(LoadLora { name: name.clone(), file, scale: 1.0 });
    checked(server, result, folder)?;
    Ok(done(format!("Success: LoRA adapter {} added successfully.", quoted(&name))))
}

/// `POST /v1/unload_lora_adapter`
pub(crate) async fn unload(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, ApiError> {
    read_json(&server, request).await?.process(&server, unload_adapter).await
}

fn unload_adapter(server: &Server, body: Vec<u8>) -> Result<Response, ApiError> {
    let folder = allowed(server)?;
    let mut fields = Fields::body(&body)?;
    let name = needed(&mut fields, "lora_name", MAX_NAME)?;
    // vLLM also numbers adapters; the name is enough.
    fields.take("lora_int_id");
    base_model(server, &mut fields)?;
    fields.finish()?;
    checked(server, server.model.handle.unload_lora(&name), folder)?;
    Ok(done(format!("Success: LoRA adapter {} removed successfully.", quoted(&name))))
}

/// Takes `model`, by which a server of several models knows whose adapter it is.
fn base_model(server: &Server, fields: &mut Fields) -> Result<(), ApiError> {
    let names = &server.model.handle.info().names;
    match fields.text("model")?.filter(|model| !names.contains(model)) {
        Some(other) => Err(ApiError::no_model(&other, names)),
        None => Ok(()),
    }
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

fn needed(fields: &mut Fields, name: &str, max_bytes: usize) -> Result<String, ApiError> {
    let text = fields.short_text(name, max_bytes)?.filter(|text| !text.is_empty());
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
fn checked(server: &Server, result: Result<(), LoraError>, folder: &Path) -> Result<(), ApiError> {
    result.map_err(|fault| match fault {
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
