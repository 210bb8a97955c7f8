//! [`Field`]: a value in a JSON file that knows its path, for error messages.

use std::path::Path;

use serde_json::Value;
use tallow_checkpoint::{FileError, Result};

/// A value in a JSON file and its path.
#[derive(Clone)]
pub(super) struct Field<'a> {
    file: &'a Path,
    name: String,
    value: &'a Value,
}

impl<'a> Field<'a> {
    pub(super) fn new(file: &'a Path, name: &str, value: &'a Value) -> Field<'a> {
        Field { file, name: name.into(), value }
    }

    /// A member; null if it is missing.
    pub(super) fn at(&self, key: &str) -> Field<'a> {
        let value = self.value.get(key).unwrap_or(&Value::Null);
        Field { file: self.file, name: format!("{}.{key}", self.name), value }
    }

    pub(super) fn value(&self) -> &'a Value {
        self.value
    }

    pub(super) fn is_null(&self) -> bool {
        self.value.is_null()
    }

    pub(super) fn bad(&self, why: impl std::fmt::Display) -> FileError {
        FileError::bad(self.file, &self.name, why)
    }

    pub(super) fn unsupported(&self, what: impl std::fmt::Display) -> FileError {
        let why = "this build does not know it; use the GGUF file of the model, or report it";
        FileError::unsupported(self.file, format_args!("{}: {what}", self.name), why)
    }

    /// The member `type`, which names the kind of a component.
    pub(super) fn kind(&self) -> Result<&'a str> {
        self.at("type").text()
    }

    pub(super) fn text(&self) -> Result<&'a str> {
        self.value.as_str().ok_or_else(|| self.bad("should be text"))
    }

    /// A string of one character.
    pub(super) fn letter(&self) -> Result<char> {
        let text = self.text()?;
        let mut chars = text.chars();
        match (chars.next(), chars.next()) {
            (Some(c), None) => Ok(c),
            _ => Err(self.bad("should be one character")),
        }
    }

    pub(super) fn flag(&self) -> Result<bool> {
        self.value.as_bool().ok_or_else(|| self.bad("should be true or false"))
    }

    pub(super) fn flag_or(&self, otherwise: bool) -> Result<bool> {
        if self.is_null() { Ok(otherwise) } else { self.flag() }
    }

    pub(super) fn count(&self) -> Result<usize> {
        let n = self.value.as_u64().and_then(|n| usize::try_from(n).ok());
        n.ok_or_else(|| self.bad("should be a whole number of at least 0"))
    }

    pub(super) fn id(&self) -> Result<u32> {
        let n = self.value.as_u64().and_then(|n| u32::try_from(n).ok());
        n.ok_or_else(|| self.bad("should be a token id"))
    }

    pub(super) fn items(&self) -> Result<Vec<Field<'a>>> {
        let list = self.value.as_array().ok_or_else(|| self.bad("should be a list"))?;
        let item = |(i, value)| Field { file: self.file, name: format!("{}[{i}]", self.name), value };
        Ok(list.iter().enumerate().map(item).collect())
    }

    /// The parts of a `Sequence`, or the component itself.
    ///
    /// Nested sequences are flattened, which is equivalent.
    pub(super) fn parts(&self, key: &str) -> Result<Vec<Field<'a>>> {
        /// More than any real tokenizer has; each part costs a pass over the text.
        const MOST: usize = 64;
        let mut parts = vec![self.clone()];
        let mut at = 0;
        while at < parts.len() {
            if parts[at].is_null() {
                parts.remove(at);
            } else if parts[at].kind()? == "Sequence" {
                let inner = parts[at].at(key).items()?;
                parts.splice(at..=at, inner);
            } else {
                at += 1;
            }
            if parts.len() > MOST {
                return Err(self.bad(format_args!("has more than {MOST} parts")));
            }
        }
        Ok(parts)
    }
}
