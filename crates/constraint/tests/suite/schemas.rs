//! The meaning of single schemas.

use serde_json::json;

use crate::{accepts, schema, tiny};

#[test]
fn objects_have_their_properties_in_order() {
    if tiny().is_none() {
        return;
    }
    let schema = schema(json!({
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": false
    }));
    for (text, expected) in [
        (r#"{"a":1}"#, true),
        (r#"{"a": 1, "b": "x"}"#, true),
        ("{\n  \"a\": -12,\n  \"b\": \"x\\n\"\n}", true),
        (r#"{"b":"x","a":1}"#, false),
        (r#"{"b":"x"}"#, false),
        (r#"{"a":1.5}"#, false),
        (r#"{"a":1,"c":1}"#, false),
        (r#"{"a":1"#, false),
    ] {
        assert_eq!(accepts(&schema, text), expected, "{text}");
    }
}

#[test]
fn a_name_is_the_same_however_it_is_escaped() {
    if tiny().is_none() {
        return;
    }
    let schema =
        schema(json!({"type": "object", "properties": {"a": {"type": "string"}, "\n": {"type": "string"}},
            "additionalProperties": {"type": "number"}}));
    assert!(accepts(&schema, r#"{"a":"x","b":1}"#));
    assert!(accepts(&schema, r#"{"\n":"x"}"#));
    for text in
        [r#"{"b":1,"a":1}"#, r#"{"b":1,"\u0061":1}"#, r#"{"\u000a":1}"#, r#"{"\n":1}"#, r#"{"\u0061":1}"#]
    {
        assert!(!accepts(&schema, text), "{text}");
    }
}

#[test]
fn keywords_of_older_drafts_are_read() {
    if tiny().is_none() {
        return;
    }
    let four = "http://json-schema.org/draft-04/schema#";
    for (one, yes, no) in [
        (json!({"$schema": four, "type": "integer", "minimum": 3, "exclusiveMinimum": true}), "4", "3"),
        (
            json!({"$schema": four, "id": "http://x/y", "properties": {"a": {"$ref": "y#/definitions/n"}},
                "definitions": {"n": {"type": "null"}}}),
            "{\"a\":null}",
            "{\"a\":1}",
        ),
        (
            json!({"type": "array", "items": [{"const": 1}], "additionalItems": {"const": 2}}),
            "[1,2,2]",
            "[1,1]",
        ),
        (
            json!({"dependencies": {"a": ["b"]}, "type": "object", "properties": {"a": {"const": 1},
                "b": {"const": 2}}}),
            "{\"a\":1,\"b\":2}",
            "{\"a\":1}",
        ),
        (
            json!({"$schema": "http://json-schema.org/draft-07/schema#",
                "properties": {"a": {"$ref": "#/definitions/s", "maxLength": 1}},
                    "definitions": {"s": {"type": "string"}}}),
            "{\"a\":\"xyz\"}",
            "{\"a\":1}",
        ),
        (
            json!({"properties": {"a": {"$ref": "#/$defs/s", "maxLength": 1}}, "$defs": {"s": {"type": "string"}}}),
            "{\"a\":\"x\"}",
            "{\"a\":\"xyz\"}",
        ),
        (
            json!({"$schema": "https://json-schema.org/draft/2019-09/schema",
                "properties": {"a": {"$recursiveRef": "#"}}, "additionalProperties": false}),
            "{\"a\":{}}",
            "{\"a\":{\"b\":1}}",
        ),
    ] {
        assert!(accepts(&schema(one.clone()), yes), "{one}: {yes}");
        assert!(!accepts(&schema(one.clone()), no), "{one}: {no}");
    }
}

#[test]
fn vendor_words_are_annotations() {
    if tiny().is_none() {
        return;
    }
    let schema = schema(json!({
        "type": "integer", "format": "int64", "x-guidance": {"lenient": true}, "nullable": true, "example": 1,
            "deprecated": true
    }));
    assert!(accepts(&schema, "12"));
    assert!(!accepts(&schema, "null"));
}
