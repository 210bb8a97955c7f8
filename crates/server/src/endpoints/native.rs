//! llama-server's own endpoints: `/completion`, `/infill`, `/apply-template`, `/props`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};
use tallow_text::tokenizer::Around;

use crate::body::read_json;
use crate::errors::{ApiError, respond};
use crate::generation::params::Generation;
use crate::generation::prompt::{Messages, tokens_between, tokens_of_text};
use crate::generation::protocol::Protocol;
use crate::generation::run::{Job, Prompt, run};
use crate::http::guard::Caller;
use crate::parse::fields::{Fields, MAX_TOKENS, text, token_ids, wrong};
use crate::state::Server;

/// Most files beside the one that is filled in.
const MAX_FILES: usize = 256;

/// Fields of `/infill`: the prefix, the suffix, and other files.
type Infill = (String, String, Vec<(String, String)>);

/// Takes the fields that both endpoints share.
fn generation(fields: &mut Fields) -> Result<Generation, ApiError> {
    let mut generation = Generation::take(fields)?;
    generation.max_tokens = fields.integer("max_tokens", 0..=MAX_TOKENS)?.map(|n| n as usize);
    if generation.max_tokens == Some(0) {
        return Err(ApiError::field("n_predict", "n_predict is 0, which leaves nothing to do"));
    }
    if generation.n != 1 {
        return Err(ApiError::field("n", "there is one answer; leave n out"));
    }
    Ok(generation)
}

fn infill_request(fields: &mut Fields) -> Result<Infill, ApiError> {
    let prefix = fields.text("input_prefix")?.unwrap_or_default();
    let suffix = fields.text("input_suffix")?.unwrap_or_default();
    // What stands on the line of the cursor.
    let line = fields.text("prompt")?.unwrap_or_default();
    let files = fields.list("input_extra", |path, value| {
        let mut file = Fields::within(path, value)?;
        let (name, text) = (file.text("filename")?.unwrap_or_default(), file.needed("text")?);
        // When it was looked at.
        file.take("time");
        file.finish()?;
        Ok((name, text))
    })?;
    let files = files.unwrap_or_default();
    if files.len() > MAX_FILES {
        let why = format!("input_extra should have at most {MAX_FILES} files, and has {}", files.len());
        return Err(ApiError::field("input_extra", why));
    }
    // Limits of the time that an editor waits.
    for name in ["t_max_prompt_ms", "t_max_predict_ms"] {
        fields.take(name);
    }
    Ok((prefix + &line, suffix, files))
}

fn job(server: &Server, ids: Vec<u32>, is_text: bool, generation: Generation) -> Result<Job, ApiError> {
    let adapter = generation.select_adapter(&server.model.handle)?;
    let room = server.model.handle.info().context.saturating_sub(ids.len());
    let max_new = generation.max_new_tokens(server.model.max_tokens, room);
    let prompt = Prompt { ids, echo: None, is_text };
    Job::new(server, generation, Protocol::Native, vec![prompt], max_new, adapter)
}

pub(crate) async fn completion(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&request);
    let job = read_json(&server, request).await?.process(&server, move |server, body| {
        let mut fields = Fields::body(&body)?;
        drop(body);
        let prompt = fields.take("prompt");
        let mut generation = generation(&mut fields)?;
        fields.finish()?;
        generation.separate_cache(caller);
        let info = server.model.handle.info();
        let (ids, is_text) = match prompt {
            None => return Err(ApiError::field("prompt", "prompt is missing")),
            Some(Value::String(text)) => {
                (tokens_of_text("prompt", &text, Around::Added, (&info.tokenizer, info.context))?, true)
            }
            Some(Value::Array(ids)) => (token_ids("prompt", ids)?, false),
            Some(other) => return Err(wrong("prompt".into(), "text or tokens", &other)),
        };
        job(server, ids, is_text, generation)
    });
    run(&server, job.await?).await
}

pub(crate) async fn infill(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&request);
    let job = read_json(&server, request).await?.process(&server, move |server, body| {
        let mut fields = Fields::body(&body)?;
        drop(body);
        let (prefix, suffix, files) = infill_request(&mut fields)?;
        let mut generation = generation(&mut fields)?;
        fields.finish()?;
        generation.separate_cache(caller);
        let info = server.model.handle.info();
        let bounds = (&info.tokenizer, info.context);
        let ids = tokens_between("input_suffix", (&prefix, &suffix), &files, bounds)?;
        job(server, ids, true, generation)
    });
    run(&server, job.await?).await
}

pub(crate) async fn apply_template(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, ApiError> {
    let prompt = read_json(&server, request).await?.process(&server, |server, body| {
        let mut fields = Fields::body(&body)?;
        drop(body);
        let messages = Messages::take(&mut fields)?;
        let path = fields.path("model");
        fields.take("model").map(|model| text(path, model)).transpose()?;
        fields.finish()?;
        messages.text(server)
    });
    respond(&json!({"prompt": prompt.await?}))
}

pub(crate) async fn props(State(server): State<Arc<Server>>) -> Result<Response, ApiError> {
    let info = server.model.handle.info();
    let sampling = &info.sampling;
    let template = server.model.template(false).map(|template| template.source());
    respond(&json!({
        "default_generation_settings": {
            "n_ctx": info.context,
            "params": {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "typ_p": sampling.typical_p,
                "repeat_penalty": sampling.repetition_penalty,
                "presence_penalty": sampling.presence_penalty,
                "frequency_penalty": sampling.frequency_penalty,
                "n_predict": server.model.max_tokens.map_or(-1, |n| n as i64),
            },
        },
        "total_slots": info.slots,
        "model_alias": info.names.first(),
        "chat_template": template.unwrap_or_default(),
        "modalities": {"vision": false, "audio": false},
        "build_info": concat!("tallow-", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
    }))
}
