//! `/v1/embeddings`: vectors of texts, as OpenAI's interface has them.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use tallow_engine::embedder::Wanted;
use tallow_models::encoder::{Cut, Input, InputError, shortened};

use crate::ServedEncoder;
use crate::body::prepare;
use crate::completions::tokens;
use crate::errors::{ApiError, respond};
use crate::fields::{Fields, text, wrong};
use crate::state::{Open, Server};

/// Texts of a request at most.
pub(crate) const MOST_TEXTS: usize = 2048;

/// How a vector is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    /// As a list of numbers.
    Float,
    /// As the bytes of numbers of 32 bits, the lowest byte first.
    Base64,
}

/// What is asked for.
struct Asked {
    inputs: Vec<Input>,
    encoding: Encoding,
    dimensions: Option<usize>,
    model: String,
}

#[derive(Serialize)]
struct Embeddings {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    embedding: Numbers,
    index: usize,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Numbers {
    List(Vec<f32>),
    Text(String),
}

/// What a request took.
#[derive(Serialize)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl Usage {
    pub(crate) fn of(inputs: &[Input]) -> Usage {
        let tokens = inputs.iter().map(|input| input.tokens.len()).sum();
        Usage { prompt_tokens: tokens, total_tokens: tokens }
    }
}

pub(crate) async fn embeddings(
    State(server): State<Arc<Server<ServedEncoder>>>,
    request: Request,
) -> Result<Response, ApiError> {
    let asked = prepare(&server, request, read).await?;
    let usage = Usage::of(&asked.inputs);
    let vectors = answered(&server, asked.inputs).await?;
    let embedding = |(index, vector): (usize, Vec<f32>)| {
        let vector = shortened(vector, asked.dimensions);
        let embedding = match asked.encoding {
            Encoding::Float => Numbers::List(vector),
            Encoding::Base64 => Numbers::Text(base64(vector.iter().flat_map(|x| x.to_le_bytes()))),
        };
        Embedding { object: "embedding", embedding, index }
    };
    let data = vectors.into_iter().enumerate().map(embedding).collect();
    respond(&Embeddings { object: "list", data, model: asked.model, usage })
}

/// What texts give. Whoever stops waiting for this ends it.
pub(crate) async fn answered(
    server: &Arc<Server<ServedEncoder>>,
    inputs: Vec<Input>,
) -> Result<Vec<Vec<f32>>, ApiError> {
    let (_open, begun) = (Open::new(server), Instant::now());
    let handle = &server.model.handle;
    let failed = |why| {
        server.metrics.ended("error");
        ApiError::engine(why, handle.is_alive())
    };
    let answer = handle.submit(inputs).map_err(failed)?;
    // Every request that is taken is answered; and none waits past the time that the server has left.
    let answer = tokio::select! {
        answer = answer => answer,
        () = server.over() => return Err(ApiError::engine(tallow_engine::handle::Failure::ShuttingDown, true)),
    };
    let gone = |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "an internal error; please report it");
    let vectors = answer.map_err(gone)?.map_err(failed)?;
    server.metrics.embedded(begun.elapsed());
    Ok(vectors)
}

/// The name of the model, as the request has it or as it is.
pub(crate) fn model(fields: &mut Fields, names: &[String]) -> Result<String, ApiError> {
    match fields.text("model")? {
        Some(model) if !names.contains(&model) => Err(ApiError::no_model(&model, names)),
        Some(model) => Ok(model),
        None => Ok(names.first().cloned().unwrap_or_default()),
    }
}

/// Why a text is none for the model.
pub(crate) fn unfit(path: &str, why: &InputError) -> ApiError {
    let error = ApiError::field(path, format!("{path}: {why}"));
    match why {
        InputError::TooLong { .. } => error.code("context_length_exceeded"),
        _ => error,
    }
}

fn read(server: &Server<ServedEncoder>, body: &[u8]) -> Result<Asked, ApiError> {
    let info = server.model.handle.info();
    if info.wanted == Wanted::Scores {
        let why = "the model of this server ranks texts and makes no vectors of them; it has /v1/rerank";
        return Err(ApiError::new(StatusCode::NOT_FOUND, why));
    }
    let mut fields = Fields::body(body)?;
    let model = model(&mut fields, &info.names)?;
    let encoding = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => Encoding::Float,
        Some("base64") => Encoding::Base64,
        Some(_) => {
            return Err(ApiError::field("encoding_format", "encoding_format should be float or base64"));
        }
    };
    let dimensions = fields.whole("dimensions", 1..=info.width as i64)?.map(|n| n as usize);
    // Of no use here, and known to every client.
    fields.text("user")?;
    let cut = if fields.flag("truncate")?.unwrap_or(false) { Cut::End } else { Cut::No };
    let input = fields.take("input");
    fields.finish()?;
    let inputs = inputs(input, |path, given| {
        let input = match given {
            Given::Text(text) if text.is_empty() => {
                return Err(ApiError::field(path, format!("{path} is an empty text")));
            }
            Given::Text(text) => info.inputs.text(&text, cut),
            Given::Tokens(tokens) => info.inputs.tokens(tokens, cut),
        };
        input.map_err(|why| unfit(path, &why))
    })?;
    Ok(Asked { inputs, encoding, dimensions, model })
}

/// What a vector is made of.
enum Given {
    Text(String),
    Tokens(Vec<u32>),
}

fn inputs(
    input: Option<Value>,
    make: impl Fn(&str, Given) -> Result<Input, ApiError>,
) -> Result<Vec<Input>, ApiError> {
    let values = match input {
        None => return Err(ApiError::field("input", "input is missing")),
        Some(Value::String(text)) => return Ok(vec![make("input", Given::Text(text))?]),
        Some(Value::Array(values)) => values,
        Some(other) => return Err(wrong("input".into(), "text, tokens, or a list of those", &other)),
    };
    if values.iter().all(Value::is_number) && !values.is_empty() {
        return Ok(vec![make("input", Given::Tokens(tokens("input", values)?))?]);
    }
    if values.is_empty() || values.len() > MOST_TEXTS {
        let why = format!("input should have from 1 to {MOST_TEXTS} texts, and has {}", values.len());
        return Err(ApiError::field("input", why));
    }
    let each = |(i, value)| {
        let path = format!("input[{i}]");
        match value {
            Value::Array(ids) => make(&path, Given::Tokens(tokens(&path, ids)?)),
            value => make(&path, Given::Text(text(path.clone(), value)?)),
        }
    };
    values.into_iter().enumerate().map(each).collect()
}

/// Bytes as text, six bits in a character.
fn base64(bytes: impl Iterator<Item = u8>) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = bytes.collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, i| bits << 8 | u32::from(three.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        let pairs = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, coded) in pairs {
            assert_eq!(base64(plain.bytes()), coded);
        }
        assert_eq!(base64([0xfb, 0xff, 0xbf].into_iter()), "+/+/");
    }
}
