//! LoRA adapters in PEFT folders: `adapter_config.json` and `adapter_model.safetensors`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};
use tallow_checkpoint::map::Mapping;
use tallow_checkpoint::{StoredTensors, read_json, safetensors};

use super::{AdapterFile, Half, Halves, Origin};
use crate::error::{LoadError, Result};

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";

/// Prefix of all names: PEFT's own wrappers around the model.
const AROUND: &str = "base_model.model.";

pub(super) fn open(folder: &Path) -> Result<AdapterFile> {
    let config = Config::open(folder)?;
    let path = folder.join(TENSORS);
    if !path.exists() && folder.join("adapter_model.bin").exists() {
        let why = "pickle files can run any code when they are read; save the adapter as .safetensors";
        return Err(LoadError::unsupported(folder, "adapter_model.bin", why));
    }
    let mut tensors = StoredTensors::new();
    safetensors::parse(&Arc::new(Mapping::open(&path)?), &mut tensors)?;
    let mut halves = Halves::default();
    for (name, stored) in &tensors {
        let Some((layer, is_up)) = layer(name) else {
            let what = format!("tensor {name:?}");
            let why = "only matrices of low rank of linear layers (lora_A.weight and lora_B.weight) are";
            return Err(LoadError::unsupported(&path, what, why));
        };
        if !config.names(layer)? {
            let why =
                format!("{CONFIG} says in target_modules (or what limits it) that {layer:?} has no adapter");
            return Err(LoadError::bad(&path, format!("tensor {name:?}"), why));
        }
        let of = if is_up { &mut halves.up } else { &mut halves.down };
        if of.insert(layer.into(), Half::new(name, stored)?).is_some() {
            return Err(LoadError::bad(
                &path,
                format!("tensor {name:?}"),
                "is there twice, under another name",
            ));
        }
    }
    let pairs = halves.pairs(|layer, down| config.scale(layer, down))?;
    Ok(AdapterFile { path: folder.into(), origin: Origin::Peft, pairs })
}

/// The layer of a tensor, and whether the tensor is `lora_B`.
fn layer(name: &str) -> Option<(&str, bool)> {
    let name = name.strip_prefix(AROUND).unwrap_or(name);
    let ends = [("lora_A", false), ("lora_B", true)];
    ends.into_iter().find_map(|(half, is_up)| {
        let endings = [format!(".{half}.weight"), format!(".{half}.default.weight")];
        let layer = endings.iter().find_map(|end| name.strip_suffix(end.as_str()))?;
        Some((layer, is_up))
    })
}

/// `adapter_config.json`.
struct Config {
    path: PathBuf,
    settings: Map<String, Value>,
}

/// Settings that must be missing, null, false or empty, and what they ask for.
const REFUSED: [(&str, &str); 14] = [
    ("use_dora", "DoRA, which changes the sizes of weights"),
    ("lora_bias", "biases in matrices of low rank"),
    ("modules_to_save", "whole modules beside the adapter"),
    ("trainable_token_indices", "embeddings of single tokens"),
    ("layer_replication", "layers that come several times"),
    ("target_parameters", "adapters of parameters that are no linear layer, such as experts"),
    ("alora_invocation_tokens", "adapters that begin within a prompt"),
    ("megatron_config", "layers of Megatron"),
    ("use_qalora", "QALoRA"),
    ("arrow_config", "a choice among adapters by token"),
    ("velora_config", "VeLoRA"),
    ("use_bdlora", "block-diagonal matrices"),
    ("kasa_config", "KaSA"),
    ("monteclora_config", "MonteCLoRA"),
];

/// Initialisations that leave the base model's weights unchanged. Others subtract the initial delta from them.
const BEGINNINGS: [&str; 4] = ["gaussian", "eva", "orthogonal", "true"];

impl Config {
    fn open(folder: &Path) -> Result<Config> {
        let path = folder.join(CONFIG);
        if !path.exists() {
            let why = "is missing: an adapter is a folder that PEFT wrote, or a GGUF file";
            return Err(LoadError::bad(folder, CONFIG, why));
        }
        let Value::Object(settings) = read_json(&path)? else {
            return Err(LoadError::bad(&path, "the file", "is no object"));
        };
        let config = Config { path, settings };
        config.check()?;
        Ok(config)
    }

    /// Checks that all settings are supported.
    fn check(&self) -> Result<()> {
        let refused = |key: &str, why: &str| {
            let what = self.get(key).map_or_else(|| key.to_owned(), |value| format!("{key} = {value}"));
            Err(LoadError::unsupported(&self.path, what, why))
        };
        match self.text("peft_type")? {
            Some("LORA") => {}
            Some(_) => return refused("peft_type", "only \"LORA\" is"),
            None => return Err(self.bad("peft_type", "is missing")),
        }
        if self.text("task_type")?.is_some_and(|task| task != "CAUSAL_LM") {
            return refused("task_type", "adapters of models that write (CAUSAL_LM) are");
        }
        if self.text("bias")?.is_some_and(|bias| bias != "none") {
            return refused("bias", "adapters that leave biases alone (\"none\") are");
        }
        if let Some(Value::String(how)) = self.get("init_lora_weights")
            && !BEGINNINGS.contains(&how.to_ascii_lowercase().as_str())
        {
            let why = "it changes the model's own weights; save the adapter converted to plain LoRA";
            return refused("init_lora_weights", why);
        }
        let is_empty = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(all) => all.is_empty(),
            Value::Object(all) => all.is_empty(),
            _ => false,
        };
        let asked = |(key, _): &&(&str, &str)| self.get(key).is_some_and(|value| !is_empty(value));
        match REFUSED.iter().find(asked) {
            Some((key, what)) => refused(key, &format!("it asks for {what}")),
            None => Ok(()),
        }
    }

    /// A setting, if it is present and not null.
    fn get(&self, key: &str) -> Option<&Value> {
        self.settings.get(key).filter(|value| !value.is_null())
    }

    fn bad(&self, field: &str, why: impl std::fmt::Display) -> LoadError {
        LoadError::bad(&self.path, field, why)
    }

    fn text(&self, key: &str) -> Result<Option<&str>> {
        let text = |value: &Value| self.bad(key, format_args!("is {value}; text is expected"));
        self.get(key).map(|value| value.as_str().ok_or_else(|| text(value))).transpose()
    }

    fn flag(&self, key: &str) -> Result<bool> {
        let flag = |value: &Value| self.bad(key, format_args!("is {value}; true or false is expected"));
        self.get(key).map_or(Ok(false), |value| value.as_bool().ok_or_else(|| flag(value)))
    }

    /// A layer's value of a setting that patterns override (`r`, `lora_alpha`). Both default to 8.
    fn number(&self, key: &str, pattern: &str, layer: &str) -> Result<f64> {
        let own = self.pattern(pattern, layer)?;
        let (field, value) = own.map_or((key, self.get(key)), |value| (pattern, Some(value)));
        let Some(value) = value else { return Ok(8.0) };
        value.as_f64().ok_or_else(|| self.bad(field, format_args!("has {value}; a number is expected")))
    }

    /// The value of the first pattern in object `key` that matches the end of a layer's name.
    fn pattern(&self, key: &str, layer: &str) -> Result<Option<&Value>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Value::Object(patterns) = value else {
            return Err(self.bad(key, format_args!("is {value}; an object is expected")));
        };
        for (pattern, value) in patterns {
            if self.matches(key, &format!(r"(?:.*\.)?(?:{pattern})$"), layer)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// True if a pattern of the settings matches all of a layer's name.
    fn matches(&self, key: &str, pattern: &str, layer: &str) -> Result<bool> {
        const MOST: usize = 16 << 10;
        if pattern.len() > MOST {
            return Err(
                self.bad(key, format_args!("has a pattern of {} bytes; {MOST} are the most", pattern.len()))
            );
        }
        let regex = fancy_regex::RegexBuilder::new(&format!(r"\A(?:{pattern})\z"))
            .backtrack_limit(100_000)
            .delegate_size_limit(1 << 20)
            .delegate_dfa_size_limit(1 << 20)
            .build();
        let found = regex.and_then(|regex| regex.is_match(layer));
        found.map_err(|e| self.bad(key, format_args!("has {pattern:?}, which cannot be matched: {e}")))
    }

    /// True if the settings say that a layer has an adapter.
    fn names(&self, layer: &str) -> Result<bool> {
        let Some(targets) = self.get("target_modules") else {
            return Err(self.bad("target_modules", "is missing"));
        };
        Ok(self.is_among("target_modules", targets, layer)?
            && !self
                .get("exclude_modules")
                .map_or(Ok(false), |not| self.is_among("exclude_modules", not, layer))?
            && self.transforms(layer)?)
    }

    /// True if a list of names, or a pattern, includes a layer.
    fn is_among(&self, key: &str, value: &Value, layer: &str) -> Result<bool> {
        let ends = |name: &str| {
            layer.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        match value {
            Value::String(all) if all.eq_ignore_ascii_case("all-linear") => Ok(true),
            Value::String(pattern) => self.matches(key, pattern, layer),
            Value::Array(names) if names.iter().all(Value::is_string) => {
                Ok(names.iter().filter_map(Value::as_str).any(ends))
            }
            other => Err(self.bad(key, format_args!("is {other}; names or a pattern are expected"))),
        }
    }

    /// True if `layers_to_transform` includes a layer's index.
    fn transforms(&self, layer: &str) -> Result<bool> {
        let Some(wanted) = self.get("layers_to_transform") else { return Ok(true) };
        let numbers: Option<Vec<u64>> = match wanted {
            Value::Array(all) => all.iter().map(Value::as_u64).collect(),
            one => one.as_u64().map(|n| vec![n]),
        };
        let Some(numbers) = numbers else {
            return Err(self.bad("layers_to_transform", format_args!("is {wanted}; numbers are expected")));
        };
        let mut parts = layer.split('.').collect::<Vec<_>>();
        // The first number behind one of `layers_pattern`, or in the whole name.
        let patterns = match self.get("layers_pattern") {
            Some(Value::String(one)) => vec![one.as_str()],
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        if let Some(at) = parts.iter().position(|part| patterns.contains(part)) {
            parts.drain(..=at);
        }
        let number = parts.iter().find_map(|part| part.parse::<u64>().ok());
        Ok(numbers.is_empty() || number.is_some_and(|n| numbers.contains(&n)))
    }

    /// Scale of a layer's delta: `alpha / r`, or `alpha / sqrt(r)` (rsLoRA).
    fn scale(&self, layer: &str, down: &Half) -> Result<f32> {
        let (rank, alpha) =
            (self.number("r", "rank_pattern", layer)?, self.number("lora_alpha", "alpha_pattern", layer)?);
        if rank != down.rows as f64 {
            let why = format!("has shape {:?}; r (or rank_pattern) in {CONFIG} is {rank}", down.stored.shape);
            return Err(LoadError::bad(down.path(), down.field(), why));
        }
        let by = if self.flag("use_rslora")? { rank.sqrt() } else { rank };
        Ok((alpha / by) as f32)
    }
}
