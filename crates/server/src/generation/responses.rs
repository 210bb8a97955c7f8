//! [`Responses`]: answers in the form of OpenAI's Responses API.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::clock::unix_time;
use crate::errors::ApiError;
use crate::generation::openai::scored;
use crate::generation::outputs::{AnswerPart, Call, ChoiceEvent, End, Token, Totals};
use crate::generation::writer::{Answer, AnswerWriter, CompleteChoice, event};
use crate::http::guard::Caller;
use crate::response_store::{Item, ResponseStore, StoredResponse};

/// The parts of a request that its response repeats, and where that is kept.
#[derive(Clone, Debug)]
pub(crate) struct ResponseRequest {
    /// Id of the response.
    pub(crate) id: String,
    /// Members of the response that are known from the request.
    pub(crate) echo: Map<String, Value>,
    /// The response that it goes on from.
    pub(crate) previous: Option<String>,
    /// Its own items.
    pub(crate) input: Vec<Item>,
    pub(crate) caller: Caller,
    /// The store that keeps the response, if it is kept.
    pub(crate) store: Option<Arc<ResponseStore>>,
    /// True if it is generated while nobody waits for it.
    pub(crate) background: bool,
}

impl ResponseRequest {
    /// The response, with what is different in each state of it.
    pub(crate) fn response(&self, status: &str, created: u64, more: Value) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": created,
            "completed_at": null,
            "status": status,
            "background": self.background,
            "error": null,
            "incomplete_details": null,
            "previous_response_id": self.previous,
            "output": [],
            "usage": null,
        });
        if let (Value::Object(response), Value::Object(more)) = (&mut response, more) {
            response.extend(self.echo.clone());
            response.extend(more);
        }
        response
    }

    /// A response without output.
    pub(crate) fn stored(&self, json: String, output: Vec<Item>) -> StoredResponse {
        let (input, previous) = (self.input.clone(), self.previous.clone());
        StoredResponse { caller: self.caller, json, previous, input, output, running: None }
    }

    /// Keeps a response, if the request asks for that.
    fn keep(&self, response: &Value, output: &[Item]) {
        let Some(store) = &self.store else { return };
        let stored = self.stored(response.to_string(), output.to_vec());
        if self.background {
            store.replace_running(&self.id, stored);
        } else {
            store.insert(self.id.clone(), stored);
        }
    }

    /// Keeps that it has failed.
    pub(crate) fn failed(&self, created: u64, error: &ApiError) -> Value {
        let error = json!({"code": error.code_name().unwrap_or("server_error"), "message": error.message()});
        let response = self.response("failed", created, json!({"error": error}));
        self.keep(&response, &[]);
        response
    }
}

/// Writes a response.
#[derive(Debug)]
pub(crate) struct Responses {
    request: ResponseRequest,
    answer: Answer,
    /// Number of events so far.
    sequence: usize,
    /// Complete items, and as JSON.
    items: Vec<Item>,
    output: Vec<Value>,
    /// The item that is written, if it goes on.
    open: Option<Item>,
    /// Log-probabilities of the message that is written.
    logprobs: Vec<Value>,
    end: End,
}

impl Responses {
    pub(crate) fn new(request: ResponseRequest, answer: Answer) -> Responses {
        Responses {
            request,
            answer,
            sequence: 0,
            items: Vec::new(),
            output: Vec::new(),
            open: None,
            logprobs: Vec::new(),
            end: End::Complete,
        }
    }

    /// Appends an event; `members` is an object.
    fn event(&mut self, out: &mut String, name: &str, members: Value) {
        let mut event_json = json!({"type": name, "sequence_number": self.sequence});
        self.sequence += 1;
        if let (Value::Object(all), Value::Object(members)) = (&mut event_json, members) {
            all.extend(members);
        }
        event(out, name, &event_json.to_string());
    }

    /// Id of an item.
    fn id(&self, item: &Item) -> String {
        let of = self.request.id.strip_prefix("resp_").unwrap_or(&self.request.id);
        item.id(of, &format!("_{}", self.output.len()))
    }

    /// Members that say which item an event is about.
    fn place(&self, item: &Item, more: Value) -> Value {
        let mut place = json!({"item_id": self.id(item), "output_index": self.output.len()});
        // Text is in the first and only part of its item.
        if !matches!(item, Item::Call { .. }) {
            place["content_index"] = 0.into();
        }
        if let (Value::Object(place), Value::Object(more)) = (&mut place, more) {
            place.extend(more);
        }
        place
    }

    /// Begins an item.
    fn open(&mut self, item: Item, out: &mut String) {
        let mut json = item.json(&self.id(&item), "in_progress");
        if let Some(content) = json.get_mut("content") {
            *content = Value::Array(Vec::new());
        }
        self.event(
            out,
            "response.output_item.added",
            json!({"output_index": self.output.len(), "item": json}),
        );
        if let Some(part) = self.part_of(&item) {
            let place = self.place(&item, json!({"part": part}));
            self.event(out, "response.content_part.added", place);
        }
        self.open = Some(item);
    }

    /// The content of an item of text.
    fn part_of(&self, item: &Item) -> Option<Value> {
        match item {
            Item::Message { text, .. } => Some(json!({
                "type": "output_text", "text": text, "annotations": [], "logprobs": self.logprobs,
            })),
            Item::Reasoning(text) => Some(json!({"type": "reasoning_text", "text": text})),
            Item::Call { .. } | Item::Output { .. } => None,
        }
    }

    /// Ends the item that goes on, if there is one.
    fn close(&mut self, status: &str, out: &mut String) {
        let Some(item) = self.open.take() else { return };
        match &item {
            Item::Message { text, .. } => {
                let place = self.place(&item, json!({"text": text, "logprobs": self.logprobs}));
                self.event(out, "response.output_text.done", place);
            }
            Item::Reasoning(text) => {
                let place = self.place(&item, json!({"text": text}));
                self.event(out, "response.reasoning_text.done", place);
            }
            Item::Call { name, arguments, .. } => {
                let place = self.place(&item, json!({"name": name, "arguments": arguments}));
                self.event(out, "response.function_call_arguments.done", place);
            }
            Item::Output { .. } => {}
        }
        let mut json = item.json(&self.id(&item), status);
        if let Some(part) = self.part_of(&item) {
            let place = self.place(&item, json!({"part": part}));
            self.event(out, "response.content_part.done", place);
            json["content"] = json!([part]);
        }
        self.event(
            out,
            "response.output_item.done",
            json!({"output_index": self.output.len(), "item": json}),
        );
        self.logprobs.clear();
        self.output.push(json);
        self.items.push(item);
    }

    fn part(&mut self, part: AnswerPart, out: &mut String) {
        let AnswerPart { reasoning, text, calls, tokens } = part;
        if !reasoning.is_empty() {
            if !matches!(self.open, Some(Item::Reasoning(_))) {
                self.close("completed", out);
                self.open(Item::Reasoning(String::new()), out);
            }
            self.text(&reasoning, "response.reasoning_text.delta", json!({"delta": reasoning}), out);
        }
        if !text.is_empty() || !tokens.is_empty() {
            self.message(&text, &tokens, out);
        }
        for Call { id, name, arguments, .. } in calls {
            self.close("completed", out);
            self.open(Item::Call { id, name, arguments: String::new() }, out);
            self.text(&arguments, "response.function_call_arguments.delta", json!({"delta": arguments}), out);
            self.close("completed", out);
        }
    }

    /// More of a message.
    fn message(&mut self, text: &str, tokens: &[Token], out: &mut String) {
        if !matches!(self.open, Some(Item::Message { .. })) {
            self.close("completed", out);
            self.open(Item::Message { role: "assistant".into(), text: String::new() }, out);
        }
        let logprobs: Vec<Value> =
            tokens.iter().filter_map(|token| serde_json::to_value(scored(token)).ok()).collect();
        let delta = json!({"delta": text, "logprobs": logprobs});
        self.logprobs.extend(logprobs);
        self.text(text, "response.output_text.delta", delta, out);
    }

    /// Appends text to the item that goes on.
    fn text(&mut self, more: &str, name: &str, members: Value, out: &mut String) {
        let Some(mut item) = self.open.take() else { return };
        let place = self.place(&item, members);
        self.event(out, name, place);
        match &mut item {
            Item::Message { text, .. } | Item::Output { text, .. } => *text += more,
            Item::Reasoning(text) => *text += more,
            Item::Call { arguments, .. } => *arguments += more,
        }
        self.open = Some(item);
    }

    /// The response once it has ended.
    fn ended(&mut self, totals: &Totals, out: &mut String) -> Value {
        let (status, details) = match self.end {
            End::Length => ("incomplete", json!({"reason": "max_output_tokens"})),
            End::Complete | End::Stopped(_) | End::Called => ("completed", Value::Null),
        };
        if self.open.is_none() && self.output.is_empty() {
            // An answer has an item in any case.
            self.message("", &[], out);
        }
        self.close(status, out);
        let usage = json!({
            "input_tokens": totals.prompt,
            "input_tokens_details": {"cached_tokens": totals.cached},
            "output_tokens": totals.new,
            "output_tokens_details": {"reasoning_tokens": totals.reasoning.unwrap_or(0)},
            "total_tokens": totals.prompt + totals.new,
        });
        let completed = (status == "completed").then(unix_time);
        let more = json!({
            "model": self.answer.model,
            "completed_at": completed,
            "incomplete_details": details,
            "output": self.output,
            "usage": usage,
        });
        let response = self.request.response(status, self.answer.created, more);
        self.request.keep(&response, &self.items);
        response
    }
}

impl AnswerWriter for Responses {
    fn complete(&mut self, choices: Vec<CompleteChoice>, totals: &Totals) -> String {
        let CompleteChoice { part, end } = choices.into_iter().next().unwrap_or_default();
        let mut events = String::new();
        self.part(part, &mut events);
        self.end = end;
        self.ended(totals, &mut events).to_string()
    }

    fn begin(&mut self, out: &mut String) {
        let more = json!({"model": self.answer.model});
        let response = self.request.response("in_progress", self.answer.created, more);
        for name in ["response.created", "response.in_progress"] {
            self.event(out, name, json!({"response": response}));
        }
    }

    fn update(&mut self, event: ChoiceEvent, _totals: Option<&Totals>, out: &mut String) {
        if let Some(part) = event.part {
            self.part(part, out);
        }
        if let Some(end) = event.end {
            self.end = end;
        }
    }

    fn finish(&mut self, totals: &Totals, out: &mut String) {
        let response = self.ended(totals, out);
        let name = if self.end == End::Length { "response.incomplete" } else { "response.completed" };
        self.event(out, name, json!({"response": response}));
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        let response = self.request.failed(self.answer.created, error);
        self.event(out, "response.failed", json!({"response": response}));
    }

    fn keeps_text(&self) -> bool {
        true
    }
}
