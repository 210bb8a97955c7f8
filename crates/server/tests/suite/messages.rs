//! Anthropic's API: what a request becomes, and how it is answered, whole and in a stream.

use serde_json::{Value, json};
use tallow_engine::sim;

use crate::common::agent::{ANSWER, answering, may_answer, named_events, pretty, prompt, refusals, request};
use crate::common::bodies::with;
use crate::common::client::{ask, post};
use crate::common::{ServerBuilder, hello, info, script, start_server};

const PATH: &str = "/v1/messages";

fn body(messages: Value, more: Value) -> Value {
    with(json!({"model": "tiny", "max_tokens": 300, "messages": messages}), more)
}

fn hi(more: Value) -> Value {
    body(json!([{"role": "user", "content": "Hi"}]), more)
}

fn weather() -> Value {
    json!([{"name": "weather", "description": "d", "input_schema": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}])
}

#[test]
fn a_request_becomes_a_chat() {
    let source = json!({"type": "text", "media_type": "text/plain", "data": "The text."});
    let cached = json!({"type": "ephemeral"});
    let turns = json!([
        {"role": "user", "content": [
            {"type": "text", "text": "One", "cache_control": cached},
            {"type": "document", "title": "T", "source": source},
        ]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "See:"},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern", "days": 3}},
            {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Sun"}]},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no city", "is_error": true},
            {"type": "text", "text": "Well?"},
        ]},
    ]);
    let system =
        json!([{"type": "text", "text": "Be"}, {"type": "text", "text": "kind.", "cache_control": cached}]);
    let more = json!({"system": system, "tools": weather(), "metadata": {"user_id": "u"}});
    insta::assert_snapshot!(prompt(PATH, &body(turns, more)), @r#"
    [[{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]]
    <system>Be
    kind.<user>One
    T
    The text.<assistant>(Hm.)See:<tool_call>#toolu_1 {"name": "weather", "arguments": {"city": "Bern", "days": 3}}</tool_call><tool_call>#toolu_2 {"name": "weather", "arguments": {}}</tool_call><tool #toolu_1>Sun<tool #toolu_2>Error: no city<user>Well?<assistant>
    "#);
    // A beginning of the answer is gone on with.
    let begun = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "My"}]);
    insta::assert_snapshot!(prompt(PATH, &body(begun, json!({"system": "S"}))), @"<system>S<user>Hi<assistant>My");
    let without = hi(json!({"tools": weather(), "tool_choice": {"type": "none"}}));
    insta::assert_snapshot!(prompt(PATH, &without), @"<user>Hi<assistant>");
    let off = hi(json!({"thinking": {"type": "disabled"}}));
    insta::assert_snapshot!(prompt(PATH, &off), @"<user>Hi<assistant>False");
    let on = hi(json!({"thinking": {"type": "enabled", "budget_tokens": 100, "display": "summarized"}}));
    insta::assert_snapshot!(prompt(PATH, &on), @"<user>Hi<assistant>True");
    insta::assert_snapshot!(prompt(PATH, &hi(json!({"thinking": {"type": "adaptive"}}))), @"<user>Hi<assistant>");
}

#[test]
fn fields_reach_the_engine() {
    let request = request(
        PATH,
        &hi(json!({
            "temperature": 0.25, "top_k": 5, "top_p": 0.5, "stop_sequences": ["END"], "max_tokens": 7,
            "service_tier": "auto",
        })),
    );
    let sampling = &request.sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.25, 5, 0.5));
    assert_eq!((request.max_new, request.stops.as_slice()), (7, &["END".to_owned()][..]));
    assert!(request.constraint.is_none());
}

#[test]
fn answers_are_messages() {
    let server = answering(ANSWER);
    let mut whole = post(PATH, hi(json!({"tools": weather()}))).get(&server).json();
    let id = whole["id"].take();
    assert!(id.as_str().unwrap().starts_with("msg_"));
    for block in whole["content"].as_array_mut().unwrap().iter_mut().filter(|b| b["type"] == "tool_use") {
        assert_eq!(block["id"].take().as_str().unwrap().len(), 9);
    }
    insta::assert_snapshot!(pretty(&whole));

    let reply = post(PATH, hi(json!({"tools": weather(), "stream": true}))).get(&server);
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    let events = named_events(&reply.text());
    assert!(events.iter().all(|(name, data)| data["type"] == *name), "{events:?}");
    // Blocks come one behind the other; their deltas make what the whole answer has.
    let mut content: Vec<Value> = Vec::new();
    let (mut input, mut open) = (String::new(), false);
    for (name, data) in &events {
        let index = data["index"].as_u64().map(|i| i as usize);
        match name.as_str() {
            "content_block_start" => {
                assert!(!open && index == Some(content.len()), "{data}");
                (open, input) = (true, String::new());
                content.push(data["content_block"].clone());
            }
            "content_block_delta" => {
                assert!(open && index == Some(content.len() - 1), "{data}");
                let (block, delta) = (content.last_mut().unwrap(), &data["delta"]);
                for name in ["text", "thinking", "signature"] {
                    if let Some(text) = delta[name].as_str() {
                        block[name] = (block[name].as_str().unwrap().to_owned() + text).into();
                    }
                }
                input += delta["partial_json"].as_str().unwrap_or_default();
            }
            "content_block_stop" => {
                assert!(open && index == Some(content.len() - 1), "{data}");
                open = false;
                let block = content.last_mut().unwrap();
                if block["type"] == "tool_use" {
                    assert_eq!(block["input"], json!({}));
                    block["input"] = serde_json::from_str(&input).unwrap();
                    block["id"].take();
                }
            }
            _ => assert!(!open, "{name}"),
        }
    }
    assert_eq!(Value::Array(content), whole["content"]);
    let ends: Vec<&(String, Value)> =
        events.iter().filter(|(name, _)| !name.starts_with("content")).collect();
    let names: Vec<&str> = ends.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["message_start", "message_delta", "message_stop"]);
    let start = &ends[0].1["message"];
    assert_eq!((&start["content"], &start["stop_reason"]), (&json!([]), &Value::Null));
    assert_eq!(start["usage"]["output_tokens"], 0);
    let delta = &ends[1].1;
    assert_eq!(
        delta["delta"],
        json!({"stop_reason": "tool_use", "stop_sequence": null, "stop_details": null, "container": null})
    );
    assert_eq!(delta["usage"], whole["usage"]);
}

#[test]
fn the_end_has_its_reason() {
    let reason = |answer: &str, more: Value| {
        let message = post(PATH, hi(more.clone())).get(&answering(answer)).json();
        let streamed = post(PATH, hi(with(more, json!({"stream": true})))).get(&answering(answer));
        let delta = named_events(&streamed.text()).iter().rev().nth(1).unwrap().1["delta"].clone();
        let (reason, sequence) = (message["stop_reason"].clone(), message["stop_sequence"].clone());
        assert_eq!((&delta["stop_reason"], &delta["stop_sequence"]), (&reason, &sequence));
        (reason, sequence)
    };
    assert_eq!(reason("Yes.", json!({})), (json!("end_turn"), Value::Null));
    assert_eq!(reason("Yes.", json!({"max_tokens": 2})), (json!("max_tokens"), Value::Null));
    assert_eq!(reason("Yes.No", json!({"stop_sequences": ["."]})), (json!("stop_sequence"), json!(".")));
    // An answer without text has a block all the same.
    let empty = post(PATH, hi(json!({}))).get(&answering("")).json();
    assert_eq!(empty["content"], json!([{"type": "text", "text": "", "citations": null}]));
}

#[test]
fn calls_and_structures_are_forced() {
    let call = |arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"weather\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    let (right, wrong) = (call("{\"city\": \"Bern\"}"), call("{\"city\": 5}"));
    for choice in [json!({"type": "any"}), json!({"type": "tool", "name": "weather"})] {
        let body = hi(json!({"tools": weather(), "tool_choice": choice}));
        assert!(may_answer(PATH, &body, &right) && !may_answer(PATH, &body, &wrong));
        assert!(!may_answer(PATH, &body, "No."));
    }
    let single = json!({"type": "any", "disable_parallel_tool_use": true});
    let body = hi(json!({"tools": weather(), "tool_choice": single}));
    assert!(!may_answer(PATH, &body, &format!("{right}\n{right}")));
    let auto = hi(json!({"tools": weather(), "tool_choice": {"type": "auto"}}));
    assert!(may_answer(PATH, &auto, "No.") && may_answer(PATH, &auto, &wrong));
    let format = json!({"type": "json_schema", "schema": {"type": "integer"}});
    for more in [json!({"output_format": format}), json!({"output_config": {"format": format}})] {
        assert!(may_answer(PATH, &hi(more.clone()), "12") && !may_answer(PATH, &hi(more), "twelve"));
    }
}

#[test]
fn tokens_are_counted() {
    let request = hi(json!({"system": "Be kind.", "tools": weather()}));
    let usage = post(PATH, &request).get(&answering("Yes.")).json()["usage"].clone();
    let mut counted = request.clone();
    counted.as_object_mut().unwrap().remove("max_tokens");
    let counted = post("/v1/messages/count_tokens", counted).get(&answering("x")).json();
    assert_eq!(counted, json!({"input_tokens": usage["input_tokens"]}));
}

#[test]
fn errors_are_in_the_form_of_the_api() {
    let said = |reply: &Value| {
        assert_eq!((&reply["type"], reply.as_object().unwrap().len()), (&json!("error"), 2), "{reply}");
        assert_eq!(reply["error"]["type"], "invalid_request_error");
        reply["error"]["message"].as_str().unwrap().to_owned()
    };
    let user = |block: Value| body(json!([{"role": "user", "content": [block]}]), json!({}));
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}});
    let pdf = json!({"type": "document", "source": {"type": "base64", "data": ""}});
    let all = [
        json!({"messages": [{"role": "user", "content": "Hi"}]}),
        json!({"max_tokens": 5}),
        json!({"max_tokens": 5, "messages": []}),
        body(json!([{"role": "tool", "content": "Hi"}]), json!({})),
        body(json!([{"role": "user"}]), json!({})),
        user(image),
        user(pdf),
        user(json!({"type": "text"})),
        user(json!({"type": "tool_result", "content": "x"})),
        hi(json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]})),
        hi(json!({"tool_choice": {"type": "any"}})),
        hi(json!({"tools": weather(), "tool_choice": {"type": "tool", "name": "other"}})),
        hi(json!({"tools": weather(), "tool_choice": {"type": "some"}})),
        hi(
            json!({"output_format": {"type": "json_schema", "schema": {"type": "string", "contentSchema": {}}}}),
        ),
        hi(json!({"mcp_servers": [{"url": "x"}]})),
        hi(json!({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}})),
        hi(json!({"n": 2})),
        hi(json!({"unknown": 1})),
    ];
    insta::assert_snapshot!(refusals(PATH, &all, said));
    let server = answering("x");
    let kind = |reply: crate::common::client::Reply| (reply.status, reply.json()["error"]["type"].clone());
    let other = post(PATH, hi(json!({"model": "other"}))).get(&server);
    assert_eq!(kind(other), (404, json!("not_found_error")));
    assert_eq!(kind(ask("GET", PATH).get(&server)), (405, json!("invalid_request_error")));
    assert_eq!(kind(ask("POST", PATH).get(&server)), (415, json!("invalid_request_error")));
    let settings = tallow_server::Settings { api_keys: vec!["k".into()], ..Default::default() };
    let locked =
        ServerBuilder { settings, ..ServerBuilder::new(sim::start(info(), script(&hello()))) }.start();
    assert_eq!(kind(post(PATH, hi(json!({}))).get(&locked)), (401, json!("authentication_error")));
    let opened = post(PATH, hi(json!({"max_tokens": 2}))).with("x-api-key", "k").get(&locked);
    assert_eq!(opened.status, 200);
}

#[test]
fn a_failure_ends_a_stream_with_an_error() {
    let breaks = sim::Script { breaks_after: Some(2), ..script(&hello()) };
    let server = ServerBuilder::new(sim::start(info(), breaks)).start();
    let text = post(PATH, hi(json!({"stream": true}))).get(&server).text();
    let (name, data) = named_events(&text).pop().unwrap();
    assert_eq!((name.as_str(), &data["error"]["type"]), ("error", &json!("api_error")), "{text}");
    // Other paths that begin alike are others.
    let reply = post("/v1/messages_", json!({})).get(&start_server(&hello()));
    assert_eq!((reply.status, reply.error().1.as_str()), (404, "invalid_request_error"));
}
