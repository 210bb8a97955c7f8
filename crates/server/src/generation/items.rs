//! [`Item`]s as JSON of OpenAI's Responses API, and as messages for templates.

use serde_json::{Map, Value, json};

use crate::generation::tools::{arguments_of, call};
use crate::response_store::Item;

impl Item {
    /// Its id: of the response that it belongs to, and its place.
    pub(crate) fn id(&self, of: &str, place: &str) -> String {
        let prefix = match self {
            Item::Message { .. } => "msg",
            Item::Reasoning(_) => "rs",
            Item::Call { .. } => "fc",
            Item::Output { .. } => "fco",
        };
        format!("{prefix}_{of}{place}")
    }

    /// As JSON, with its id and its status.
    pub(crate) fn json(&self, id: &str, status: &str) -> Value {
        match self {
            Item::Message { role, text } if role == "assistant" => {
                let content =
                    json!([{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]);
                json!({"type": "message", "id": id, "status": status, "role": role, "content": content})
            }
            Item::Message { role, text } => {
                let content = json!([{"type": "input_text", "text": text}]);
                json!({"type": "message", "id": id, "status": status, "role": role, "content": content})
            }
            Item::Reasoning(text) => {
                let content = json!([{"type": "reasoning_text", "text": text}]);
                json!({"type": "reasoning", "id": id, "summary": [], "content": content, "status": status})
            }
            Item::Call { id: call_id, name, arguments } => json!({
                "type": "function_call", "id": id, "call_id": call_id, "name": name, "arguments": arguments,
                "status": status,
            }),
            Item::Output { id: call_id, text } => json!({
                "type": "function_call_output", "id": id, "call_id": call_id, "output": text, "status": status,
            }),
        }
    }
}

/// The messages of a conversation as templates get them: an answer's reasoning, text and calls are one.
pub(crate) fn messages_of(items: &[Item]) -> Vec<Value> {
    let mut messages = Vec::new();
    let mut answer = Map::new();
    for item in items {
        match item {
            Item::Reasoning(text) => {
                flush(&mut answer, &mut messages);
                answer.insert("reasoning_content".into(), text.as_str().into());
            }
            Item::Message { role, text } if role == "assistant" => {
                if answer.contains_key("content") || answer.contains_key("tool_calls") {
                    flush(&mut answer, &mut messages);
                }
                answer.insert("content".into(), text.as_str().into());
            }
            Item::Call { id, name, arguments } => {
                let calls = answer.entry("tool_calls").or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(calls) = calls {
                    calls.push(call(Some(id), name, arguments_of(arguments.clone())));
                }
            }
            Item::Message { role, text } => {
                flush(&mut answer, &mut messages);
                messages.push(json!({"role": role, "content": text}));
            }
            Item::Output { id, text } => {
                flush(&mut answer, &mut messages);
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
            }
        }
    }
    flush(&mut answer, &mut messages);
    messages
}

/// Ends an answer, if one is begun.
fn flush(answer: &mut Map<String, Value>, messages: &mut Vec<Value>) {
    if answer.is_empty() {
        return;
    }
    let mut message = Map::from_iter([("role".to_owned(), Value::from("assistant"))]);
    // Templates tell a call from text by a content that is null.
    let none = if answer.contains_key("tool_calls") { Value::Null } else { "".into() };
    message.insert("content".into(), answer.remove("content").unwrap_or(none));
    message.append(answer);
    messages.push(Value::Object(message));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_one_message() {
        let message = |role: &str, text: &str| Item::Message { role: role.into(), text: text.into() };
        let called =
            |id: &str| Item::Call { id: id.into(), name: "f".into(), arguments: "{\"x\": 1}".into() };
        let items = [
            message("user", "1"),
            Item::Reasoning("why".into()),
            message("assistant", "2"),
            called("a"),
            called("b"),
            Item::Output { id: "a".into(), text: "3".into() },
            Item::Output { id: "b".into(), text: "4".into() },
            message("assistant", "5"),
            message("assistant", "6"),
            called("c"),
            Item::Reasoning("more".into()),
            message("system", "7"),
        ];
        let call = |id: &str| json!({"type": "function", "function": {"name": "f", "arguments": {"x": 1}}, "id": id});
        let expected = [
            json!({"role": "user", "content": "1"}),
            json!({"role": "assistant", "content": "2", "reasoning_content": "why", "tool_calls": [call("a"), call("b")]}),
            json!({"role": "tool", "tool_call_id": "a", "content": "3"}),
            json!({"role": "tool", "tool_call_id": "b", "content": "4"}),
            json!({"role": "assistant", "content": "5"}),
            json!({"role": "assistant", "content": "6", "tool_calls": [call("c")]}),
            json!({"role": "assistant", "content": "", "reasoning_content": "more"}),
            json!({"role": "system", "content": "7"}),
        ];
        assert_eq!(messages_of(&items), expected);
    }
}
