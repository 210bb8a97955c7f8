//! [`Fields`]: members of a JSON object, taken out one by one. Any left at the end are unknown.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::errors::{ApiError, quoted};

/// Upper bound of every token count in a request.
pub(crate) const MAX_TOKENS: i64 = i32::MAX as i64;

/// Members of an object that have not been taken yet.
#[derive(Debug)]
pub(crate) struct Fields {
    /// JSON path of the object, for messages; empty for the body itself.
    path: String,
    members: Map<String, Value>,
    /// Renamed members: our name to the one that the request used.
    renamed: BTreeMap<&'static str, &'static str>,
}

impl Fields {
    /// Fields of a request body.
    pub(crate) fn body(body: &[u8]) -> Result<Fields, ApiError> {
        Ok(Fields::new(String::new(), crate::parse::json::object(body)?))
    }

    /// Fields of a nested object.
    pub(crate) fn within(path: String, value: Value) -> Result<Fields, ApiError> {
        match value {
            Value::Object(members) => Ok(Fields::new(path, members)),
            other => Err(wrong(path, "an object", &other)),
        }
    }

    fn new(path: String, members: Map<String, Value>) -> Fields {
        Fields { path, members, renamed: BTreeMap::new() }
    }

    /// Path of a member, for messages.
    pub(crate) fn path(&self, name: &str) -> String {
        let name = self.renamed.get(name).copied().unwrap_or(name);
        if self.path.is_empty() { name.into() } else { format!("{}.{name}", self.path) }
    }

    /// Renames a member from another server's API, as if the request had used our name.
    pub(crate) fn rename(&mut self, theirs: &'static str, ours: &'static str) -> Result<(), ApiError> {
        let Some(value) = self.take(theirs) else { return Ok(()) };
        match self.members.get(ours).filter(|value| !value.is_null()) {
            Some(other) if *other != value => {
                let why = format!("{theirs} and {ours} mean the same, and differ; give one of them");
                Err(ApiError::field(self.path(theirs), why))
            }
            _ => {
                self.members.insert(ours.to_owned(), value);
                self.renamed.insert(ours, theirs);
                Ok(())
            }
        }
    }

    /// Looks at a member without taking it; `null` counts as absent.
    pub(crate) fn peek(&self, name: &str) -> Option<&Value> {
        self.members.get(name).filter(|value| !value.is_null())
    }

    /// Sets a member's value.
    pub(crate) fn set(&mut self, name: &str, value: Value) {
        self.members.insert(name.to_owned(), value);
    }

    /// Takes a member of any type; `null` counts as absent.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.members.remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(self.path(name), "text", &other)),
        }
    }

    /// Takes a string that must be there.
    pub(crate) fn needed(&mut self, name: &str) -> Result<String, ApiError> {
        let path = self.path(name);
        self.text(name)?.ok_or_else(|| ApiError::field(path.clone(), format!("{path} is missing")))
    }

    /// Takes a string of at most `max_bytes` bytes.
    pub(crate) fn short_text(&mut self, name: &str, max_bytes: usize) -> Result<Option<String>, ApiError> {
        let text = self.text(name)?;
        match &text {
            Some(text) if text.len() > max_bytes => {
                let why = format!("should have at most {max_bytes} bytes, and has {}", text.len());
                Err(ApiError::field(self.path(name), format!("{} {why}", self.path(name))))
            }
            _ => Ok(text),
        }
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(wrong(self.path(name), "true or false", &other)),
        }
    }

    /// Takes an integer within a range.
    pub(crate) fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        integer(self.path(name), &value, range).map(Some)
    }

    /// Takes a number within a range.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        number(self.path(name), &value, range).map(Some)
    }

    /// Takes a number in (0, 1].
    pub(crate) fn fraction(&mut self, name: &str) -> Result<Option<f32>, ApiError> {
        let path = self.path(name);
        match self.number(name, 0.0..=1.0)? {
            Some(0.0) => {
                Err(ApiError::field(&*path, format!("{path} should be above 0 and at most 1, and is 0")))
            }
            fraction => Ok(fraction),
        }
    }

    /// Takes a list; `each` converts an item from its path and value.
    pub(crate) fn list<T>(
        &mut self,
        name: &str,
        each: impl Fn(String, Value) -> Result<T, ApiError>,
    ) -> Result<Option<Vec<T>>, ApiError> {
        let path = self.path(name);
        let Some(value) = self.take(name) else { return Ok(None) };
        let Value::Array(values) = value else { return Err(wrong(path, "a list", &value)) };
        let each = |(i, value)| each(format!("{path}[{i}]"), value);
        values.into_iter().enumerate().map(each).collect::<Result<_, _>>().map(Some)
    }

    /// Takes a member that is only allowed where it has no effect, as `off` decides.
    pub(crate) fn only_off(&mut self, name: &str, off: impl Fn(&Value) -> bool) -> Result<(), ApiError> {
        self.only(name, off, "leave it out")
    }

    /// [`Fields::only_off`] with what to do instead.
    pub(crate) fn only(
        &mut self,
        name: &str,
        harmless: impl Fn(&Value) -> bool,
        instead: &str,
    ) -> Result<(), ApiError> {
        match self.take(name) {
            Some(value) if !harmless(&value) => {
                let path = self.path(name);
                let why = format!("{path} with this value is not supported: {instead}");
                Err(ApiError::field(path, why).code("unsupported_value"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses members that were not taken.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        match self.members.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => {
                let path: String = self.path(name).chars().take(128).collect();
                let why = format!("the field {} is not known", quoted(&path));
                Err(ApiError::field(path, why).code("unknown_field"))
            }
        }
    }
}

/// Error for a value of the wrong type.
pub(crate) fn wrong(path: String, should: &str, value: &Value) -> ApiError {
    let is = match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    let why = format!("{path} should be {should}, and is {is}");
    ApiError::field(path, why)
}

fn outside(path: String, range: (impl fmt::Display, impl fmt::Display), is: &Value) -> ApiError {
    let why = format!("{path} should be from {} to {}, and is {is}", range.0, range.1);
    ApiError::field(path, why)
}

/// Parses an integer within a range.
pub(crate) fn integer(path: String, value: &Value, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
    match value {
        Value::Number(number) => match number.as_i64().or_else(|| exact(number.as_f64()?)) {
            Some(n) if range.contains(&n) => Ok(n),
            // Integers beyond 64 bits parse as `f64`; real fractions are small.
            None if number.as_f64().is_some_and(|x| x.fract() != 0.0 || x.abs() < 1e15)
                && !number.is_u64() =>
            {
                let why = format!("{path} should be a whole number, and is {value}");
                Err(ApiError::field(path, why))
            }
            _ => Err(outside(path, (range.start(), range.end()), value)),
        },
        other => Err(wrong(path, "a whole number", other)),
    }
}

/// An integer written as a float, such as `4.0`.
fn exact(x: f64) -> Option<i64> {
    // 2^53: beyond it not every integer is an `f64`.
    const MOST: f64 = 9_007_199_254_740_992.0;
    (x.fract() == 0.0 && x.abs() <= MOST).then_some(x as i64)
}

/// Parses a number within a range.
pub(crate) fn number(path: String, value: &Value, range: RangeInclusive<f64>) -> Result<f32, ApiError> {
    match value.as_f64() {
        Some(x) if range.contains(&x) => Ok(x as f32),
        Some(_) => Err(outside(path, (range.start(), range.end()), value)),
        None => Err(wrong(path, "a number", value)),
    }
}

/// Parses a string.
pub(crate) fn text(path: String, value: Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(wrong(path, "text", &other)),
    }
}

/// Parses a list of token ids.
pub(crate) fn token_ids(path: &str, values: Vec<Value>) -> Result<Vec<u32>, ApiError> {
    let id =
        |(i, value)| integer(format!("{path}[{i}]"), &value, 0..=i64::from(u32::MAX)).map(|id| id as u32);
    values.into_iter().enumerate().map(id).collect()
}
