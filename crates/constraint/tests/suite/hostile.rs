//! Requests that are to break a server: bounded in size, and refused with words.

use std::sync::Arc;

use serde_json::{Value, json};
use tallow_constraint::{Compiler, Grammar, Limits, Tag, Tagged};

use crate::{accepts, refusal, schema, tiny};

#[test]
fn what_cannot_be_enforced_is_refused_with_words() {
    if tiny().is_none() {
        return;
    }
    let mut deep = json!({"type": "string"});
    for _ in 0..200 {
        deep = json!({"properties": {"a": deep}});
    }
    let choices =
        |n: usize| (0..n).map(|i| json!({"properties": {format!("p{i}"): {"const": i}}})).collect::<Vec<_>>();
    let grammars = [
        ("a reference to itself", schema(json!({"$ref": "#"}))),
        (
            "two that need each other",
            schema(json!({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]},
                    "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}})),
        ),
        ("its own opposite", schema(json!({"not": {"$ref": "#"}}))),
        ("its own condition", schema(json!({"if": {"$ref": "#"}, "then": {"type": "null"}}))),
        (
            "one of itself",
            schema(
                json!({"properties": {"a": {"oneOf": [{"not": {"$ref": "#/properties/a"}}, {"type": "null"}]}}}),
            ),
        ),
        ("gbnf: repeated repetitions", Grammar::Gbnf(format!("root ::= \"a\"{}", "*".repeat(100_000)))),
        ("gbnf: brackets", Grammar::Gbnf(format!("root ::= {}\"a\"", "(".repeat(100_000)))),
        ("regex: brackets", Grammar::Regex(format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000)))),
        ("lark: brackets", Grammar::Lark(format!("start: {}\"a\"", "(".repeat(100_000)))),
        (
            "lark: a long way",
            Grammar::Lark(
                (0..20_000).fold("start: r0\n".into(), |all, i| format!("{all}r{i}: r{}\n", i + 1)),
            ),
        ),
        (
            "no finite value",
            schema(json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]})),
        ),
        (
            "a remote reference",
            schema(json!({"properties": {"a": {"$ref": "http://169.254.169.254/latest"}}})),
        ),
        ("a file", schema(json!({"$ref": "file:///etc/passwd"}))),
        ("a missing reference", schema(json!({"$ref": "#/$defs/missing"}))),
        ("contradictory types", schema(json!({"allOf": [{"type": "string"}, {"type": "number"}]}))),
        ("contradictory numbers", schema(json!({"type": "integer", "minimum": 5, "maximum": 4}))),
        ("no multiple", schema(json!({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6}))),
        ("contradictory lengths", schema(json!({"type": "string", "minLength": 5, "maxLength": 4}))),
        (
            "contradictory patterns",
            schema(json!({"type": "string", "pattern": "^a", "allOf": [{"pattern": "^b"}]})),
        ),
        ("contradictory constants", schema(json!({"const": 1, "enum": [2, "1"]}))),
        (
            "a required property that is false",
            schema(json!({"type": "object", "properties": {"a": false}, "required": ["a"]})),
        ),
        ("an unknown type", schema(json!({"type": "strng"}))),
        ("no schema", schema(json!([1, 2]))),
        ("a part that is none", schema(json!({"properties": {"a": 1}}))),
        ("a bad keyword", schema(json!({"minLength": -1}))),
        ("a bad list", schema(json!({"required": "a"}))),
        ("look-ahead", schema(json!({"pattern": "^(?!a)"}))),
        ("a bad pattern", schema(json!({"pattern": "("}))),
        ("a large count", schema(json!({"pattern": "a{1,1000000000}"}))),
        ("unique items", schema(json!({"properties": {"a/b": {"uniqueItems": true}}}))),
        ("an unknown dialect", schema(json!({"$schema": "http://example.com/own"}))),
        ("deep nesting", schema(deep)),
        (
            "alternatives that multiply",
            schema(
                json!({"allOf": [{"anyOf": choices(100)}, {"anyOf": choices(100)}, {"anyOf": choices(100)}]}),
            ),
        ),
        (
            "alternatives that double",
            schema({
                let mut twice: serde_json::Map<String, Value> = (0..40)
                    .map(|i| {
                        (
                            format!("d{i}"),
                            json!({"anyOf": [{"$ref": format!("#/$defs/d{}", i + 1)},
                    {"$ref": format!("#/$defs/d{}", i + 1)}]}),
                        )
                    })
                    .collect();
                twice.insert("d40".into(), json!({"type": "string"}));
                json!({"$ref": "#/$defs/d0", "$defs": twice})
            }),
        ),
        ("a large constant", schema(json!({"const": 1e300}))),
        ("a large schema", schema(json!({"enum": ["x".repeat(2 << 20)]}))),
        ("regex: look-ahead", Grammar::Regex("(?=a)b".into())),
        ("regex: not closed", Grammar::Regex("(a".into())),
        ("regex: counts of counts", Grammar::Regex("((a{1,1000}){1,1000}){1,1000}{1,1000}".into())),
        ("no choices", Grammar::Choice(Vec::new())),
        ("lark: empty", Grammar::Lark(String::new())),
        ("lark: unknown rule", Grammar::Lark("start: a".into())),
        ("lark: not closed", Grammar::Lark("start: \"a\n".into())),
        ("lark: a token", Grammar::Lark("start: \"<\" <|im_end|>".into())),
        ("lark: a schema", Grammar::Lark("start: %json {\"type\": \"object\"}".into())),
        ("lark: options", Grammar::Lark("%llguidance {\"allow_invalid_utf8\": true}\nstart: \"a\"".into())),
    ];
    let messages: Vec<String> = grammars
        .iter()
        .map(|(what, grammar)| match tiny().unwrap().compile(grammar) {
            Ok(_) => format!("{what}: ENFORCED"),
            // Long ones in two lines.
            Err(refused) => format!("{what} [{}]\n  {}", refused.pointer, refused.why),
        })
        .collect();
    insta::assert_snapshot!(messages.join("\n"), @r##"
    a reference to itself []
      it applies itself to the same value again, without a property or an item in between
    two that need each other [/$defs/a]
      it applies itself to the same value again, without a property or an item in between
    its own opposite [/not]
      more than 100 schemas apply each other to the same value: use fewer steps
    its own condition []
      it applies itself to the same value again, without a property or an item in between
    one of itself [/properties/a/oneOf/0]
      more than 100 schemas apply each other to the same value: use fewer steps
    gbnf: repeated repetitions [1:21]
      more than 8 repetitions of one another: use brackets or rules
    gbnf: brackets [1:111]
      groups may be nested 100 deep: use rules
    regex: brackets []
      the regular expression is refused: exceed the maximum number of nested parentheses/brackets (250)
    lark: brackets [1:58]
      at most 1000 definitions, and brackets 50 deep, are read: use fewer
    lark: a long way [1001:5]
      at most 1000 definitions, and brackets 50 deep, are read: use fewer
    no finite value []
      nothing satisfies it: every text contradicts some part of it, so loosen one
    a remote reference [/properties/a/$ref]
      "http://169.254.169.254/latest" is not in this schema, and nothing is fetched: put it into `$defs`
    a file [/$ref]
      "file:///etc/passwd" is not in this schema, and nothing is fetched: put it into `$defs`
    a missing reference [/$ref]
      "#/$defs/missing" refers to nothing in this schema
    contradictory types []
      nothing satisfies it: every text contradicts some part of it, so loosen one
    contradictory numbers []
      nothing satisfies it: every text contradicts some part of it, so loosen one
    no multiple []
      nothing satisfies it: every text contradicts some part of it, so loosen one
    contradictory lengths []
      nothing satisfies it: every text contradicts some part of it, so loosen one
    contradictory patterns []
      nothing satisfies it: every text contradicts some part of it, so loosen one
    contradictory constants []
      nothing satisfies it: every text contradicts some part of it, so loosen one
    a required property that is false []
      nothing satisfies it: every text contradicts some part of it, so loosen one
    an unknown type [/type]
      there is no type "strng": use null, boolean, number, integer, string, array or object
    no schema []
      a schema is an object, true or false, not an array
    a part that is none [/properties/a]
      a schema is an object, true or false, not a number
    a bad keyword [/minLength]
      it is a count, and -1 is none
    a bad list [/required]
      it is a list of names, not a string
    look-ahead [/pattern]
      the pattern "^(?!a)" is not enforced: look-ahead `(?=` or `(?!` cannot be enforced
    a bad pattern [/pattern]
      the pattern "(" is not enforced: unclosed group
    a large count [/pattern]
      the pattern "a{1,1000000000}" is not enforced: the count {1,1000000000} is larger than 10000
    unique items [/properties/a~1b/uniqueItems]
      the items written so far cannot be kept in mind: leave it out, or set `maxItems` to 1
    an unknown dialect [/$schema]
      the dialect "http://example.com/own" is not known: name draft 4, 6, 7, 2019-09 or 2020-12, or leave `$schema` out
    deep nesting []
      its schemas are nested more than 128 deep: put some into `$defs`
    alternatives that multiply [/allOf/1/anyOf]
      there are more than 512 combinations of alternatives: use fewer
    alternatives that double [/$defs/d30/anyOf]
      there are more than 512 combinations of alternatives: use fewer
    a large constant [/const]
      1e+300 has too many digits: use fewer than 18
    a large schema []
      it is larger than 1048576 bytes: use a smaller one
    regex: look-ahead []
      look-around, word boundaries, and `^` or `$` in the middle cannot be enforced; the whole text is matched
    regex: not closed []
      the regular expression is refused: unclosed group
    regex: counts of counts: ENFORCED
    no choices []
      the list of choices is empty: give at least one
    lark: empty []
      no start rule found
    lark: unknown rule [1:8]
      unknown name: "a"
    lark: not closed [1:10]
      lexer error
    lark: a token [1:12]
      tokens (`<name>` or `<[number]>`) cannot be part of a grammar: write their text as a string
    lark: a schema [1:8]
      `%json` is not enforced inside of Lark: send the schema as `json_schema`
    lark: options [1:1]
      `%llguidance` options are set by the server: leave them out
    "##);
}

#[test]
fn what_is_large_but_regular_is_enforced() {
    if tiny().is_none() {
        return;
    }
    assert!(accepts(&Grammar::Regex("(a+)+$".into()), &"a".repeat(2000)));
    assert!(!accepts(&Grammar::Regex("(a+)+$".into()), &format!("{}b", "a".repeat(2000))));
    assert!(accepts(&schema(json!({"pattern": "^(a+)+$"})), &format!("\"{}\"", "a".repeat(500))));
    let many = schema(json!({"type": "array", "items": {"type": "integer"}, "maxItems": 1_000_000_000}));
    assert!(accepts(&many, "[1,2,3]"));
    assert!(accepts(&many, "[]"));
    let optional: serde_json::Map<String, Value> =
        (0..1000).map(|i| (format!("p{i}"), json!({"const": i}))).collect();
    let optional = schema(json!({"type": "object", "properties": optional, "additionalProperties": false}));
    assert!(accepts(&optional, "{\"p3\":3,\"p999\":999}"));
    assert!(!accepts(&optional, "{\"p3\":3,\"p2\":2}"));
    let mut twice: serde_json::Map<String, Value> = (0..40)
        .map(|i| {
            (
                format!("d{i}"),
                json!({"allOf": [{"$ref": format!("#/$defs/d{}", i + 1)},
            {"$ref": format!("#/$defs/d{}", i + 1)}]}),
            )
        })
        .collect();
    twice.insert("d40".into(), json!({"type": "string"}));
    // Referred to 2^40 times.
    assert!(accepts(&schema(json!({"$ref": "#/$defs/d0", "$defs": twice})), "\"x\""));
    let exact = schema(json!({"type": "array", "minItems": 1000, "maxItems": 1000, "items": {"const": 1}}));
    let ones = |n: usize| format!("[{}]", vec!["1"; n].join(","));
    assert!(accepts(&exact, &ones(1000)));
    assert!(!accepts(&exact, &ones(999)));
    assert!(!accepts(&exact, &ones(1001)));
    let recursive = schema(json!({
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}},
            "additionalProperties": false}},
        "$ref": "#/$defs/node"
    }));
    assert!(accepts(&recursive, r#"{"next":{"next":{"next":{}}}}"#));
    let lark = Grammar::Lark("start: expr\nexpr: expr \"+\" expr | /[0-9]+/\n".into());
    assert!(accepts(&lark, "1+2+34"));
    let long = (0..990).fold("start: r0\n".to_owned(), |all, i| format!("{all}r{i}: r{}\n", i + 1));
    assert!(accepts(&Grammar::Lark(format!("{long}r990: \"a\"\n")), "a"));
    let long = (0..9000).fold("root ::= r0\n".to_owned(), |all, i| format!("{all}r{i} ::= r{}\n", i + 1));
    assert!(accepts(&Grammar::Gbnf(format!("{long}r9000 ::= \"a\"\n")), "a"));
}

/// Tools of 100 KB.
#[test]
fn many_tools_compile() {
    let Some(compiler) = tiny() else { return };
    let tool = |i: usize| {
        let property = |j: usize| {
            (
                format!("argument_{i}_{j}"),
                json!({"type": "string", "description": "x".repeat(150), "enum": [format!("{i}"), "y"]}),
            )
        };
        let properties: serde_json::Map<String, Value> = (0..10).map(property).collect();
        json!({"type": "object", "properties": properties, "required": [format!("argument_{i}_0")]})
    };
    let tags: Vec<Tag> = (0..60)
        .map(|i| Tag { begin: format!("<tool={i}>"), grammar: schema(tool(i)), end: "</tool>".into() })
        .collect();
    let tagged =
        Tagged { triggers: vec!["<tool=".into()], tags, at_least_one: false, stop_after_first: false };
    let grammar = Grammar::Tagged(tagged);
    assert!(format!("{grammar:?}").len() > 100_000);
    let compiled = compiler.compile(&grammar).unwrap();
    assert!(compiled.bytes() < 64 << 20);
    assert!(accepts(
        &grammar,
        "Hello <tool=7>{\"argument_7_0\": \"7\"}</tool> and <tool=8>{\"argument_8_0\":\"y\"}</tool>"
    ));
    assert!(!accepts(&grammar, "Hello <tool=7>{\"argument_7_0\": \"8\"}</tool>"));
    assert!(!accepts(&grammar, "Hello <tool=70>"));
}

/// A new schema in each of 100,000 requests: what is kept is bounded.
#[test]
fn the_cache_is_bounded() {
    let Some(tiny) = tiny() else { return };
    let first = tiny.compile(&schema(json!({"const": 0}))).unwrap();
    let limits = Limits { cached: 50, cached_bytes: 20 * first.bytes(), ..Limits::default() };
    let folder = tallow_support::shared("stories260K-hf").unwrap();
    let compiler = Compiler::new(Arc::new(crate::vocabulary(&folder)), limits.clone());
    let requests = if tallow_support::sweeps_all() { 100_000 } else { 2_000 };
    for i in 0..requests {
        let compiled = compiler.compile(&schema(json!({"const": i}))).unwrap();
        let (count, bytes) = compiler.cached();
        assert!(count <= 50 && bytes <= limits.cached_bytes, "{count} {bytes}");
        let again = compiler.compile(&schema(json!({"const": i}))).unwrap();
        assert!(Arc::ptr_eq(&compiled, &again));
    }
    assert!(compiler.cached().0 > 10);
}

#[test]
fn two_threads_may_compile_the_same() {
    let Some(compiler) = tiny() else { return };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for i in 0..50 {
                    let compiled = compiler.compile(&schema(json!({"const": format!("t{i}")}))).unwrap();
                    let mut matcher = compiled.matcher();
                    matcher.mask().unwrap();
                }
            });
        }
    });
}

/// A text that costs too much fails alone: others under the same grammar go on.
#[test]
fn one_costly_text_disturbs_no_other() {
    let Some(folder) = tallow_support::shared("stories260K-hf") else { return };
    let limits = Limits { mask_items: 60, ..Limits::default() };
    let compiler = Compiler::new(Arc::new(crate::vocabulary(&folder)), limits);
    // Ambiguous: the number of ways to read the text grows with it.
    let grammar = Grammar::Gbnf("root ::= \"b\" | s\ns ::= s s | s s s | \"a\"".into());
    let compiled = compiler.compile(&grammar).unwrap();
    let token = |text: &str| {
        let tokenizer = tallow_text::tokenizer::Tokenizer::from_folder(&folder).unwrap();
        tokenizer.id_of(text).unwrap()
    };
    let (a, b) = (token("a"), token("b"));
    let (mut costly, mut other) = (compiled.matcher(), compiled.matcher());
    let failed = (0..200).find_map(|_| costly.mask().map(|_| ()).and_then(|()| costly.accept(a)).err());
    let failed = failed.expect("it costs too much").to_string();
    assert!(failed.contains("costs too much"), "{failed}");
    other.mask().unwrap();
    other.accept(b).unwrap();
    assert!(other.is_over());
    assert!(compiled.matcher().mask().is_ok());
}

#[test]
fn messages_stay_short() {
    if tiny().is_none() {
        return;
    }
    let message = refusal(&schema(json!({"pattern": format!("(?={})", "x".repeat(10_000))})));
    assert!(message.len() < 20_000, "{}", message.len());
}
