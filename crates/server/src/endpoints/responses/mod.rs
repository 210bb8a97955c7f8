//! `/v1/responses`: OpenAI's Responses API.

mod request;

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use tallow_text::template::Ending;

use crate::body::read_json;
use crate::clock::unix_time;
use crate::errors::{ApiError, json as json_response, quoted, respond};
use crate::generation::items::messages_of;
use crate::generation::prompt::Messages;
use crate::generation::protocol::Protocol;
use crate::generation::responses::ResponseRequest;
use crate::generation::run::{Job, run};
use crate::http::guard::Caller;
use crate::registry::Registry;
use crate::request_context::RequestContext;
use crate::request_id::unique;
use crate::response_store::{Item, StoredResponse};
use crate::state::Server;

pub use request::parse_response_request;
use request::{ParsedResponse, parse};

/// Most items in an answer of `/v1/responses/{id}/input_items`.
const MAX_LISTED: usize = 100;

/// No such response, or not of this caller.
fn not_kept(id: &str) -> ApiError {
    let why = format!(
        "there is no response {}: it is kept unless store is false, and for a limited time",
        quoted(id)
    );
    ApiError::new(StatusCode::NOT_FOUND, why).code("response_not_found")
}

/// Makes a job of a request, which goes on from earlier ones.
fn prepare(
    server: &Server,
    parsed: ParsedResponse,
    caller: Caller,
) -> Result<(Job, ResponseRequest), ApiError> {
    let ParsedResponse { instructions, previous, input, tools, thinking, generation, values, .. } = parsed;
    let mut items = match &previous {
        None => Vec::new(),
        Some(id) => server.responses.conversation(id, caller).ok_or_else(|| not_kept(id))?,
    };
    items.extend(input.iter().cloned());
    let instructions = instructions.map(|text| json!({"role": "system", "content": text}));
    let messages = instructions.into_iter().chain(messages_of(&items)).collect();
    let messages = Messages::new(("input", messages), Ending::Prompt, values, thinking, tools)?;
    let mut echo = parsed.echo;
    let usual = &server.model.handle.info().sampling;
    for (name, value) in [("temperature", usual.temperature), ("top_p", usual.top_p)] {
        if echo[name].is_null() {
            // As many digits as it was given with.
            echo[name] = value.to_string().parse::<f64>().unwrap_or_default().into();
        }
    }
    let request = ResponseRequest {
        id: format!("resp_{}", unique()),
        echo,
        previous,
        input,
        caller,
        store: parsed.is_stored.then(|| server.responses.clone()),
        background: parsed.background,
    };
    let protocol = Protocol::Responses(Box::new(request.clone()));
    Ok((Job::chat(server, &messages, generation, protocol, caller)?, request))
}

pub(crate) async fn create(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&request);
    let body = read_json(&server, request).await?;
    let prepared = body.process(&server, move |server, body| {
        let parsed = parse(&body)?;
        drop(body);
        prepare(server, parsed, caller)
    });
    let (job, request) = prepared.await?;
    match request.background {
        false => run(&server, job).await,
        true => respond(&start(&server, job, request)),
    }
}

/// Starts a job that nobody waits for; returns the response as it is now.
fn start(server: &Arc<Server>, job: Job, request: ResponseRequest) -> Value {
    let created = unix_time();
    let model = server.model.handle.info().names.first().cloned();
    let response = request.response("in_progress", created, json!({"model": model}));
    let (kept, is_kept) = tokio::sync::oneshot::channel();
    let (id, stored) = (request.id.clone(), request.stored(response.to_string(), Vec::new()));
    let (of_task, ctx) = (server.clone(), RequestContext::current());
    let task = tokio::spawn(async move {
        // It is in the store before its answer.
        if is_kept.await.is_err() {
            return;
        }
        let work = async {
            if let Err(error) = run(&of_task, job).await {
                request.failed(created, &error);
            }
        };
        match ctx {
            Some(ctx) => ctx.scope(work).await,
            None => work.await,
        }
    });
    server.responses.insert(id, StoredResponse { running: Some(task.abort_handle()), ..stored });
    // The task waits for it.
    let _ = kept.send(());
    response
}

fn path_id(path: Result<Path<String>, PathRejection>) -> Result<String, ApiError> {
    path.map(|Path(id)| id).map_err(|e| ApiError::bad(e.body_text()))
}

pub(crate) async fn get(
    State(server): State<Arc<Registry>>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let (id, caller) = (path_id(path)?, Caller::of(&request));
    if query(&request, "stream") == Some("true") {
        return Err(ApiError::field(
            "stream",
            "a response that is kept is given as a whole; leave stream out",
        ));
    }
    let stored = server.responses.get(&id, caller).ok_or_else(|| not_kept(&id))?;
    Ok(json_response(StatusCode::OK, stored.json))
}

pub(crate) async fn delete(
    State(server): State<Arc<Registry>>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let (id, caller) = (path_id(path)?, Caller::of(&request));
    server.responses.remove(&id, caller).ok_or_else(|| not_kept(&id))?;
    respond(&json!({"id": id, "object": "response", "deleted": true}))
}

pub(crate) async fn cancel(
    State(server): State<Arc<Registry>>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let (id, caller) = (path_id(path)?, Caller::of(&request));
    let stored = server.responses.get(&id, caller).ok_or_else(|| not_kept(&id))?;
    let mut response: Value = serde_json::from_str(&stored.json).unwrap_or_default();
    if response["background"] != true {
        let why = "only responses in the background can be cancelled; close the connection of another one";
        return Err(ApiError::bad(why));
    }
    if let Some(running) = &stored.running {
        running.abort();
        response["status"] = "cancelled".into();
        let json = response.to_string();
        server.responses.replace_running(&id, StoredResponse { json, running: None, ..stored });
    }
    respond(&response)
}

pub(crate) async fn input_items(
    State(server): State<Arc<Registry>>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let (id, caller) = (path_id(path)?, Caller::of(&request));
    let stored = server.responses.get(&id, caller).ok_or_else(|| not_kept(&id))?;
    let of = id.strip_prefix("resp_").unwrap_or(&id);
    let with_id = |(i, item): (usize, &Item)| item.json(&item.id(of, &format!("_in{i}")), "completed");
    let mut items: Vec<Value> = stored.input.iter().enumerate().map(with_id).collect();
    match query(&request, "order") {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(_) => return Err(ApiError::field("order", "order should be asc or desc")),
    }
    if let Some(after) = query(&request, "after") {
        let at = items.iter().position(|item| item["id"] == after);
        let at = at.ok_or_else(|| ApiError::field("after", format!("there is no item {}", quoted(after))))?;
        items.drain(..=at);
    }
    let limit = match query(&request, "limit").map(str::parse::<usize>) {
        None => 20,
        Some(Ok(limit @ 1..=MAX_LISTED)) => limit,
        Some(_) => return Err(ApiError::field("limit", format!("limit should be from 1 to {MAX_LISTED}"))),
    };
    let has_more = items.len() > limit;
    items.truncate(limit);
    let end = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    let (first_id, last_id) = (end(items.first()), end(items.last()));
    respond(&json!({
        "object": "list", "data": items, "first_id": first_id, "last_id": last_id, "has_more": has_more,
    }))
}

/// A value of the request's query.
fn query<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    let pairs = request.uri().query().unwrap_or_default().split('&');
    pairs.filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
}
