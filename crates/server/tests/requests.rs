//! Requests that cannot be served, each refused with a message that names the field.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use std::fmt::Write as _;

use common::client::{Reply, ask, post};
use common::{Plan, Site, VOCAB, hello, info, recorder, site};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn with(base: Value, more: Value) -> Value {
    let mut base = base;
    base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    base
}

fn chat(more: Value) -> Value {
    with(json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}), more)
}

fn text(more: Value) -> Value {
    with(json!({"prompt": "Hi", "max_tokens": 2}), more)
}

/// The body is refused, and the field is named.
fn refused(site: &Site, path: &str, body: &Value, param: &str) -> String {
    let reply = post(path, body).get(site);
    assert_eq!(reply.status, 400, "{body} {}", reply.text());
    let (message, kind, named, _) = reply.error();
    assert_eq!(
        (kind.as_str(), named.as_deref()),
        ("invalid_request_error", Some(param)),
        "{body}: {message}"
    );
    message
}

/// Both interfaces refuse this.
fn both_refuse(site: &Site, more: Value, param: &str) -> String {
    refused(site, TEXT, &text(more.clone()), param);
    refused(site, CHAT, &chat(more), param)
}

fn taken(site: &Site, path: &str, body: &Value) {
    let reply = post(path, body).get(site);
    assert_eq!(reply.status, 200, "{body} {}", reply.text());
}

#[test]
fn error_texts() {
    let site = site(&hello());
    let mut all = String::new();
    for (path, body) in [
        (CHAT, chat(json!({"temperature": 11}))),
        (CHAT, chat(json!({"temperature": "hot"}))),
        (CHAT, chat(json!({"top_p": 0}))),
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
        let (message, _, param, code) = post(path, body).get(&site).error();
        writeln!(all, "{} {}: {message}", param.unwrap_or_default(), code.unwrap_or_default()).unwrap();
    }
    insta::assert_snapshot!(all, @r#"
    temperature : temperature should be from 0 to 10, and is 11
    temperature : temperature should be a number, and is text
    top_p : top_p should be above 0 and at most 1, and is 0
    n : n should be a whole number, and is a number
    max_tokens : max_tokens should be from 1 to 2147483647, and is 0
    max_tokens : max_tokens is 1 and max_completion_tokens is 2; give one of them
    tools unsupported_value: tools with this value is not supported yet; leave it out
    frobnicate unknown_field: the field "frobnicate" is not known
    stream_options : stream_options can only be there where stream is true
    top_logprobs : top_logprobs needs logprobs to be true
    model model_not_found: there is no model "other"; there is tiny, alias
    stop : a stop should have from 1 to 1024 bytes, and has 0
    logit_bias.265 : logit_bias.265: there is no token 265; the model's are from 0 to 264
    logit_bias : the keys of logit_bias should be token ids, and one is "x"
    messages : messages should have from 1 to 16384, and has 0
    messages[0].role : there is no role "wizard"; there are system, developer, user, assistant, tool
    messages[0].content[0].type unsupported_value: parts of type "image_url" are not supported yet; only text is
    messages context_length_exceeded: the prompt has 319 tokens, and the model's context of 256 must hold them and the answer; shorten the prompt
    prompt : prompt is missing
    prompt : prompt should have from 1 to 64 prompts, and has 0
    max_tokens : max_tokens can be 0 only where echo is true; else nothing is left to do
    n : 2 prompts and n = 65 are 130 answers; at most 128 are given
    n : 13 answers were asked for, and this server has room for 12
    "#);
}

/// Fields that say something; with these values they must be refused.
const NOT_YET: [(&str, &str); 20] = [
    ("tools", r#"[{"type": "function", "function": {"name": "f"}}]"#),
    ("functions", r#"[{"name": "f"}]"#),
    ("tool_choice", r#""auto""#),
    ("function_call", r#""auto""#),
    ("parallel_tool_calls", "false"),
    ("response_format", r#"{"type": "json_object"}"#),
    ("modalities", r#"["text", "audio"]"#),
    ("audio", r#"{"voice": "alloy", "format": "wav"}"#),
    ("store", "true"),
    ("service_tier", r#""flex""#),
    ("verbosity", r#""low""#),
    ("reasoning_effort", r#""high""#),
    ("prompt_cache_retention", r#""24h""#),
    ("prompt_cache_options", r#"{"ttl": "1h"}"#),
    ("prediction", r#"{"type": "content", "content": "x"}"#),
    ("web_search_options", "{}"),
    ("moderation", r#"{"model": "x"}"#),
    ("suffix", r#""x""#),
    ("best_of", "2"),
    ("echo", r#""yes""#),
];

/// Fields that are honoured, or that change no answer, with a value that differs from the usual.
const HONOURED: [(&str, &str); 24] = [
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
    // So that reading the file cannot quietly find nothing.
    assert!(chats.len() >= 36 && texts.len() >= 18, "{} {}", chats.len(), texts.len());
    assert!(
        ["messages", "audio", "metadata", "moderation"].iter().all(|name| chats.iter().any(|n| n == name))
    );
    let (handle, _requests) = recorder(info());
    let site = Plan::new(handle).start();
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
                taken(&site, path, &body);
            }
            match value(&NOT_YET, &name) {
                Some(value) => drop(refused(&site, path, &with(base.clone(), json!({&name: value})), &name)),
                None => assert!(value(&HONOURED, &name).is_some(), "what becomes of {name}?"),
            }
            // Nothing is said by null.
            if !["messages", "prompt"].contains(&name.as_str()) {
                taken(&site, path, &with(base.clone(), json!({&name: null})));
            }
        }
    }
}

#[test]
fn what_is_switched_off_is_taken() {
    let site = site(&hello());
    for more in [
        json!({"tools": [], "functions": [], "tool_choice": "none", "function_call": "none"}),
        json!({"parallel_tool_calls": true, "response_format": {"type": "text"}, "modalities": ["text"]}),
        json!({"store": false, "service_tier": "auto", "verbosity": "medium", "reasoning_effort": "none"}),
        json!({"prompt_cache_retention": "in_memory", "service_tier": "default", "n": 1, "logprobs": false}),
        json!({"stream": true, "stream_options": {"include_obfuscation": false}}),
    ] {
        taken(&site, CHAT, &chat(more));
    }
    let more = json!({"stream": true, "stream_options": {"include_obfuscation": true}});
    both_refuse(&site, more, "stream_options.include_obfuscation");
    both_refuse(&site, json!({"stream": true, "stream_options": {"x": true}}), "stream_options.x");
}

fn send(site: &Site, body: impl Into<Vec<u8>>) -> Reply {
    ask("POST", CHAT).with("content-type", "application/json").body(body).get(site)
}

#[test]
fn item_17_json_that_is_none() {
    let site = site(&hello());
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
        format!("{{\"x\":[{}0]}}", "0,".repeat(2_000_000)),
    ] {
        let reply = send(&site, body.clone());
        assert_eq!(reply.status, 400, "{:.80}", body);
        assert!(reply.error().0.contains("JSON"), "{:?}", reply.error());
    }
    let mut bad = chat("\"x\"").into_bytes();
    let at = bad.iter().position(|b| *b == b'x').unwrap();
    bad[at] = 0xff;
    assert_eq!(send(&site, bad).status, 400);
    let twice = r#"{"messages": [{"role": "user", "content": "a"}], "n": 1, "n": 2}"#;
    assert_eq!(send(&site, twice).param().as_deref(), Some("n"));
    let twice = r#"{"messages": [{"role": "user", "content": "a", "content": "b"}]}"#;
    assert_eq!(send(&site, twice).param().as_deref(), Some("content"));
    assert_eq!(send(&site, chat("\"\\ud83e\\udd80\"")).status, 200);
}

#[test]
fn item_17_bodies_that_are_too_large_or_packed() {
    let site = site(&hello());
    // Said to be large: refused before it is sent.
    for length in [(16 << 20) + 1, 1_000_000_000_u64, u64::MAX] {
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        let reply = common::client::raw(&site, head.as_bytes());
        if length < u64::MAX {
            assert_eq!((reply.status, reply.header("connection")), (413, Some("close")));
            reply.error();
        } else {
            assert_eq!(reply.status, 400, "no number at all");
        }
    }
    let packed = post(CHAT, chat(json!({}))).with("content-encoding", "gzip").get(&site);
    assert_eq!(packed.status, 415);
    packed.error();
}

#[test]
fn item_19_messages_and_prompts_with_nothing_in_them() {
    let site = site(&hello());
    for (messages, param) in [
        (json!([]), "messages"),
        (json!("Hi"), "messages"),
        (json!(null), "messages"),
        (json!([null]), "messages[0]"),
        (json!([{"content": "x"}]), "messages[0].role"),
        (json!([{"role": "robot", "content": "x"}]), "messages[0].role"),
        (json!([{"role": "user", "content": "x"}, {"role": "user"}]), "messages[1].content"),
        (json!([{"role": "assistant", "content": null}]), "messages[0].content"),
        (json!([{"role": "user", "content": 7}]), "messages[0].content"),
        (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"),
        (json!([{"role": "user", "content": ["x"]}]), "messages[0].content[0]"),
        (json!([{"role": "user", "content": "x", "tool_calls": []}]), "messages[0].tool_calls"),
        (json!([{"role": "assistant", "content": "x", "tool_calls": [{}]}]), "messages[0].tool_calls"),
        (
            json!([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]),
            "messages[0].content[0].type",
        ),
    ] {
        refused(&site, CHAT, &json!({"messages": messages}), param);
    }
    for prompt in [json!(null), json!([]), json!([[]])] {
        refused(&site, TEXT, &json!({"prompt": prompt}), "prompt");
    }
    refused(&site, TEXT, &json!({"prompt": {}}), "prompt");
    refused(&site, TEXT, &json!({"prompt": ["a", 1]}), "prompt[1]");
    // An empty text still begins.
    taken(&site, TEXT, &json!({"prompt": ""}));
    taken(&site, CHAT, &json!({"messages": [{"role": "user", "content": ""}]}));
}

#[test]
fn item_20_tokens_that_are_none() {
    let site = site(&hello());
    for (prompt, param) in [
        (json!([1, -1]), "prompt[1]"),
        (json!([1, 1.5]), "prompt[1]"),
        (json!([1, 4294967296_u64]), "prompt[1]"),
        (json!([VOCAB]), "prompt"),
        (json!([[1], [VOCAB]]), "prompt"),
    ] {
        refused(&site, TEXT, &json!({"prompt": prompt}), param);
    }
    taken(&site, TEXT, &json!({"prompt": [VOCAB - 1]}));
}

#[test]
fn item_21_prompts_longer_than_the_context() {
    let site = site(&hello());
    let reply = post(TEXT, json!({"prompt": "x".repeat(256)})).get(&site);
    let (message, _, param, code) = reply.error();
    assert_eq!(
        (reply.status, param.as_deref(), code.as_deref()),
        (400, Some("prompt"), Some("context_length_exceeded"))
    );
    assert!(message.contains("257 tokens") && message.contains("context of 256"), "{message}");
    let message = refused(
        &site,
        CHAT,
        &json!({"messages": [{"role": "user", "content": "x".repeat(300)}]}),
        "messages",
    );
    assert!(message.contains("319 tokens"), "{message}");
    // One place is left, and one token is said.
    let reply = post(TEXT, json!({"prompt": "x".repeat(254), "max_tokens": 100})).get(&site).json();
    assert_eq!(
        (&reply["usage"]["total_tokens"], &reply["choices"][0]["finish_reason"]),
        (&json!(256), &json!("length"))
    );
    refused(&site, TEXT, &json!({"prompt": "x".repeat(255), "max_tokens": 1}), "prompt");
    taken(&site, TEXT, &json!({"prompt": "x".repeat(255), "max_tokens": 0, "echo": true}));
}

#[test]
fn item_22_a_million_of_anything() {
    let site = site(&hello());
    refused(&site, TEXT, &json!({"prompt": vec!["a"; 65]}), "prompt");
    refused(&site, TEXT, &json!({"prompt": vec!["a"; 1_000_000]}), "prompt");
    refused(&site, TEXT, &json!({"prompt": ["a", "b"], "n": 65}), "n");
    both_refuse(&site, json!({"n": 1_000_000_000}), "n");
    both_refuse(&site, json!({"n": 129}), "n");
    both_refuse(&site, json!({"n": 0}), "n");
    both_refuse(&site, json!({"n": -1}), "n");
    // More than could ever run here, which no waiting would change.
    both_refuse(&site, json!({"n": 13}), "n");
    refused(&site, TEXT, &text(json!({"best_of": 1_000_000_000})), "best_of");
    refused(
        &site,
        CHAT,
        &json!({"messages": vec![json!({"role": "user", "content": ""}); 20_000]}),
        "messages",
    );
}

#[test]
fn item_23_lengths_out_of_range() {
    let site = site(&hello());
    for n in [
        json!(-1),
        json!(9_223_372_036_854_775_808_u64),
        json!(1e30),
        json!(2_147_483_648_u32),
        json!("9"),
        json!(1.5),
    ] {
        let message = both_refuse(&site, json!({"max_tokens": n}), "max_tokens");
        assert!(!n.is_u64() || message.contains("from 1 to 2147483647"), "{message}");
    }
    refused(&site, CHAT, &chat(json!({"max_tokens": 0})), "max_tokens");
    refused(
        &site,
        CHAT,
        &json!({"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 0}),
        "max_completion_tokens",
    );
    refused(&site, TEXT, &text(json!({"max_tokens": 0})), "max_tokens");
    taken(&site, CHAT, &chat(json!({"max_tokens": 2_147_483_647})));
}

#[test]
fn item_24_numbers_out_of_range() {
    let site = site(&hello());
    for (name, range, bad, good) in [
        ("temperature", "from 0 to 10", vec![json!(-1), json!(1e308), json!(10.1)], json!(0)),
        ("top_p", "", vec![json!(0), json!(2), json!(-0.5)], json!(1)),
        ("top_k", "from -1 to 2147483647", vec![json!(-5), json!(2_147_483_648_u32)], json!(0)),
        ("min_p", "from 0 to 1", vec![json!(-0.1), json!(1.1)], json!(1)),
        ("typical_p", "", vec![json!(0), json!(1.5)], json!(0.5)),
        (
            "repetition_penalty",
            "from 0.01 to 10",
            vec![json!(0), json!(-1), json!(1e308), json!(1e-300)],
            json!(1),
        ),
        ("presence_penalty", "from -2 to 2", vec![json!(1e308), json!(-2.5)], json!(-2)),
        ("frequency_penalty", "from -2 to 2", vec![json!(1e308), json!(2.5)], json!(2)),
        (
            "seed",
            "from -9223372036854775808 to 9223372036854775807",
            vec![json!(18_446_744_073_709_551_615_u64), json!(1.8446744073709552e19)],
            json!(i64::MIN),
        ),
    ] {
        for value in bad {
            let message = both_refuse(&site, json!({name: value}), name);
            assert!(message.contains(range), "{message}");
        }
        both_refuse(&site, json!({name: "1"}), name);
        both_refuse(&site, json!({name: [1]}), name);
        taken(&site, CHAT, &chat(json!({name: good})));
    }
    both_refuse(&site, json!({"n_discard": -5}), "n_discard");
    both_refuse(&site, json!({"ignore_eos": 1}), "ignore_eos");
}

#[test]
fn item_25_biases_and_log_probabilities() {
    let site = site(&hello());
    let many: serde_json::Map<String, Value> = (0..1025).map(|i| (i.to_string(), json!(1))).collect();
    both_refuse(&site, json!({"logit_bias": many}), "logit_bias");
    both_refuse(&site, json!({"logit_bias": {"-1": 1}}), "logit_bias");
    both_refuse(&site, json!({"logit_bias": {"x": 1}}), "logit_bias");
    both_refuse(&site, json!({"logit_bias": {"4294967296": 1}}), "logit_bias");
    both_refuse(&site, json!({"logit_bias": {"265": 1}}), "logit_bias.265");
    both_refuse(&site, json!({"logit_bias": {"5": 101}}), "logit_bias.5");
    both_refuse(&site, json!({"logit_bias": {"5": null}}), "logit_bias.5");
    both_refuse(&site, json!({"logit_bias": [[5, 1]]}), "logit_bias");
    refused(&site, CHAT, &chat(json!({"logprobs": true, "top_logprobs": 1_000_000})), "top_logprobs");
    refused(&site, CHAT, &chat(json!({"logprobs": true, "top_logprobs": 21})), "top_logprobs");
    refused(&site, CHAT, &chat(json!({"top_logprobs": 1})), "top_logprobs");
    refused(&site, CHAT, &chat(json!({"logprobs": 5})), "logprobs");
    refused(&site, TEXT, &text(json!({"logprobs": 6})), "logprobs");
    refused(&site, TEXT, &text(json!({"logprobs": true})), "logprobs");
    both_refuse(&site, json!({"stop_token_ids": [265]}), "stop_token_ids[0]");
    both_refuse(&site, json!({"stop_token_ids": [1, -1]}), "stop_token_ids[1]");
    both_refuse(&site, json!({"stop_token_ids": vec![1; 129]}), "stop_token_ids");
}

#[test]
fn item_26_stops() {
    let site = site(&hello());
    both_refuse(&site, json!({"stop": ""}), "stop");
    both_refuse(&site, json!({"stop": ["a", ""]}), "stop");
    both_refuse(&site, json!({"stop": vec!["a"; 17]}), "stop");
    both_refuse(&site, json!({"stop": vec!["a"; 100_000]}), "stop");
    both_refuse(&site, json!({"stop": "x".repeat(1 << 20)}), "stop");
    both_refuse(&site, json!({"stop": ["a", 1]}), "stop[1]");
    both_refuse(&site, json!({"stop": 1}), "stop");
    taken(&site, CHAT, &chat(json!({"stop": vec!["x".repeat(1024); 16]})));
}

#[test]
fn item_34_models_that_are_not_there() {
    let site = site(&hello());
    let long = "x".repeat(10_000);
    for name in ["../../x", "%2e%2e", "a\0b", "http://evil.example/m", "", "TINY", &long] {
        for (path, body) in [(CHAT, chat(json!({"model": name}))), (TEXT, text(json!({"model": name})))] {
            let reply = post(path, body).get(&site);
            let (message, _, param, code) = reply.error();
            assert_eq!(
                (reply.status, param.as_deref(), code.as_deref()),
                (404, Some("model"), Some("model_not_found"))
            );
            assert!(message.len() < 200 && !message.contains('\0'), "{message}");
        }
    }
    for path in ["../../x", "%2e%2e", "a%00b", "x%0Ay", &long] {
        let reply = ask("GET", &format!("/v1/models/{path}")).get(&site);
        assert_eq!(reply.status, 404, "{path}");
        reply.error();
    }
    assert_eq!(ask("GET", "/v1/models/%ff").get(&site).status, 400);
    refused(&site, CHAT, &chat(json!({"model": 7})), "model");
    for name in ["tiny", "alias"] {
        let reply = post(CHAT, chat(json!({"model": name}))).get(&site);
        assert_eq!(reply.json()["model"], name);
        assert_eq!(ask("GET", &format!("/v1/models/{name}")).get(&site).json()["id"], name);
    }
    assert_eq!(post(CHAT, chat(json!({}))).get(&site).json()["model"], "tiny");
}

#[test]
fn item_35_names_of_requests_and_salts() {
    let site = site(&hello());
    let ask = |id: &str| post(CHAT, chat(json!({}))).with("x-request-id", id);
    let same: Vec<_> = (0..2).map(|_| ask("mine").with("connection", "close").send(&site)).collect();
    for stream in same {
        let reply = common::client::read(stream);
        assert_eq!((reply.status, reply.header("x-request-id")), (200, Some("mine")));
    }
    for id in ["x".repeat(129), "a\tb".into(), "caf\u{e9}".into(), String::new()] {
        let reply = ask(&id).get(&site);
        let given = reply.header("x-request-id").unwrap();
        assert!(given.len() == 32 && given != id, "{given}");
    }
    assert_eq!(ask(&"x".repeat(128)).get(&site).header("x-request-id").unwrap().len(), 128);
    let refused_too = common::client::ask("GET", "/nowhere").with("x-request-id", "mine").get(&site);
    assert_eq!(refused_too.header("x-request-id"), Some("mine"));
    both_refuse(&site, json!({"cache_salt": "x".repeat(257)}), "cache_salt");
    both_refuse(&site, json!({"cache_salt": "x".repeat(10_000_000)}), "cache_salt");
    both_refuse(&site, json!({"cache_salt": ""}), "cache_salt");
    both_refuse(&site, json!({"cache_salt": 5}), "cache_salt");
    taken(&site, CHAT, &chat(json!({"cache_salt": "\u{0}\u{202e}\u{1f980}"})));
    both_refuse(&site, json!({"metadata": {"a": 1}}), "metadata.a");
    both_refuse(&site, json!({"user": 1}), "user");
}
