//! The access log: one line per request when its answer has ended, with what it used or why it was refused.

use std::io::Read as _;
use std::time::Duration;

use crate::common::client::{ask, post, read_until};
use crate::common::log::{self, Line};
use crate::common::{ServerBuilder, TestServer, bytes, hello, info, script, start_server, wait};
use serde_json::{Value, json};
use tallow_engine::handle::{Command, EngineHandle, Event};
use tallow_engine::lora::{LoadedLora, LoraId, LoraRef};
use tallow_engine::service::Message;
use tallow_engine::sim::{self, Script};

const CHAT: &str = "/v1/chat/completions";

fn lines(id: &str) -> Vec<Line> {
    let is_end = |line: &Line| line.target == "tallow_server::access" && !line.message.ends_with("begins");
    let mut all = log::lines();
    all.retain(|line| is_end(line) && line.text("id") == Some(id));
    all
}

/// The one line of a request.
#[track_caller]
fn line(id: &str) -> Line {
    wait(|| !lines(id).is_empty(), "it is logged");
    let all = lines(id);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone()
}

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn endless() -> TestServer {
    let pace = Duration::from_millis(5);
    let engine = sim::start(
        tallow_engine::handle::Info { context: 100_000, ..info() },
        Script { pace, ..script(&bytes("x")) },
    );
    ServerBuilder::new(engine).start()
}

#[test]
fn a_line_says_what_a_request_took() {
    log::listen();
    let server = start_server(&hello());
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let request = post(CHAT, chat(json!({"n": 2, "max_tokens": 3, "model": "alias"})));
    let request = request
        .with("x-request-id", "line-1")
        .with("traceparent", &format!("00-{trace}-00f067aa0ba902b7-01"));
    let reply = request.get(&server);
    let (line, body) = (line("line-1"), reply.json());
    assert_eq!((line.level, line.message.as_str()), (tracing::Level::INFO, "POST /v1/chat/completions 200"));
    // The completion id is derived from the request id, so that either leads to the line.
    assert_eq!(body["id"], "chatcmpl-line-1");
    assert_eq!(line.text("completion"), Some("chatcmpl-line-1"));
    for (name, value) in
        [("method", "POST"), ("path", CHAT), ("model", "tiny"), ("finish", "length,length"), ("trace", trace)]
    {
        assert_eq!(line.text(name), Some(value), "{name}");
    }
    assert!(line.text("client").unwrap().starts_with("127.0.0.1:"));
    for (name, value) in [("status", 200.0), ("cached_tokens", 0.0), ("completion_tokens", 6.0)] {
        assert_eq!(line.number(name), Some(value), "{name}");
    }
    assert_eq!(line.number("prompt_tokens"), body["usage"]["prompt_tokens"].as_f64());
    let (first, total) = (line.number("first_token_ms").unwrap(), line.number("total_ms").unwrap());
    assert!(line.number("queue_ms").is_some() && first <= total && total > 0.0, "{line:?}");
    assert_eq!((line.text("reason"), line.text("adapter")), (None, None));
}

#[test]
fn a_stream_is_logged_at_its_end() {
    log::listen();
    let server = endless();
    let request = post(CHAT, chat(json!({"stream": true, "max_tokens": 40}))).with("connection", "close");
    let mut stream = request.with("x-request-id", "stream-1").send(&server);
    read_until(&mut stream, "\"x\"");
    assert!(lines("stream-1").is_empty(), "it is under way");
    stream.read_to_end(&mut Vec::new()).unwrap();
    let line = line("stream-1");
    assert_eq!((line.text("finish"), line.number("completion_tokens")), (Some("length"), Some(40.0)));
    assert!(line.number("total_ms").unwrap() > 100.0, "{line:?}");
}

#[test]
fn a_refusal_is_logged_with_its_reason() {
    log::listen();
    let server = start_server(&hello());
    let refused = |id: &str, request: crate::common::client::RequestBuilder, status: u16, reason: &str| {
        assert_eq!(request.with("x-request-id", id).get(&server).status, status, "{id}");
        let line = line(id);
        assert_eq!((line.level, line.number("status")), (tracing::Level::INFO, Some(f64::from(status))));
        assert!(line.text("reason").unwrap().contains(reason), "{line:?}");
    };
    refused("refused-1", post(CHAT, json!({"messages": []})), 400, "messages");
    refused(
        "refused-2",
        post(CHAT, chat(json!({"temperature": 99}))),
        400,
        "temperature should be from 0 to 10, and is 99",
    );
    // Clients of another API are visible by the paths they ask for.
    refused("refused-3", ask("GET", "/slots"), 404, "there is nothing at \"/slots\"");
    refused("refused-4", ask("GET", "/props").with("host", "evil.example"), 403, "evil.example");
    refused("refused-5", ask("PUT", "/health"), 405, "does not take PUT");
    let (message, long) = ("a\u{1b}[2J\nforged", "y".repeat(10_000));
    refused("refused-6", post(CHAT, chat(json!({"model": message}))), 404, r#"a\u{1b}[2J\nforged"#);
    refused("refused-7", post(CHAT, chat(json!({ long: 1 }))), 400, "yyy");
    assert!(line("refused-7").text("reason").unwrap().chars().count() <= 301);
}

#[test]
fn probes_are_logged_for_those_who_look_closely_and_the_answer_to_head_is_whole() {
    log::listen();
    let server = start_server(&hello());
    for (id, method) in [("probe-1", "GET"), ("probe-2", "HEAD")] {
        assert_eq!(ask(method, "/health").with("x-request-id", id).get(&server).status, 200);
        let line = line(id);
        assert_eq!((line.level, line.text("reason")), (tracing::Level::DEBUG, None), "{line:?}");
    }
}

#[test]
fn who_goes_away_is_logged_as_gone() {
    log::listen();
    let server = endless();
    let stream = |stream: bool, id: &str| {
        post(CHAT, chat(json!({"stream": stream}))).with("x-request-id", id).send(&server)
    };
    let (mut begun, whole) = (stream(true, "gone-1"), stream(false, "gone-2"));
    read_until(&mut begun, "\"x\"");
    wait(|| server.handle.taken() == 2, "both are taken");
    drop((begun, whole));
    for (id, status) in [("gone-1", 200.0), ("gone-2", 499.0)] {
        let line = line(id);
        assert_eq!((line.number("status"), line.text("finish")), (Some(status), Some("abort")), "{line:?}");
        assert!(line.text("reason").unwrap().contains("closed before the answer ended"), "{line:?}");
        assert_eq!(line.text("model"), Some("tiny"));
    }
}

#[test]
fn what_fails_is_logged_as_a_warning() {
    log::listen();
    let broken = Script { breaks_after: Some(3), ..script(&bytes("x")) };
    let server = ServerBuilder::new(sim::start(info(), broken)).start();
    for (id, stream, status) in [("failed-1", true, 200.0), ("failed-2", false, 500.0)] {
        post(CHAT, chat(json!({"stream": stream}))).with("x-request-id", id).get(&server);
        let line = line(id);
        assert_eq!((line.level, line.number("status")), (tracing::Level::WARN, Some(status)));
        assert_eq!(
            (line.text("reason"), line.text("finish")),
            (Some("the script says so"), Some("error")),
            "{line:?}"
        );
    }
}

#[test]
fn the_adapter_of_a_request_is_named() {
    log::listen();
    let (handle, commands, alive) = EngineHandle::new(info());
    let lora = LoraRef { id: LoraId(7), scale: 1.0 };
    alive.list(vec![LoadedLora { name: "poet".into(), path: "somewhere".into(), lora }]);
    std::thread::spawn(move || {
        while let Ok(Message::Take(Command::Submit(mut submission))) = commands.recv() {
            submission.listener.tell(Event::Done(crate::common::done(submission.request.prompt.len())));
        }
        drop(alive);
    });
    let server = ServerBuilder::new(handle).start();
    assert_eq!(
        post(CHAT, chat(json!({"model": "poet"}))).with("x-request-id", "worn-1").get(&server).status,
        200
    );
    let line = line("worn-1");
    assert_eq!((line.text("model"), line.text("adapter")), (Some("tiny"), Some("poet")));
}
