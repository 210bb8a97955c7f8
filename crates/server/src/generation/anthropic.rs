//! [`Anthropic`]: answers in the form of Anthropic's Messages API.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::errors::{ApiError, ErrorForm};
use crate::generation::outputs::{AnswerPart, Call, ChoiceEvent, End, Totals};
use crate::generation::writer::{Answer, AnswerWriter, CompleteChoice, event};

/// Writes a message.
#[derive(Debug)]
pub(crate) struct Anthropic {
    answer: Answer,
    /// Number of content blocks so far.
    blocks: usize,
    /// The block that is written, if it goes on.
    open: Option<Open>,
}

/// A content block that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
}

#[derive(Serialize)]
struct Message<'a> {
    id: &'a str,
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Block<'a>>,
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'a str>,
    /// Always null, as `container` is: the schema requires both.
    stop_details: (),
    usage: Usage,
    container: (),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Thinking {
        thinking: &'a str,
        /// Empty: it is for encrypted reasoning.
        signature: &'static str,
    },
    Text {
        text: &'a str,
        citations: (),
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        input: &'a RawValue,
        caller: Caller,
    },
}

/// Who calls a tool: the model.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Caller {
    Direct,
}

#[derive(Serialize)]
struct Usage {
    /// Tokens of the prompt, but for those from the prefix cache.
    input_tokens: usize,
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
    output_tokens: usize,
    output_tokens_details: Details,
    /// Always null: the schema requires it, as the next two.
    cache_creation: (),
    inference_geo: (),
    server_tool_use: (),
    service_tier: &'static str,
}

#[derive(Serialize)]
struct Details {
    thinking_tokens: usize,
}

/// An event of a stream.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event<'a> {
    MessageStart { message: Message<'a> },
    ContentBlockStart { index: usize, content_block: Block<'a> },
    ContentBlockDelta { index: usize, delta: Delta<'a> },
    ContentBlockStop { index: usize },
    MessageDelta { delta: Stop<'a>, usage: Usage },
    MessageStop,
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum Delta<'a> {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'static str },
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
}

#[derive(Serialize)]
struct Stop<'a> {
    stop_reason: &'static str,
    stop_sequence: Option<&'a str>,
    stop_details: (),
    container: (),
}

impl Event<'_> {
    fn name(&self) -> &'static str {
        match self {
            Event::MessageStart { .. } => "message_start",
            Event::ContentBlockStart { .. } => "content_block_start",
            Event::ContentBlockDelta { .. } => "content_block_delta",
            Event::ContentBlockStop { .. } => "content_block_stop",
            Event::MessageDelta { .. } => "message_delta",
            Event::MessageStop => "message_stop",
        }
    }

    fn write(&self, out: &mut String) {
        // Serialization of texts and numbers cannot fail.
        event(out, self.name(), &serde_json::to_string(self).unwrap_or_default());
    }
}

impl Usage {
    fn of(totals: &Totals) -> Usage {
        Usage {
            input_tokens: totals.prompt.saturating_sub(totals.cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: totals.cached,
            output_tokens: totals.new,
            output_tokens_details: Details { thinking_tokens: totals.reasoning.unwrap_or(0) },
            cache_creation: (),
            inference_geo: (),
            server_tool_use: (),
            service_tier: "standard",
        }
    }
}

/// `stop_reason`, and the stop sequence that was met.
fn stop(end: &End) -> (&'static str, Option<&str>) {
    match end {
        End::Complete => ("end_turn", None),
        End::Stopped(stop) => ("stop_sequence", Some(stop)),
        End::Called => ("tool_use", None),
        End::Length => ("max_tokens", None),
    }
}

/// A call's block. Arguments are an object's JSON; were they not, an empty one is better than none.
fn tool_use(call: &Call) -> Block<'_> {
    let input = serde_json::from_str(&call.arguments);
    let input = input.unwrap_or_else(|_| serde_json::from_str("{}").unwrap_or(RawValue::NULL));
    Block::ToolUse { id: &call.id, name: &call.name, input, caller: Caller::Direct }
}

impl Anthropic {
    pub(crate) fn new(answer: Answer) -> Anthropic {
        Anthropic { answer, blocks: 0, open: None }
    }

    fn message<'a>(&'a self, content: Vec<Block<'a>>, end: Option<&'a End>, usage: Usage) -> Message<'a> {
        let (stop_reason, stop_sequence) = end.map(stop).unzip();
        Message {
            id: &self.answer.id,
            r#type: "message",
            role: "assistant",
            model: &self.answer.model,
            content,
            stop_reason,
            stop_sequence: stop_sequence.flatten(),
            stop_details: (),
            usage,
            container: (),
        }
    }

    /// Index of the block that goes on.
    fn index(&self) -> usize {
        self.blocks.saturating_sub(1)
    }

    /// Ends the block that goes on, if it is not `next`, and begins that.
    fn turn_to(&mut self, next: Option<Open>, out: &mut String) {
        if self.open == next {
            return;
        }
        let index = self.index();
        if self.open == Some(Open::Thinking) {
            let delta = Delta::Signature { signature: "" };
            Event::ContentBlockDelta { index, delta }.write(out);
        }
        if self.open.is_some() {
            Event::ContentBlockStop { index }.write(out);
        }
        self.open = next;
        let content_block = match next {
            Some(Open::Thinking) => Block::Thinking { thinking: "", signature: "" },
            Some(Open::Text) => Block::Text { text: "", citations: () },
            None => return,
        };
        Event::ContentBlockStart { index: self.blocks, content_block }.write(out);
        self.blocks += 1;
    }

    fn part(&mut self, part: &AnswerPart, out: &mut String) {
        if !part.reasoning.is_empty() {
            self.turn_to(Some(Open::Thinking), out);
            let delta = Delta::Thinking { thinking: &part.reasoning };
            Event::ContentBlockDelta { index: self.index(), delta }.write(out);
        }
        if !part.text.is_empty() {
            self.turn_to(Some(Open::Text), out);
            let delta = Delta::Text { text: &part.text };
            Event::ContentBlockDelta { index: self.index(), delta }.write(out);
        }
        for call in &part.calls {
            self.turn_to(None, out);
            let index = self.blocks;
            self.blocks += 1;
            let empty = Call { arguments: "{}".into(), ..call.clone() };
            Event::ContentBlockStart { index, content_block: tool_use(&empty) }.write(out);
            let delta = Delta::InputJson { partial_json: &call.arguments };
            Event::ContentBlockDelta { index, delta }.write(out);
            Event::ContentBlockStop { index }.write(out);
        }
    }
}

impl AnswerWriter for Anthropic {
    fn complete(&mut self, choices: Vec<CompleteChoice>, totals: &Totals) -> String {
        let choice = choices.into_iter().next().unwrap_or_default();
        let AnswerPart { reasoning, text, calls, .. } = &choice.part;
        let mut content = Vec::new();
        if !reasoning.is_empty() {
            content.push(Block::Thinking { thinking: reasoning, signature: "" });
        }
        // An answer has a block in any case.
        if !text.is_empty() || calls.is_empty() {
            content.push(Block::Text { text, citations: () });
        }
        content.extend(calls.iter().map(tool_use));
        let message = self.message(content, Some(&choice.end), Usage::of(totals));
        // Serialization of texts and numbers cannot fail.
        serde_json::to_string(&message).unwrap_or_default()
    }

    fn begin(&mut self, out: &mut String) {
        // What is cached is known at the end.
        let usage = Usage::of(&Totals { prompt: self.answer.prompt_tokens, ..Totals::default() });
        Event::MessageStart { message: self.message(Vec::new(), None, usage) }.write(out);
    }

    fn update(&mut self, event: ChoiceEvent, totals: Option<&Totals>, out: &mut String) {
        if let Some(part) = &event.part {
            self.part(part, out);
        }
        let (Some(end), Some(totals)) = (&event.end, totals) else { return };
        if self.blocks == 0 {
            self.turn_to(Some(Open::Text), out);
        }
        self.turn_to(None, out);
        let (stop_reason, stop_sequence) = stop(end);
        Event::MessageDelta {
            delta: Stop { stop_reason, stop_sequence, stop_details: (), container: () },
            usage: Usage::of(totals),
        }
        .write(out);
    }

    fn finish(&mut self, _totals: &Totals, out: &mut String) {
        Event::MessageStop.write(out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        event(out, "error", &error.json_of(ErrorForm::Anthropic));
    }

    fn keep_alive(&self) -> Option<&'static str> {
        Some("event: ping\ndata: {\"type\": \"ping\"}\n\n")
    }
}
