//! [`Active`]: an accepted request, and the events that it is sent.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tallow_text::tokenizer::Tokenizer;

use crate::answer::{Answer, TextStep};
use crate::encoder_input::EncoderInput;
use crate::handle::{Done, Event, Finish, Listener, Request, Timings};
use crate::lora::LoraId;
use crate::runner::{Outcome, SampleInput};
use crate::sampler::{Choice, Sampler};

/// An accepted request.
pub(super) struct Active {
    prompt: Vec<u32>,
    /// Encoder input: encoded again if the sequence is preempted and its pages are evicted.
    input: Option<Arc<EncoderInput>>,
    sampler: Sampler,
    answer: Answer,
    pub(super) adapter: Option<LoraId>,
    scored: usize,
    /// Prompt tokens already reported; `None` if prefill progress is not requested.
    reported: Option<usize>,
    new_tokens: usize,
    cached: Option<usize>,
    pub(super) submitted: Instant,
    pub(super) started: Option<Instant>,
    first: Option<Instant>,
    pub(super) listener: Listener,
}

impl Active {
    /// `sampler`: of the request's sampling parameters.
    pub(super) fn new(
        request: Request,
        sampler: Sampler,
        tokenizer: Tokenizer,
        listener: Listener,
    ) -> Active {
        let (stops, stop_tokens) = (request.stops, request.stop_tokens);
        Active {
            sampler,
            answer: Answer::new(tokenizer, &request.prompt, stops, stop_tokens, request.ignore_end)
                .showing(request.shown),
            prompt: request.prompt,
            input: request.input,
            adapter: request.adapter.map(|lora| lora.id),
            scored: 0,
            reported: request.progress.then_some(0),
            new_tokens: 0,
            cached: None,
            submitted: Instant::now(),
            started: None,
            first: None,
            listener,
        }
    }

    /// Prompt tokens.
    pub(super) fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// Generated tokens that it was told.
    pub(super) fn new_tokens(&self) -> usize {
        self.new_tokens
    }

    /// The fields that the runner needs.
    pub(super) fn asked(&self) -> SampleInput<'_> {
        SampleInput { sampler: &self.sampler, prompt: &self.prompt, input: self.input.as_deref() }
    }

    /// The tokens that its constraint forces to come next, as far as that is known by now.
    pub(super) fn forced(&self) -> Vec<u32> {
        self.sampler.forced()
    }

    /// Its first step is run. `cached`: prompt tokens found in the prefix cache.
    pub(super) fn start(&mut self, cached: Option<usize>) {
        self.started = Some(Instant::now());
        self.cached = cached;
        self.listener.tell(Event::Started { cached: cached.unwrap_or(0) });
    }

    /// Records a step's sampled tokens, for the draws after them. Returns whether one of them ends the answer.
    pub(super) fn accept(&mut self, next: &[Choice]) -> bool {
        if !next.is_empty() {
            self.first.get_or_insert_with(Instant::now);
        }
        let ends = next.iter().any(|choice| {
            self.sampler.accept(choice.token);
            self.answer.ends_at(choice.token)
        });
        if !ends {
            self.sampler.prepare();
        }
        ends
    }

    /// Sends the events of a step with some of its tokens. Returns why the answer ends, if it does.
    pub(super) fn tell(&mut self, tokens: Range<usize>, outcome: Outcome) -> Option<Finish> {
        self.report(tokens.end);
        // A recomputed sequence scores its prompt again; only what is new is sent.
        let known = self.scored.saturating_sub(tokens.start).min(outcome.prompt.len());
        if outcome.prompt.len() > known {
            self.scored = tokens.start + outcome.prompt.len();
            self.listener.tell(Event::Prompt(outcome.prompt[known..].to_vec()));
        }
        for choice in outcome.next {
            self.new_tokens += 1;
            match self.answer.push(choice.token) {
                TextStep::More(text) => self.listener.tell(Event::Piece { text, choice }),
                TextStep::Stop(text, stop) => {
                    self.listener.tell(Event::Piece { text, choice });
                    return Some(Finish::Stop(stop));
                }
                TextStep::End => return Some(Finish::End),
            }
        }
        None
    }

    /// Reports prefill progress, if requested. A recomputed sequence reports only what is new.
    fn report(&mut self, computed: usize) {
        let (total, cached) = (self.prompt.len(), self.cached.unwrap_or(0));
        let computed = computed.min(total);
        if let Some(reported) = self.reported.as_mut().filter(|reported| **reported < computed) {
            *reported = computed;
            self.listener.tell(Event::Prefill { computed, cached, total });
        }
    }

    /// Ends it with the rest of the answer.
    pub(super) fn done(mut self, reason: Finish) {
        let text = if matches!(reason, Finish::Stop(_)) { String::new() } else { self.answer.rest() };
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let first = self.first.unwrap_or(now);
        let timings =
            Timings { queue: started - self.submitted, prefill: first - started, decode: now - first };
        let (prompt, cached, new) = (self.prompt.len(), self.cached.unwrap_or(0), self.new_tokens);
        tracing::debug!(
            "{prompt} prompt tokens, {cached} of them cached, and {new} new ones: \
             waited {:?}, prefill {:?}, decode {:?}; ended by {reason:?}",
            timings.queue,
            timings.prefill,
            timings.decode
        );
        self.listener.tell(Event::Done(Done {
            text,
            reason,
            prompt_tokens: self.prompt.len(),
            cached_tokens: self.cached.unwrap_or(0),
            new_tokens: self.new_tokens,
            timings,
        }));
    }
}
