//! [`Named`]: the model that a request is for, which is to be known before the request is processed.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{Method, header};
use serde::Deserialize;
use serde_json::Value;

use crate::body::read_ahead;
use crate::errors::{ApiError, ErrorForm};
use crate::parse::fields::Fields;
use crate::parse::multipart::{MultipartForm, boundary};
use crate::request_context::RequestContext;

/// What a request says of its model.
#[derive(Debug, Default)]
pub(crate) struct Named {
    /// Its name.
    pub(crate) model: Option<String>,
    /// For how long it stays loaded, in Ollama's API; `None` within for ever.
    pub(crate) keep_alive: Option<Option<Duration>>,
}

/// The members of a body that say it. All else is checked by whoever processes the body.
#[derive(Debug, Deserialize)]
struct Members<'a> {
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
    /// The older name of the field in Ollama's API.
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(default)]
    keep_alive: Option<Value>,
}

/// Reads what a request says of its model: in its body, which stays in its context, or in its query.
pub(crate) async fn named(request: Request, ctx: &Arc<RequestContext>) -> Result<(Request, Named), ApiError> {
    if matches!(*request.method(), Method::GET | Method::DELETE) {
        let model = in_query(request.uri().query().unwrap_or_default());
        return Ok((request, Named { model, keep_alive: None }));
    }
    let (parts, body) = request.into_parts();
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let (form, is_ollama) =
        (boundary(kind.unwrap_or_default()), ErrorForm::of(parts.uri.path()) == ErrorForm::Ollama);
    let look = move |bytes: &[u8]| match form {
        Some(boundary) => Ok(Named { model: in_form(bytes, &boundary), keep_alive: None }),
        None => in_json(bytes, is_ollama),
    };
    let named = read_ahead(body, ctx, look).await??;
    Ok((Request::from_parts(parts, Body::empty()), named))
}

fn in_json(bytes: &[u8], is_ollama: bool) -> Result<Named, ApiError> {
    let Ok(Members { model, name, keep_alive }) = serde_json::from_slice(bytes) else {
        // Says what is wrong.
        let mut fields = Fields::body(bytes)?;
        fields.text("model")?;
        return Ok(Named::default());
    };
    let model = model.or(name.filter(|_| is_ollama)).map(Cow::into_owned).filter(|name| !name.is_empty());
    let keep_alive = keep_alive.filter(|_| is_ollama).and_then(|value| duration(&value));
    Ok(Named { model, keep_alive })
}

fn in_form(bytes: &[u8], boundary: &str) -> Option<String> {
    MultipartForm::read(bytes, boundary).ok()?.text("model").ok()?.filter(|name| !name.is_empty())
}

fn in_query(query: &str) -> Option<String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(key, _)| *key == "model").map(|(_, value)| decoded(value))
}

/// A value of a query without percent-encoding.
fn decoded(value: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(value.len()), value.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match (first, code.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (first, _) => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A time in Ollama's form: seconds, or text such as `5m` or `1h30m`; below 0 for ever. `None` if it is none.
fn duration(value: &Value) -> Option<Option<Duration>> {
    let seconds = match value {
        Value::Number(seconds) => seconds.as_f64()?,
        Value::String(text) => seconds_of(text)?,
        _ => return None,
    };
    Some((seconds >= 0.0).then(|| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)))
}

fn seconds_of(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    if let Ok(seconds) = rest.parse::<f64>() {
        return Some(sign * seconds).filter(|seconds| seconds.is_finite());
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let scale = match &after[..unit] {
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * scale;
        rest = &after[unit..];
    }
    (!text.is_empty()).then_some(sign * total)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_found_in_bodies_and_queries() {
        let name =
            |body: &str, is_ollama| in_json(body.as_bytes(), is_ollama).ok().and_then(|named| named.model);
        assert_eq!(name(r#"{"messages": [{"model": "no"}], "model": "a"}"#, false).as_deref(), Some("a"));
        assert_eq!(name(r#"{"model": "\u0061/b"}"#, false).as_deref(), Some("a/b"));
        assert_eq!(name(r#"{"name": "a"}"#, true).as_deref(), Some("a"));
        // The name of something else, no text, nothing, no object, and no JSON.
        for body in [r#"{"name": "a"}"#, r#"{"model": 5}"#, r#"{"model": ""}"#, "[]", "{\"model\"", ""] {
            assert_eq!(name(body, false), None, "{body}");
        }
        assert_eq!(in_query("a=b&model=org%2Fname+x").as_deref(), Some("org/name x"));
        assert_eq!(in_query("model=100%").as_deref(), Some("100%"));
        assert_eq!(in_query(""), None);
    }

    #[test]
    fn times_are_in_ollamas_form() {
        let seconds = |value: Value| duration(&value).map(|time| time.map(|time| time.as_secs_f64()));
        assert_eq!(seconds(json!(300)), Some(Some(300.0)));
        assert_eq!(seconds(json!("0")), Some(Some(0.0)));
        assert_eq!(seconds(json!("1h30m")), Some(Some(5400.0)));
        assert_eq!(seconds(json!("1500ms")), Some(Some(1.5)));
        assert_eq!(seconds(json!(-1)), Some(None));
        assert_eq!(seconds(json!("-1m")), Some(None));
        assert_eq!(seconds(json!(1e300)), Some(Some(Duration::MAX.as_secs_f64())));
        for wrong in [json!("soon"), json!("5 m"), json!(""), json!("m"), json!([]), json!(true)] {
            assert_eq!(seconds(wrong.clone()), None, "{wrong}");
        }
    }
}
