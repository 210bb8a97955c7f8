//! Lists of parts and members of objects, as calls of tools are written; special tokens in them.

use std::sync::Arc;

use serde_json::{Value, json};
use tallow_constraint::{Compiler, Grammar, Limits, List, Members, Tag, Tagged, Vocabulary};
use tallow_text::tokenizer::Tokenizer;

use crate::{accepts, refusal, schema, tiny};

fn item(name: &str, grammar: Grammar) -> Tag {
    Tag { begin: format!("<f={name}>\n"), grammar, end: "</f>".into() }
}

fn list(items: Vec<Tag>, between: Option<&str>) -> Grammar {
    Grammar::List(List {
        before: Vec::new(),
        open: "[".into(),
        items,
        between: between.map(str::to_owned),
        close: "]".into(),
    })
}

fn members(schema: Value, apart: bool) -> Grammar {
    Grammar::Members(Members {
        schema,
        best_effort: false,
        before_key: "<p=".into(),
        before_text: if apart { " text>" } else { ">" }.into(),
        before_json: ">".into(),
        after_value: "</p>\n".into(),
        ends: vec!["</p>".into(), "</f>".into()],
    })
}

#[test]
fn parts_stand_in_a_row() {
    if tiny().is_none() {
        return;
    }
    let items = || {
        let object = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
            "additionalProperties": false});
        vec![item("a", schema(object)), item("b", Grammar::Choice(vec!["x".into(), "xy".into()]))]
    };
    let (a, b) = ("<f=a>\n{\"n\": 5}</f>", "<f=b>\nxy</f>");
    for (text, one, several) in [
        (format!("[{a}]"), true, true),
        (format!("[{b}]"), true, true),
        (format!("[{a}, {b}, {a}]"), false, true),
        ("[]".into(), false, false),
        (format!("[{a} {b}]"), false, false),
        (format!("[{a}, ]"), false, false),
        (a.into(), false, false),
        ("[<f=c>\n{}</f>]".into(), false, false),
        ("[<f=a>\n{}</f>]".into(), false, false),
        (format!("[{a}]."), false, false),
    ] {
        assert_eq!(accepts(&list(items(), None), &text), one, "{text}");
        assert_eq!(accepts(&list(items(), Some(", ")), &text), several, "{text}");
    }
    let bad = vec![
        item("a", schema(json!({}))),
        item("b", schema(json!({"properties": {"x": {"contentSchema": {}}}}))),
    ];
    insta::assert_snapshot!(refusal(&list(bad, None)));
}

#[test]
fn members_stand_between_texts_of_their_own() {
    if tiny().is_none() {
        return;
    }
    let object = json!({
        "type": "object",
        "properties": {
            "s": {"type": "string", "maxLength": 9},
            "n": {"$ref": "#/$defs/small"},
            "e": {"enum": ["red", "blue", 7]},
            "o": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"], "additionalProperties": false},
            "u": {"type": ["string", "null"]},
            "c": {"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 3}]},
        },
        "required": ["s"],
        "$defs": {"small": {"type": "integer", "maximum": 10, "minimum": 0}},
    });
    for (text, by_schema, apart) in [
        ("<p=s>a\"\n<b</p>\n", true, false),
        ("<p=s text>a\"\n<b</p>\n", false, true),
        ("<p=s>\"a\"</p>\n", true, false),
        ("<p=s></p>\n", true, false),
        ("<p=s>ten letters</p>\n", false, false),
        ("<p=s>a</p>", false, false),
        ("<p=s>a</p>b</p>\n", false, false),
        ("<p=s>a</f>b</p>\n", false, false),
        ("", false, false),
        ("<p=n>5</p>\n", false, false),
        ("<p=s>a</p>\n<p=n>5</p>\n", true, false),
        ("<p=s text>a</p>\n<p=n>5</p>\n", false, true),
        ("<p=s text>a</p>\n<p=n text>5</p>\n", false, false),
        ("<p=s>a</p>\n<p=n>50</p>\n", false, false),
        ("<p=n>5</p>\n<p=s>a</p>\n", false, false),
        ("<p=s>a</p>\n<p=s>a</p>\n", false, false),
        ("<p=s>a</p>\n<p=o>{\"x\": \"b </q>\"}</p>\n", true, false),
        ("<p=s>a</p>\n<p=o>{\"x\": \"b </p>\"}</p>\n", false, false),
        ("<p=s>a</p>\n<p=o>{\"x\": 1}</p>\n", false, false),
        ("<p=s>a</p>\n<p=u>null</p>\n", true, false),
        ("<p=s>a</p>\n<p=u>nothing</p>\n", true, false),
        ("<p=s text>a</p>\n<p=u>null</p>\n<p=c text>anything</p>\n", false, true),
        // A reader would take this text for a number that is too large.
        ("<p=s>a</p>\n<p=c>50</p>\n", false, false),
        ("<p=s>a</p>\n<p=c>2</p>\n", true, false),
        ("<p=s>a</p>\n<p=x>1</p>\n", false, false),
    ] {
        assert_eq!(accepts(&members(object.clone(), false), text), by_schema, "{text}");
        assert_eq!(accepts(&members(object.clone(), true), text), apart, "{text}");
    }
    let any = members(json!({"type": "object", "properties": {"a": {}}}), false);
    for text in ["", "<p=a>text</p>\n", "<p=a>{\"b\": [1]}</p>\n"] {
        assert!(accepts(&any, text), "{text}");
    }
    let refused = [
        refusal(&members(json!({"type": "object", "properties": {"a>b": {}}}), false)),
        refusal(&members(json!({"type": "object", "properties": {"a": {"contentSchema": {}}}}), false)),
        refusal(&members(json!({"type": "string"}), false)),
        refusal(&members(json!({"type": "object", "minProperties": 2, "properties": {"a": {}}}), false)),
    ];
    insta::assert_snapshot!(refused.join("\n"));
}

/// Letters and special tokens, with and without a space in front of texts.
fn tokenizer(space: bool) -> Tokenizer {
    let mut vocab = serde_json::Map::new();
    for c in (0x20..0x7f_u8).map(char::from) {
        vocab.insert(if c == ' ' { "▁".into() } else { c.into() }, vocab.len().into());
    }
    let special = |id: usize, text: &str| {
        json!({"id": id, "content": text, "special": true, "normalized": false, "single_word": false,
               "lstrip": false, "rstrip": false})
    };
    let count = vocab.len();
    let replace =
        |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let mut normalizers = vec![replace(" ", "▁")];
    if space {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
    }
    let file = json!({
        "added_tokens": [special(count, "[CALL]"), special(count + 1, "[CALLS]"), special(count + 2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "decoder": {"type": "Sequence", "decoders": [replace("▁", " "), {"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    Tokenizer::from_json(std::path::Path::new("tokenizer.json"), file.to_string().as_bytes(), None).unwrap()
}

#[test]
fn special_tokens_are_themselves() {
    for space in [false, true] {
        let tokenizer = tokenizer(space);
        let compiler = Compiler::new(Arc::new(Vocabulary::new(&tokenizer).unwrap()), Limits::default());
        let tag = Tag {
            begin: "a[CALL]".into(),
            grammar: Grammar::Choice(vec!["x[CALL]".into()]),
            end: "[CALL]</s>".into(),
        };
        let grammar = Grammar::List(List {
            before: Vec::new(),
            open: "[CALLS]".into(),
            items: vec![tag],
            between: Some("".into()),
            close: "</s>".into(),
        });
        let compiled = compiler.compile(&grammar).unwrap();
        let [call, calls, end] = ["[CALL]", "[CALLS]", "</s>"].map(|text| tokenizer.id_of(text).unwrap());
        let letters =
            |text: &str| text.chars().map(|c| tokenizer.id_of(&c.to_string()).unwrap()).collect::<Vec<u32>>();
        let once = [letters("a"), vec![call], letters("x[CALL]"), vec![call]].concat();
        let text = [vec![calls], once.clone(), once].concat();
        let mut matcher = compiled.matcher();
        for (at, token) in text.iter().enumerate() {
            let mask = matcher.mask().unwrap();
            let allowed: Vec<u32> = (0..tokenizer.vocab_size() as u32)
                .filter(|t| mask[*t as usize / 32] >> (t % 32) & 1 == 1)
                .collect();
            // Behind a call, another may come, or the end.
            let others = allowed.iter().filter(|t| *t != token).count();
            let lead = usize::from(space && at == 0);
            assert!(allowed.contains(token), "{at}: {token} of {allowed:?}");
            assert_eq!(others, lead + usize::from(at == text.len() / 2 + 1), "{at}: {allowed:?}");
            // Its text is not the token.
            if *token == call || *token == calls {
                assert!(matcher.fork().accept(letters("[")[0]).is_err());
            }
            matcher.accept(*token).unwrap();
        }
        assert!(matcher.may_end().unwrap());
        assert!(matcher.accept(call).is_err());
        matcher.accept(end).unwrap();
    }
}

#[test]
fn special_tokens_are_triggers() {
    let tokenizer = tokenizer(false);
    let compiler = Compiler::new(Arc::new(Vocabulary::new(&tokenizer).unwrap()), Limits::default());
    let tag = Tag { begin: "[CALLS]a".into(), grammar: Grammar::Text, end: "[CALL]".into() };
    let tagged = Tagged {
        triggers: vec!["[CALLS]".into(), "!!".into()],
        tags: vec![
            tag,
            Tag { begin: "!!".into(), grammar: Grammar::Choice(vec!["b".into()]), end: ".".into() },
        ],
        at_least_one: false,
        stop_after_first: false,
    };
    let compiled = compiler.compile(&Grammar::Tagged(tagged)).unwrap();
    let [call, calls, end] = ["[CALL]", "[CALLS]", "</s>"].map(|text| tokenizer.id_of(text).unwrap());
    let letters =
        |text: &str| text.chars().map(|c| tokenizer.id_of(&c.to_string()).unwrap()).collect::<Vec<u32>>();
    let accepted = |parts: &[&[u32]]| {
        let mut matcher = compiled.matcher();
        parts.concat().into_iter().all(|token| {
            let mask = matcher.mask().unwrap();
            let allowed = mask[token as usize / 32] >> (token % 32) & 1 == 1;
            assert_eq!(matcher.accept(token).is_ok(), allowed, "{token}");
            allowed
        })
    };
    let (hi, a, ax, bang) = (letters("hi[CALLS]"), letters("a"), letters("ax[CALL]"), letters("!!b."));
    for (parts, is_right) in [
        (&[&hi[..], &[end]][..], true),
        (&[&[calls], &a, &[call, end]], true),
        (&[&hi, &[calls], &ax, &[call], &hi, &[end]], true),
        (&[&hi, &[calls], &ax, &[call], &[calls], &a, &[call], &bang, &hi, &[calls], &a, &[call, end]], true),
        (&[&bang, &[calls], &a, &[call, end]], true),
        (&[&hi, &[call]], false),
        (&[&hi, &[calls], &hi], false),
        (&[&hi, &[calls], &a, &[end]], false),
        (&[&hi, &[calls, call]], false),
        (&[&letters("!!c")], false),
    ] {
        assert_eq!(accepted(parts), is_right, "{parts:?}");
    }
}
