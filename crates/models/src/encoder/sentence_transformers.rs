//! [`SentenceTransformers`]: how the model's texts become vectors, as sentence-transformers stores it.

use std::path::Path;

use serde_json::Value;
use tallow_checkpoint::Checkpoint;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::{FileError, Result};

use crate::spec::encoder::Pooling;

const MODULES: &str = "modules.json";

/// Settings from `modules.json` and the files that it names. All of them may be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentenceTransformers {
    /// Pooling.
    pub pooling: Pooling,
    /// The longest text in tokens.
    pub most_tokens: Option<usize>,
    /// True if texts are lowercased before tokenization.
    pub lowers: bool,
    /// Folders of dense layers behind pooling.
    pub(super) dense: Vec<String>,
}

/// Pooling modes: the boolean setting of older files, the `pooling_mode` of newer ones, and ours.
const KINDS: [(&str, &str, Pooling); 6] = [
    ("pooling_mode_mean_tokens", "mean", Pooling::Mean),
    ("pooling_mode_cls_token", "cls", Pooling::First),
    ("pooling_mode_lasttoken", "lasttoken", Pooling::Last),
    ("pooling_mode_max_tokens", "max", Pooling::Max),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Pooling::RootMean),
    ("pooling_mode_weightedmean_tokens", "weightedmean", Pooling::WeightedMean),
];

impl SentenceTransformers {
    /// Reads the files next to a checkpoint, or a GGUF file's metadata. Where they do not say, pooling is `usual`.
    pub(super) fn read(config: &Config<'_>, usual: Pooling) -> Result<SentenceTransformers> {
        let checkpoint = config.checkpoint();
        let mut sentence =
            SentenceTransformers { pooling: usual, most_tokens: None, lowers: false, dense: Vec::new() };
        if config.is_gguf() {
            return Ok(SentenceTransformers { pooling: gguf_pooling(config)?.unwrap_or(usual), ..sentence });
        }
        let Some(modules) = checkpoint.json_file(MODULES)? else { return Ok(sentence) };
        let file = checkpoint.path.join(MODULES);
        let bad = |why: &str| FileError::bad(&file, "the file", why);
        let modules = modules.as_array().ok_or_else(|| bad("is not a list of modules"))?;
        for module in modules {
            let text =
                |key: &str| module[key].as_str().ok_or_else(|| bad("has a module without a type or path"));
            let (kind, folder) = (text("type")?, text("path")?);
            if Path::new(folder).components().any(|c| !matches!(c, std::path::Component::Normal(_))) {
                return Err(FileError::bad(
                    &file,
                    format!("path {folder:?}"),
                    "leads out of the model's folder",
                ));
            }
            match kind.rsplit('.').next().unwrap_or(kind) {
                "Transformer" => {
                    let name = Path::new(folder).join("sentence_bert_config.json");
                    (sentence.most_tokens, sentence.lowers) = of_texts(checkpoint, &name.to_string_lossy())?;
                }
                "Pooling" => {
                    let name = Path::new(folder).join("config.json");
                    sentence.pooling = pooling(checkpoint, &name.to_string_lossy())?;
                }
                "Dense" => sentence.dense.push(folder.to_owned()),
                // We normalise all vectors anyway.
                "Normalize" => {}
                other => {
                    let why = "Transformer, Pooling, Dense and Normalize are";
                    return Err(FileError::unsupported(&file, format!("the module {other}"), why));
                }
            }
        }
        Ok(sentence)
    }
}

const POOLING: Key = key("", "pooling_type");

/// GGUF's pooling type (`LLAMA_POOLING_TYPE_*`); 0 is no pooling.
fn gguf_pooling(config: &Config<'_>) -> Result<Option<Pooling>> {
    match config.find_count(POOLING)? {
        None => Ok(None),
        Some(1) => Ok(Some(Pooling::Mean)),
        Some(2) => Ok(Some(Pooling::First)),
        Some(3) => Ok(Some(Pooling::Last)),
        Some(other) => Err(config.unsupported(POOLING, other, "1 (mean), 2 (first) and 3 (last) are")),
    }
}

/// `max_seq_length` and `do_lower_case`.
fn of_texts(checkpoint: &Checkpoint, name: &str) -> Result<(Option<usize>, bool)> {
    let Some(json) = checkpoint.json_file(name)? else { return Ok((None, false)) };
    let file = checkpoint.path.join(name);
    let lowers = match &json["do_lower_case"] {
        Value::Null => false,
        Value::Bool(lowers) => *lowers,
        other => {
            return Err(FileError::bad(&file, "do_lower_case", format!("is {other}, not true or false")));
        }
    };
    match &json["max_seq_length"] {
        Value::Null => Ok((None, lowers)),
        value => match value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0) {
            Some(n) => Ok((Some(n), lowers)),
            None => Err(FileError::bad(&file, "max_seq_length", format!("is {value}; a count is expected"))),
        },
    }
}

fn pooling(checkpoint: &Checkpoint, name: &str) -> Result<Pooling> {
    let Some(json) = checkpoint.json_file(name)? else { return Ok(Pooling::Mean) };
    let file = checkpoint.path.join(name);
    let named = json["pooling_mode"].as_str();
    let is_on = |(switch, name, _): &&(&str, &str, Pooling)| match named {
        Some(named) => named == *name,
        None => json[*switch].as_bool() == Some(true),
    };
    let on: Vec<_> = KINDS.iter().filter(is_on).collect();
    match on.as_slice() {
        [(.., pooling)] => Ok(*pooling),
        [] if named.is_none() => Err(FileError::bad(&file, "pooling_mode", "is missing")),
        kinds => {
            let kinds: Vec<&str> = kinds.iter().map(|(_, name, _)| *name).collect();
            let kinds = named.map_or_else(|| kinds.join(" and "), str::to_owned);
            let why = "one of mean, cls, lasttoken, max, mean_sqrt_len_tokens and weightedmean is";
            Err(FileError::unsupported(&file, format!("pooling by {kinds}"), why))
        }
    }
}
