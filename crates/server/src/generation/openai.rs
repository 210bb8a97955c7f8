//! [`OpenAi`]: chat completions and completions of OpenAI's API, whole or in chunks.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::errors::ApiError;
use crate::generation::outputs::{AnswerPart, Call, ChoiceEvent, End, StreamProgress, Token, Totals};
use crate::generation::writer::{Answer, AnswerWriter, CompleteChoice, data};

/// Log-probability that OpenAI's servers report for virtually impossible tokens; JSON has no infinity.
const IMPOSSIBLE: f32 = -9999.0;
const FINGERPRINT: &str = concat!("tallow-", env!("CARGO_PKG_VERSION"));

/// The endpoint whose form is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Chat,
    Completion,
}

/// Writes chat completions or completions.
#[derive(Debug)]
pub(crate) struct OpenAi {
    pub(crate) shape: Shape,
    pub(crate) answer: Answer,
}

#[derive(Serialize)]
struct Body<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: Vec<Choice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<PromptProgress>,
}

/// Prefill progress, in the format of llama.cpp's server.
#[derive(Serialize)]
struct PromptProgress {
    total: usize,
    cache: usize,
    processed: usize,
    time_ms: u64,
}

#[derive(Default, Serialize)]
struct Choice<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Delta<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    /// `null` if there are only calls.
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WrittenCall<'a>>,
    refusal: Option<()>,
    /// Sources of the text, of which there are none.
    annotations: [(); 0],
}

#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WrittenCall<'a>>,
}

/// A tool call; chunks say which one it is.
#[derive(Serialize)]
struct WrittenCall<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    id: &'a str,
    r#type: &'static str,
    function: CalledFunction<'a>,
}

#[derive(Serialize)]
struct CalledFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Logprobs {
    Chat {
        content: Vec<Scored>,
        refusal: Option<()>,
    },
    Completion {
        tokens: Vec<String>,
        token_logprobs: Vec<Option<f32>>,
        top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
        text_offset: Vec<usize>,
    },
}

/// A token with its log-probability.
#[derive(Serialize)]
pub(crate) struct Scored {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<Scored>>,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

#[derive(Serialize)]
struct CompletionDetails {
    reasoning_tokens: usize,
}

/// Timings of a request; the longest of each where it has several choices.
#[derive(Serialize)]
pub(crate) struct Timings {
    queue_ms: f64,
    cache_n: usize,
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_second: f64,
}

impl Shape {
    fn object(self, chunk: bool) -> &'static str {
        match (self, chunk) {
            (Shape::Chat, true) => "chat.completion.chunk",
            (Shape::Chat, false) => "chat.completion",
            (Shape::Completion, _) => "text_completion",
        }
    }
}

impl AnswerWriter for OpenAi {
    fn complete(&mut self, choices: Vec<CompleteChoice>, totals: &Totals) -> String {
        let complete = choices.iter().enumerate().map(|(index, choice)| self.complete_choice(index, choice));
        let body = Body {
            usage: Some(Some(totals.usage())),
            timings: Some(totals.timings()),
            ..self.body(complete.collect(), false)
        };
        text(&body)
    }

    fn begin(&mut self, out: &mut String) {
        for index in 0..self.answer.choices {
            if let Some(first) = self.first_chunk(index) {
                data(out, &first);
            }
        }
    }

    fn update(&mut self, event: ChoiceEvent, totals: Option<&Totals>, out: &mut String) {
        let ChoiceEvent { index, part, end, progress } = event;
        if let Some(progress) = progress {
            data(out, &self.progress(index, &progress));
        }
        if let Some(part) = part {
            data(out, &self.part(index, &part));
        }
        if let Some(end) = end {
            // With a chunk for the usage, the timings are there.
            let totals = totals.filter(|_| !self.answer.include_usage);
            data(out, &self.last_chunk(index, &end, totals));
        }
    }

    fn finish(&mut self, totals: &Totals, out: &mut String) {
        if self.answer.include_usage {
            data(out, &self.usage(totals));
        }
        data(out, "[DONE]");
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        data(out, &error.json());
    }
}

impl OpenAi {
    fn complete_choice<'a>(&self, index: usize, complete: &'a CompleteChoice) -> Choice<'a> {
        let content = &*complete.part.text;
        let choice = Choice {
            index,
            logprobs: self.answer.wants_tokens.then(|| self.logprobs(&complete.part.tokens)),
            finish_reason: Some(complete.end.finish_reason()),
            ..Choice::default()
        };
        match self.shape {
            Shape::Chat => {
                let tool_calls = written(&complete.part.calls, false);
                let message = Message {
                    role: "assistant",
                    content: Some(content).filter(|text| !text.is_empty() || tool_calls.is_empty()),
                    reasoning_content: non_empty(&complete.part.reasoning),
                    tool_calls,
                    refusal: None,
                    annotations: [],
                };
                Choice { message: Some(message), ..choice }
            }
            Shape::Completion => Choice { text: Some(content), ..choice },
        }
    }

    /// First chunk of a choice (chat only).
    fn first_chunk(&self, index: usize) -> Option<String> {
        let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
        let choice = Choice { index, delta: Some(delta), ..Choice::default() };
        (self.shape == Shape::Chat).then(|| text(&self.body(vec![choice], true)))
    }

    /// Chunk with more of a choice.
    fn part(&self, index: usize, part: &AnswerPart) -> String {
        let logprobs = self.answer.wants_tokens.then(|| self.logprobs(&part.tokens));
        let choice = Choice { index, logprobs, ..Choice::default() };
        let choice = match self.shape {
            Shape::Chat => {
                let reasoning_content = non_empty(&part.reasoning);
                let tool_calls = written(&part.calls, true);
                // A chunk of reasoning or calls alone has no `content`.
                let is_alone = reasoning_content.is_none() && tool_calls.is_empty();
                let content = non_empty(&part.text).or(is_alone.then_some(""));
                Choice { delta: Some(Delta { role: None, reasoning_content, content, tool_calls }), ..choice }
            }
            Shape::Completion => Choice { text: Some(&part.text), ..choice },
        };
        text(&self.body(vec![choice], true))
    }

    /// Chunk with prefill progress and nothing of the answer.
    fn progress(&self, index: usize, progress: &StreamProgress) -> String {
        let StreamProgress { computed: processed, cached: cache, total, took } = *progress;
        let progress = PromptProgress { total, cache, processed, time_ms: took.as_millis() as u64 };
        let choice = match self.shape {
            Shape::Chat => Choice { index, delta: Some(Delta::default()), ..Choice::default() },
            Shape::Completion => Choice { index, text: Some(""), ..Choice::default() },
        };
        text(&Body { prompt_progress: Some(progress), ..self.body(vec![choice], true) })
    }

    /// Chunk that ends a choice. `totals` is set for the last choice, which gets the timings.
    fn last_chunk(&self, index: usize, end: &End, totals: Option<&Totals>) -> String {
        let choice = Choice { index, finish_reason: Some(end.finish_reason()), ..Choice::default() };
        let choice = match self.shape {
            Shape::Chat => Choice { delta: Some(Delta::default()), ..choice },
            Shape::Completion => Choice { text: Some(""), ..choice },
        };
        let timings = totals.map(Totals::timings);
        text(&Body { timings, ..self.body(vec![choice], true) })
    }

    /// Usage chunk after the last choice.
    fn usage(&self, totals: &Totals) -> String {
        let (usage, timings) = (Some(Some(totals.usage())), Some(totals.timings()));
        text(&Body { usage, timings, ..self.body(Vec::new(), true) })
    }

    fn body<'a>(&'a self, choices: Vec<Choice<'a>>, chunk: bool) -> Body<'a> {
        Body {
            id: &self.answer.id,
            object: self.shape.object(chunk),
            created: self.answer.created,
            model: &self.answer.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage: self.answer.include_usage.then_some(None),
            timings: None,
            prompt_progress: None,
        }
    }

    fn logprobs(&self, tokens: &[Token]) -> Logprobs {
        match self.shape {
            Shape::Chat => Logprobs::Chat { content: tokens.iter().map(scored).collect(), refusal: None },
            Shape::Completion => Logprobs::Completion {
                tokens: tokens.iter().map(|t| lossy(&t.bytes)).collect(),
                token_logprobs: tokens.iter().map(|t| t.logprob.map(finite)).collect(),
                top_logprobs: tokens.iter().map(top).collect(),
                text_offset: tokens.iter().map(|t| t.offset).collect(),
            },
        }
    }
}

impl Totals {
    fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt,
            completion_tokens: self.new,
            total_tokens: self.prompt + self.new,
            prompt_tokens_details: PromptDetails { cached_tokens: self.cached },
            completion_tokens_details: self
                .reasoning
                .map(|reasoning_tokens| CompletionDetails { reasoning_tokens }),
        }
    }

    pub(crate) fn timings(&self) -> Timings {
        let rate = |n: usize, time: std::time::Duration| match time.as_secs_f64() {
            0.0 => 0.0,
            seconds => n as f64 / seconds,
        };
        Timings {
            queue_ms: self.queue.as_secs_f64() * 1e3,
            cache_n: self.prompt_reused,
            prompt_n: self.prompt_computed,
            prompt_ms: self.prefill.as_secs_f64() * 1e3,
            prompt_per_second: rate(self.prompt_computed, self.prefill),
            predicted_n: self.new,
            predicted_ms: self.decode.as_secs_f64() * 1e3,
            predicted_per_second: rate(self.later, self.decode),
        }
    }
}

/// A chat token with its top log-probabilities.
pub(crate) fn scored(token: &Token) -> Scored {
    let each = |bytes: &Vec<u8>, logprob: f32, top| Scored {
        token: lossy(bytes),
        logprob: finite(logprob),
        bytes: bytes.clone(),
        top_logprobs: top,
    };
    let top = token.top.iter().map(|(bytes, logprob)| each(bytes, *logprob, None)).collect();
    each(&token.bytes, token.logprob.unwrap_or(0.0), Some(top))
}

/// Top log-probabilities and the chosen token's, by text. Of tokens with the same text the likeliest is kept.
fn top(token: &Token) -> Option<BTreeMap<String, f32>> {
    let chosen = (lossy(&token.bytes), finite(token.logprob?));
    let mut all = BTreeMap::new();
    for (bytes, logprob) in &token.top {
        all.entry(lossy(bytes)).or_insert(finite(*logprob));
    }
    all.entry(chosen.0).or_insert(chosen.1);
    Some(all)
}

/// Tool calls, with their indices in chunks.
fn written(calls: &[Call], is_chunk: bool) -> Vec<WrittenCall<'_>> {
    calls.iter().map(|call| call.written(is_chunk)).collect()
}

impl Call {
    fn written(&self, is_chunk: bool) -> WrittenCall<'_> {
        let Call { index, id, name, arguments } = self;
        let index = is_chunk.then_some(*index);
        WrittenCall { index, id, r#type: "function", function: CalledFunction { name, arguments } }
    }
}

fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn finite(logprob: f32) -> f32 {
    logprob.max(IMPOSSIBLE)
}

/// Serializes a body. Serialization of these types cannot fail.
fn text(body: &Body<'_>) -> String {
    serde_json::to_string(body).unwrap_or_default()
}
