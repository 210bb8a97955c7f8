//! `/classify`: sequence classification, as in vLLM's API.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use tallow_models::encoder::{Classes, Item, Truncation};

use super::embeddings::{Usage, encode, inputs, item, model};
use crate::ServedEncoder;
use crate::body::read_json;
use crate::errors::{ApiError, respond};
use crate::parse::fields::Fields;
use crate::state::Server;

/// A classification request.
struct ClassifyRequest {
    inputs: Vec<Item>,
    /// True if scores become probabilities (activation applied).
    activated: bool,
    classes: Classes,
    model: String,
}

#[derive(Serialize)]
struct Classification {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<Classified>,
    usage: Usage,
}

#[derive(Serialize)]
struct Classified {
    index: usize,
    label: String,
    probs: Vec<f32>,
    num_classes: usize,
}

pub(crate) async fn classify(
    State(server): State<Arc<Server<ServedEncoder>>>,
    request: Request,
) -> Result<Response, ApiError> {
    let ClassifyRequest { inputs, activated, classes, model } =
        read_json(&server, request).await?.process(&server, parse).await?;
    let usage = Usage::of(&inputs);
    let scores = encode(&server, inputs).await?;
    let classified = |(index, scores): (usize, Vec<f32>)| {
        let probs = if activated { classes.probabilities(&scores) } else { scores };
        let label = classes.best(&probs).1.to_owned();
        Classified { index, label, num_classes: probs.len(), probs }
    };
    let data = scores.into_iter().enumerate().map(classified).collect();
    let (id, created) = (format!("classify-{}", crate::request_id::unique()), crate::clock::unix_time());
    respond(&Classification { id, object: "list", created, model, data, usage })
}

/// Parses and tokenizes a body.
fn parse(server: &Server<ServedEncoder>, body: Vec<u8>) -> Result<ClassifyRequest, ApiError> {
    let info = server.model.handle.info();
    let Some(classes) = info.classes.clone() else {
        let why =
            "the model of this server computes embeddings and classifies nothing; it has /v1/embeddings";
        return Err(ApiError::new(StatusCode::NOT_FOUND, why));
    };
    let mut fields = Fields::body(&body)?;
    drop(body);
    let model = model(&mut fields, &info.names)?;
    // Accepted and ignored, because every client knows it.
    fields.text("user")?;
    let cut = if fields.flag("truncate")?.unwrap_or(false) { Truncation::End } else { Truncation::No };
    let activated = fields.flag("use_activation")?.unwrap_or(true);
    let input = fields.take("input");
    fields.finish()?;
    let inputs = inputs(input, |path, given| item(&info.inputs, path, given, cut))?;
    Ok(ClassifyRequest { inputs, activated, classes, model })
}
