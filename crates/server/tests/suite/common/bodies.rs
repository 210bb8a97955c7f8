//! Request bodies, and whether they are accepted.

use serde_json::{Value, json};

use super::TestServer;
use super::client::post;

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const TEXT: &str = "/v1/completions";

pub(crate) fn with(base: Value, more: Value) -> Value {
    let mut base = base;
    base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    base
}

pub(crate) fn chat(more: Value) -> Value {
    with(json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}), more)
}

pub(crate) fn text(more: Value) -> Value {
    with(json!({"prompt": "Hi", "max_tokens": 2}), more)
}

/// The body is refused with an error that names the field.
pub(crate) fn refused(server: &TestServer, path: &str, body: &Value, param: &str) -> String {
    let reply = post(path, body).get(server);
    assert_eq!(reply.status, 400, "{body} {}", reply.text());
    let (message, kind, named, _) = reply.error();
    assert_eq!(
        (kind.as_str(), named.as_deref()),
        ("invalid_request_error", Some(param)),
        "{body}: {message}"
    );
    message
}

/// Both the chat and the text endpoint refuse this.
pub(crate) fn both_refuse(server: &TestServer, more: Value, param: &str) -> String {
    refused(server, TEXT, &text(more.clone()), param);
    refused(server, CHAT, &chat(more), param)
}

pub(crate) fn taken(server: &TestServer, path: &str, body: &Value) {
    let reply = post(path, body).get(server);
    assert_eq!(reply.status, 200, "{body} {}", reply.text());
}
