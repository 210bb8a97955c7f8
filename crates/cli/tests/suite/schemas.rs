//! `tallow schema`: what is enforced, and texts checked token by token.

use serde_json::{Value, json};

use crate::common::{Home, did};

fn checked(home: &Home, args: &[&str], input: &str) -> Value {
    let text = did(home.command(&[&["schema"], args].concat()), input.as_bytes()).ok();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_schema_is_enforced_and_texts_are_checked() {
    let home = Home::new();
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"], "additionalProperties": false});
    let schema = home.file("schema.json", schema.to_string());
    let right = home.file("right.json", "{\"name\": \"Zoë\",\n  \"age\": 5}\n");
    let wrong = home.file("wrong.json", "{\"name\": \"Zoë\", \"age\": 5.5}");
    let short = home.file("short.json", "{\"name\": \"Zoë\"");
    let all = checked(&home, &[&schema, &right, &wrong, &short, "-"], "{\"name\": \"\", \"age\": -12}\n");
    assert_eq!((&all["enforced"], &all["unenforced"]), (&json!(true), &json!([])));
    let one = |i: usize| {
        let mut one = all["instances"][i].clone();
        one.as_object_mut().unwrap().remove("file");
        one
    };
    assert_eq!((one(0), one(3)), (json!({"accepted": true}), json!({"accepted": true})));
    assert_eq!((&one(1)["accepted"], &one(1)["offset"]), (&json!(false), &json!(25)), "{all}");
    assert!(one(1)["token"].as_str().unwrap().starts_with('.'), "{all}");
    assert_eq!((&one(2)["offset"], &one(2)["token"]), (&json!(15), &json!("")), "{all}");
    assert!(one(2)["expected"].as_str().unwrap().contains("\",\""), "{all}");
}

#[test]
fn what_is_not_enforced_is_said_with_its_place() {
    let home = Home::new();
    let schema = json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}});
    let schema = home.file("schema.json", schema.to_string());
    let refused = checked(&home, &[&schema], "");
    assert_eq!(
        (&refused["enforced"], &refused["refused"]["pointer"]),
        (&json!(false), &json!("/properties/a/uniqueItems"))
    );
    let loose = checked(&home, &[&schema, "--best-effort", "-"], "{\"a\": [1, 1]}");
    assert_eq!((&loose["enforced"], &loose["instances"][0]["accepted"]), (&json!(true), &json!(true)));
    assert_eq!(loose["unenforced"][0]["pointer"], "/properties/a/uniqueItems");
}

#[test]
fn grammars_and_expressions_are_told_from_schemas() {
    let home = Home::new();
    for (name, text, right, wrong) in [
        ("a.gbnf", "root ::= \"a\"+", "aaa", "b"),
        ("a.lark", "start: \"a\"+", "aaa", "b"),
        ("a.regex", "a{2,3}\n", "aa", "a"),
        ("gbnf.txt", "root ::= \"a\"+", "aaa", "b"),
        ("lark.txt", "start: \"a\"+", "aaa", "b"),
        ("schema.txt", "{\"const\": 5}", "5", "6"),
    ] {
        let file = home.file(name, text);
        for (text, accepted) in [(right, true), (wrong, false)] {
            let all = checked(&home, &[&file, "-"], text);
            assert_eq!(all["instances"][0]["accepted"], accepted, "{name}: {all}");
        }
    }
    let file = home.file("plain.txt", "a+");
    assert_eq!(checked(&home, &[&file, "--kind", "regex", "-"], "aa")["instances"][0]["accepted"], true);
}

#[test]
fn files_that_cannot_be_read_are_errors() {
    let home = Home::new();
    let failed = |args: &[&str]| did(home.command(&[&["schema"], args].concat()), b"").failed();
    assert!(failed(&["none.json"]).contains("none.json: there is no such file"));
    let broken = home.file("broken.json", "{");
    assert!(failed(&[&broken]).contains("broken.json: it is no JSON: "));
    let schema = home.file("schema.json", "{}");
    assert!(failed(&[&schema, "none.txt"]).contains("none.txt: there is no such file"));
    assert!(failed(&[&schema, "--model", "./none.gguf"]).contains("none.gguf"));
}
