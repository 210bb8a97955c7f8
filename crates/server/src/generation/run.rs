//! [`Job`]: a checked generation request, submitted to the engine and answered.

use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;
use axum::response::Response;
use tallow_constraint::Grammar;
use tallow_engine::handle::{Info, Request, Unread};
use tallow_engine::lora::LoraRef;
use tallow_engine::scheduler::ClientId;
use tallow_text::answer_tokens::{AnswerRecord, longest_prompt};
use tallow_text::tokenizer::Shown;

use crate::access::Notes;
use crate::constraint::{ReasoningPart, constraint};
use crate::errors::{ApiError, json};
use crate::generation::answers::{Answers, Echo, FollowedChoice};
use crate::generation::memory::{AnswerMemory, TextClaim};
use crate::generation::outputs::AnswerPart;
use crate::generation::params::{Generation, unknown_token};
use crate::generation::prompt::Messages;
use crate::generation::protocol::Protocol;
use crate::generation::stream::{KEEP_ALIVE, stream};
use crate::generation::structure::Structure;
use crate::generation::writer::{Answer, AnswerWriter, CompleteChoice};
use crate::http::guard::Caller;
use crate::request_context::RequestContext;
use crate::state::Server;

/// A tokenized prompt.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    /// Text of the prompt, where the answer echoes it.
    pub(crate) echo: Option<String>,
    /// True if it is all text, for which other tokens would do as well: not tokens that the caller gave, nor tokens that
    /// stand for an image.
    pub(crate) is_text: bool,
}

/// Generation requests that were checked against the model.
#[derive(Debug)]
pub(crate) struct Job {
    protocol: Protocol,
    generation: Generation,
    choices: Vec<ChoiceRequest>,
    /// Grammar of the answers and the reasoning in front of them, for receipts.
    held_to: (Option<Grammar>, Option<ReasoningPart>),
    /// True if a space in front of an answer is its tokenizer's, and not in the text that its structure allows.
    space_first: bool,
}

/// A request of one choice, with its echo and the record of its answer.
#[derive(Debug)]
struct ChoiceRequest {
    request: Request,
    echo: Option<Echo>,
    record: Option<AnswerRecord>,
}

impl Job {
    /// Checks prompts against the model's limits. `max_new` is clamped to what the context leaves.
    pub(crate) fn new(
        server: &Server,
        generation: Generation,
        protocol: Protocol,
        prompts: Vec<Prompt>,
        max_new: usize,
        adapter: Option<LoraRef>,
    ) -> Result<Job, ApiError> {
        let info = server.model.handle.info();
        let param = protocol.prompt_field();
        let (wanted, capacity) = (prompts.len() * generation.n, info.slots + info.queue);
        if wanted > capacity {
            let why = format!("{wanted} answers were asked for, and this server has room for {capacity}");
            return Err(ApiError::field(if prompts.len() > 1 { param } else { "n" }, why));
        }
        if let Some(Structure { path, .. }) = generation.structure.as_ref().filter(|_| generation.ignore_end)
        {
            let why = format!("ignore_eos goes on when the answer is complete, which {path} does not allow");
            return Err(ApiError::field("ignore_eos", why));
        }
        let compiled =
            generation.structure.as_ref().map(|structure| structure.compiled(server)).transpose()?;
        let space_first = compiled.as_ref().is_some_and(|compiled| compiled.space_first());
        let mut reasoning = generation.parts.as_ref().and_then(|parts| parts.before.clone());
        if let Some(structure) = generation.structure.as_ref().filter(|s| s.covers_reasoning) {
            if reasoning.as_ref().is_some_and(|reasoning| reasoning.limit.is_some()) {
                let why = "calls of this model are constrained together with its reasoning, which has no limit then";
                return Err(ApiError::field(&*structure.path, format!("{}: {why}", structure.path)));
            }
            reasoning = None;
        }
        let grammar = generation.structure.as_ref().map(|structure| &structure.grammar);
        let is_held = grammar.is_some() || reasoning.as_ref().is_some_and(|part| part.limit.is_some());
        let held_to = match server.model.receipts.is_some() && is_held {
            true => (grammar.cloned(), reasoning.clone()),
            false => (None, None),
        };
        let matcher = compiled.map(|compiled| compiled.matcher());
        let constraint = constraint(matcher, reasoning, (&info.tokenizer, info.vocab));
        let wants_tokens = generation.logprobs.is_some();
        let (mut choices, scope) = (Vec::new(), generation.cache_scope(adapter));
        for prompt in prompts {
            let Prompt { ids, echo, is_text } = prompt;
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
            // What is echoed is what was sent.
            let scope = scope.as_deref().filter(|_| is_text && echo.is_none());
            let (ids, record) = match scope {
                Some(scope) => with_earlier_answers(server, scope, ids, max_new),
                None => (ids, None),
            };
            let score_prompt = echo.is_some() && wants_tokens;
            let echo = echo.map(|text| Echo { text, first: wants_tokens.then_some(first) });
            let max_new = max_new.min(info.context - ids.len());
            let same = generation.requests(&ids, max_new, score_prompt, adapter, info);
            choices.extend(same.map(|request| ChoiceRequest {
                request: Request { constraint: constraint.clone(), ..request },
                echo: echo.clone(),
                record: record.clone(),
            }));
        }
        Ok(Job { protocol, generation, choices, held_to, space_first })
    }
}

impl Job {
    /// A chat's job: its template makes it text, the tokenizer makes that tokens.
    pub(crate) fn chat(
        server: &Server,
        messages: &Messages,
        mut generation: Generation,
        protocol: Protocol,
        caller: Caller,
    ) -> Result<Job, ApiError> {
        let info = server.model.handle.info();
        let adapter = generation.select_adapter(&server.model.handle)?;
        let ids = messages.tokens(server)?;
        let room = info.context.saturating_sub(ids.len());
        let max_new = generation.max_new_tokens(server.model.max_tokens, room);
        generation.separate_cache(caller);
        generation.parts = messages.output_parts(&server.model, &ids)?;
        generation.structure = messages.structure(&server.model, generation.structure.take())?;
        let prompt = Prompt { ids, echo: None, is_text: true };
        Job::new(server, generation, protocol, vec![prompt], max_new, adapter)
    }
}

/// A prompt with the tokens of earlier answers as they were generated, which are in the prefix cache, and a record for
/// its own answer.
fn with_earlier_answers(
    server: &Server,
    scope: &str,
    ids: Vec<u32>,
    max_new: usize,
) -> (Vec<u32>, Option<AnswerRecord>) {
    let Info { context, tokenizer, .. } = server.model.handle.info();
    let most = longest_prompt(ids.len(), max_new, *context);
    let reused = server.answer_tokens.reuse(scope, ids, most, tokenizer);
    server.metrics.reused(reused.changed);
    (reused.ids, Some(reused.record))
}

/// Submits a job and answers it. Dropping the future aborts it.
pub(crate) async fn run(server: &Arc<Server>, job: Job) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let Job { protocol, generation, choices: mut requests, held_to, space_first } = job;
    let (choices, wants_tokens) = (requests.len(), generation.logprobs.is_some());
    let (handle, notes) = (&server.model.handle, Notes::current());
    let first = requests.first().map(|choice| &choice.request);
    let (max_new, adapter) = first.map_or((0, None), |request| (request.max_new, request.adapter));
    let id = protocol.answer_id(&notes.answer_id());
    let adapters = handle.loras();
    notes.note(|noted| {
        noted.completion = Some(id.clone());
        noted.model = handle.info().names.first().cloned();
        noted.adapter =
            adapter.and_then(|lora| Some(adapters.iter().find(|a| a.lora.id == lora.id)?.name.clone()));
    });
    let ctx = RequestContext::current();
    let prompt_tokens = requests.iter().step_by(generation.n).map(|choice| choice.request.prompt.len()).sum();
    let mut alone: Vec<&mut Request> = requests.iter_mut().map(|choice| &mut choice.request).collect();
    let memory = AnswerMemory::of(&alone);
    if let Some(ctx) = &ctx {
        ctx.claim.settle(memory.bytes());
        memory.for_logprobs(&generation, &mut alone, server, ctx).await?;
    }
    let mut followed = Vec::new();
    let client = ctx.as_ref().map_or_else(ClientId::default, |ctx| ctx.client);
    for (index, ChoiceRequest { request, echo, record }) in requests.into_iter().enumerate() {
        let request = Request { client, ..request };
        let tokenizer = &server.model.handle.info().tokenizer;
        let offsets = wants_tokens.then(|| tokenizer.stream_after(&request.prompt, Shown::Text));
        let receipts = server.model.receipts.as_ref();
        let receipt = receipts.map(|all| all.begin((&id, index), &request, held_to.clone(), handle));
        // If one is refused, those submitted before it are dropped here, which aborts them.
        let unread = ctx.clone().map(|ctx| ctx as Arc<dyn Unread>);
        let events = handle.submit_counted(request, unread);
        let events = events.map_err(|failure| ApiError::engine(failure, handle.is_alive()))?;
        let parts = generation.parts.clone();
        let first = index % generation.n == 0;
        followed.push(FollowedChoice { events, echo, record, receipt, offsets, parts, space_first, first });
    }
    server.metrics.taken(choices, max_new);
    let mut answers = Answers::new(server, followed, wants_tokens, begun);
    let names = &handle.info().names;
    let writer = protocol.writer(Answer {
        id,
        created: crate::clock::unix_time(),
        model: generation.model.or_else(|| names.first().cloned()).unwrap_or_default(),
        choices,
        prompt_tokens,
        wants_tokens,
        include_usage: generation.include_usage,
    });
    let text_claim = TextClaim::new(ctx.filter(|_| generation.stream || !wants_tokens), memory.bytes());
    if generation.stream {
        // What fails at once can still have an HTTP status of its own.
        answers.wait(KEEP_ALIVE).await?;
        return Ok(stream(answers, writer, text_claim));
    }
    collect(answers, writer, choices, text_claim).await
}

/// Waits for the whole of an answer that is not streamed.
async fn collect(
    mut answers: Answers,
    mut writer: Box<dyn AnswerWriter>,
    choices: usize,
    mut text_claim: TextClaim,
) -> Result<Response, ApiError> {
    let mut choices: Vec<CompleteChoice> = (0..choices).map(|_| CompleteChoice::default()).collect();
    while let Some(update) = answers.next().await {
        let update = update?;
        let choice = &mut choices[update.index];
        let part = update.part.unwrap_or_default();
        text_claim.add(part.text_bytes());
        let AnswerPart { reasoning, text, calls, tokens } = part;
        choice.part.reasoning += &reasoning;
        choice.part.text += &text;
        choice.part.calls.extend(calls);
        choice.part.tokens.extend(tokens);
        choice.end = update.end.unwrap_or_default();
    }
    Ok(json(StatusCode::OK, writer.complete(choices, answers.totals())))
}
