//! [`Config`]: typed access to a model's settings.
//!
//! A [`Key`] has a setting's name in both file kinds. Reads are required, optional or asserted; a wrong type or an
//! absurd value is an error that names the file and the key. Unread keys are ignored.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;

use serde_json::Value;

use super::gguf::Metadata;
use super::{Checkpoint, Settings};
use crate::error::{FileError, Result};

/// A setting's name in `config.json`, and in GGUF metadata behind the architecture's name. Empty where a file kind has
/// none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// `hidden_size`
    pub hf: &'static str,
    /// `embedding_length` for `llama.embedding_length`
    pub gguf: &'static str,
}

/// Shorthand for a [`Key`].
pub const fn key(hf: &'static str, gguf: &'static str) -> Key {
    Key { hf, gguf }
}

/// The object with the text model's settings in a multimodal `config.json`.
pub const TEXT: &str = "text_config";

/// Upper limit of any count; real models stay far below.
const MOST: u64 = 1 << 32;

/// Values read from a `config.json` or their defaults, by GGUF key; recorded for conversion.
pub type Noted = RefCell<BTreeMap<&'static str, Value>>;

/// The settings of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct Config<'a> {
    checkpoint: &'a Checkpoint,
    arch: &'a str,
    /// The object in `config.json` that keys are looked up in, and its path.
    scope: Option<&'a Value>,
    prefix: &'static str,
    /// All of `config.json`.
    whole: Option<&'a Value>,
    noted: Option<&'a Noted>,
}

impl<'a> Config<'a> {
    /// The settings of a checkpoint; finds the architecture's name.
    pub fn new(checkpoint: &'a Checkpoint) -> Result<Config<'a>> {
        let scope = match &checkpoint.settings {
            Settings::Hf(json) => Some(json),
            Settings::Gguf(_) => None,
        };
        let mut config = Config { checkpoint, arch: "", scope, prefix: "", whole: scope, noted: None };
        config.arch = match &checkpoint.settings {
            Settings::Gguf(meta) => meta.text("general.architecture")?,
            Settings::Hf(json) => json["architectures"][0].as_str().or(json["model_type"].as_str()),
        }
        .ok_or_else(|| {
            config.bad(key("architectures", ""), "is missing: without it the model cannot be told")
        })?;
        Ok(config)
    }

    /// The same settings, recording every read into `noted`.
    pub fn noting(self, noted: &'a Noted) -> Config<'a> {
        Config { noted: Some(noted), ..self }
    }

    fn note(&self, key: Key, value: impl FnOnce() -> Value) {
        if let Some(noted) = self.noted.filter(|_| !key.gguf.is_empty()) {
            noted.borrow_mut().entry(key.gguf).or_insert_with(value);
        }
    }

    /// The same settings with `config.json` keys looked up in the sub-object `object` (dotted path). GGUF keys are
    /// unchanged.
    pub fn under(&self, object: &'static str) -> Config<'a> {
        let scope = self.scope.and_then(|json| object.split('.').try_fold(json, |at, part| at.get(part)));
        Config { scope, prefix: object, ..*self }
    }

    /// The text model's settings: `text_config` in a multimodal model, else the same.
    pub fn of_text(&self) -> Config<'a> {
        let inner = self.under(TEXT);
        if inner.is_there() { inner } else { *self }
    }

    /// True if the text model is part of a multimodal one.
    pub fn is_within(&self) -> bool {
        self.of_whole().under(TEXT).is_there()
    }

    /// The settings at the top level of `config.json`.
    pub fn of_whole(&self) -> Config<'a> {
        Config { scope: self.whole, prefix: "", ..*self }
    }

    /// The settings of one layer, in an object keyed by layer number.
    pub fn of_layer(&self, object: &'static str, layer: usize) -> Config<'a> {
        let scope = self.scope.and_then(|json| json.get(object)?.get(layer.to_string()));
        Config { scope, prefix: object, ..*self }
    }

    /// A key in scope that is not in `keys`, if there is one.
    pub fn other_than(&self, keys: &[Key]) -> Option<&'a str> {
        let mut names = self.scope?.as_object()?.keys().map(String::as_str);
        names.find(|name| keys.iter().all(|key| key.hf != *name))
    }

    /// Architecture name in the file.
    pub fn arch(&self) -> &'a str {
        self.arch
    }

    /// The checkpoint of the settings.
    pub fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    /// True if the settings are GGUF metadata.
    pub fn is_gguf(&self) -> bool {
        matches!(self.checkpoint.settings, Settings::Gguf(_))
    }

    fn file(&self) -> PathBuf {
        match &self.checkpoint.settings {
            Settings::Gguf(meta) => meta.path().to_path_buf(),
            Settings::Hf(_) => self.checkpoint.path.join("config.json"),
        }
    }

    /// The key as written in the file.
    fn name(&self, key: Key) -> String {
        match &self.checkpoint.settings {
            Settings::Hf(_) if self.prefix.is_empty() => key.hf.to_owned(),
            Settings::Hf(_) => format!("{}.{}", self.prefix, key.hf),
            Settings::Gguf(_) if key.gguf.is_empty() => "general.architecture".to_owned(),
            Settings::Gguf(_) => format!("{}.{}", self.arch, key.gguf),
        }
    }

    /// Error for a key's value.
    pub fn bad(&self, key: Key, why: impl Display) -> FileError {
        FileError::bad(&self.file(), self.name(key), why)
    }

    /// Error for an unsupported value of a key.
    pub fn unsupported(&self, key: Key, value: impl Display, why: impl Display) -> FileError {
        FileError::unsupported(&self.file(), format_args!("{} = {value}", self.name(key)), why)
    }

    fn json(&self, key: Key) -> Option<&'a Value> {
        if key.hf.is_empty() {
            return None;
        }
        self.scope?.get(key.hf).filter(|v| !v.is_null())
    }

    fn meta(&self, key: Key) -> Option<(&'a Metadata, String)> {
        match &self.checkpoint.settings {
            Settings::Gguf(meta) if !key.gguf.is_empty() => Some((meta, self.name(key))),
            _ => None,
        }
    }

    /// Reads a key from `config.json` or from GGUF metadata.
    fn read<T>(
        &self,
        key: Key,
        want: &str,
        hf: impl Fn(&'a Value) -> Option<T>,
        gguf: impl Fn(&'a Metadata, &str) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        if let Some((meta, name)) = self.meta(key) {
            return gguf(meta, &name);
        }
        let Some(value) = self.json(key) else { return Ok(None) };
        self.note(key, || value.clone());
        hf(value).map(Some).ok_or_else(|| self.bad(key, format_args!("is {value}, not {want}")))
    }

    fn required<T>(&self, key: Key, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.bad(key, "is missing"))
    }

    /// Unsigned integer, if present.
    pub fn find_count(&self, key: Key) -> Result<Option<usize>> {
        let n = self.read(key, "a whole number of at least 0", Value::as_u64, |m, k| m.uint(k))?;
        match n {
            Some(n) if n > MOST => Err(self.bad(key, format_args!("is {n}, which cannot be meant"))),
            n => Ok(n.map(|n| n as usize)),
        }
    }

    /// Unsigned integer.
    pub fn count(&self, key: Key) -> Result<usize> {
        self.find_count(key).and_then(|n| self.required(key, n))
    }

    /// Finite float, if present.
    pub fn find_number(&self, key: Key) -> Result<Option<f64>> {
        let x = self.read(key, "a number", Value::as_f64, |m, k| m.float(k))?;
        match x {
            Some(x) if !x.is_finite() => Err(self.bad(key, format_args!("is {x}"))),
            x => Ok(x),
        }
    }

    /// Finite float, or `default`.
    pub fn number_or(&self, key: Key, default: f64) -> Result<f64> {
        let found = self.find_number(key)?;
        self.note(key, || default.into());
        Ok(found.unwrap_or(default))
    }

    /// Boolean, or `default`.
    pub fn flag_or(&self, key: Key, default: bool) -> Result<bool> {
        let b = self.read(key, "true or false", Value::as_bool, |m, k| m.bool(k))?;
        self.note(key, || default.into());
        Ok(b.unwrap_or(default))
    }

    /// String, if present.
    pub fn find_text(&self, key: Key) -> Result<Option<&'a str>> {
        self.read(key, "text", Value::as_str, |m, k| m.text(k))
    }

    /// List of floats, if present.
    pub fn find_numbers(&self, key: Key) -> Result<Option<Vec<f64>>> {
        let hf = |v: &Value| v.as_array()?.iter().map(Value::as_f64).collect();
        let gguf = |m: &Metadata, k: &str| Ok(m.floats(k)?.map(|x| x.into_iter().map(f64::from).collect()));
        self.read(key, "a list of numbers", hf, gguf)
    }

    /// List of unsigned integers, if present. Not read from GGUF metadata.
    pub fn find_counts(&self, key: Key) -> Result<Option<Vec<usize>>> {
        let hf = |v: &Value| v.as_array()?.iter().map(|n| usize::try_from(n.as_u64()?).ok()).collect();
        self.read(key, "a list of whole numbers", hf, |_, _| Ok(None))
    }

    /// List of unsigned integers, or `default`.
    pub fn counts_or(&self, key: Key, default: &[usize]) -> Result<Vec<usize>> {
        let found = self.find_counts(key)?;
        self.note(key, || default.into());
        Ok(found.unwrap_or_else(|| default.to_vec()))
    }

    /// One unsigned integer per layer; GGUF metadata may have a single value for all layers.
    pub fn count_by_layer(&self, key: Key, layers: usize) -> Result<Vec<usize>> {
        let Some((meta, name)) = self.meta(key).filter(|(meta, name)| meta.is_array(name)) else {
            return Ok(vec![self.count(key)?; layers]);
        };
        let count = |n: i64| {
            let n = u64::try_from(n).ok().filter(|n| *n <= MOST);
            n.map(|n| n as usize).ok_or_else(|| self.bad(key, "has an entry that cannot be meant"))
        };
        let list =
            meta.ints(&name)?.unwrap_or_default().into_iter().map(count).collect::<Result<Vec<_>>>()?;
        self.per_layer(key, layers, Some(list)).map(Option::unwrap_or_default)
    }

    /// List of booleans (or 0 and 1), if present.
    pub fn find_flags(&self, key: Key) -> Result<Option<Vec<bool>>> {
        let flag = |v: &Value| v.as_bool().or_else(|| v.as_u64().map(|n| n != 0));
        let hf = |v: &Value| v.as_array()?.iter().map(flag).collect();
        let gguf = |m: &Metadata, k: &str| Ok(m.ints(k)?.map(|x| x.into_iter().map(|n| n != 0).collect()));
        self.read(key, "a list of truth values", hf, gguf)
    }

    /// List of strings, if present.
    pub fn find_texts(&self, key: Key) -> Result<Option<Vec<&'a str>>> {
        let hf = |v: &'a Value| v.as_array()?.iter().map(Value::as_str).collect();
        self.read(key, "a list of texts", hf, |m, k| m.texts(k))
    }

    /// True if the scope is an object in `config.json`; false for GGUF metadata.
    pub fn is_there(&self) -> bool {
        self.scope.is_some_and(Value::is_object)
    }

    /// True if the scope is a non-empty object in `config.json`.
    pub fn says_something(&self) -> bool {
        self.scope.and_then(Value::as_object).is_some_and(|object| !object.is_empty())
    }

    /// True if the key is absent (`null` counts as present).
    pub fn leaves_out(&self, key: Key) -> bool {
        match &self.checkpoint.settings {
            Settings::Hf(_) => self.scope.is_none_or(|json| json.get(key.hf).is_none()),
            Settings::Gguf(_) => !self.has(key),
        }
    }

    /// True if the key has a value.
    pub fn has(&self, key: Key) -> bool {
        self.json(key).is_some() || self.meta(key).is_some_and(|(meta, name)| meta.get(&name).is_some())
    }

    /// Checks that a list, if present, has at least one entry per layer.
    pub fn per_layer<T>(&self, key: Key, layers: usize, list: Option<Vec<T>>) -> Result<Option<Vec<T>>> {
        match list {
            Some(list) if list.len() < layers => {
                Err(self.bad(key, format_args!("has {} entries for {layers} layers", list.len())))
            }
            list => Ok(list),
        }
    }
}
