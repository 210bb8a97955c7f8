//! Requests that cannot be served: unknown fields, unsupported fields, invalid bodies.

use std::fmt::Write as _;

use crate::common::bodies::{CHAT, TEXT, both_refuse, chat, refused, taken, text, with};
use crate::common::client::{Reply, ask, post};
use crate::common::{ServerBuilder, TestServer, hello, info, recording_engine, start_server};
use serde_json::{Value, json};

#[test]
fn error_texts() {
    let server = start_server(&hello());
    let mut all = String::new();
    for (path, body) in [
        (CHAT, chat(json!({"temperature": 11}))),
        (CHAT, chat(json!({"temperature": "hot"}))),
        (CHAT, chat(json!({"top_p": 2}))),
        (CHAT, chat(json!({"n": 1.5}))),
        (CHAT, chat(json!({"max_tokens": 0}))),
        (CHAT, chat(json!({"max_tokens": 1, "max_completion_tokens": 2}))),
        (CHAT, chat(json!({"tools": [{"type": "function"}]}))),
        (CHAT, chat(json!({"frobnicate": 1}))),
        (CHAT, chat(json!({"stream_options": {}}))),
        (CHAT, chat(json!({"top_logprobs": 2}))),
        (CHAT, chat(json!({"model": "other"}))),
        (CHAT, chat(json!({"stop": ["a", ""]}))),
        (CHAT, chat(json!({"logit_bias": {"265": 1}}))),
        (CHAT, chat(json!({"logit_bias": {"x": 1}}))),
        (CHAT, json!({"messages": []})),
        (CHAT, json!({"messages": [{"role": "wizard", "content": ""}]})),
        (CHAT, json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})),
        (CHAT, json!({"messages": [{"role": "user", "content": "x".repeat(300)}]})),
        (TEXT, json!({})),
        (TEXT, json!({"prompt": []})),
        (TEXT, text(json!({"max_tokens": 0}))),
        (TEXT, text(json!({"prompt": ["a", "b"], "n": 65}))),
        (TEXT, text(json!({"n": 13}))),
    ] {
        let (message, _, param, code) = post(path, body).get(&server).error();
        writeln!(all, "{} {}: {message}", param.unwrap_or_default(), code.unwrap_or_default()).unwrap();
    }
    insta::assert_snapshot!(all, @r#"
    temperature : temperature should be from 0 to 10, and is 11
    temperature : temperature should be a number, and is text
    top_p : top_p should be from 0 to 1, and is 2
    n : n should be a whole number, and is 1.5
    max_tokens : max_tokens should be from 1 to 2147483647, and is 0
    max_tokens : max_tokens is 1 and max_completion_tokens is 2; give one of them
    tools[0].function : tools[0].function is missing
    frobnicate unknown_field: the field "frobnicate" is not known
    stream_options : stream_options can only be there where stream is true
    top_logprobs : top_logprobs needs logprobs to be true
    model model_not_found: there is no model "other"; there is tiny, alias
    stop : a stop should have from 1 to 1024 bytes, and has 0
    logit_bias.265 : logit_bias.265: there is no token 265; the model's are from 0 to 264
    logit_bias : the keys of logit_bias should be token ids, and one is "x"
    messages : messages should have from 1 to 16384, and has 0
    messages[0].role : there is no role "wizard"; there are system, developer, user, assistant, tool, function
    messages[0].content[0].type unsupported_value: parts of type "image_url" are not supported yet; only text is
    messages context_length_exceeded: the prompt has 319 tokens, and the model's context of 256 must hold them and the answer; shorten the prompt
    prompt : prompt is missing
    prompt : prompt should have from 1 to 64 prompts, and has 0
    max_tokens : max_tokens can be 0 only where echo is true; else nothing is left to do
    n : 2 prompts and n = 65 are 130 answers; at most 128 are given
    n : 13 answers were asked for, and this server has room for 12
    "#);
}

/// Unsupported fields; with these values they must be refused.
const NOT_YET: [(&str, &str); 17] = [
    ("tools", r#"[{"type": "function", "function": {"name": "f"}}]"#),
    ("functions", r#"[{"name": "f"}]"#),
    ("tool_choice", r#""required""#),
    ("function_call", r#"{"name": "f"}"#),
    ("modalities", r#"["text", "audio"]"#),
    ("audio", r#"{"voice": "alloy", "format": "wav"}"#),
    ("store", "true"),
    ("service_tier", r#""priority""#),
    ("verbosity", r#""low""#),
    ("reasoning_effort", r#""high""#),
    ("prompt_cache_retention", r#""for_ever""#),
    ("prompt_cache_options", r#"{"ttl": "1h"}"#),
    ("web_search_options", "{}"),
    ("moderation", r#"{"model": "x"}"#),
    ("suffix", r#""x""#),
    ("best_of", "2"),
    ("echo", r#""yes""#),
];

/// Supported fields, or ones that do not change the answer, each with a non-default value.
const HONOURED: [(&str, &str); 27] = [
    ("response_format", r#"{"type": "json_object"}"#),
    ("messages", r#"[{"role": "user", "content": "x"}]"#),
    ("prompt", r#""x""#),
    ("model", r#""alias""#),
    ("max_tokens", "2"),
    ("max_completion_tokens", "2"),
    ("temperature", "0.5"),
    ("top_p", "0.5"),
    ("n", "2"),
    ("stop", r#"["x"]"#),
    ("stream", "true"),
    ("stream_options", r#"{"include_usage": true}"#),
    ("seed", "-5"),
    ("presence_penalty", "1"),
    ("frequency_penalty", "-1"),
    ("logit_bias", r#"{"5": 1}"#),
    ("logprobs", "1"),
    ("top_logprobs", "2"),
    ("user", r#""me""#),
    ("safety_identifier", r#""me""#),
    ("prompt_cache_key", r#""me""#),
    ("metadata", r#"{"a": "b"}"#),
    ("echo", "true"),
    ("suffix", r#""""#),
    ("best_of", "1"),
    ("parallel_tool_calls", "false"),
    ("prediction", r#"{"type": "content", "content": "x"}"#),
];

fn value(list: &[(&str, &str)], name: &str) -> Option<Value> {
    list.iter().find(|(known, _)| *known == name).map(|(_, value)| serde_json::from_str(value).unwrap())
}

/// The names under `properties:` of a schema in the specification.
fn properties(yaml: &str, schema: &str) -> Vec<String> {
    let start = yaml.find(&format!("\n    {schema}:\n")).unwrap_or_else(|| panic!("no {schema}")) + 1;
    let lines: Vec<&str> = yaml[start..].lines().skip(1).collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let end = lines.iter().position(|l| !l.trim().is_empty() && indent(l) <= 4).unwrap();
    let lines = &lines[..end];
    let outermost = lines
        .iter()
        .filter(|l| l.trim().trim_start_matches("- ") == "properties:")
        .map(|l| l.find("properties").unwrap())
        .min()
        .unwrap();
    let mut names = Vec::new();
    let mut inside = false;
    for line in lines.iter().filter(|l| !l.trim().is_empty()) {
        match indent(line) {
            _ if line.find("properties:") == Some(outermost) => inside = true,
            n if n <= outermost => inside = false,
            n if inside && n == outermost + 2 => names.push(line.trim().trim_end_matches(':').to_owned()),
            _ => {}
        }
    }
    names
}

#[test]
fn every_field_of_the_specification_is_honoured_or_refused_by_name() {
    let Some(folder) = tallow_support::shared("openai-openapi") else { return };
    let yaml = std::fs::read_to_string(folder.join("openapi.yaml")).unwrap();
    let parents = ["CreateModelResponseProperties", "ModelResponseProperties"];
    let chats = ["CreateChatCompletionRequest"].iter().chain(&parents).flat_map(|s| properties(&yaml, s));
    let chats: Vec<String> = chats.collect();
    let texts = properties(&yaml, "CreateCompletionRequest");
    // Guards against silently parsing nothing from the file.
    assert!(chats.len() >= 36 && texts.len() >= 18, "{} {}", chats.len(), texts.len());
    assert!(
        ["messages", "audio", "metadata", "moderation"].iter().all(|name| chats.iter().any(|n| n == name))
    );
    let (handle, _requests) = recording_engine(info());
    let server = ServerBuilder::new(handle).start();
    for (path, names, base) in [(CHAT, chats, chat(json!({}))), (TEXT, texts, text(json!({})))] {
        for name in names {
            if let Some(value) = value(&HONOURED, &name) {
                let mut body = with(base.clone(), json!({&name: value}));
                match name.as_str() {
                    "stream_options" => body["stream"] = true.into(),
                    "top_logprobs" => body["logprobs"] = true.into(),
                    "logprobs" if path == CHAT => body["logprobs"] = true.into(),
                    _ => {}
                }
                taken(&server, path, &body);
            }
            match value(&NOT_YET, &name) {
                Some(value) => {
                    drop(refused(&server, path, &with(base.clone(), json!({&name: value})), &name))
                }
                None => assert!(value(&HONOURED, &name).is_some(), "what becomes of {name}?"),
            }
            // `null` is the same as not given.
            if !["messages", "prompt"].contains(&name.as_str()) {
                taken(&server, path, &with(base.clone(), json!({&name: null})));
            }
        }
    }
}

#[test]
fn what_is_switched_off_is_taken() {
    let server = start_server(&hello());
    for more in [
        json!({"tool_choice": "auto", "function_call": "auto", "service_tier": "flex", "prompt_cache_retention": "24h"}),
        json!({"tools": [], "functions": [], "tool_choice": "none", "function_call": "none"}),
        json!({"parallel_tool_calls": true, "response_format": {"type": "text"}, "modalities": ["text"]}),
        json!({"store": false, "service_tier": "auto", "verbosity": "medium", "reasoning_effort": "none"}),
        json!({"prompt_cache_retention": "in_memory", "service_tier": "default", "n": 1, "logprobs": false}),
        json!({"stream": true, "stream_options": {"include_obfuscation": false}}),
    ] {
        taken(&server, CHAT, &chat(more));
    }
    let more = json!({"stream": true, "stream_options": {"include_obfuscation": true}});
    both_refuse(&server, more, "stream_options.include_obfuscation");
    both_refuse(&server, json!({"stream": true, "stream_options": {"x": true}}), "stream_options.x");
}

fn send(server: &TestServer, body: impl Into<Vec<u8>>) -> Reply {
    ask("POST", CHAT).with("content-type", "application/json").body(body).get(server)
}

#[test]
fn item_17_json_that_is_none() {
    let server = start_server(&hello());
    let chat = |content: &str| format!("{{\"messages\":[{{\"role\":\"user\",\"content\":{content}}}]}}");
    let deep = "[".repeat(100_000);
    for body in [
        String::new(),
        "{".into(),
        "[]".into(),
        "null".into(),
        chat("\"x"),
        chat("\"x\"") + "x",
        chat("\"\\ud800\""),
        chat("\"\\udc00\\ud800\""),
        chat("\"\n\""),
        chat("NaN"),
        chat("1e999"),
        chat(&deep),
        deep,
        format!("{{\"x\":{}}}", "[".repeat(200) + &"]".repeat(200)),
    ] {
        let reply = send(&server, body.clone());
        assert_eq!(reply.status, 400, "{:.80}", body);
        assert!(reply.error().0.contains("JSON"), "{:?}", reply.error());
    }
    let many = send(&server, format!("{{\"x\":[{}0]}}", "0,".repeat(2_000_000)));
    assert_eq!((many.status, many.error().3.as_deref()), (413, Some("request_too_large")));
    let mut bad = chat("\"x\"").into_bytes();
    let at = bad.iter().position(|b| *b == b'x').unwrap();
    bad[at] = 0xff;
    assert_eq!(send(&server, bad).status, 400);
    let twice = r#"{"messages": [{"role": "user", "content": "a"}], "n": 1, "n": 2}"#;
    assert_eq!(send(&server, twice).param().as_deref(), Some("n"));
    let twice = r#"{"messages": [{"role": "user", "content": "a", "content": "b"}]}"#;
    assert_eq!(send(&server, twice).param().as_deref(), Some("content"));
    assert_eq!(send(&server, chat("\"\\ud83e\\udd80\"")).status, 200);
}

#[test]
fn item_17_bodies_that_are_too_large_or_packed() {
    let server = start_server(&hello());
    // A body with a too large content-length is refused before it is sent.
    for length in [(16 << 20) + 1, 1_000_000_000_u64, u64::MAX] {
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        let reply = crate::common::client::raw(&server, head.as_bytes());
        if length < u64::MAX {
            assert_eq!((reply.status, reply.header("connection")), (413, Some("close")));
            reply.error();
        } else {
            assert!((400..500).contains(&reply.status), "more than the protocol's own limit");
        }
    }
    let packed = post(CHAT, chat(json!({}))).with("content-encoding", "gzip").get(&server);
    assert_eq!(packed.status, 415);
    packed.error();
}
