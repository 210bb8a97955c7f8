//! [`Generation`]: a model's default sampling settings.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use tallow_checkpoint::gguf::{Metadata, Value};
use tallow_checkpoint::{Checkpoint, Settings};
use tallow_checkpoint::{FileError, Result};

/// `generation_config.json`, or a GGUF file's `general.sampling` keys; all of it may be missing.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs, reason = "the fields are named as everywhere")]
pub struct Generation {
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub typical_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    /// End-of-generation tokens.
    pub ends: Vec<u32>,
}

const FILE: &str = "generation_config.json";

impl Generation {
    /// Reads a checkpoint's settings. GGUF files store end tokens with the tokenizer.
    pub fn read(checkpoint: &Checkpoint) -> Result<Generation> {
        let (file, least_top_k, ends) = match &checkpoint.settings {
            Settings::Hf(config) => {
                let json = checkpoint.json_file(FILE)?.unwrap_or_default();
                let own = ids(&json["eos_token_id"]);
                let ends = if own.is_empty() { ids(&config["eos_token_id"]) } else { own };
                (Numbers::Hf { path: checkpoint.path.join(FILE), json }, 0.0, ends)
            }
            // Negative values mean "off", as 0 does.
            Settings::Gguf(meta) => (Numbers::Gguf(meta), -1e9, Vec::new()),
        };
        Ok(Generation {
            temperature: file.number("temperature", Some("temp"), 0.0..=100.0)?,
            top_k: file.number("top_k", Some("top_k"), least_top_k..=1e9)?.map(|k| k as usize),
            top_p: file.number("top_p", Some("top_p"), 0.0..=1.0)?,
            min_p: file.number("min_p", Some("min_p"), 0.0..=1.0)?,
            typical_p: file.number("typical_p", None, 0.0..=1.0)?,
            repetition_penalty: file.number("repetition_penalty", Some("penalty_repeat"), 0.01..=100.0)?,
            ends,
        })
    }
}

/// Source of settings.
enum Numbers<'a> {
    Hf { path: PathBuf, json: Json },
    Gguf(&'a Metadata),
}

impl Numbers<'_> {
    /// A setting by its name in either kind of file; `None` if it is missing.
    fn number(&self, hf: &str, gguf: Option<&str>, range: RangeInclusive<f64>) -> Result<Option<f32>> {
        let key;
        let (path, field, written, x): (&Path, &str, &dyn Display, Option<f64>) = match self {
            Numbers::Hf { path, json } => match &json[hf] {
                Json::Null => return Ok(None),
                value => (path, hf, value, value.as_f64()),
            },
            Numbers::Gguf(meta) => {
                let Some(name) = gguf else { return Ok(None) };
                key = format!("general.sampling.{name}");
                let Some(value) = meta.get(&key) else { return Ok(None) };
                (meta.path(), &key, value, float(value))
            }
        };
        match x.filter(|x| range.contains(x)) {
            Some(x) => Ok(Some(x as f32)),
            None => {
                let why = format_args!("is {written}; a number in {range:?} is expected");
                Err(FileError::bad(path, field, why))
            }
        }
    }
}

fn float(value: &Value) -> Option<f64> {
    match value {
        Value::F64(x) => Some(*x),
        Value::I64(n) => Some(*n as f64),
        Value::U64(n) => Some(*n as f64),
        _ => None,
    }
}

/// One id or a list of them.
fn ids(value: &Json) -> Vec<u32> {
    let one = |v: &Json| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        Json::Array(list) => list.iter().filter_map(one).collect(),
        other => one(other).into_iter().collect(),
    }
}
