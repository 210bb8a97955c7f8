//! [`Ollama`]: answers in the form of Ollama's API: JSON objects, one on each line of a stream.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::clock::rfc3339;
use crate::errors::{ApiError, ErrorForm};
use crate::generation::openai::{Scored, scored};
use crate::generation::outputs::{AnswerPart, Call, ChoiceEvent, End, Totals};
use crate::generation::writer::{Answer, AnswerWriter, CompleteChoice};

/// The endpoint whose form is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lines {
    Chat,
    Generate,
}

/// Writes the lines of an answer.
#[derive(Debug)]
pub(crate) struct Ollama {
    lines: Lines,
    answer: Answer,
}

#[derive(Serialize)]
struct Line<'a> {
    model: &'a str,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall<'a>>,
    done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<Scored>>,
    #[serde(flatten)]
    statistics: Option<Statistics>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall<'a>>,
}

#[derive(Serialize)]
struct ToolCall<'a> {
    id: &'a str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    index: usize,
    name: &'a str,
    arguments: &'a RawValue,
}

/// Token counts and times, in nanoseconds.
#[derive(Serialize)]
struct Statistics {
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
    prompt_eval_duration: u64,
    eval_count: usize,
    eval_duration: u64,
}

impl Statistics {
    fn of(totals: &Totals) -> Statistics {
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Statistics {
            total_duration: ns(totals.queue + totals.prefill + totals.decode),
            load_duration: 0,
            prompt_eval_count: totals.prompt,
            prompt_eval_duration: ns(totals.prefill),
            eval_count: totals.new,
            eval_duration: ns(totals.decode),
        }
    }
}

fn tool_call(call: &Call) -> ToolCall<'_> {
    let arguments = serde_json::from_str(&call.arguments).unwrap_or(RawValue::NULL);
    ToolCall { id: &call.id, function: Function { index: call.index, name: &call.name, arguments } }
}

/// The answer to a request that asks for nothing but that the model is loaded, which it is.
pub(crate) fn loaded(lines: Lines, model: String) -> String {
    let ollama = Ollama { lines, answer: Answer { model, ..Answer::default() } };
    ollama.line(&AnswerPart::default(), Some("load"), None)
}

impl Ollama {
    pub(crate) fn new(lines: Lines, answer: Answer) -> Ollama {
        Ollama { lines, answer }
    }

    /// A line; the last one has a reason to be that.
    fn line(&self, part: &AnswerPart, end: Option<&'static str>, totals: Option<&Totals>) -> String {
        let AnswerPart { reasoning, text, calls, tokens } = part;
        let thinking = Some(reasoning.as_str()).filter(|text| !text.is_empty());
        let tool_calls: Vec<ToolCall<'_>> = calls.iter().map(tool_call).collect();
        let wants_tokens = self.answer.wants_tokens && !tokens.is_empty();
        let line = Line {
            model: &self.answer.model,
            created_at: rfc3339(),
            message: None,
            response: None,
            thinking: None,
            tool_calls: Vec::new(),
            done: end.is_some(),
            done_reason: end,
            logprobs: wants_tokens.then(|| tokens.iter().map(scored).collect()),
            statistics: totals.map(Statistics::of),
        };
        let line = match self.lines {
            Lines::Chat => {
                let message = Message { role: "assistant", content: text, thinking, tool_calls };
                Line { message: Some(message), ..line }
            }
            Lines::Generate => Line { response: Some(text), thinking, tool_calls, ..line },
        };
        // Serialization of texts and numbers cannot fail.
        serde_json::to_string(&line).unwrap_or_default()
    }

    fn push(&self, out: &mut String, line: &str) {
        *out += line;
        *out += "\n";
    }
}

fn done_reason(end: &End) -> &'static str {
    match end {
        End::Complete | End::Stopped(_) | End::Called => "stop",
        End::Length => "length",
    }
}

impl AnswerWriter for Ollama {
    fn complete(&mut self, choices: Vec<CompleteChoice>, totals: &Totals) -> String {
        let CompleteChoice { part, end } = choices.into_iter().next().unwrap_or_default();
        self.line(&part, Some(done_reason(&end)), Some(totals))
    }

    fn stream_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn begin(&mut self, _out: &mut String) {}

    fn update(&mut self, event: ChoiceEvent, totals: Option<&Totals>, out: &mut String) {
        if let Some(part) = &event.part {
            self.push(out, &self.line(part, None, None));
        }
        if let Some(end) = &event.end {
            self.push(out, &self.line(&AnswerPart::default(), Some(done_reason(end)), totals));
        }
    }

    fn finish(&mut self, _totals: &Totals, _out: &mut String) {}

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        self.push(out, &error.json_of(ErrorForm::Ollama));
    }

    /// A line that is no object would be an error to clients.
    fn keep_alive(&self) -> Option<&'static str> {
        None
    }
}
