//! [`Answers`]: engine events of a request's choices, merged in order of arrival into [`ChoiceEvent`]s.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tallow_engine::handle::{Event, Failure, Finish};
use tallow_engine::sampler::Choice;
use tallow_text::answer_tokens::AnswerRecord;
use tallow_text::tokenizer::{Detokenizer, Shown, Tokenizer};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::access::Notes;
use crate::errors::ApiError;
use crate::generation::outputs::{AnswerPart, ChoiceEvent, End, StreamProgress, Token, Totals};
use crate::generation::thinking::OutputParts;
use crate::receipts::ReceiptDraft;
use crate::request_context::RequestContext;
use crate::state::{ActiveRequest, Server};

/// A prompt that the answer echoes.
#[derive(Clone, Debug)]
pub(crate) struct Echo {
    pub(crate) text: String,
    /// Its first token, if log-probabilities were requested.
    pub(crate) first: Option<u32>,
}

/// A submitted choice.
#[derive(Debug)]
pub(crate) struct FollowedChoice {
    pub(crate) events: UnboundedReceiver<Event>,
    /// The prompt, where the answer echoes it.
    pub(crate) echo: Option<Echo>,
    /// Takes the answer's tokens, for prompts that send its text back.
    pub(crate) record: Option<AnswerRecord>,
    /// Its receipt, if one is written.
    pub(crate) receipt: Option<ReceiptDraft>,
    /// Decodes the answer's tokens to find their text offsets, if log-probabilities were requested.
    pub(crate) offsets: Option<Detokenizer>,
    /// Divides its text, if the model's template shows how it writes it.
    pub(crate) parts: Option<OutputParts>,
    /// True if a space in front of it is left out.
    pub(crate) space_first: bool,
    /// True if it is the first choice of its prompt.
    pub(crate) first: bool,
}

/// The choices of one request. Dropping it aborts them.
pub(crate) struct Answers {
    active: ActiveRequest,
    notes: Notes,
    /// Accounts the bytes of unread events.
    ctx: Option<Arc<RequestContext>>,
    choices: Vec<ChoiceState>,
    /// Choice to poll first (round-robin).
    next: usize,
    peeked: Option<ChoiceEvent>,
    drain_over: Pin<Box<dyn Future<Output = ()> + Send>>,
    begun: Instant,
    wants_tokens: bool,
    totals: Totals,
}

struct ChoiceState {
    events: Option<UnboundedReceiver<Event>>,
    echo: Option<Echo>,
    record: Option<AnswerRecord>,
    receipt: Option<ReceiptDraft>,
    parts: Option<OutputParts>,
    /// True until text has come, if a space in front of it is left out.
    space_first: bool,
    /// Tool calls so far.
    calls: usize,
    /// Tokens of reasoning.
    reasoning_tokens: usize,
    is_first: bool,
    /// Scored tokens of the prompt.
    scored: Vec<Choice>,
    /// Tokens whose text has not been sent yet.
    pending: Vec<Choice>,
    offsets: Option<Detokenizer>,
    /// Characters decoded before the next token.
    offset: usize,
    /// Characters of the next token that are left out of the text.
    left_out: usize,
    started: Option<Instant>,
    last_token: Option<Instant>,
}

impl Answers {
    /// Follows choices that were submitted after `begun`.
    pub(crate) fn new(
        server: &Arc<Server>,
        followed: Vec<FollowedChoice>,
        wants_tokens: bool,
        begun: Instant,
    ) -> Answers {
        let following = |f: FollowedChoice| ChoiceState {
            events: Some(f.events),
            echo: f.echo,
            record: f.record,
            receipt: f.receipt,
            parts: f.parts,
            space_first: f.space_first,
            calls: 0,
            reasoning_tokens: 0,
            is_first: f.first,
            scored: Vec::new(),
            pending: Vec::new(),
            offsets: f.offsets,
            offset: 0,
            left_out: 0,
            started: None,
            last_token: None,
        };
        Answers {
            active: ActiveRequest::new(server),
            notes: Notes::current(),
            ctx: RequestContext::current(),
            choices: followed.into_iter().map(following).collect(),
            next: 0,
            peeked: None,
            drain_over: Box::pin(server.drain_over()),
            begun,
            wants_tokens,
            totals: Totals::default(),
        }
    }

    /// Totals; complete once all choices have ended.
    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// True if all choices have ended and every event was returned.
    pub(crate) fn ended(&self) -> bool {
        self.peeked.is_none() && self.choices.iter().all(|choice| choice.events.is_none())
    }

    /// Next event, or `None` once all choices have ended. Nothing follows an error.
    pub(crate) async fn next(&mut self) -> Option<Result<ChoiceEvent, ApiError>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Waits up to `patience` for the first event and keeps it. A failure until then comes before anything was sent.
    pub(crate) async fn wait(&mut self, patience: Duration) -> Result<(), ApiError> {
        if let Ok(Some(update)) = tokio::time::timeout(patience, self.next()).await {
            self.peeked = Some(update?);
        }
        Ok(())
    }

    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ChoiceEvent, ApiError>>> {
        if let Some(update) = self.peeked.take() {
            return Poll::Ready(Some(Ok(update)));
        }
        let mut silent = 0;
        while silent < self.choices.len() {
            let index = self.next % self.choices.len();
            self.next = index + 1;
            let Some(events) = &mut self.choices[index].events else {
                silent += 1;
                continue;
            };
            let event = match events.poll_recv(cx) {
                Poll::Pending => {
                    silent += 1;
                    continue;
                }
                Poll::Ready(Some(event)) => {
                    if let Some(ctx) = &self.ctx {
                        ctx.claim.release_unread(event.bytes());
                    }
                    event
                }
                Poll::Ready(None) => {
                    Event::Failed(Failure::Broken("the engine gave no end to the answer".into()))
                }
            };
            silent = 0;
            match self.take(index, event) {
                Ok(Some(update)) => return Poll::Ready(Some(Ok(update))),
                Ok(None) => {}
                Err(failure) => return Poll::Ready(Some(Err(self.fail(failure)))),
            }
        }
        if self.ended() {
            return Poll::Ready(None);
        }
        if self.drain_over.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(self.fail(Failure::ShuttingDown))));
        }
        Poll::Pending
    }

    /// Ends all choices because one has failed.
    fn fail(&mut self, failure: Failure) -> ApiError {
        let server = &self.active.0;
        for choice in &mut self.choices {
            if choice.events.take().is_some() {
                server.metrics.ended("error");
            }
        }
        let error = ApiError::engine(failure, server.model.handle.is_alive());
        self.notes.note(|noted| {
            noted.finish.push("error");
            noted.error = Some(error.to_string());
        });
        error
    }

    /// Writes a choice's end and the totals so far to the access log's notes.
    fn note(&self, finish: &'static str) {
        let totals = &self.totals;
        self.notes.note(|noted| {
            noted.finish.push(finish);
            noted.prompt_tokens = Some(totals.prompt);
            noted.cached_tokens = Some(totals.cached);
            noted.completion_tokens = Some(totals.new);
            noted.queue = Some(totals.queue);
        });
        if self.choices.iter().all(|choice| choice.events.is_none()) {
            self.active.0.metrics.all_done(totals.longest);
        }
    }

    fn take(&mut self, index: usize, event: Event) -> Result<Option<ChoiceEvent>, Failure> {
        let server = &self.active.0;
        let (choice, tokenizer) = (&mut self.choices[index], &server.model.handle.info().tokenizer);
        let update = |part| Ok(Some(ChoiceEvent { index, part, end: None, progress: None }));
        match event {
            Event::Started { .. } => {
                choice.started.get_or_insert_with(Instant::now);
                Ok(None)
            }
            Event::Prefill { computed, cached, total } => {
                let took = choice.started.map_or(Duration::ZERO, |started| started.elapsed());
                let progress = Some(StreamProgress { computed, cached, total, took });
                Ok(Some(ChoiceEvent { index, part: None, end: None, progress }))
            }
            Event::Prompt(scored) => {
                choice.scored.extend(scored);
                Ok(None)
            }
            Event::Piece { text, choice: token } => {
                let now = Instant::now();
                match choice.last_token.replace(now) {
                    None => {
                        server.metrics.first_token(now - self.begun);
                        self.notes.note(|noted| *noted.first_token.get_or_insert(now - self.begun));
                    }
                    Some(last) => server.metrics.next_token(now - last),
                }
                if let Some(record) = &mut choice.record {
                    record.push(token.token);
                }
                if let Some(receipt) = &mut choice.receipt {
                    receipt.push(token.token, &text);
                }
                if self.wants_tokens {
                    choice.pending.push(token);
                }
                let thinking = choice.is_thinking();
                let part = choice.part(&text, text.is_empty(), tokenizer);
                // Marks of reasoning count as reasoning.
                choice.reasoning_tokens += usize::from(thinking || choice.is_thinking());
                match part {
                    None => Ok(None),
                    part => update(part),
                }
            }
            Event::Done(done) => {
                choice.events = None;
                // It is kept before the client can send it back.
                choice.record = None;
                if let Some(receipt) = choice.receipt.take() {
                    receipt.end(&done);
                }
                // A stop string is not sent, and neither are tokens that consist of nothing else.
                let stopped = matches!(done.reason, Finish::Stop(_));
                let part = choice.part(&done.text, stopped, tokenizer);
                let part = choice.rest(part);
                self.totals.add(&done, choice.is_first);
                if choice.parts.as_ref().is_some_and(|parts| parts.counts) {
                    *self.totals.reasoning.get_or_insert(0) += choice.reasoning_tokens;
                }
                let end = End::new(&done.reason, choice.calls > 0);
                server.metrics.done(&done, end.finish_reason(), self.begun.elapsed());
                self.note(end.finish_reason());
                Ok(Some(ChoiceEvent { index, part, end: Some(end), progress: None }))
            }
            Event::Failed(failure) => Err(failure),
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        for choice in &self.choices {
            if choice.events.is_some() {
                self.active.0.metrics.ended("abort");
            }
        }
    }
}

impl ChoiceState {
    /// Next part of the text, with the echoed prompt in front of the first one. If they have to `wait`, tokens stay
    /// pending.
    fn part(&mut self, text: &str, wait: bool, tokenizer: &Tokenizer) -> Option<AnswerPart> {
        let mut part = AnswerPart::default();
        if let Some(echo) = self.echo.take() {
            part.text = echo.text;
            if let Some(first) = echo.first {
                self.prompt(first, &part.text, tokenizer, &mut part.tokens);
            }
        }
        self.push(text, &mut part);
        let tokens = if wait { Vec::new() } else { std::mem::take(&mut self.pending) };
        for choice in tokens {
            let waited = self.offsets.as_ref().map_or(0, Detokenizer::waiting);
            let written = self.offsets.as_mut().map_or(0, |offsets| chars_of(offsets, choice.token));
            let written = written.saturating_sub(std::mem::take(&mut self.left_out));
            part.tokens.push(self.token(choice, (waited, written), tokenizer));
        }
        part.is_some().then_some(part)
    }

    /// Appends text to a part, split into reasoning and answer.
    fn push(&mut self, text: &str, part: &mut AnswerPart) {
        let before = part.text.len();
        match &mut self.parts {
            None => part.text += text,
            Some(parts) => part.add(parts.parser.push(text), parts.is_sent, &mut self.calls),
        }
        self.leave_space_out(part, before);
    }

    /// Leaves a space out that a part has behind `before` bytes, if it is in front of the answer's text.
    fn leave_space_out(&mut self, part: &mut AnswerPart, before: usize) {
        if part.text.len() > before
            && std::mem::take(&mut self.space_first)
            && part.text[before..].starts_with(' ')
        {
            part.text.remove(before);
            // The answer's first token has written it.
            self.left_out = 1;
        }
    }

    fn is_thinking(&self) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.parser.is_reasoning())
    }

    /// The last part, with text that was held back because it could have been the start of a mark.
    fn rest(&mut self, last: Option<AnswerPart>) -> Option<AnswerPart> {
        let Some(parts) = &mut self.parts else { return last };
        let mut part = last.unwrap_or_default();
        let before = part.text.len();
        part.add(parts.parser.finish(), parts.is_sent, &mut self.calls);
        self.leave_space_out(&mut part, before);
        part.is_some().then_some(part)
    }

    /// Tokens of the echoed prompt, which is the beginning of the text.
    fn prompt(&mut self, first: u32, text: &str, tokenizer: &Tokenizer, tokens: &mut Vec<Token>) {
        let mut offsets = tokenizer.stream(Shown::All);
        let first = Choice { token: first, logprob: None, top: Vec::new() };
        for (at, choice) in std::iter::once(first).chain(std::mem::take(&mut self.scored)).enumerate() {
            // BOS stands before the text, and is only part of it if the prompt has it written out.
            let begins = at == 0 && tokenizer.bos() == Some(choice.token);
            let outside =
                begins && !tokenizer.token_text(choice.token).is_some_and(|bos| text.starts_with(bos));
            let waited = offsets.waiting();
            let written = if outside { 0 } else { chars_of(&mut offsets, choice.token) };
            tokens.push(self.token(choice, (waited, written), tokenizer));
        }
        self.offset = text.chars().count();
    }

    /// A token at the current offset. `waited`: characters buffered by the detokenizer before it; `written`: characters
    /// that it completes.
    fn token(&mut self, choice: Choice, (waited, written): (usize, usize), tokenizer: &Tokenizer) -> Token {
        let bytes = |id| tokenizer.token_bytes(id).unwrap_or_default();
        let top = choice.top.iter().map(|scored| (bytes(scored.token), scored.logprob)).collect();
        let offset = self.offset + waited;
        let token = Token { bytes: bytes(choice.token), logprob: choice.logprob, top, offset };
        self.offset += written;
        token
    }
}

/// Characters that a token completes.
fn chars_of(offsets: &mut Detokenizer, token: u32) -> usize {
    offsets.push(token).map_or(0, |text| text.chars().count())
}
