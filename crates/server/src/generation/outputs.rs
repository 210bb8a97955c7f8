//! Outputs of a request: the parts of its choices as they arrive, and the totals over all.

use std::time::Duration;

use tallow_engine::handle::{Done, Finish};
use tallow_text::reasoning::Piece;

/// An update of one choice.
#[derive(Debug)]
pub(crate) struct ChoiceEvent {
    /// Index of the choice.
    pub(crate) index: usize,
    /// More of its text.
    pub(crate) part: Option<AnswerPart>,
    /// Finish reason, on the last event.
    pub(crate) end: Option<Finish>,
    /// Prefill progress.
    pub(crate) progress: Option<StreamProgress>,
}

/// Prefill progress of a prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamProgress {
    /// Prompt tokens in the KV cache, those from the prefix cache included.
    pub(crate) computed: usize,
    pub(crate) cached: usize,
    pub(crate) total: usize,
    /// Time since its prefill began.
    pub(crate) took: Duration,
}

/// A piece of text, with its tokens if log-probabilities were requested.
#[derive(Debug, Default)]
pub(crate) struct AnswerPart {
    /// Reasoning text.
    pub(crate) reasoning: String,
    pub(crate) text: String,
    pub(crate) tokens: Vec<Token>,
}

/// A token with its log-probability.
#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) bytes: Vec<u8>,
    /// `None` for the first token of a prompt.
    pub(crate) logprob: Option<f32>,
    pub(crate) top: Vec<(Vec<u8>, f32)>,
    /// Text offset in characters.
    pub(crate) offset: usize,
}

/// Token counts and times over all choices.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Prompt tokens, each prompt counted once.
    pub(crate) prompt: usize,
    /// Prompt tokens from the prefix cache.
    pub(crate) cached: usize,
    pub(crate) new: usize,
    /// Of `new`, tokens of reasoning, where that can be told.
    pub(crate) reasoning: Option<usize>,
    /// Prompt tokens computed, and taken from the prefix cache, over all choices.
    pub(crate) prompt_computed: usize,
    pub(crate) prompt_reused: usize,
    /// Tokens of the longest choice.
    pub(crate) longest: usize,
    /// Tokens after the first of each choice.
    pub(crate) later: usize,
    /// Longest time of any choice.
    pub(crate) queue: Duration,
    pub(crate) prefill: Duration,
    pub(crate) decode: Duration,
}

/// `finish_reason` of an answer.
pub(crate) fn finish_reason(end: &Finish) -> &'static str {
    match end {
        Finish::End | Finish::Stop(_) => "stop",
        Finish::Length => "length",
    }
}

impl AnswerPart {
    pub(crate) fn is_some(&self) -> bool {
        !(self.reasoning.is_empty() && self.text.is_empty() && self.tokens.is_empty())
    }

    pub(crate) fn add(&mut self, pieces: Vec<Piece>, reasoning_is_sent: bool) {
        for piece in pieces {
            match piece {
                Piece::Answer(text) => self.text += &text,
                Piece::Reasoning(text) if reasoning_is_sent => self.reasoning += &text,
                Piece::Reasoning(_) => {}
            }
        }
    }
}

impl Totals {
    pub(crate) fn add(&mut self, done: &Done, first: bool) {
        if first {
            self.prompt += done.prompt_tokens;
            self.cached += done.cached_tokens;
        }
        self.new += done.new_tokens;
        self.longest = self.longest.max(done.new_tokens);
        self.prompt_reused += done.cached_tokens;
        self.prompt_computed += done.prompt_tokens.saturating_sub(done.cached_tokens);
        self.later += done.new_tokens.saturating_sub(1);
        self.queue = self.queue.max(done.timings.queue);
        self.prefill = self.prefill.max(done.timings.prefill);
        self.decode = self.decode.max(done.timings.decode);
    }
}
