//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::Value;

use crate::body::read_json;
use crate::errors::ApiError;
use crate::generation::params::Generation;
use crate::generation::prompt::Messages;
use crate::generation::protocol::Protocol;
use crate::generation::run::{Job, run};
use crate::http::guard::Caller;
use crate::parse::fields::{Fields, MAX_TOKENS};
use crate::state::Server;

/// Request for a chat completion.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    pub(crate) messages: Messages,
    pub(crate) generation: Generation,
}

/// Parses the body of a chat completion request and checks all that can be checked without the model.
///
/// `user`, `safety_identifier`, `prompt_cache_key` and `metadata` are accepted and ignored. Fields of features that are
/// not implemented yet are accepted where their value means "off", and refused otherwise.
pub fn parse_chat_request(body: &[u8]) -> Result<ChatRequest, ApiError> {
    let mut fields = Fields::body(body)?;
    let mut generation = Generation::take(&mut fields)?;
    let messages = Messages::take(&mut fields)?;
    generation.max_tokens = max_tokens(&mut fields)?;
    generation.logprobs = logprobs(&mut fields)?;
    refuse_unsupported(&mut fields)?;
    fields.finish()?;
    Ok(ChatRequest { messages, generation })
}

/// `max_completion_tokens`, or the older `max_tokens`.
fn max_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let old = fields.integer("max_tokens", 1..=MAX_TOKENS)?;
    let new = fields.integer("max_completion_tokens", 1..=MAX_TOKENS)?;
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        let why = format!("max_tokens is {old} and max_completion_tokens is {new}; give one of them");
        return Err(ApiError::field("max_tokens", why));
    }
    Ok(new.or(old).map(|n| n as usize))
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=20)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::field("top_logprobs", "top_logprobs needs logprobs to be true")),
    }
}

/// Refuses features that are not implemented yet, unless they are switched off.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    let never = |_: &Value| false;
    const STORE: &str = "answers are not stored here; leave it out";
    fields.only_off("modalities", |v| *v == serde_json::json!(["text"]))?;
    fields.only("store", |v| *v == false, STORE)?;
    fields.only("verbosity", |v| *v == "medium", "say in the system prompt how long answers should be")?;
    // A predicted output is only a speedup elsewhere and does not change the answer.
    fields.only("prediction", Value::is_object, "it should be an object; or leave it out")?;
    for name in ["audio", "web_search_options", "moderation", "prompt_cache_options"] {
        fields.only_off(name, never)?;
    }
    fields.only("prompt", never, "give messages, or POST to /v1/completions")?;
    fields.only("suffix", |v| *v == "", "POST to /v1/completions")?;
    fields.only("echo", |v| *v == false, "POST to /v1/completions")?;
    fields.only("best_of", |v| *v == 1, "ask for n answers with logprobs, and take the best")?;
    fields.only("add_special_tokens", |v| *v == false, "the chat template writes them")?;
    Ok(())
}

pub(crate) async fn chat(State(server): State<Arc<Server>>, request: Request) -> Result<Response, ApiError> {
    let caller = Caller::of(&request);
    let body = read_json(&server, request).await?;
    let job = body.process(&server, move |server, body| job(server, body, caller)).await?;
    run(&server, job).await
}

/// Parses a body and makes its messages a prompt.
fn job(server: &Server, body: Vec<u8>, caller: Caller) -> Result<Job, ApiError> {
    // Journey, stop 2: the chat. Its template makes it text, the tokenizer makes that tokens, and the engine gets those.
    let ChatRequest { messages, generation } = parse_chat_request(&body)?;
    drop(body);
    Job::chat(server, &messages, generation, Protocol::Chat, caller)
}
