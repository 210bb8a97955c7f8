//! [`Fields`]: the members of a JSON object, taken out one by one. What is left at the end is not known.

use std::fmt;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::errors::{ApiError, quoted};

/// The members of an object that have not been taken yet.
#[derive(Debug)]
pub(crate) struct Fields {
    /// Where the object is, for messages; nothing for the body itself.
    path: String,
    members: Map<String, Value>,
}

impl Fields {
    /// Those of a body.
    pub(crate) fn body(body: &[u8]) -> Result<Fields, ApiError> {
        Ok(Fields { path: String::new(), members: crate::json::object(body)? })
    }

    /// Those of an object within.
    pub(crate) fn within(path: String, value: Value) -> Result<Fields, ApiError> {
        match value {
            Value::Object(members) => Ok(Fields { path, members }),
            other => Err(wrong(path, "an object", &other)),
        }
    }

    /// What messages call a member.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.into() } else { format!("{}.{name}", self.path) }
    }

    /// A member, whatever it is; `null` is none.
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

    /// A text of at most so many bytes.
    pub(crate) fn short_text(&mut self, name: &str, most: usize) -> Result<Option<String>, ApiError> {
        let text = self.text(name)?;
        match &text {
            Some(text) if text.len() > most => {
                let why = format!("should have at most {most} bytes, and has {}", text.len());
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

    /// A whole number within a range.
    pub(crate) fn whole(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        whole(self.path(name), &value, range).map(Some)
    }

    /// A number within a range.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        number(self.path(name), &value, range).map(Some)
    }

    /// A number above zero, up to 1.
    pub(crate) fn share(&mut self, name: &str) -> Result<Option<f32>, ApiError> {
        let path = self.path(name);
        match self.number(name, 0.0..=1.0)? {
            Some(0.0) => {
                Err(ApiError::field(&*path, format!("{path} should be above 0 and at most 1, and is 0")))
            }
            share => Ok(share),
        }
    }

    /// Items, each made by `each` from its place and its value.
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

    /// A member that may only be there if it says nothing: one of the values that `off` knows.
    pub(crate) fn only_off(&mut self, name: &str, off: impl Fn(&Value) -> bool) -> Result<(), ApiError> {
        match self.take(name) {
            Some(value) if !off(&value) => {
                let path = self.path(name);
                let why = format!("{path} with this value is not supported yet; leave it out");
                Err(ApiError::field(path, why).code("unsupported_value"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what nobody has taken.
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

/// A value should have been something else.
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

/// A whole number within a range.
pub(crate) fn whole(path: String, value: &Value, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
    match value {
        Value::Number(number) => match number.as_i64() {
            Some(n) if range.contains(&n) => Ok(n),
            // Beyond 64 bits numbers are read as fractions; what is a fraction in truth is small.
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

/// A number within a range.
pub(crate) fn number(path: String, value: &Value, range: RangeInclusive<f64>) -> Result<f32, ApiError> {
    match value.as_f64() {
        Some(x) if range.contains(&x) => Ok(x as f32),
        Some(_) => Err(outside(path, (range.start(), range.end()), value)),
        None => Err(wrong(path, "a number", value)),
    }
}

/// A text.
pub(crate) fn text(path: String, value: Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(wrong(path, "text", &other)),
    }
}
