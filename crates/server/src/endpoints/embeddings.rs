//! `/v1/embeddings`: embeddings of texts, as in OpenAI's API, and of images, as in Jina's.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use tallow_engine::embedder::PoolingTask;
use tallow_engine::handle::Failure;
use tallow_models::encoder::{InputError, Inputs, Item, Truncation, shortened};

use crate::ServedEncoder;
use crate::access::Notes;
use crate::body::read_json;
use crate::errors::{ApiError, respond};
use crate::metrics::TrackedRequest;
use crate::parse::base64;
use crate::parse::fields::{Fields, text, token_ids, wrong};
use crate::request_context::RequestContext;
use crate::state::{ActiveRequest, Server};

/// Most inputs of a request.
pub(crate) const MAX_TEXTS: usize = 2048;

/// Most images of a request: each takes far more memory than a text.
const MAX_IMAGES: usize = 64;

/// Bytes of one element of a vector, as `f32` and as JSON.
const NUMBER: usize = 24;

/// `encoding_format` of the vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    /// List of numbers.
    Float,
    /// Base64 of little-endian `f32`s.
    Base64,
}

/// An embedding request.
struct EmbeddingRequest {
    inputs: Vec<Item>,
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

/// Token usage.
#[derive(Serialize)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl Usage {
    pub(crate) fn of(inputs: &[Item]) -> Usage {
        let tokens = inputs.iter().map(Item::rows).sum();
        Usage { prompt_tokens: tokens, total_tokens: tokens }
    }
}

pub(crate) async fn embeddings(
    State(server): State<Arc<Server<ServedEncoder>>>,
    request: Request,
) -> Result<Response, ApiError> {
    let parsed = read_json(&server, request).await?.process(&server, parse).await?;
    let usage = Usage::of(&parsed.inputs);
    claim_vectors(&server, parsed.inputs.len()).await?;
    let vectors = encode(&server, parsed.inputs).await?;
    let embedding = |(index, vector): (usize, Vec<f32>)| {
        let vector = shortened(vector, parsed.dimensions);
        let embedding = match parsed.encoding {
            Encoding::Float => Numbers::List(vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Numbers::Text(base64::write(&bytes))
            }
        };
        Embedding { object: "embedding", embedding, index }
    };
    let data = vectors.into_iter().enumerate().map(embedding).collect();
    respond(&Embeddings { object: "list", data, model: parsed.model, usage })
}

/// Claims memory for vectors and their JSON.
pub(crate) async fn claim_vectors(server: &Server<ServedEncoder>, count: usize) -> Result<(), ApiError> {
    let Some(ctx) = RequestContext::current() else { return Ok(()) };
    ctx.claim.grow(count * server.model.handle.info().width * NUMBER).await
}

/// Fails if the model classifies, which gives no embeddings.
pub(crate) fn embeds(server: &Server<ServedEncoder>) -> Result<(), ApiError> {
    let info = server.model.handle.info();
    if info.task != PoolingTask::Classify {
        return Ok(());
    }
    let why = match info.width {
        1 => "the model of this server is a reranker and computes no embeddings; it has /v1/rerank",
        _ => "the model of this server is a classifier and computes no embeddings; it has /classify",
    };
    Err(ApiError::new(StatusCode::NOT_FOUND, why))
}

/// Runs the encoder on the inputs. Dropping the future aborts them.
pub(crate) async fn encode(
    server: &Arc<Server<ServedEncoder>>,
    inputs: Vec<Item>,
) -> Result<Vec<Vec<f32>>, ApiError> {
    let (_active, begun) = (ActiveRequest::new(server), Instant::now());
    let handle = &server.model.handle;
    Notes::current().note(|noted| {
        noted.model = handle.info().names.first().cloned();
        noted.prompt_tokens = Some(inputs.iter().map(Item::rows).sum());
    });
    let failed = |why| ApiError::engine(why, handle.is_alive());
    // A request refused here has not begun, and does not count as failed.
    let answer = handle.submit(inputs).map_err(failed)?;
    let mut tracked = TrackedRequest::new(server.metrics.clone());
    // Every accepted request is answered, and none waits past the drain time.
    let answer = tokio::select! {
        answer = answer => answer,
        () = server.drain_over() => {
            tracked.failed();
            return Err(failed(Failure::ShuttingDown));
        }
    };
    let gone = |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "an internal error; please report it");
    let vectors = answer.map_err(gone).and_then(|answer| answer.map_err(failed));
    match &vectors {
        Ok(_) => tracked.done(begun.elapsed()),
        Err(_) => tracked.failed(),
    }
    vectors
}

/// Name of the model as the request gives it, else its primary name.
pub(crate) fn model(fields: &mut Fields, names: &[String]) -> Result<String, ApiError> {
    match fields.text("model")? {
        Some(model) if !names.contains(&model) => Err(ApiError::no_model(&model, names)),
        Some(model) => Ok(model),
        None => Ok(names.first().cloned().unwrap_or_default()),
    }
}

/// Maps an input error to an API error.
pub(crate) fn input_error(path: &str, why: &InputError) -> ApiError {
    let error = ApiError::field(path, format!("{path}: {why}"));
    match why {
        InputError::TooLong { .. } | InputError::FarTooLong { .. } => error.code("context_length_exceeded"),
        _ => error,
    }
}

/// Parses and tokenizes a body.
fn parse(server: &Server<ServedEncoder>, body: Vec<u8>) -> Result<EmbeddingRequest, ApiError> {
    let info = server.model.handle.info();
    embeds(server)?;
    let mut fields = Fields::body(&body)?;
    drop(body);
    let model = model(&mut fields, &info.names)?;
    let encoding = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => Encoding::Float,
        Some("base64") => Encoding::Base64,
        Some(_) => {
            return Err(ApiError::field("encoding_format", "encoding_format should be float or base64"));
        }
    };
    let dimensions = fields.integer("dimensions", 1..=info.width as i64)?.map(|n| n as usize);
    // Accepted and ignored, because every client knows it.
    fields.text("user")?;
    let cut = if fields.flag("truncate")?.unwrap_or(false) { Truncation::End } else { Truncation::No };
    let input = fields.take("input");
    fields.finish()?;
    let inputs = inputs(input, |path, given| item(&info.inputs, path, given, cut))?;
    Ok(EmbeddingRequest { inputs, encoding, dimensions, model })
}

/// One input as the request gives it.
pub(crate) enum Input {
    Text(String),
    Tokens(Vec<u32>),
    /// Bytes of an image file.
    Image(Vec<u8>),
}

pub(crate) fn item(inputs: &Inputs, path: &str, given: Input, cut: Truncation) -> Result<Item, ApiError> {
    let item = match given {
        Input::Text(text) if text.is_empty() => {
            return Err(ApiError::field(path, format!("{path} is an empty text")));
        }
        Input::Text(text) => inputs.text(&text, cut).map(Item::Text),
        Input::Tokens(tokens) => inputs.tokens(tokens, cut).map(Item::Text),
        Input::Image(bytes) => {
            let memory = inputs.image_memory(&bytes).map_err(|why| input_error(path, &why))?;
            let ctx = RequestContext::current();
            let _held = ctx.as_ref().map(|ctx| ctx.claim.hold(memory)).transpose()?;
            inputs.image(&bytes).map(Item::Image)
        }
    };
    item.map_err(|why| input_error(path, &why))
}

/// Parses an object with either `text` or `image`.
fn object(path: String, value: Value) -> Result<(String, Input), ApiError> {
    let mut fields = Fields::within(path.clone(), value)?;
    let (at_text, at_image) = (fields.path("text"), fields.path("image"));
    let both = (fields.text("text")?, fields.text("image")?);
    fields.finish()?;
    match both {
        (Some(text), None) => Ok((at_text, Input::Text(text))),
        (None, Some(url)) => {
            let bytes = image(&at_image, &url)?;
            Ok((at_image, Input::Image(bytes)))
        }
        _ => Err(ApiError::field(&*path, format!("{path} should have either text or image"))),
    }
}

/// Decodes an image from a data URL. Nothing is fetched: clients must not reach other servers through this one (SSRF).
fn image(path: &str, url: &str) -> Result<Vec<u8>, ApiError> {
    let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(','));
    let data = data.and_then(|(kind, data)| kind.ends_with(";base64").then_some(data));
    data.and_then(base64::read).ok_or_else(|| {
        let why = format!(
            "{path} should be a URL with the image in it, data:image/…;base64,…; others are not fetched"
        );
        ApiError::field(path, why)
    })
}

pub(crate) fn inputs(
    input: Option<Value>,
    make: impl Fn(&str, Input) -> Result<Item, ApiError>,
) -> Result<Vec<Item>, ApiError> {
    let values = match input {
        None => return Err(ApiError::field("input", "input is missing")),
        Some(Value::String(text)) => return Ok(vec![make("input", Input::Text(text))?]),
        Some(value @ Value::Object(_)) => {
            let (path, given) = object("input".into(), value)?;
            return Ok(vec![make(&path, given)?]);
        }
        Some(Value::Array(values)) => values,
        Some(other) => return Err(wrong("input".into(), "text, tokens, or a list of those", &other)),
    };
    if values.iter().all(Value::is_number) && !values.is_empty() {
        return Ok(vec![make("input", Input::Tokens(token_ids("input", values)?))?]);
    }
    if values.is_empty() || values.len() > MAX_TEXTS {
        let why = format!("input should have from 1 to {MAX_TEXTS} texts, and has {}", values.len());
        return Err(ApiError::field("input", why));
    }
    let images = values.iter().filter(|value| value.get("image").is_some()).count();
    if images > MAX_IMAGES {
        let why = format!("input should have {MAX_IMAGES} images at most, and has {images}");
        return Err(ApiError::field("input", why));
    }
    let each = |(i, value)| {
        let path = format!("input[{i}]");
        match value {
            Value::Array(ids) => make(&path, Input::Tokens(token_ids(&path, ids)?)),
            value @ Value::Object(_) => {
                let (path, given) = object(path, value)?;
                make(&path, given)
            }
            value => {
                let text = text(path.clone(), value)?;
                make(&path, Input::Text(text))
            }
        }
    };
    values.into_iter().enumerate().map(each).collect()
}
