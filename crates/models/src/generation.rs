//! [`Generation`]: how a model's makers would have its tokens chosen.

use serde_json::Value;

use crate::error::{LoadError, Result};
use crate::formats::{Checkpoint, Settings};

/// What `generation_config.json` says; all of it may be missing.
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
pub const FILE: &str = "generation_config.json";

impl Generation {
    /// Reads what a checkpoint brings. GGUF files bring their end tokens with the tokenizer and nothing else.
    pub fn read(checkpoint: &Checkpoint) -> Result<Generation> {
        let Settings::Hf(config) = &checkpoint.settings else { return Ok(Generation::default()) };
        let Some(json) = checkpoint.json_beside(FILE)? else {
            return Ok(Generation { ends: ids(&config["eos_token_id"]), ..Generation::default() });
        };
        let path = checkpoint.path.join(FILE);
        let number = |name: &str, range: std::ops::RangeInclusive<f64>| match &json[name] {
            Value::Null => Ok(None),
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
}

/// One id or several.
fn ids(value: &Value) -> Vec<u32> {
    let one = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        Value::Array(list) => list.iter().filter_map(one).collect(),
        other => one(other).into_iter().collect(),
    }
}
