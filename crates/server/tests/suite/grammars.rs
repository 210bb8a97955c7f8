//! Schemas, grammars and tools, good and bad; and answers that are not valid UTF-8.

use crate::common::bodies::{CHAT, TEXT, chat, refused, taken, text, with};
use crate::common::client::post;
use crate::common::{END, hello, start_server};
use serde_json::{Value, json};

fn formatted(schema: &Value) -> Value {
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    chat(json!({"response_format": format}))
}

#[test]
fn item_27_schemas_and_tools() {
    let server = start_server(&hello());
    let deep = |depth: usize| (0..depth).fold(json!({}), |inner, _| json!({"properties": {"a": inner}}));
    let mut all = String::new();
    for schema in [
        json!({"$ref": "#"}),
        json!({"$ref": "http://169.254.169.254/latest"}),
        json!({"type": "array", "maxItems": 1_000_000_000}),
        json!({"type": "string", "enum": []}),
        json!({"allOf": [{"type": "string"}, {"type": "number"}]}),
        json!({"type": "object", "properties": {"a": {"not": {"type": "string"}, "dependentRequired": {}}}}),
        json!({"type": "string", "pattern": "(a+)+$"}),
        deep(40),
        deep(100),
    ] {
        let reply = post(CHAT, formatted(&schema)).get(&server);
        let said = match reply.status {
            200 => "taken".into(),
            400 => reply.error().0,
            other => panic!("{schema}: {other} {}", reply.text()),
        };
        all += &format!("{}: {said}\n", schema.to_string().chars().take(60).collect::<String>());
    }
    insta::assert_snapshot!(all);
    refused(&server, CHAT, &chat(json!({"tool_choice": "required"})), "tool_choice");
}

#[test]
fn item_28_patterns_and_grammars() {
    let server = start_server(&hello());
    let mut all = String::new();
    for (name, value) in [
        ("guided_regex", json!("(a+)+$")),
        ("guided_regex", json!("a{1,1000000000}")),
        ("guided_regex", json!("(")),
        ("guided_grammar", json!(" ")),
        ("grammar", json!("root ::= root \"a\"")),
        ("grammar", json!("root ::= \"unterminated")),
        ("grammar", json!("root ::= (\"a\" | root \"b\")*")),
        ("structured_outputs", json!("x")),
        ("guided_choice", json!(["yes", "no"])),
    ] {
        for (path, body) in [(CHAT, chat(json!({name: value}))), (TEXT, text(json!({name: value})))] {
            let reply = post(path, body).get(&server);
            let said = match reply.status {
                200 => "taken".into(),
                400 => reply.error().0,
                other => panic!("{name} {value}: {other} {}", reply.text()),
            };
            all += &format!("{name} {value}: {said}\n");
        }
    }
    insta::assert_snapshot!(all);
    let both = with(chat(json!({"guided_choice": ["a"]})), json!({"ignore_eos": true}));
    refused(&server, CHAT, &both, "ignore_eos");
}

/// A new schema each time: the memory that compiled ones take is bounded, and each is compiled.
#[test]
fn item_29_a_new_schema_each_time() {
    let server = start_server(&hello());
    for i in 0..2000 {
        let schema = json!({"type": "object", "properties": {format!("p{i}"): {"const": "x".repeat(200)}}});
        taken(&server, CHAT, &formatted(&schema));
    }
    assert_eq!(post(CHAT, chat(json!({}))).get(&server).status, 200);
}

/// Bytes that are not valid UTF-8 become replacement characters, never cut nor passed on: the JSON stays valid.
#[test]
fn item_30_answers_that_are_no_text() {
    for (reply, text) in [
        (vec![0xC3, 0x28, END], "\u{FFFD}("),
        (vec![0xF0, 0x9F, 0x92, END], "\u{FFFD}"),
        (vec![0xFF, 0xFE, 0x61, END], "\u{FFFD}\u{FFFD}a"),
        (vec![0xE2, 0x98, 0x95, END], "☕"),
        (b"{\"a\": <think>".iter().map(|b| u32::from(*b)).chain([END]).collect(), "{\"a\": <think>"),
    ] {
        let server = start_server(&reply);
        let body = chat(json!({"max_tokens": 20}));
        let whole: Value = serde_json::from_str(&post(CHAT, &body).get(&server).text()).unwrap();
        assert_eq!(whole["choices"][0]["message"]["content"], text);
        let streamed = post(CHAT, chat(json!({"max_tokens": 20, "stream": true}))).get(&server).text();
        let pieces =
            streamed.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|d| *d != "[DONE]");
        let output: String = pieces
            .map(|d| serde_json::from_str::<Value>(d).unwrap())
            .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(output, text);
    }
}
