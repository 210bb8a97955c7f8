//! [`Job`]: a checked generation request, submitted to the engine and answered.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;
use axum::response::Response;
use tallow_engine::handle::{Info, Request, Unread};
use tallow_engine::lora::LoraRef;
use tallow_engine::scheduler::ClientId;
use tallow_text::tokenizer::Shown;

use crate::access::Notes;
use crate::answers::{Answers, Echo, Followed, Part};
use crate::errors::{ApiError, json};
use crate::generation::{Generation, unknown_token};
use crate::request_context::RequestContext;
use crate::state::Server;
use crate::stream::{SILENCE, stream};
use crate::wire::{Envelope, Form, Whole, finish_reason};

/// Bytes of one token with its log-probability, up to and including its JSON: measured.
const TOKEN: usize = 512;
/// Bytes of each of its top log-probabilities.
const LIKELY_TOKEN: usize = 320;
/// One answer's log-probabilities may take 1 / `SHARE` of the memory budget.
const SHARE: usize = 4;
/// An answer's text is accounted in steps of this many bytes.
const STEP: usize = 64 << 10;

/// A tokenized prompt, with its text where the answer echoes it.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    pub(crate) echo: Option<String>,
}

/// Generation requests that were checked against the model.
#[derive(Debug)]
pub(crate) struct Job {
    form: Form,
    generation: Generation,
    requests: Vec<(Request, Option<Echo>)>,
}

impl Job {
    /// Checks prompts against the model's limits. `max_new` is clamped to what the context leaves.
    pub(crate) fn new(
        generation: Generation,
        form: Form,
        prompts: Vec<Prompt>,
        max_new: usize,
        (adapter, info): (Option<LoraRef>, &Info),
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

/// Submits a job and answers it. Dropping the future aborts it.
pub(crate) async fn run(server: &Arc<Server>, job: Job) -> Result<Response, ApiError> {
    let (begun, Job { form, generation, mut requests }) = (Instant::now(), job);
    let (choices, wants_tokens) = (requests.len(), generation.logprobs.is_some());
    let (handle, notes) = (&server.model.handle, Notes::current());
    let (max_new, worn) = requests.first().map_or((0, None), |(r, _)| (r.max_new, r.adapter));
    let id = format!("{}{}", form.prefix(), notes.answer_id());
    let adapters = handle.loras();
    notes.note(|noted| {
        noted.completion = Some(id.clone());
        noted.model = handle.info().names.first().cloned();
        noted.adapter = worn.and_then(|w| Some(adapters.iter().find(|a| a.lora.id == w.id)?.name.clone()));
    });
    let visit = RequestContext::current();
    let room = AnswerMemory::of(&requests);
    if let Some(visit) = &visit {
        visit.claim.settle(room.bytes());
        room.for_logprobs(&generation, &mut requests, server, visit).await?;
    }
    let mut followed = Vec::new();
    let client = visit.as_ref().map_or_else(ClientId::default, |visit| visit.client);
    for (index, (request, echo)) in requests.into_iter().enumerate() {
        let request = Request { client, ..request };
        let tokenizer = &server.model.handle.info().tokenizer;
        let places = wants_tokens.then(|| tokenizer.stream_after(&request.prompt, Shown::Text));
        // If one is refused, those submitted before it are dropped here, which aborts them.
        let unread = visit.clone().map(|visit| visit as Arc<dyn Unread>);
        let events = handle.submit_counted(request, unread);
        let events = events.map_err(|failure| ApiError::engine(failure, handle.is_alive()))?;
        let reasoned = generation.reasoned.clone();
        followed.push(Followed { events, echo, places, reasoned, first: index % generation.n == 0 });
    }
    server.metrics.taken(choices, max_new);
    let mut answers = Answers::new(server, followed, wants_tokens, begun);
    let names = &handle.info().names;
    let envelope = Envelope {
        form,
        id,
        created: crate::prompt::unix_time(),
        model: generation.model.or_else(|| names.first().cloned()).unwrap_or_default(),
        wants_tokens,
        include_usage: generation.include_usage,
    };
    if generation.stream {
        // What fails at once can still have an HTTP status of its own.
        answers.wait(SILENCE).await?;
        return Ok(stream(answers, envelope, choices));
    }
    let mut wholes: Vec<Whole> = (0..choices).map(|_| Whole::default()).collect();
    let mut counted =
        Counted { visit: visit.filter(|_| !wants_tokens), base: room.bytes(), text: 0, known: 0 };
    while let Some(told) = answers.next().await {
        let told = told?;
        let whole = &mut wholes[told.index];
        let Part { reasoning, text, tokens } = told.part.unwrap_or_default();
        whole.part.reasoning += &reasoning;
        whole.part.text += &text;
        counted.add(reasoning.len() + text.len());
        whole.part.tokens.extend(tokens);
        whole.finish = told.end.as_ref().map_or(whole.finish, finish_reason);
    }
    Ok(json(StatusCode::OK, envelope.whole(&wholes, answers.totals())))
}

/// Memory of a job's requests.
struct AnswerMemory {
    requests: usize,
    prompts: usize,
}

impl AnswerMemory {
    fn of(requests: &[(Request, Option<Echo>)]) -> AnswerMemory {
        let prompts = requests.iter().map(|(request, _)| request.prompt.len()).sum();
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
        requests: &mut [(Request, Option<Echo>)],
        server: &Server,
        visit: &RequestContext,
    ) -> Result<(), ApiError> {
        let Some(top) = generation.logprobs.filter(|_| !generation.stream) else { return Ok(()) };
        let each = TOKEN + (top + 1) * LIKELY_TOKEN;
        let most = (server.budget.most() / SHARE / each).saturating_sub(self.scored(requests));
        let wanted: usize = requests.iter().map(|(request, _)| request.max_new).sum();
        if wanted > most {
            let one = most / requests.len().max(1);
            if generation.max_tokens.is_some() || one == 0 {
                let why = format!(
                    "an answer of {wanted} tokens, each with the log-probabilities of {top} more, takes too much memory as a \
                     whole; there is room for {most}: ask for fewer tokens, n or top_logprobs, or for a stream"
                );
                return Err(ApiError::field("max_tokens", why).code("request_too_large"));
            }
            requests.iter_mut().for_each(|(request, _)| request.max_new = request.max_new.min(one));
        }
        visit.claim.grow((wanted.min(most) + self.scored(requests)) * each).await
    }

    /// Prompt tokens that are echoed with log-probabilities.
    fn scored(&self, requests: &[(Request, Option<Echo>)]) -> usize {
        requests
            .iter()
            .filter(|(request, _)| request.score_prompt)
            .map(|(request, _)| request.prompt.len())
            .sum()
    }
}

/// Accounts the text of an answer that is collected.
struct Counted {
    visit: Option<Arc<RequestContext>>,
    base: usize,
    text: usize,
    known: usize,
}

impl Counted {
    fn add(&mut self, bytes: usize) {
        self.text += bytes;
        if let Some(visit) = self.visit.as_ref().filter(|_| self.text >= self.known + STEP) {
            self.known = self.text;
            // A growing `String` takes up to twice its length, and so does its JSON.
            visit.claim.settle(self.base + 4 * self.text);
        }
    }
}

/// A random id, unique among requests.
pub(crate) fn unique() -> String {
    // Each `RandomState` has its own keys, and the first ones are random.
    let half = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", half(), half())
}
