//! `/v1/rerank`: relevance of documents to a query, as in Jina's and Cohere's APIs; `/score`: that of pairs, as in vLLM's.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use tallow_engine::embedder::PoolingTask;
use tallow_models::encoder::{Item, Truncation, relevance};

use super::embeddings::{MAX_TEXTS, Usage, encode, input_error, model};
use crate::ServedEncoder;
use crate::body::read_json;
use crate::errors::{ApiError, respond};
use crate::parse::fields::{Fields, text};
use crate::state::Server;

/// A rerank request.
struct RerankRequest {
    inputs: Vec<Item>,
    /// The documents, if the response includes them.
    documents: Option<Vec<String>>,
    top_n: usize,
    model: String,
}

#[derive(Serialize)]
struct Ranking {
    id: String,
    model: String,
    usage: Usage,
    results: Vec<Ranked>,
}

#[derive(Serialize)]
struct Ranked {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document>,
}

#[derive(Serialize)]
struct Document {
    text: String,
}

pub(crate) async fn rerank(
    State(server): State<Arc<Server<ServedEncoder>>>,
    request: Request,
) -> Result<Response, ApiError> {
    let RerankRequest { inputs, documents, top_n, model } =
        read_json(&server, request).await?.process(&server, parse).await?;
    let usage = Usage::of(&inputs);
    let scores = encode(&server, inputs).await?;
    let mut order: Vec<(usize, f32)> =
        scores.iter().map(|score| relevance(score.first().copied().unwrap_or(0.0))).enumerate().collect();
    // The sort is stable: equal scores keep the documents' order.
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.truncate(top_n);
    let ranked = |(index, relevance_score): (usize, f32)| {
        let text = documents.as_ref().and_then(|all| all.get(index)).cloned();
        Ranked { index, relevance_score, document: text.map(|text| Document { text }) }
    };
    let results = order.into_iter().map(ranked).collect();
    respond(&Ranking { id: format!("rerank-{}", crate::request_id::unique()), model, usage, results })
}

#[derive(Serialize)]
struct Scores {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<Score>,
    usage: Usage,
}

#[derive(Serialize)]
struct Score {
    index: usize,
    object: &'static str,
    score: f32,
}

pub(crate) async fn score(
    State(server): State<Arc<Server<ServedEncoder>>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (inputs, model) = read_json(&server, request).await?.process(&server, parse_pairs).await?;
    let usage = Usage::of(&inputs);
    let scores = encode(&server, inputs).await?;
    let score = |(index, score): (usize, &Vec<f32>)| {
        let score = relevance(score.first().copied().unwrap_or(0.0));
        Score { index, object: "score", score }
    };
    respond(&Scores {
        id: format!("score-{}", crate::request_id::unique()),
        object: "list",
        created: crate::clock::unix_time(),
        model,
        data: scores.iter().enumerate().map(score).collect(),
        usage,
    })
}

/// Parses and tokenizes pairs: `text_1` and `text_2` are as many texts, or the first is one for all of the second.
fn parse_pairs(server: &Server<ServedEncoder>, body: Vec<u8>) -> Result<(Vec<Item>, String), ApiError> {
    ranks(server)?;
    let info = server.model.handle.info();
    let mut fields = Fields::body(&body)?;
    drop(body);
    let model = model(&mut fields, &info.names)?;
    fields.text("user")?;
    let mut taken = |name: &'static str| match fields.take(name) {
        None => Err(ApiError::field(name, format!("{name} is missing"))),
        Some(value @ Value::Array(_)) => {
            fields.set(name, value);
            Ok(fields.list(name, document)?.unwrap_or_default())
        }
        Some(value) => Ok(vec![document(name.to_owned(), value)?]),
    };
    let (first, second) = (taken("text_1")?, taken("text_2")?);
    fields.finish()?;
    if second.is_empty() || second.len() > MAX_TEXTS || (first.len() != 1 && first.len() != second.len()) {
        let why = format!(
            "text_2 should have from 1 to {MAX_TEXTS} texts, and text_1 one or as many; they have {} and {}",
            second.len(),
            first.len()
        );
        return Err(ApiError::field("text_2", why));
    }
    let query = |(i, text): (usize, &String)| {
        let query = info.inputs.first(text, Truncation::End);
        query.map_err(|why| input_error(&format!("text_1[{i}]"), &why))
    };
    // One query is tokenized once, however many texts there are.
    let queries: Vec<_> = first.iter().enumerate().map(query).collect::<Result<_, _>>()?;
    let pair = |(i, text): (usize, &String)| {
        let pair = queries.get(i).unwrap_or(&queries[0]).with(text);
        pair.map_err(|why| input_error(&format!("text_2[{i}]"), &why))
    };
    let pairs = second.iter().enumerate().map(|each| pair(each).map(Item::Text));
    Ok((pairs.collect::<Result<_, _>>()?, model))
}

/// Fails if the model gives no scores of pairs.
fn ranks(server: &Server<ServedEncoder>) -> Result<(), ApiError> {
    let info = server.model.handle.info();
    if info.task != PoolingTask::Classify {
        let why = "the model of this server computes embeddings and is no reranker; it has /v1/embeddings";
        return Err(ApiError::new(StatusCode::NOT_FOUND, why));
    }
    if info.width != 1 {
        let why = format!(
            "the model of this server is a classifier of {} labels and no reranker, which gives one score; it has /classify",
            info.width
        );
        return Err(ApiError::new(StatusCode::NOT_FOUND, why));
    }
    Ok(())
}

/// Parses and tokenizes a body.
fn parse(server: &Server<ServedEncoder>, body: Vec<u8>) -> Result<RerankRequest, ApiError> {
    ranks(server)?;
    let info = server.model.handle.info();
    let mut fields = Fields::body(&body)?;
    drop(body);
    let model = model(&mut fields, &info.names)?;
    let missing = |name: &str| ApiError::field(name, format!("{name} is missing"));
    let query = fields.text("query")?.ok_or_else(|| missing("query"))?;
    let documents = fields.list("documents", document)?.ok_or_else(|| missing("documents"))?;
    let top_n = fields.integer("top_n", 1..=i64::from(i32::MAX))?.map_or(documents.len(), |n| n as usize);
    let shown = fields.flag("return_documents")?.unwrap_or(false);
    let cut = if fields.flag("truncate")?.unwrap_or(true) { Truncation::End } else { Truncation::No };
    fields.finish()?;
    if documents.is_empty() || documents.len() > MAX_TEXTS {
        let why = format!("documents should have from 1 to {MAX_TEXTS} texts, and has {}", documents.len());
        return Err(ApiError::field("documents", why));
    }
    // The query is tokenized once, however many documents there are.
    let query = info.inputs.first(&query, cut).map_err(|why| input_error("query", &why))?;
    let pair = |(i, text): (usize, &String)| {
        query.with(text).map_err(|why| input_error(&format!("documents[{i}]"), &why))
    };
    let inputs =
        documents.iter().enumerate().map(|each| pair(each).map(Item::Text)).collect::<Result<_, _>>()?;
    Ok(RerankRequest { inputs, documents: shown.then_some(documents), top_n, model })
}

/// A document: a text, or an object with `text`.
fn document(path: String, value: Value) -> Result<String, ApiError> {
    if !value.is_object() {
        return text(path, value);
    }
    let mut fields = Fields::within(path, value)?;
    let path = fields.path("text");
    let text = fields.text("text")?.ok_or_else(|| ApiError::field(&*path, format!("{path} is missing")))?;
    fields.finish()?;
    Ok(text)
}
