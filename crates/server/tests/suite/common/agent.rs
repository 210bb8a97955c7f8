//! A model that reasons and calls tools, for the tests of the protocols that agents speak.

use std::path::Path;

use serde_json::{Value, json};
use tallow_engine::handle::{Info, Request};
use tallow_engine::sim;
use tallow_text::template::ChatTemplates;
use tallow_text::tokenizer::Shown;

use super::client::post;
use super::{END, ServerBuilder, TestServer, bytes, info, recording_engine, script, tokenizer};

/// Shows all that a template is given. Models of such templates write as Hermes and Qwen 3 do.
const TEMPLATE: &str = "{% if tools %}[{{ tools | tojson }}]\n{% endif %}{% for m in messages %}<{{ m.role }}\
    {% if m.name %} {{ m.name }}{% endif %}{% if m.tool_call_id %} #{{ m.tool_call_id }}{% endif %}>\
    {% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content if m.content else '' }}\
    {% for call in m.tool_calls %}<tool_call>#{{ call.id }} {{ call.function | tojson }}</tool_call>{% endfor %}\n\
    {% endfor %}{% if add_generation_prompt %}<assistant>{% if enable_thinking is defined %}{{ enable_thinking }}\
    {% endif %}{% endif %}{% if false %}<think></think>{% endif %}";

/// Reasoning, text and two calls.
pub(crate) const ANSWER: &str = "<think>\nHm.\n</think>\n\nSee:\n<tool_call>\n{\"name\": \"weather\", \"arguments\": \
    {\"city\": \"Bern\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>";

pub(crate) fn templates() -> Option<ChatTemplates> {
    ChatTemplates::from_config(Path::new("c"), &json!({"chat_template": TEMPLATE}), None).unwrap()
}

fn large() -> Info {
    Info { context: 1024, ..info() }
}

/// A server whose model gives this answer.
pub(crate) fn answering(answer: &str) -> TestServer {
    let reply: Vec<u32> = bytes(answer).into_iter().chain([END]).collect();
    ServerBuilder { templates: templates(), ..ServerBuilder::new(sim::start(large(), script(&reply))) }
        .start()
}

/// The request that a body becomes.
pub(crate) fn request(path: &str, body: &Value) -> Request {
    let (handle, requests) = recording_engine(large());
    let server = ServerBuilder { templates: templates(), ..ServerBuilder::new(handle) }.start();
    let reply = post(path, body).get(&server);
    assert_eq!(reply.status, 200, "{body}: {}", reply.text());
    requests.try_recv().unwrap_or_else(|_| panic!("nothing is generated for {body}"))
}

/// The prompt that a body becomes.
pub(crate) fn prompt(path: &str, body: &Value) -> String {
    tokenizer().decode(&request(path, body).prompt, Shown::Text)
}

/// True if the answer to a body may be this text.
pub(crate) fn may_answer(path: &str, body: &Value, answer: &str) -> bool {
    let Some(mut constraint) = request(path, body).constraint else { return true };
    let all: Vec<u32> = bytes(answer).into_iter().chain([END]).collect();
    all.into_iter().all(|token| {
        let is_allowed = constraint.allowed().unwrap().contains(token);
        is_allowed && constraint.accept(token).is_ok()
    })
}

/// Error messages of these bodies, which are refused.
pub(crate) fn refusals(path: &str, bodies: &[Value], said: impl Fn(&Value) -> String) -> String {
    let server = answering("x");
    let mut all = String::new();
    for body in bodies {
        let reply = post(path, body).get(&server);
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
        all += &(said(&reply.json()) + "\n");
    }
    all
}

/// Names and data of a stream of named events.
pub(crate) fn named_events(text: &str) -> Vec<(String, Value)> {
    let events = text.split("\n\n").filter(|event| !event.is_empty() && !event.starts_with(':'));
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        (name.strip_prefix("event: ").unwrap().to_owned(), data)
    };
    events.map(event).collect()
}

/// JSON for snapshots.
pub(crate) fn pretty(json: &Value) -> String {
    serde_json::to_string_pretty(json).unwrap()
}
