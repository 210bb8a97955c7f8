//! Outputs of a request: the parts of its choices as they arrive, and the totals over all.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tallow_engine::handle::{Done, Finish};
use tallow_text::output::{Event, ToolCall};

/// Characters of a call's id.
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// An update of one choice.
#[derive(Debug)]
pub(crate) struct ChoiceEvent {
    /// Index of the choice.
    pub(crate) index: usize,
    /// More of its text.
    pub(crate) part: Option<AnswerPart>,
    /// Its end, on the last event.
    pub(crate) end: Option<End>,
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
    /// Tool calls.
    pub(crate) calls: Vec<Call>,
    pub(crate) tokens: Vec<Token>,
}

/// A tool call of a choice.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Index among those of the choice.
    pub(crate) index: usize,
    pub(crate) id: String,
    pub(crate) name: String,
    /// Text of a JSON object.
    pub(crate) arguments: String,
}

impl Call {
    /// An id is made where the model writes none: of letters and digits, nine of them, as some templates demand.
    pub(crate) fn new(index: usize, call: ToolCall) -> Call {
        let ToolCall { id, name, arguments } = call;
        let made = || {
            let mut left = RandomState::new().hash_one((index, &name));
            let letters = std::iter::from_fn(|| {
                let letter = LETTERS[(left % LETTERS.len() as u64) as usize];
                left /= LETTERS.len() as u64;
                Some(char::from(letter))
            });
            letters.take(9).collect()
        };
        Call { index, id: id.unwrap_or_else(made), name, arguments }
    }
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

/// The end of a choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum End {
    /// The model has ended it.
    #[default]
    Complete,
    /// A stop string of the request has.
    Stopped(String),
    /// It has called tools.
    Called,
    /// There was no room for more.
    Length,
}

impl End {
    /// The end of an answer, which may have called tools.
    pub(crate) fn new(finish: &Finish, has_called: bool) -> End {
        match finish {
            Finish::End | Finish::Stop(_) if has_called => End::Called,
            Finish::End => End::Complete,
            Finish::Stop(stop) => End::Stopped(stop.clone()),
            Finish::Length => End::Length,
        }
    }

    /// OpenAI's `finish_reason`, which logs and metrics also have.
    pub(crate) fn finish_reason(&self) -> &'static str {
        match self {
            End::Called => "tool_calls",
            End::Complete | End::Stopped(_) => "stop",
            End::Length => "length",
        }
    }
}

impl AnswerPart {
    pub(crate) fn is_some(&self) -> bool {
        !(self.reasoning.is_empty()
            && self.text.is_empty()
            && self.calls.is_empty()
            && self.tokens.is_empty())
    }

    /// Bytes of its text, reasoning and calls.
    pub(crate) fn text_bytes(&self) -> usize {
        let arguments: usize = self.calls.iter().map(|call| call.arguments.len()).sum();
        self.reasoning.len() + self.text.len() + arguments
    }

    /// Adds what a parser gives, as far as it is sent. `calls` counts the tool calls of the choice.
    pub(crate) fn add(&mut self, events: Vec<Event>, reasoning_is_sent: bool, calls: &mut usize) {
        for event in events {
            match event {
                Event::Content(text) => self.text += &text,
                Event::Reasoning(text) if reasoning_is_sent => self.reasoning += &text,
                Event::Reasoning(_) => {}
                Event::Call(call) => {
                    self.calls.push(Call::new(*calls, call));
                    *calls += 1;
                }
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
