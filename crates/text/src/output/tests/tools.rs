//! Lists of tools, and types of parameters.

use serde_json::{Value as Json, json};

use super::super::step::Typed;
use super::super::tools::value;
use super::super::{Tools, ToolsError};

#[test]
fn tools_are_read_as_the_apis_write_them() {
    let tools = json!([
        {"type": "function", "function": {"name": "chat", "parameters": {"type": "object"}}},
        {"type": "function", "name": "responses", "parameters": {"type": "object"}},
        {"name": "messages", "input_schema": {"type": "object"}},
        {"type": "web_search"},
    ]);
    let tools = Tools::from_json(&tools).unwrap();
    assert!(["chat", "responses", "messages"].iter().all(|name| tools.contains(name)));
    assert!(!tools.contains("web_search") && !tools.is_empty());
    assert!(Tools::from_json(&json!([])).unwrap().is_empty());
    assert_eq!(Tools::from_json(&json!({})).unwrap_err(), ToolsError::NoList);
    let nameless = json!([{"name": "a"}, {"type": "function", "function": {}}]);
    assert_eq!(Tools::from_json(&nameless).unwrap_err().to_string(), "tools[1] has no name");
}

#[test]
fn schemas_say_how_text_becomes_json() {
    for (schema, text, want) in [
        (json!({"type": "string"}), "5", json!("5")),
        (json!({"enum": ["5", "6"]}), "5", json!("5")),
        (json!({"enum": [5, 6]}), "5", json!(5)),
        (json!({"const": true}), "True", json!(true)),
        (json!({"type": "integer"}), "5", json!(5)),
        (json!({"type": "integer"}), "five", json!("five")),
        (json!({"type": "number"}), "1e3", json!(1e3)),
        (json!({"type": "boolean"}), "False", json!(false)),
        (json!({"type": "null"}), "None", Json::Null),
        (json!({"type": ["string", "null"]}), "null", Json::Null),
        (json!({"type": ["string", "null"]}), "5", json!("5")),
        (json!({"type": "string", "nullable": true}), "None", Json::Null),
        (json!({"anyOf": [{"type": "string"}, {"type": "array"}]}), "[1]", json!([1])),
        (json!({"anyOf": [{"type": "string"}, {"type": "array"}]}), "{}", json!("{}")),
        (json!({"oneOf": [{"type": "integer"}, {"type": "string"}]}), "5", json!(5)),
        (json!({"allOf": [{"$ref": "#/$defs/text"}]}), "5", json!("5")),
        (json!({"$ref": "#/$defs/loop"}), "5", json!(5)),
        (json!({"type": "array", "items": {"type": "string"}}), "['a']", json!("['a']")),
        (json!({"type": "object"}), "{\"a\": 1}", json!({"a": 1})),
        (json!({"type": "file"}), "5", json!(5)),
        (json!({}), "5", json!(5)),
        (json!({}), "True", json!("True")),
        (json!(true), "x", json!("x")),
    ] {
        let defs = json!({"text": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}});
        let parameters = json!({"properties": {"p": schema}, "$defs": defs});
        let tools = Tools::from_json(&json!([{"name": "f", "parameters": parameters}])).unwrap();
        let read = value(text, Typed::Schema, ("f", "p"), Some(&tools));
        assert_eq!(serde_json::from_str::<Json>(&read).unwrap(), want, "{schema} {text}");
    }
}

#[test]
fn a_schema_without_end_is_followed_for_a_while() {
    let many: Vec<Json> = (0..1000).map(|_| json!({"anyOf": [{"$ref": "#/properties/p"}]})).collect();
    let parameters = json!({"properties": {"p": {"anyOf": many}}});
    let tools = Tools::from_json(&json!([{"name": "f", "parameters": parameters}])).unwrap();
    assert_eq!(value("5", Typed::Schema, ("f", "p"), Some(&tools)), "5");
}
