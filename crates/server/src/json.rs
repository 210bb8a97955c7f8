//! JSON of requests: read strictly, within limits.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::errors::{ApiError, quoted};

/// Values in one body. Each takes far more memory than it takes in the body.
const MOST_VALUES: usize = 1 << 20;

/// Reads an object. Nesting, values and keys that come twice are looked at here; what it means is not.
pub(crate) fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    // Some editors and shells put the mark of UTF-8 in front.
    let body = body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body);
    let mut limits = Limits { left: MOST_VALUES, twice: None };
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = Strict(&mut limits).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    match value {
        Ok(Value::Object(members)) => Ok(members),
        Ok(_) => Err(ApiError::bad("the body is JSON, but no object")),
        Err(e) => Err(match limits.twice {
            Some(key) => ApiError::field(key, format!("the body is no valid JSON: {e}")),
            None => ApiError::bad(format!("the body is no valid JSON: {e}")),
        }),
    }
}

struct Limits {
    left: usize,
    twice: Option<String>,
}

/// Reads a value within limits.
struct Strict<'a>(&'a mut Limits);

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        match self.0.left.checked_sub(1) {
            Some(left) => self.0.left = left,
            None => return Err(D::Error::custom(format_args!("it has more than {MOST_VALUES} values"))),
        }
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
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(Strict(&mut *self.0))?;
            if members.contains_key(&key) {
                let why = A::Error::custom(format_args!("the key {} comes twice", quoted(&key)));
                self.0.twice = Some(key);
                return Err(why);
            }
            members.insert(key, value);
        }
        Ok(Value::Object(members))
    }
}
