//! Random texts under masks: each that ends is valid, judged by a validator of its own.

use serde_json::{Value, json};
use tallow_constraint::Compiled;
use tallow_text::tokenizer::{Shown, Tokenizer};

use crate::{schema, tiny};

/// A random text: closing marks are preferred, so that it ends, and at times it goes on with one of `ends`, if it may.
pub(crate) fn random_text(
    compiled: &Compiled,
    tokenizer: &Tokenizer,
    (seed, steps): (u64, usize),
    ends: &[Vec<u32>],
) -> Option<String> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    let mut matcher = compiled.matcher();
    let mut tokens = Vec::new();
    for step in 0..steps {
        for end in ends {
            let mut ended = matcher.fork();
            if random(10) < step / 20 && end.iter().all(|token| ended.accept(*token).is_ok()) {
                matcher = ended;
                tokens.extend(end);
            }
        }
        let mask = matcher.mask().unwrap();
        let allowed: Vec<u32> =
            (0..mask.len() as u32 * 32).filter(|t| mask[*t as usize / 32] >> (t % 32) & 1 == 1).collect();
        assert!(!allowed.is_empty());
        let closing = |t: &&u32| {
            tokenizer.ends_generation(**t)
                || tokenizer.token_text(**t).is_some_and(|text| text.contains(['}', ']', '"', '>']))
        };
        let closers: Vec<u32> = allowed.iter().filter(closing).copied().collect();
        let prefer = !closers.is_empty() && random(10) < 2 + step / 40;
        let token = if prefer { closers[random(closers.len())] } else { allowed[random(allowed.len())] };
        matcher.accept(token).unwrap();
        if tokenizer.ends_generation(token) {
            return Some(tokenizer.decode(&tokens, Shown::Text));
        }
        tokens.push(token);
    }
    None
}

/// A validator of few keywords, written for this test from the standard alone.
pub(crate) fn valid(schema: &Value, value: &Value) -> bool {
    let Value::Object(keywords) = schema else { return schema == true };
    keywords.iter().all(|(keyword, rule)| match keyword.as_str() {
        "type" => {
            let is = |name: &str| match name {
                "null" => value.is_null(),
                "boolean" => value.is_boolean(),
                "number" => value.is_number(),
                "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
                "string" => value.is_string(),
                "array" => value.is_array(),
                "object" => value.is_object(),
                other => panic!("{other}"),
            };
            match rule {
                Value::String(name) => is(name),
                names => names.as_array().unwrap().iter().any(|n| is(n.as_str().unwrap())),
            }
        }
        "const" => value == rule,
        "enum" => rule.as_array().unwrap().contains(value),
        "minimum" => value.as_f64().is_none_or(|n| n >= rule.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|n| n <= rule.as_f64().unwrap()),
        "exclusiveMinimum" => value.as_f64().is_none_or(|n| n > rule.as_f64().unwrap()),
        "exclusiveMaximum" => value.as_f64().is_none_or(|n| n < rule.as_f64().unwrap()),
        "multipleOf" => value.as_f64().is_none_or(|n| {
            let parts = n / rule.as_f64().unwrap();
            (parts - parts.round()).abs() < 1e-9 * parts.abs().max(1.0)
        }),
        "minLength" => value.as_str().is_none_or(|s| s.chars().count() as u64 >= rule.as_u64().unwrap()),
        "maxLength" => value.as_str().is_none_or(|s| s.chars().count() as u64 <= rule.as_u64().unwrap()),
        "minItems" => value.as_array().is_none_or(|a| a.len() as u64 >= rule.as_u64().unwrap()),
        "maxItems" => value.as_array().is_none_or(|a| a.len() as u64 <= rule.as_u64().unwrap()),
        "minProperties" => value.as_object().is_none_or(|o| o.len() as u64 >= rule.as_u64().unwrap()),
        "maxProperties" => value.as_object().is_none_or(|o| o.len() as u64 <= rule.as_u64().unwrap()),
        "required" => value
            .as_object()
            .is_none_or(|o| rule.as_array().unwrap().iter().all(|n| o.contains_key(n.as_str().unwrap()))),
        "properties" => value.as_object().is_none_or(|o| {
            rule.as_object()
                .unwrap()
                .iter()
                .all(|(name, schema)| o.get(name).is_none_or(|v| valid(schema, v)))
        }),
        "additionalProperties" => value.as_object().is_none_or(|o| {
            let named = keywords.get("properties").and_then(Value::as_object);
            o.iter().all(|(name, v)| named.is_some_and(|n| n.contains_key(name)) || valid(rule, v))
        }),
        "items" => value.as_array().is_none_or(|a| {
            let prefix = keywords.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
            a.iter().skip(prefix).all(|v| valid(rule, v))
        }),
        "prefixItems" => {
            value.as_array().is_none_or(|a| a.iter().zip(rule.as_array().unwrap()).all(|(v, s)| valid(s, v)))
        }
        "contains" => value.as_array().is_none_or(|a| a.iter().any(|v| valid(rule, v))),
        "allOf" => rule.as_array().unwrap().iter().all(|s| valid(s, value)),
        "anyOf" => rule.as_array().unwrap().iter().any(|s| valid(s, value)),
        "oneOf" => rule.as_array().unwrap().iter().filter(|s| valid(s, value)).count() == 1,
        "not" => !valid(rule, value),
        "if" => {
            let next = if valid(rule, value) { "then" } else { "else" };
            keywords.get(next).is_none_or(|s| valid(s, value))
        }
        "then" | "else" => true,
        "dependentRequired" => value.as_object().is_none_or(|o| {
            rule.as_object().unwrap().iter().all(|(name, all)| {
                !o.contains_key(name)
                    || all.as_array().unwrap().iter().all(|n| o.contains_key(n.as_str().unwrap()))
            })
        }),
        other => panic!("{other}"),
    })
}

#[test]
fn what_is_generated_is_valid() {
    let (Some(compiler), Some(folder)) = (tiny(), tallow_support::shared("stories260K-hf")) else { return };
    let tokenizer = Tokenizer::from_folder(&folder).unwrap();
    let schemas = [
        json!({"type": "integer", "minimum": -13, "maximum": 127}),
        json!({"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 101}),
        json!({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}),
        json!({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}),
        json!({"type": "number", "minimum": 1.25, "exclusiveMaximum": 13.07}),
        json!({"type": "number", "minimum": -99.9, "maximum": -9.05}),
        json!({"type": "integer", "multipleOf": 7, "minimum": 20, "maximum": 500}),
        json!({"type": "integer", "multipleOf": 300, "minimum": -5000}),
        json!({"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 10}),
        json!({"type": "string", "minLength": 2, "maxLength": 5}),
        json!({"type": ["string", "null"], "not": {"enum": ["", "a", "he"]}}),
        json!({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5}),
        json!({"type": "array", "prefixItems": [{"const": 1}, {"type": "null"}], "items": {"enum": ["x", 2.5]},
            "minItems": 1, "maxItems": 4}),
        json!({"type": "array", "contains": {"const": "hit"}, "items": {"enum": ["hit", 1, null]}}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "c": true},
            "minProperties": 2, "maxProperties": 2, "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "minProperties": 1, "maxProperties": 3,
            "additionalProperties": {"type": "boolean"}}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}},
            "additionalProperties": {"type": "string", "maxLength": 3}}),
        json!({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "integer", "minimum": 5}], "not": {"const": 7}}),
        json!({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}),
        json!({"oneOf": [
            {"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "integer"}}, "required": ["k"]},
            {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]}
        ]}),
        json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object",
            "properties": {"a": {"const": 1}, "b": {"const": 2}}, "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"type": "string"},
            "c": {"type": "null"}}, "additionalProperties": false,
            "if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"required": ["b"]},
                "else": {"required": ["c"]}}),
        json!({"type": "object", "properties": {"a": true, "b": {"const": 1}}, "additionalProperties": false,
            "dependentRequired": {"a": ["b"]}}),
        json!({"allOf": [
            {"type": "object", "properties": {"a": {"type": "number", "minimum": 3}}, "required": ["a"]},
            {"properties": {"a": {"type": "number", "maximum": 5}, "b": {"const": "x"}},
                "additionalProperties": {"type": "null"}}
        ]}),
        json!({"type": "number"}),
        json!(true),
    ];
    let mut finished = 0;
    for (i, one) in schemas.iter().enumerate() {
        let compiled = compiler.compile(&schema(one.clone())).unwrap_or_else(|e| panic!("{one}: {e}"));
        let mut of_one = 0;
        for seed in 0..60 {
            let Some(text) = random_text(&compiled, &tokenizer, (seed * 1000 + i as u64 + 1, 400), &[])
            else {
                continue;
            };
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{one}: {text}: {e}"));
            assert!(valid(one, &value), "{one}: {text}");
            of_one += 1;
        }
        assert!(of_one > 5, "{one}: {of_one} texts");
        finished += of_one;
    }
    assert!(finished > 500, "{finished}");
}
