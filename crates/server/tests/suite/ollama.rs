//! Ollama's API: what a request becomes, and how it is answered, whole and in a stream.

use serde_json::{Value, json};
use tallow_engine::sim;
use tallow_server::ModelCard;

use crate::common::agent::{ANSWER, answering, may_answer, pretty, prompt, refusals, request, templates};
use crate::common::bodies::with;
use crate::common::client::{ask, post};
use crate::common::{ServerBuilder, TestServer, hello, info, script};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

fn chat(messages: Value, more: Value) -> Value {
    with(json!({"model": "tiny", "messages": messages, "stream": false}), more)
}

fn hi(more: Value) -> Value {
    chat(json!([{"role": "user", "content": "Hi"}]), more)
}

fn weather() -> Value {
    json!([{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])
}

/// The objects on the lines of a stream.
fn lines(text: &str) -> Vec<Value> {
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Without what is different each time.
fn steady(mut line: Value) -> Value {
    let created = line["created_at"].take();
    assert!(created.as_str().unwrap().ends_with('Z'), "{created}");
    for name in ["total_duration", "prompt_eval_duration", "eval_duration"] {
        if let Some(time) = line.get_mut(name) {
            assert!(time.take().is_u64());
        }
    }
    let calls = line.pointer_mut("/message/tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        assert_eq!(call["id"].take().as_str().unwrap().len(), 9);
    }
    line
}

#[test]
fn a_request_becomes_a_chat() {
    let called = |city: &str| json!({"function": {"name": "weather", "arguments": {"city": city}}});
    let turns = json!([
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "One"},
        {"role": "assistant", "thinking": "Hm.", "content": "", "tool_calls": [called("Bern"), called("Rome")]},
        {"role": "tool", "content": "Sun", "tool_name": "weather"},
        {"role": "tool", "content": "Rain"},
        {"role": "user", "content": "Well?", "images": []},
    ]);
    insta::assert_snapshot!(prompt(CHAT, &chat(turns, json!({"tools": weather()}))), @r#"
    [[{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]]
    <system>Be kind.<user>One<assistant>(Hm.)<tool_call>#call00001 {"name": "weather", "arguments": {"city": "Bern"}}</tool_call><tool_call>#call00002 {"name": "weather", "arguments": {"city": "Rome"}}</tool_call><tool weather #call00001>Sun<tool weather #call00002>Rain<user>Well?<assistant>
    "#);
    insta::assert_snapshot!(prompt(CHAT, &hi(json!({"think": false, "model": "tiny:latest"}))), @"<user>Hi<assistant>False");
    let begun = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "My"}]);
    insta::assert_snapshot!(prompt(CHAT, &chat(begun, json!({}))), @"<user>Hi<assistant>My");
    let text = |more: Value| with(json!({"model": "tiny", "prompt": "Hi", "stream": false}), more);
    insta::assert_snapshot!(prompt(GENERATE, &text(json!({"system": "Be kind."}))), @"<system>Be kind.<user>Hi<assistant>");
    insta::assert_snapshot!(prompt(GENERATE, &text(json!({"raw": true}))), @"Hi");
}

#[test]
fn options_reach_the_engine() {
    let options = json!({
        "temperature": 0.25, "top_k": 5, "top_p": 0.5, "min_p": 0.125, "seed": 7, "num_predict": 9, "stop": ["END"],
        "repeat_penalty": 1.5, "num_ctx": 512, "num_gpu": 99, "num_thread": 8, "num_keep": 4,
    });
    let request = request(CHAT, &hi(json!({"options": options, "keep_alive": 0, "truncate": true})));
    let sampling = &request.sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.25, 5, 0.5));
    assert_eq!((sampling.min_p, sampling.seed, sampling.repetition_penalty), (0.125, 7, 1.5));
    assert_eq!((request.max_new, request.stops.as_slice()), (9, &["END".to_owned()][..]));
}

#[test]
fn answers_are_lines() {
    let server = answering(ANSWER);
    let body = hi(json!({"tools": weather()}));
    let whole = steady(post(CHAT, &body).get(&server).json());
    insta::assert_snapshot!(pretty(&whole));
    // A stream is what a request gets that says nothing of it.
    let mut streamed = body.clone();
    streamed.as_object_mut().unwrap().remove("stream");
    let reply = post(CHAT, &streamed).get(&server);
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"));
    let mut lines: Vec<Value> = lines(&reply.text()).into_iter().map(steady).collect();
    let last = lines.pop().unwrap();
    assert!(lines.iter().all(|line| line["done"] == false && line.get("done_reason").is_none()), "{lines:?}");
    let all =
        |name: &str| -> String { lines.iter().filter_map(|line| line["message"][name].as_str()).collect() };
    assert_eq!(
        (all("thinking"), all("content")),
        ("Hm.".into(), whole["message"]["content"].as_str().unwrap().into())
    );
    let calls: Vec<&Value> =
        lines.iter().filter_map(|line| line["message"]["tool_calls"].as_array()).flatten().collect();
    assert_eq!(json!(calls), whole["message"]["tool_calls"]);
    let mut ended = whole.clone();
    ended["message"] = json!({"role": "assistant", "content": ""});
    assert_eq!(last, ended);
}

#[test]
fn texts_are_generated() {
    let body = json!({"model": "tiny", "prompt": "Hi", "stream": false});
    let line = steady(post(GENERATE, &body).get(&answering("<think>Hm.</think>Yes.")).json());
    insta::assert_snapshot!(pretty(&line));
    let cut =
        post(GENERATE, with(body.clone(), json!({"options": {"num_predict": 1}}))).get(&answering("Yes."));
    assert_eq!(cut.json()["done_reason"], "length");
    let more = json!({"logprobs": true, "top_logprobs": 1});
    let scored = post(GENERATE, with(body, more)).get(&answering("Yes.")).json();
    let tokens = scored["logprobs"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!((text.as_str(), tokens[0]["top_logprobs"].as_array().unwrap().len()), ("Yes.", 1));
}

#[test]
fn formats_are_enforced() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
        "additionalProperties": false});
    assert!(may_answer(CHAT, &hi(json!({"format": schema})), "{\"n\": 5}"));
    assert!(!may_answer(CHAT, &hi(json!({"format": schema})), "{\"n\": true}"));
    assert!(may_answer(CHAT, &hi(json!({"format": "json"})), "{\"x\": [1]}"));
    assert!(!may_answer(CHAT, &hi(json!({"format": "json"})), "No."));
    assert!(may_answer(CHAT, &hi(json!({"format": ""})), "No."));
}

#[test]
fn a_request_for_nothing_loads_the_model() {
    let server = answering("x");
    for (path, body, empty) in [
        (CHAT, json!({"model": "tiny"}), "message"),
        (CHAT, json!({"model": "tiny", "messages": [], "keep_alive": "5m"}), "message"),
        (GENERATE, json!({"model": "tiny", "keep_alive": -1}), "response"),
    ] {
        let line = steady(post(path, body).get(&server).json());
        assert_eq!((&line["done"], &line["done_reason"]), (&json!(true), &json!("load")));
        assert!(line.get(empty).is_some());
    }
    assert_eq!(post(CHAT, json!({"model": "other"})).get(&server).status, 404);
}

fn described() -> TestServer {
    let card = ModelCard {
        family: "qwen3".into(),
        parameters: 751_632_384,
        types: "Q8_0".into(),
        bytes: 639_446_688,
        format: "gguf",
    };
    ServerBuilder { templates: templates(), card, ..ServerBuilder::new(sim::start(info(), script(&hello()))) }
        .start()
}

#[test]
fn models_are_listed_and_shown() {
    let server = described();
    let get = |path: &str| {
        let mut json = ask("GET", path).get(&server).json();
        for model in json["models"].as_array_mut().into_iter().flatten() {
            if let Some(modified) = model.get_mut("modified_at") {
                assert!(modified.take().as_str().unwrap().ends_with('Z'));
            }
            assert_eq!(model["digest"].take().as_str().unwrap().len(), 64);
        }
        json
    };
    let mut shown = post("/api/show", json!({"model": "tiny"})).get(&server).json();
    assert!(shown["modified_at"].take().is_string());
    let all = json!({"tags": get("/api/tags"), "ps": get("/api/ps"), "show": shown});
    insta::assert_snapshot!(pretty(&all));
    assert!(get("/api/version")["version"].as_str().unwrap().starts_with("0."));
    let unknown = post("/api/show", json!({"model": "other"})).get(&server);
    assert_eq!((unknown.status, unknown.json().as_object().unwrap().len()), (404, 1));
}

#[test]
fn errors_are_in_the_form_of_the_api() {
    let said = |reply: &Value| {
        assert_eq!(reply.as_object().unwrap().len(), 1);
        reply["error"].as_str().unwrap().to_owned()
    };
    let all = [
        chat(json!([{"role": "developer", "content": "x"}]), json!({})),
        chat(json!([{"content": "x"}]), json!({})),
        chat(json!([{"role": "user", "content": "x", "images": ["aGk="]}]), json!({})),
        hi(json!({"options": {"num_ctx": 100_000}})),
        hi(json!({"options": {"temperature": "hot"}})),
        hi(json!({"options": {"mirostat": 2}})),
        hi(json!({"options": {"unknown": 2}})),
        hi(json!({"format": "xml"})),
        hi(json!({"format": {"type": "string", "contentSchema": {}}})),
        hi(json!({"think": "hard"})),
        hi(json!({"unknown": 1})),
    ];
    insta::assert_snapshot!(refusals(CHAT, &all, said));
    let text = |more: Value| with(json!({"model": "tiny", "prompt": "Hi"}), more);
    let all = [
        text(json!({"suffix": "x"})),
        text(json!({"template": "x"})),
        text(json!({"context": [1, 2]})),
        text(json!({"raw": true, "system": "x"})),
    ];
    insta::assert_snapshot!(refusals(GENERATE, &all, said));
    // What its clients do not name is JSON.
    let server = answering("Yes.");
    for kind in ["", "text/plain", "application/x-www-form-urlencoded"] {
        let reply = ask("POST", CHAT).with("content-type", kind).body(hi(json!({})).to_string()).get(&server);
        assert_eq!(reply.status, 200, "{kind}");
        let foreign = ask("POST", CHAT).with("content-type", kind).with("origin", "https://evil.example");
        assert_eq!(foreign.body(hi(json!({})).to_string()).get(&server).status, 403, "{kind}");
    }
    let breaks = sim::Script { breaks_after: Some(2), ..script(&hello()) };
    let server = ServerBuilder::new(sim::start(info(), breaks)).start();
    let streamed = lines(&post(CHAT, hi(json!({"stream": true}))).get(&server).text());
    assert!(streamed.last().unwrap()["error"].is_string(), "{streamed:?}");
}
