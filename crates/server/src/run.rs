//! [`Job`]: something to generate, handed in and answered.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use tallow_engine::adapters::Worn;
use tallow_engine::handle::{Info, Request};
use tallow_models::tokenizer::Shown;

use crate::answers::{Answers, Echo, Followed, Part};
use crate::errors::{ApiError, json};
use crate::generation::{Generation, unknown_token};
use crate::state::Server;
use crate::stream::{SILENCE, stream};
use crate::wire::{Envelope, Form, Whole, finish_reason};

/// A prompt, and its text where that is to be part of the answer.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    pub(crate) echo: Option<String>,
}

/// Something to generate that the model can do.
#[derive(Debug)]
pub(crate) struct Job {
    form: Form,
    generation: Generation,
    requests: Vec<(Request, Option<Echo>)>,
}

impl Job {
    /// Checks prompts against the model's limits. An answer of `max_new` tokens ends where the context does.
    pub(crate) fn new(
        generation: Generation,
        form: Form,
        prompts: Vec<Prompt>,
        max_new: usize,
        (adapter, info): (Option<Worn>, &Info),
    ) -> Result<Job, ApiError> {
        let param = if form == Form::Chat { "messages" } else { "prompt" };
        let (choices, places) = (prompts.len() * generation.n, info.slots + info.queue);
        if choices > places {
            let why = format!("{choices} answers were asked for, and this server has room for {places}");
            return Err(ApiError::field(if prompts.len() > 1 { param } else { "n" }, why));
        }
        let wants_tokens = generation.logprobs.is_some();
        let mut requests = Vec::new();
        for prompt in prompts {
            let Prompt { ids, echo } = prompt;
            let first = *ids.first().ok_or_else(|| {
                ApiError::field(
                    param,
                    format!("{param}: the prompt is empty; there is nothing to go on from"),
                )
            })?;
            if ids.len() + usize::from(max_new > 0) > info.context || ids.len() > info.context {
                return Err(ApiError::too_long(param, ids.len(), info.context));
            }
            if let Some(id) = ids.iter().find(|id| **id as usize >= info.vocab) {
                return Err(unknown_token(param.into(), *id, info.vocab));
            }
            let score_prompt = echo.is_some() && wants_tokens;
            let echo = echo.map(|text| Echo { text, first: wants_tokens.then_some(first) });
            let max_new = max_new.min(info.context - ids.len());
            let same = generation.requests(&ids, max_new, score_prompt, adapter, info);
            requests.extend(same.map(|request| (request, echo.clone())));
        }
        Ok(Job { form, generation, requests })
    }
}

/// Hands in a job and answers it. Whoever stops waiting for this ends it.
pub(crate) async fn run(server: &Arc<Server>, job: Job) -> Result<Response, ApiError> {
    let Job { form, generation, requests } = job;
    let (choices, wants_tokens) = (requests.len(), generation.logprobs.is_some());
    let mut followed = Vec::new();
    for (index, (request, echo)) in requests.into_iter().enumerate() {
        let tokenizer = &server.model.handle.info().tokenizer;
        let places = wants_tokens.then(|| tokenizer.stream_after(&request.prompt, Shown::Text));
        // If one is refused, those before it are dropped here, which ends them.
        let events = server.model.handle.submit(request);
        let events = events.map_err(|failure| ApiError::engine(failure, server.model.handle.is_alive()))?;
        followed.push(Followed { events, echo, places, first: index % generation.n == 0 });
    }
    let mut answers = Answers::new(server, followed, wants_tokens);
    let names = &server.model.handle.info().names;
    let envelope = Envelope {
        form,
        id: format!("{}{}", form.prefix(), unique()),
        created: crate::prompt::unix_time(),
        model: generation.model.or_else(|| names.first().cloned()).unwrap_or_default(),
        wants_tokens,
        include_usage: generation.include_usage,
    };
    if generation.stream {
        // What fails at once can still have a status of its own.
        answers.wait(SILENCE).await?;
        return Ok(stream(answers, envelope, choices));
    }
    let mut wholes: Vec<Whole> = (0..choices).map(|_| Whole::default()).collect();
    while let Some(told) = answers.next().await {
        let told = told?;
        let whole = &mut wholes[told.index];
        let Part { text, tokens } = told.part.unwrap_or_default();
        whole.part.text += &text;
        whole.part.tokens.extend(tokens);
        whole.finish = told.end.as_ref().map_or(whole.finish, finish_reason);
    }
    Ok(json(StatusCode::OK, envelope.whole(&wholes, answers.totals())))
}

/// A name that no other request has.
pub(crate) fn unique() -> String {
    // Each state has keys of its own, and the first ones are random.
    let half = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", half(), half())
}
