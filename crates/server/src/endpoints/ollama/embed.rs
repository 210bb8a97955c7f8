//! `/api/embed`, and the older `/api/embeddings` for one text.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use tallow_models::encoder::{Item, Truncation, shortened};

use crate::ServedEncoder;
use crate::body::read_json;
use crate::endpoints::embeddings::{claim_vectors, embeds, encode, inputs, item};
use crate::errors::{ApiError, respond};
use crate::parse::fields::Fields;
use crate::state::Server;

/// A parsed request.
struct EmbedRequest {
    model: String,
    inputs: Vec<Item>,
    dimensions: Option<usize>,
}

#[derive(Serialize)]
struct Embedded {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

#[derive(Serialize)]
struct EmbeddedOne {
    embedding: Vec<f32>,
}

/// Parses a body whose texts are in `field`.
fn parse(server: &Server<ServedEncoder>, body: &[u8], field: &'static str) -> Result<EmbedRequest, ApiError> {
    let info = server.model.handle.info();
    embeds(server)?;
    let mut fields = Fields::body(body)?;
    let model = super::model(&mut fields, &info.names)?;
    if let Some(model) = model.as_ref().filter(|model| !info.names.contains(model)) {
        return Err(ApiError::no_model(model, &info.names));
    }
    let model = model.or_else(|| info.names.first().cloned()).unwrap_or_default();
    fields.take("keep_alive");
    fields.take("options");
    let dimensions = fields.integer("dimensions", 1..=info.width as i64)?.map(|n| n as usize);
    // Unlike elsewhere it is on unless it is off.
    let cut = if fields.flag("truncate")?.unwrap_or(true) { Truncation::End } else { Truncation::No };
    let input = fields.take(field);
    fields.finish()?;
    // A list without a text has no embedding.
    let is_empty = input.as_ref().and_then(Value::as_array).is_some_and(Vec::is_empty);
    let inputs = match input {
        _ if is_empty => Vec::new(),
        None => return Err(ApiError::field(field, format!("{field} is missing"))),
        input => inputs(input, |path, given| item(&info.inputs, path, given, cut))?,
    };
    Ok(EmbedRequest { model, inputs, dimensions })
}

async fn embedded(
    server: &Arc<Server<ServedEncoder>>,
    request: Request,
    field: &'static str,
) -> Result<Embedded, ApiError> {
    let begun = Instant::now();
    let parsed = read_json(server, request).await?;
    let parsed = parsed.process(server, move |server, body| parse(server, &body, field)).await?;
    let EmbedRequest { model, inputs, dimensions } = parsed;
    let prompt_eval_count = inputs.iter().map(Item::rows).sum();
    claim_vectors(server, inputs.len()).await?;
    let vectors = if inputs.is_empty() { Vec::new() } else { encode(server, inputs).await? };
    let embeddings = vectors.into_iter().map(|vector| shortened(vector, dimensions)).collect();
    let total_duration = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok(Embedded { model, embeddings, total_duration, load_duration: 0, prompt_eval_count })
}

pub(crate) async fn embed(
    State(server): State<Arc<Server<ServedEncoder>>>,
    request: Request,
) -> Result<Response, ApiError> {
    respond(&embedded(&server, request, "input").await?)
}

pub(crate) async fn embeddings(
    State(server): State<Arc<Server<ServedEncoder>>>,
    request: Request,
) -> Result<Response, ApiError> {
    let mut embedded = embedded(&server, request, "prompt").await?;
    respond(&EmbeddedOne { embedding: embedded.embeddings.pop().unwrap_or_default() })
}
