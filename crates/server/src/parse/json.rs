//! Strict JSON parsing of request bodies, within memory limits.

use std::fmt;

use axum::http::StatusCode;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::errors::{ApiError, quoted};

/// Bytes that the values of one body may take, besides its strings. A value takes far more memory than its text: a list
/// of 262,144 tokens fits.
const MAX_MEMORY: usize = 32 << 20;
/// Bytes of a value in a list.
const VALUE: usize = size_of::<Value>();
/// Bytes of a member besides its value, and of an object besides its members.
const MEMBER: usize = 2 * (VALUE + 40);
const OBJECT: usize = 512;

/// Upper bound of the bytes that parsing a body takes, besides the body: estimated from its punctuation before it is
/// parsed.
pub(crate) fn max_memory(body: &[u8]) -> usize {
    let (mut objects, mut marks) = (0, 0);
    for byte in body {
        objects += usize::from(*byte == b'{');
        marks += usize::from(matches!(byte, b',' | b':' | b'['));
    }
    let values = objects.saturating_mul(OBJECT + VALUE).saturating_add(marks.saturating_mul(2 * VALUE));
    body.len() + values.min(MAX_MEMORY)
}

/// Parses an object. Checks nesting, size and duplicate keys, but not the meaning.
pub(crate) fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    // Some editors and shells write a byte order mark.
    let body = body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body);
    let mut limits = Limits { left: MAX_MEMORY, full: false, twice: None };
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = Strict(&mut limits).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    match value {
        Ok(Value::Object(members)) => Ok(members),
        Ok(_) => Err(ApiError::bad("the body is JSON, but not an object")),
        Err(_) if limits.full => {
            let why = format!(
                "the body has too many values: they would take more than {} MiB of memory",
                MAX_MEMORY >> 20
            );
            Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, why).code("request_too_large"))
        }
        Err(e) => Err(match limits.twice {
            Some(key) => ApiError::field(key, format!("the body is not valid JSON: {e}")),
            None => ApiError::bad(format!("the body is not valid JSON: {e}")),
        }),
    }
}

struct Limits {
    /// Bytes that values may still take.
    left: usize,
    /// True if the limit was exceeded.
    full: bool,
    twice: Option<String>,
}

impl Limits {
    fn take<E: Error>(&mut self, bytes: usize) -> Result<(), E> {
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None => {
                self.full = true;
                return Err(E::custom("too many values"));
            }
        }
        Ok(())
    }
}

/// Deserializes a value within limits.
struct Strict<'a>(&'a mut Limits);

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element_seed(Strict(&mut *self.0))? {
            let before = values.capacity();
            if values.len() == before {
                let more = before.max(4);
                self.0.take(more * VALUE)?;
                values.reserve_exact(more);
            }
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        self.0.take(OBJECT)?;
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(Strict(&mut *self.0))?;
            if members.contains_key(&key) {
                let why = A::Error::custom(format_args!("the key {} comes twice", quoted(&key)));
                self.0.twice = Some(key);
                return Err(why);
            }
            self.0.take(MEMBER)?;
            members.insert(key, value);
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_values_take_is_bounded_and_guessed_high() {
        for body in [r#"{"a":[1,2,{"b":"c"}],"d":{"e":null}}"#, r#"{}"#, r#"{"prompt":"a, b: c [d] {e}"}"#] {
            let mut limits = Limits { left: MAX_MEMORY, full: false, twice: None };
            let mut reader = serde_json::Deserializer::from_slice(body.as_bytes());
            Strict(&mut limits).deserialize(&mut reader).unwrap();
            assert!(MAX_MEMORY - limits.left <= max_memory(body.as_bytes()), "{body}");
        }
        let list =
            |value: &str, n: usize| format!("{{\"a\":[{value}{}]}}", format!(",{value}").repeat(n - 1));
        assert!(object(list("1", 262_144).as_bytes()).is_ok(), "a long prompt of tokens");
        for many in
            [list("1", 1 << 20), list("{}", 1 << 18), list("[[]]", 1 << 18), list("{\"\":1}", 1 << 18)]
        {
            let why = object(many.as_bytes()).unwrap_err().to_string();
            assert!(why.contains("would take more than 32 MiB"), "{why}");
        }
    }
}
