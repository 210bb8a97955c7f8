//! [`Job`]: a checked generation request, submitted to the engine and answered.

use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;
use axum::response::Response;
use tallow_engine::handle::{Info, Request, Unread};
use tallow_engine::lora::LoraRef;
use tallow_engine::scheduler::ClientId;
use tallow_text::answer_tokens::{AnswerRecord, longest_prompt};
use tallow_text::tokenizer::Shown;

use crate::access::Notes;
use crate::errors::{ApiError, json};
use crate::generation::answers::{Answers, Echo, FollowedChoice};
use crate::generation::constraint::constraint;
use crate::generation::outputs::AnswerPart;
use crate::generation::params::{Generation, unknown_token};
use crate::generation::stream::{KEEP_ALIVE, stream};
use crate::generation::structure::Structure;
use crate::generation::wire::{CompleteChoice, Envelope, ResponseShape};
use crate::request_context::RequestContext;
use crate::state::Server;

/// Bytes of one token with its log-probability, up to and including its JSON: measured.
const TOKEN: usize = 512;
/// Bytes of each of its top log-probabilities.
const LIKELY_TOKEN: usize = 320;
/// One answer's log-probabilities may take 1 / `SHARE` of the memory budget.
const SHARE: usize = 4;
/// An answer's text is accounted in steps of this many bytes.
const STEP: usize = 64 << 10;

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
    shape: ResponseShape,
    generation: Generation,
    choices: Vec<ChoiceRequest>,
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
        shape: ResponseShape,
        prompts: Vec<Prompt>,
        max_new: usize,
        adapter: Option<LoraRef>,
    ) -> Result<Job, ApiError> {
        let info = server.model.handle.info();
        let param = if shape == ResponseShape::Chat { "messages" } else { "prompt" };
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
        let constraint = compiled.map(|compiled| {
            let reasoning = generation.parts.as_ref().and_then(|parts| parts.before.clone());
            constraint(compiled.matcher(), reasoning, (&info.tokenizer, info.vocab))
        });
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
        Ok(Job { shape, generation, choices, space_first })
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
    let (begun, Job { shape, generation, choices: mut requests, space_first }) = (Instant::now(), job);
    let (choices, wants_tokens) = (requests.len(), generation.logprobs.is_some());
    let (handle, notes) = (&server.model.handle, Notes::current());
    let first = requests.first().map(|choice| &choice.request);
    let (max_new, adapter) = first.map_or((0, None), |request| (request.max_new, request.adapter));
    let id = format!("{}{}", shape.prefix(), notes.answer_id());
    let adapters = handle.loras();
    notes.note(|noted| {
        noted.completion = Some(id.clone());
        noted.model = handle.info().names.first().cloned();
        noted.adapter =
            adapter.and_then(|lora| Some(adapters.iter().find(|a| a.lora.id == lora.id)?.name.clone()));
    });
    let ctx = RequestContext::current();
    let memory = AnswerMemory::of(&requests);
    if let Some(ctx) = &ctx {
        ctx.claim.settle(memory.bytes());
        memory.for_logprobs(&generation, &mut requests, server, ctx).await?;
    }
    let mut followed = Vec::new();
    let client = ctx.as_ref().map_or_else(ClientId::default, |ctx| ctx.client);
    for (index, ChoiceRequest { request, echo, record }) in requests.into_iter().enumerate() {
        let request = Request { client, ..request };
        let tokenizer = &server.model.handle.info().tokenizer;
        let offsets = wants_tokens.then(|| tokenizer.stream_after(&request.prompt, Shown::Text));
        // If one is refused, those submitted before it are dropped here, which aborts them.
        let unread = ctx.clone().map(|ctx| ctx as Arc<dyn Unread>);
        let events = handle.submit_counted(request, unread);
        let events = events.map_err(|failure| ApiError::engine(failure, handle.is_alive()))?;
        let parts = generation.parts.clone();
        let first = index % generation.n == 0;
        followed.push(FollowedChoice { events, echo, record, offsets, parts, space_first, first });
    }
    server.metrics.taken(choices, max_new);
    let mut answers = Answers::new(server, followed, wants_tokens, begun);
    let names = &handle.info().names;
    let envelope = Envelope {
        shape,
        id,
        created: crate::clock::unix_time(),
        model: generation.model.or_else(|| names.first().cloned()).unwrap_or_default(),
        wants_tokens,
        include_usage: generation.include_usage,
    };
    if generation.stream {
        // What fails at once can still have an HTTP status of its own.
        answers.wait(KEEP_ALIVE).await?;
        return Ok(stream(answers, envelope, choices));
    }
    let text_claim =
        TextClaim { ctx: ctx.filter(|_| !wants_tokens), base: memory.bytes(), text: 0, claimed: 0 };
    collect(answers, &envelope, choices, text_claim).await
}

/// Waits for the whole of an answer that is not streamed.
async fn collect(
    mut answers: Answers,
    envelope: &Envelope,
    choices: usize,
    mut text_claim: TextClaim,
) -> Result<Response, ApiError> {
    let mut choices: Vec<CompleteChoice> = (0..choices).map(|_| CompleteChoice::default()).collect();
    while let Some(update) = answers.next().await {
        let update = update?;
        let choice = &mut choices[update.index];
        let AnswerPart { reasoning, text, calls, tokens } = update.part.unwrap_or_default();
        choice.part.reasoning += &reasoning;
        choice.part.text += &text;
        let arguments: usize = calls.iter().map(|call| call.arguments.len()).sum();
        text_claim.add(reasoning.len() + text.len() + arguments);
        choice.part.calls.extend(calls);
        choice.part.tokens.extend(tokens);
        choice.finish = update.end.unwrap_or(choice.finish);
    }
    Ok(json(StatusCode::OK, envelope.complete(&choices, answers.totals())))
}

/// Memory of a job's requests.
struct AnswerMemory {
    requests: usize,
    prompts: usize,
}

impl AnswerMemory {
    fn of(requests: &[ChoiceRequest]) -> AnswerMemory {
        let prompts = requests.iter().map(|choice| choice.request.prompt.len()).sum();
        AnswerMemory { requests: requests.len(), prompts }
    }

    /// Bytes of the requests and their prompts. The engine has copies.
    fn bytes(&self) -> usize {
        self.requests * 2 * size_of::<Request>() + self.prompts * 3 * size_of::<u32>()
    }

    /// Claims memory for the log-probabilities of an answer that is not streamed, which take far more than its text. If
    /// that is too much the request is refused, or its answer is shortened where the request sets no `max_tokens`.
    async fn for_logprobs(
        &self,
        generation: &Generation,
        requests: &mut [ChoiceRequest],
        server: &Server,
        ctx: &RequestContext,
    ) -> Result<(), ApiError> {
        let Some(top) = generation.logprobs.filter(|_| !generation.stream) else { return Ok(()) };
        let bytes_per_token = TOKEN + (top + 1) * LIKELY_TOKEN;
        let room = (server.budget.capacity() / SHARE / bytes_per_token).saturating_sub(self.scored(requests));
        let wanted: usize = requests.iter().map(|choice| choice.request.max_new).sum();
        if wanted > room {
            let one = room / requests.len().max(1);
            if generation.max_tokens.is_some() || one == 0 {
                let why = format!(
                    "an answer of {wanted} tokens, each with the log-probabilities of {top} more, takes too much memory as a \
                     whole; there is room for {room}: ask for fewer tokens, n or top_logprobs, or for a stream"
                );
                return Err(ApiError::field("max_tokens", why).code("request_too_large"));
            }
            requests.iter_mut().for_each(|ChoiceRequest { request, .. }| {
                request.max_new = request.max_new.min(one);
            });
        }
        ctx.claim.grow((wanted.min(room) + self.scored(requests)) * bytes_per_token).await
    }

    /// Number of prompt tokens that are echoed with log-probabilities.
    fn scored(&self, requests: &[ChoiceRequest]) -> usize {
        let requests = requests.iter().map(|choice| &choice.request);
        requests.filter(|request| request.score_prompt).map(|request| request.prompt.len()).sum()
    }
}

/// Accounts the text of an answer that is collected.
struct TextClaim {
    ctx: Option<Arc<RequestContext>>,
    base: usize,
    text: usize,
    claimed: usize,
}

impl TextClaim {
    fn add(&mut self, bytes: usize) {
        self.text += bytes;
        if let Some(ctx) = self.ctx.as_ref().filter(|_| self.text >= self.claimed + STEP) {
            self.claimed = self.text;
            // A growing `String` takes up to twice its length, and so does its JSON.
            ctx.claim.settle(self.base + 4 * self.text);
        }
    }
}
