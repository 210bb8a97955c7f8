//! Regular expressions, choices, Lark, tags, and what matchers do at the ends of texts.

use serde_json::json;
use tallow_constraint::{Grammar, MatchError, Tag, Tagged, check_instance};

use crate::{accepts, refusal, schema, tiny};

fn tag(begin: &str, grammar: Grammar, end: &str) -> Tag {
    Tag { begin: begin.into(), grammar, end: end.into() }
}

#[test]
fn expressions_match_whole_texts() {
    if tiny().is_none() {
        return;
    }
    let regex = |source: &str| Grammar::Regex(source.into());
    for (grammar, yes, no) in [
        (regex(r"\d{3}-\d{4}"), vec!["555-1234"], vec!["555-12345", "x555-1234", ""]),
        (regex("^(yes|no)$"), vec!["yes", "no"], vec!["yesno"]),
        (regex(""), vec![""], vec!["a"]),
        (regex(r"[\s\S]*"), vec!["", "a\n\"é"], vec![]),
        (
            Grammar::Choice(vec!["red".into(), "reddish".into(), "<s>".into()]),
            vec!["red", "reddish", "<s>"],
            vec!["redd", ""],
        ),
        (Grammar::Text, vec!["anything at all\n{\"a\": 1}", ""], vec![]),
        (
            Grammar::JsonObject,
            vec!["{}", r#"{"a": [1, {"b": null}], "c": "x"}"#],
            vec!["[]", "1", "{\"a\": }", "{} x"],
        ),
        (
            Grammar::Lark("start: WORD (\" \" WORD)*\nWORD: /[a-z]+/\n".into()),
            vec!["a bc"],
            vec!["a  b", "A"],
        ),
    ] {
        for text in yes {
            assert!(accepts(&grammar, text), "{grammar:?}: {text:?}");
        }
        for text in no {
            assert!(!accepts(&grammar, text), "{grammar:?}: {text:?}");
        }
    }
}

#[test]
fn tags_stand_in_free_text() {
    if tiny().is_none() {
        return;
    }
    let tools = |at_least_one, stop_after_first| {
        let weather = schema(
            json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
                "additionalProperties": false}),
        );
        let tags = vec![
            tag("<call:weather>", weather, "</call>"),
            tag("<call:say>", Grammar::Text, "</call>"),
            tag("<call:pick>", Grammar::Choice(vec!["a".into(), "ab".into()]), "</call>"),
            tag("<call:n>", Grammar::Gbnf("root ::= [0-9]+".into()), "</call>"),
        ];
        Grammar::Tagged(Tagged { triggers: vec!["<call:".into()], tags, at_least_one, stop_after_first })
    };
    let call = "<call:weather>{\"city\": \"Bonn <call:\"}</call>";
    for (text, any, one, single, exactly) in [
        ("", true, false, true, false),
        ("no call < here <cal", true, false, true, false),
        (call, true, true, true, true),
        (&format!("text {call}"), true, true, true, true),
        (&format!("text {call} and {call}\n"), true, true, false, false),
        (&format!("{call} after"), true, true, false, false),
        ("<call:say>hello </cal </call>", true, true, true, true),
        ("<call:pick>ab</call>", true, true, true, true),
        ("<call:n>123</call>", true, true, true, true),
        ("<call:n>12a</call>", false, false, false, false),
        ("<call:other>", false, false, false, false),
        ("<call:weather>{\"city\": 1}</call>", false, false, false, false),
        ("<call:weather>{}", false, false, false, false),
        ("<call:", false, false, false, false),
        ("<<call:n>1</call>", true, true, true, true),
    ] {
        assert_eq!(accepts(&tools(false, false), text), any, "{text}");
        assert_eq!(accepts(&tools(true, false), text), one, "{text}");
        assert_eq!(accepts(&tools(false, true), text), single, "{text}");
        assert_eq!(accepts(&tools(true, true), text), exactly, "{text}");
    }
}

#[test]
fn tags_without_triggers_are_the_whole_text() {
    if tiny().is_none() {
        return;
    }
    let tags = vec![tag("{\"name\": \"f\", \"arguments\": ", Grammar::JsonObject, "}")];
    let tagged = Tagged { triggers: Vec::new(), tags, at_least_one: true, stop_after_first: true };
    assert!(accepts(&Grammar::Tagged(tagged.clone()), "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"));
    assert!(!accepts(&Grammar::Tagged(tagged.clone()), "x"));
    let mut wrong = tagged.clone();
    wrong.triggers = vec!["<".into()];
    let mut unused = tagged.clone();
    unused.triggers = vec!["{".into(), "<x".into()];
    let mut nested = tagged.clone();
    nested.tags[0].grammar = schema(json!({"properties": {"a": {"uniqueItems": true}}}));
    let messages = [
        refusal(&Grammar::Tagged(wrong)),
        refusal(&Grammar::Tagged(unused)),
        refusal(&Grammar::Tagged(nested)),
        refusal(&Grammar::Tagged(Tagged { tags: Vec::new(), ..tagged })),
    ];
    insta::assert_snapshot!(messages.join("\n").replace(": ", ":\n  "), @r##"
    /tags/0/begin:
      no trigger begins it, so that it can never be written:
      add one to `triggers`
    /triggers/1:
      no tag begins with it:
      leave it out
    /tags/0/grammar/properties/a/uniqueItems:
      the items written so far cannot be kept in mind:
      leave it out, or set `maxItems` to 1
    /tags:
      there is no tag:
      give at least one, or no grammar
    "##);
}

#[test]
fn best_effort_leaves_out_and_says_so() {
    let Some(compiler) = tiny() else { return };
    let unique = json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true});
    let compiled = compiler.compile(&Grammar::JsonSchema { schema: unique, best_effort: true }).unwrap();
    assert!(check_instance(&compiled, "[1,1]").is_ok());
    assert!(check_instance(&compiled, "[\"a\"]").is_err());
    let left_out: Vec<&str> = compiled.unenforced().iter().map(|u| u.pointer.as_str()).collect();
    assert_eq!(left_out, ["/uniqueItems"]);
}

#[test]
fn places_are_told() {
    let Some(compiler) = tiny() else { return };
    let grammar =
        schema(json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
            "additionalProperties": false}));
    let compiled = compiler.compile(&grammar).unwrap();
    let places = ["{\"a\":1", "{\"b\":1}", "{\"a\":\"x\"}", "{\"a\":1}}", ""];
    let places: Vec<String> =
        places.iter().map(|text| check_instance(&compiled, text).unwrap_err().to_string()).collect();
    insta::assert_snapshot!(places.join("\n"), @r##"
    byte 6: the text ends, and expected "}", " ", "3", "1", "0", "2", "5", "9" or others
    byte 2: "b" is not allowed; expected "a"
    byte 5: "\"" is not allowed; expected " ", "-", "3", "1", "0", "2", "5", "9" or others
    byte 7: "}" is not allowed; expected the end
    byte 0: the text ends, and expected "{", " "
    "##);
}

#[test]
fn matchers_end_and_fork() {
    let Some(compiler) = tiny() else { return };
    let compiled = compiler.compile(&Grammar::Choice(vec!["a".into(), "ab".into()])).unwrap();
    let tokenizer = {
        let folder = tallow_support::shared("stories260K-hf").unwrap();
        tallow_text::tokenizer::Tokenizer::from_folder(&folder).unwrap()
    };
    let id = |text: &str| tokenizer.id_of(text).unwrap();
    let end = tokenizer.ends().next().unwrap();
    let has = |mask: &[u32], token: u32| mask[token as usize / 32] >> (token % 32) & 1 == 1;
    let mut matcher = compiled.matcher();
    assert!(has(matcher.mask().unwrap(), id("a")));
    assert!(!has(matcher.mask().unwrap(), end));
    assert!(!matcher.may_end().unwrap());
    assert!(matches!(matcher.accept(end), Err(MatchError::NotAllowed { .. })));
    assert!(matches!(matcher.accept(id("b")), Err(MatchError::NotAllowed { .. })));
    matcher.accept(id("a")).unwrap();
    let mut fork = matcher.fork();
    assert!(has(matcher.mask().unwrap(), end));
    matcher.accept(end).unwrap();
    assert!(matcher.is_over());
    assert!(has(matcher.mask().unwrap(), end));
    assert!(matches!(matcher.accept(id("b")), Err(MatchError::Over { .. })));
    assert!(!fork.is_over());
    fork.accept(id("b")).unwrap();
    assert!(fork.is_over() && fork.may_end().unwrap());
    assert!(matches!(fork.accept(id("b")), Err(MatchError::NotAllowed { .. })));
    assert!(matches!(fork.accept(u32::MAX), Err(MatchError::NotAllowed { .. })));
    fork.accept(end).unwrap();
    fn sendable<T: Send>(_: &T) {}
    sendable(&fork);
}
