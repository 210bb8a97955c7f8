//! [`ConfigFiles`]: the JSON files next to a vocabulary: the tokenizer class, the added tokens and the named special tokens.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tallow_checkpoint::{FileError, Result};

use super::added::AddedToken;
use super::vocab::MOST_IDS;
use super::{ends, files, shorten};

/// `tokenizer_config.json`, `added_tokens.json` and `special_tokens_map.json`; each is null if the file is missing.
pub(super) struct ConfigFiles {
    folder: PathBuf,
    pub(super) config: Value,
    added: Value,
    map: Value,
}

impl ConfigFiles {
    pub(super) fn read(folder: &Path) -> Result<ConfigFiles> {
        let read = |name: &str| {
            let path = folder.join(name);
            match files::read(&path) {
                Ok(bytes) => {
                    serde_json::from_slice::<Value>(&bytes).map_err(|e| FileError::bad(&path, "its JSON", e))
                }
                Err(FileError::Io { why, .. }) if why.kind() == std::io::ErrorKind::NotFound => {
                    Ok(Value::Null)
                }
                Err(e) => Err(e),
            }
        };
        Ok(ConfigFiles {
            folder: folder.into(),
            config: read("tokenizer_config.json")?,
            added: read("added_tokens.json")?,
            map: read("special_tokens_map.json")?,
        })
    }

    /// The tokenizer class of the reference implementation (`tokenizer_class`), without the suffix `Fast`.
    pub(super) fn class(&self) -> Option<&str> {
        let class = self.config["tokenizer_class"].as_str()?;
        Some(class.strip_suffix("Fast").unwrap_or(class))
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.config[name].as_bool()
    }

    /// The text of a named special token, such as `eos_token`.
    pub(super) fn named(&self, name: &str) -> Option<&str> {
        [&self.config[name], &self.map[name]].into_iter().find_map(text_of)
    }

    /// Adds the added tokens of these files to `tokens`, by id. `id_of` returns the vocabulary's id of a text.
    pub(super) fn add_to(
        &self,
        tokens: &mut BTreeMap<u32, AddedToken>,
        id_of: impl Fn(&str) -> Option<u32>,
    ) -> Result<()> {
        let special: Vec<&str> = self.special();
        let mut add = |id: u32, content: &str, entry: &Value, file: &str| {
            let path = self.folder.join(file);
            if id as usize >= MOST_IDS {
                let why = format!("{:?} has the id {id}; ids are below {MOST_IDS}", shorten(content));
                return Err(FileError::bad(&path, "its tokens", why));
            }
            let flag = |name: &str, otherwise| entry[name].as_bool().unwrap_or(otherwise);
            let token = AddedToken {
                id,
                content: content.into(),
                special: flag("special", special.contains(&content)),
                single_word: flag("single_word", false),
                lstrip: flag("lstrip", false),
                rstrip: flag("rstrip", false),
                normalized: None,
                verbatim: true,
            };
            if !content.is_empty() {
                tokens.insert(id, token);
            }
            Ok(())
        };
        // Entries that give an id come later and override these.
        for text in &special {
            if let Some(id) = id_of(text) {
                add(id, text, &Value::Null, "special_tokens_map.json")?;
            }
        }
        if let Value::Object(list) = &self.added {
            for (content, id) in list {
                let found = id.as_u64().and_then(|id| u32::try_from(id).ok());
                let path = self.folder.join("added_tokens.json");
                let id =
                    found.ok_or_else(|| FileError::bad(&path, shorten(content), "should be a token id"))?;
                add(id, content, &Value::Null, "added_tokens.json")?;
            }
        }
        if let Value::Object(list) = &self.config["added_tokens_decoder"] {
            for (id, entry) in list {
                let bad = |why| {
                    let path = self.folder.join("tokenizer_config.json");
                    FileError::bad(&path, format_args!("added_tokens_decoder.{id}"), why)
                };
                let id: u32 = id.parse().map_err(|_| bad("should be a token id"))?;
                let content = entry["content"].as_str().ok_or_else(|| bad("has no content"))?;
                add(id, content, entry, "tokenizer_config.json")?;
            }
        }
        Ok(())
    }

    /// The texts of the named special tokens and of `additional_special_tokens`.
    fn special(&self) -> Vec<&str> {
        const NAMES: [&str; 7] =
            ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
        let more = [&self.config, &self.map].map(|file| &file["additional_special_tokens"]);
        let more = more.into_iter().filter_map(Value::as_array).flatten().filter_map(text_of);
        NAMES.iter().filter_map(|name| self.named(name)).chain(more).collect()
    }

    /// The error for a tokenizer class that interprets its files in its own way.
    pub(super) fn unknown_class(&self, path: &Path) -> FileError {
        let what = match self.class() {
            Some(class) => format!("a vocabulary of the class {class:?} in this kind of file"),
            None => "a vocabulary of this kind whose tokenizer_config.json does not name its class".into(),
        };
        FileError::unsupported(path, what, "fetch the model's tokenizer.json, or use its GGUF file")
    }
}

/// The text of a token, which is a string or an object with a `content`.
fn text_of(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// The end-of-sequence token, and all tokens that end generation.
pub(super) fn ending<'a>(
    tokens: impl Iterator<Item = &'a AddedToken>,
    eos: Option<u32>,
) -> (Option<u32>, std::collections::BTreeSet<u32>) {
    let by_name = ends::by_name(tokens.map(|token| (token.content.as_str(), token.id)));
    let eos = eos.or(by_name.first().copied());
    (eos, by_name.into_iter().chain(eos).collect())
}
