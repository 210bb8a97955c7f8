//! Schemas, grammars and tools, which are refused unparsed for now; and answers that are not valid UTF-8.

use crate::common::bodies::{CHAT, both_refuse, chat, refused};
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
    let deep = (0..40).fold(json!({}), |inner, _| json!({"properties": {"a": inner}}));
    for schema in [
        json!({"$ref": "#"}),
        json!({"$ref": "http://169.254.169.254/latest"}),
        json!({"type": "array", "maxItems": 1_000_000_000}),
        json!({"type": "string", "enum": []}),
        json!({"allOf": [{"type": "string"}, {"type": "number"}]}),
        deep,
    ] {
        let message = refused(&server, CHAT, &formatted(&schema), "response_format");
        assert!(message.contains("cannot be held to a format yet"), "{message}");
    }
    let tool = |i: usize| json!({"type": "function", "function": {"name": format!("f{i}"), "description": "x".repeat(100)}});
    let tools: Vec<Value> = (0..1000).map(tool).collect();
    refused(&server, CHAT, &chat(json!({"tools": tools})), "tools");
    refused(&server, CHAT, &chat(json!({"tool_choice": "required"})), "tool_choice");
}

/// Other servers' names for these are unknown fields here.
#[test]
fn item_28_patterns_and_grammars() {
    let server = start_server(&hello());
    for (name, value) in [
        ("guided_regex", "(a+)+$"),
        ("guided_regex", "a{1,1000000000}"),
        ("guided_grammar", " "),
        ("grammar", "root ::= root \"a\""),
        ("grammar", "root ::= \"unterminated"),
        ("structured_outputs", "x"),
    ] {
        both_refuse(&server, json!({name: value}), name);
    }
}

/// A refused schema is not kept: a new one each time uses no memory.
#[test]
fn item_29_a_new_schema_each_time() {
    let server = start_server(&hello());
    for i in 0..2000 {
        let schema = json!({"type": "object", "properties": {format!("p{i}"): {"const": "x".repeat(200)}}});
        assert_eq!(post(CHAT, formatted(&schema)).get(&server).status, 400);
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
