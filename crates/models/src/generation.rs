//! [`Generation`]: how a model's makers would have its tokens chosen.

use serde_json::Value as Json;

use crate::error::{LoadError, Result};
use crate::formats::gguf::{Metadata, Value};
use crate::formats::{Checkpoint, Settings};

/// What `generation_config.json` says, or a GGUF file's `general.sampling` keys; all of it may be missing.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs, reason = "the fields are named as everywhere")]
pub struct Generation {
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub typical_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    /// Tokens that end an answer.
    pub ends: Vec<u32>,
}

/// Its file.
const FILE: &str = "generation_config.json";

impl Generation {
    /// Reads what a checkpoint brings. GGUF files bring their end tokens with the tokenizer.
    pub fn read(checkpoint: &Checkpoint) -> Result<Generation> {
        let config = match &checkpoint.settings {
            Settings::Hf(config) => config,
            Settings::Gguf(meta) => return Generation::of_gguf(meta),
        };
        let Some(json) = checkpoint.json_beside(FILE)? else {
            return Ok(Generation { ends: ids(&config["eos_token_id"]), ..Generation::default() });
        };
        let path = checkpoint.path.join(FILE);
        let number = |name: &str, range: std::ops::RangeInclusive<f64>| match &json[name] {
            Json::Null => Ok(None),
            value => match value.as_f64() {
                Some(x) if range.contains(&x) => Ok(Some(x as f32)),
                _ => Err(LoadError::bad(
                    &path,
                    name,
                    format_args!("is {value}; a number in {range:?} is expected"),
                )),
            },
        };
        let own = ids(&json["eos_token_id"]);
        Ok(Generation {
            temperature: number("temperature", 0.0..=100.0)?,
            top_k: number("top_k", 0.0..=1e9)?.map(|k| k as usize),
            top_p: number("top_p", 0.0..=1.0)?,
            min_p: number("min_p", 0.0..=1.0)?,
            typical_p: number("typical_p", 0.0..=1.0)?,
            repetition_penalty: number("repetition_penalty", 0.01..=100.0)?,
            ends: if own.is_empty() { ids(&config["eos_token_id"]) } else { own },
        })
    }

    fn of_gguf(meta: &Metadata) -> Result<Generation> {
        let number = |name: &str, range: std::ops::RangeInclusive<f64>| {
            let key = format!("general.sampling.{name}");
            let Some(value) = meta.get(&key) else { return Ok(None) };
            let x = match value {
                Value::F64(x) => *x,
                Value::I64(n) => *n as f64,
                Value::U64(n) => *n as f64,
                _ => f64::NAN,
            };
            match range.contains(&x) {
                true => Ok(Some(x as f32)),
                false => Err(LoadError::bad(
                    meta.path(),
                    &key,
                    format_args!("is {value}; a number in {range:?} is expected"),
                )),
            }
        };
        Ok(Generation {
            temperature: number("temp", 0.0..=100.0)?,
            // Less than 0 says "all", as 0 does.
            top_k: number("top_k", -1e9..=1e9)?.map(|k| k as usize),
            top_p: number("top_p", 0.0..=1.0)?,
            min_p: number("min_p", 0.0..=1.0)?,
            typical_p: None,
            repetition_penalty: number("penalty_repeat", 0.01..=100.0)?,
            ends: Vec::new(),
        })
    }
}

/// One id or several.
fn ids(value: &Json) -> Vec<u32> {
    let one = |v: &Json| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        Json::Array(list) => list.iter().filter_map(one).collect(),
        other => one(other).into_iter().collect(),
    }
}
