//! JSON of answers, whole or in chunks.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::generation::outputs::{AnswerPart, Call, StreamProgress, Token, Totals};

/// Log-probability that OpenAI's servers report for virtually impossible tokens; JSON has no infinity.
const IMPOSSIBLE: f32 = -9999.0;
const FINGERPRINT: &str = concat!("tallow-", env!("CARGO_PKG_VERSION"));

/// The endpoint whose format is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseShape {
    Chat,
    Completion,
}

/// Fields that all chunks of an answer share.
#[derive(Debug)]
pub(crate) struct Envelope {
    pub(crate) shape: ResponseShape,
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) wants_tokens: bool,
    /// True if a last chunk reports the usage.
    pub(crate) include_usage: bool,
}

/// A complete choice.
#[derive(Debug, Default)]
pub(crate) struct CompleteChoice {
    pub(crate) part: AnswerPart,
    pub(crate) finish: &'static str,
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

#[derive(Serialize)]
struct Scored {
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
struct Timings {
    queue_ms: f64,
    cache_n: usize,
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_second: f64,
}

impl ResponseShape {
    fn object(self, chunk: bool) -> &'static str {
        match (self, chunk) {
            (ResponseShape::Chat, true) => "chat.completion.chunk",
            (ResponseShape::Chat, false) => "chat.completion",
            (ResponseShape::Completion, _) => "text_completion",
        }
    }

    pub(crate) fn prefix(self) -> &'static str {
        match self {
            ResponseShape::Chat => "chatcmpl-",
            ResponseShape::Completion => "cmpl-",
        }
    }
}

impl Envelope {
    /// The whole answer, not streamed.
    pub(crate) fn complete(&self, choices: &[CompleteChoice], totals: &Totals) -> String {
        let choices = choices
            .iter()
            .enumerate()
            .map(|(index, complete)| self.complete_choice(index, complete))
            .collect();
        let body = Body {
            usage: Some(Some(totals.usage())),
            timings: Some(totals.timings()),
            ..self.body(choices, false)
        };
        text(&body)
    }

    fn complete_choice<'a>(&self, index: usize, complete: &'a CompleteChoice) -> Choice<'a> {
        let content = &*complete.part.text;
        let choice = Choice {
            index,
            logprobs: self.wants_tokens.then(|| self.logprobs(&complete.part.tokens)),
            finish_reason: Some(complete.finish),
            ..Choice::default()
        };
        match self.shape {
            ResponseShape::Chat => {
                let tool_calls = written(&complete.part.calls, false);
                let message = Message {
                    role: "assistant",
                    content: Some(content).filter(|text| !text.is_empty() || tool_calls.is_empty()),
                    reasoning_content: non_empty(&complete.part.reasoning),
                    tool_calls,
                    refusal: None,
                };
                Choice { message: Some(message), ..choice }
            }
            ResponseShape::Completion => Choice { text: Some(content), ..choice },
        }
    }

    /// First chunk of a choice (chat only).
    pub(crate) fn begin(&self, index: usize) -> Option<String> {
        let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
        let choice = Choice { index, delta: Some(delta), ..Choice::default() };
        (self.shape == ResponseShape::Chat).then(|| text(&self.body(vec![choice], true)))
    }

    /// Chunk with more of a choice.
    pub(crate) fn part(&self, index: usize, part: &AnswerPart) -> String {
        let logprobs = self.wants_tokens.then(|| self.logprobs(&part.tokens));
        let choice = Choice { index, logprobs, ..Choice::default() };
        let choice = match self.shape {
            ResponseShape::Chat => {
                let reasoning_content = non_empty(&part.reasoning);
                let tool_calls = written(&part.calls, true);
                // A chunk of reasoning or calls alone has no `content`.
                let is_alone = reasoning_content.is_none() && tool_calls.is_empty();
                let content = non_empty(&part.text).or(is_alone.then_some(""));
                Choice { delta: Some(Delta { role: None, reasoning_content, content, tool_calls }), ..choice }
            }
            ResponseShape::Completion => Choice { text: Some(&part.text), ..choice },
        };
        text(&self.body(vec![choice], true))
    }

    /// Chunk with prefill progress and nothing of the answer.
    pub(crate) fn progress(&self, index: usize, progress: &StreamProgress) -> String {
        let StreamProgress { computed: processed, cached: cache, total, took } = *progress;
        let progress = PromptProgress { total, cache, processed, time_ms: took.as_millis() as u64 };
        let choice = match self.shape {
            ResponseShape::Chat => Choice { index, delta: Some(Delta::default()), ..Choice::default() },
            ResponseShape::Completion => Choice { index, text: Some(""), ..Choice::default() },
        };
        text(&Body { prompt_progress: Some(progress), ..self.body(vec![choice], true) })
    }

    /// Chunk that ends a choice. `totals` is set for the last choice, which gets the timings.
    pub(crate) fn end(&self, index: usize, end: &'static str, totals: Option<&Totals>) -> String {
        let choice = Choice { index, finish_reason: Some(end), ..Choice::default() };
        let choice = match self.shape {
            ResponseShape::Chat => Choice { delta: Some(Delta::default()), ..choice },
            ResponseShape::Completion => Choice { text: Some(""), ..choice },
        };
        let timings = totals.map(Totals::timings);
        text(&Body { timings, ..self.body(vec![choice], true) })
    }

    /// Usage chunk after the last choice, if it was requested.
    pub(crate) fn usage(&self, totals: &Totals) -> Option<String> {
        let (usage, timings) = (Some(Some(totals.usage())), Some(totals.timings()));
        self.include_usage.then(|| text(&Body { usage, timings, ..self.body(Vec::new(), true) }))
    }

    fn body<'a>(&'a self, choices: Vec<Choice<'a>>, chunk: bool) -> Body<'a> {
        Body {
            id: &self.id,
            object: self.shape.object(chunk),
            created: self.created,
            model: &self.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage: self.include_usage.then_some(None),
            timings: None,
            prompt_progress: None,
        }
    }

    fn logprobs(&self, tokens: &[Token]) -> Logprobs {
        match self.shape {
            ResponseShape::Chat => {
                Logprobs::Chat { content: tokens.iter().map(scored).collect(), refusal: None }
            }
            ResponseShape::Completion => Logprobs::Completion {
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

    fn timings(&self) -> Timings {
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
fn scored(token: &Token) -> Scored {
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
