//! Selection of a LoRA adapter by a request.

use serde_json::Value;
use tallow_engine::handle::EngineHandle;
use tallow_engine::lora::LoraRef;

use crate::errors::ApiError;
use crate::parse::fields::{Fields, integer, number};

/// Most entries of a request's `lora`.
const MAX_ENTRIES: usize = 256;

/// A request's `lora` field, as in llama.cpp's server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LoraSelection {
    /// Index in the list of adapters.
    id: usize,
    scale: f32,
}

impl LoraSelection {
    /// Takes the field. Entries whose scale is 0 are ignored.
    pub(crate) fn take(fields: &mut Fields) -> Result<Option<LoraSelection>, ApiError> {
        let entry = |path: String, value: Value| {
            let mut entry = Fields::within(path.clone(), value)?;
            let missing =
                |name: &str| ApiError::field(format!("{path}.{name}"), format!("{path}.{name} is missing"));
            let (id, scale) = (entry.take("id"), entry.take("scale"));
            entry.finish()?;
            let id =
                integer(format!("{path}.id"), &id.ok_or_else(|| missing("id"))?, 0..=i64::from(u32::MAX))?;
            let scale = scale.ok_or_else(|| missing("scale"))?;
            let scale = number(format!("{path}.scale"), &scale, -1000.0..=1000.0)?;
            Ok(LoraSelection { id: id as usize, scale })
        };
        let all = fields.list("lora", entry)?.unwrap_or_default();
        if all.len() > MAX_ENTRIES {
            return Err(ApiError::field("lora", format!("lora should have at most {MAX_ENTRIES} entries")));
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
pub(crate) fn select(
    handle: &EngineHandle,
    model: Option<&str>,
    wanted: Option<LoraSelection>,
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
        (adapter, None) => Ok(adapter),
        (Some(_), Some(_)) => {
            Err(ApiError::field("lora", "model names an adapter already; give one of model and lora"))
        }
        (None, Some(LoraSelection { id, scale })) => {
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
