//! Calls of real tools under masks: each is read again as a call of a tool, with valid arguments.

use std::sync::Arc;

use serde_json::{Value, json};
use tallow_constraint::{Beside, Callable, Grammar};
use tallow_text::output::{Arguments, Channels, Event, OutputFormat, ToolFormat, Tools};
use tallow_text::tokenizer::Tokenizer;

use crate::random::{random_text, valid};
use crate::{accepts, tiny};

const FILES: [&str; 4] = [
    "BFCL_v4_simple_python.json",
    "BFCL_v4_multiple.json",
    "BFCL_v4_parallel.json",
    "BFCL_v4_irrelevance.json",
];

/// A schema in Python's words as JSON Schema, with the keywords that say something of values.
fn standard(schema: &Value) -> Value {
    let Value::Object(keywords) = schema else { return schema.clone() };
    let mut all = serde_json::Map::new();
    for (keyword, rule) in keywords {
        let rule = match (keyword.as_str(), rule) {
            ("type", Value::String(kind)) => match kind.as_str() {
                "dict" => json!("object"),
                "float" => json!("number"),
                "tuple" => json!("array"),
                "any" => continue,
                other => json!(other),
            },
            ("properties", Value::Object(named)) => {
                named.iter().map(|(name, schema)| (name.clone(), standard(schema))).collect()
            }
            ("items" | "additionalProperties", schema) => standard(schema),
            ("required", names) => names.clone(),
            ("enum", values) if !values.as_array().unwrap().is_empty() => values.clone(),
            ("minimum" | "maximum" | "minItems" | "maxItems" | "minLength" | "maxLength", rule) => {
                rule.clone()
            }
            _ => continue,
        };
        all.insert(keyword.clone(), rule);
    }
    Value::Object(all)
}

/// A character's own token, or those of its bytes.
fn letter(tokenizer: &Tokenizer, c: char) -> Vec<u32> {
    // This one is a space there.
    match tokenizer.id_of(&c.to_string()).filter(|_| c != '\u{2581}') {
        Some(token) => vec![token],
        None => c.to_string().bytes().map(|b| tokenizer.id_of(&format!("<0x{b:02X}>")).unwrap()).collect(),
    }
}

#[test]
fn calls_of_real_tools_are_read_and_valid() {
    let (Some(compiler), Some(folder)) = (tiny(), tallow_support::shared("stories260K-hf")) else { return };
    let Some(cases) = tallow_support::shared("bfcl") else { return };
    let tokenizer = Tokenizer::from_folder(&folder).unwrap();
    let formats: Vec<OutputFormat> = ToolFormat::ALL
        .iter()
        .map(|format| OutputFormat::new(format))
        .filter(|f| f.writing().is_some())
        .collect();
    assert!(formats.len() >= 20);
    let (mut count, mut several) = (0, 0);
    for file in FILES {
        let text = std::fs::read_to_string(cases.join(file)).unwrap();
        for case in text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
            let tools = case["function"].as_array().unwrap();
            let callable = |tool: &Value| {
                let parameters = standard(&tool["parameters"]);
                Callable { name: tool["name"].as_str().unwrap().into(), parameters, best_effort: false }
            };
            let callable: Vec<Callable> = tools.iter().map(callable).collect();
            let known = callable
                .iter()
                .map(|tool| json!({"name": tool.name, "parameters": tool.parameters}))
                .collect();
            let known = Arc::new(Tools::from_json(&known).unwrap());
            let format = formats[count % formats.len()];
            let (writing, is_single) = (format.writing().unwrap(), count % 3 == 0);
            let name = format!("{}: {}", format.tools().name(), case["id"]);
            let grammar = Grammar::calls(writing, &callable, is_single, Beside::Nothing).unwrap().grammar;
            let compiled = compiler.compile(&grammar).unwrap_or_else(|e| panic!("{name}: {e}"));
            let mut ends = vec![writing.close()];
            if let Arguments::Each(each) = writing.arguments() {
                ends.push(each.after_value);
            }
            ends.extend(writing.channels().map(|channels| channels.reasoning.1));
            let ends: Vec<Vec<u32>> =
                ends.iter().map(|end| end.chars().flat_map(|c| letter(&tokenizer, c)).collect()).collect();
            count += 1;
            let text = (0..8)
                .find_map(|seed| random_text(&compiled, &tokenizer, (seed + 8 * count as u64, 1500), &ends));
            let Some(text) = text else { panic!("{name} has no end") };
            let text = text.strip_prefix(' ').unwrap_or(&text);
            let mut parser = format.parser("", Some(known));
            let mut events = parser.push(text);
            events.extend(parser.finish());
            if writing.channels().is_some() {
                events.retain(|event| !matches!(event, Event::Reasoning(_)));
            }
            assert!(!events.is_empty() && (events.len() == 1 || !is_single), "{name}: {text}");
            several += usize::from(events.len() > 1);
            for event in events {
                let Event::Call(call) = event else { panic!("{name}: {event:?} in {text}") };
                let tool = callable.iter().find(|tool| tool.name == call.name).unwrap();
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                assert!(valid(&tool.parameters, &arguments), "{name}: {arguments} of {}", tool.parameters);
            }
        }
    }
    assert!(count > 1000 && several > 50, "{several} of {count} have several");
}

#[test]
fn calls_stand_in_free_text() {
    if tiny().is_none() {
        return;
    }
    let tools = [
        (
            "f",
            json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
        "additionalProperties": false}),
        ),
        ("g", json!({"type": "object", "additionalProperties": false})),
    ];
    let tools =
        tools.map(|(name, parameters)| Callable { name: name.into(), parameters, best_effort: false });
    for format in ToolFormat::ALL.iter().map(|format| OutputFormat::new(format)) {
        let (Some(writing), name) = (format.writing(), format.tools().name()) else { continue };
        // This vocabulary has no such character.
        if writing.trigger().contains('\u{2581}') {
            continue;
        }
        let call = |tool: &str, n: &str| {
            let (begin, end) = writing.around(tool).unwrap();
            let arguments = match writing.arguments() {
                Arguments::Object if n.is_empty() => "{}".to_owned(),
                Arguments::Object => format!("{{\"n\": {n}}}"),
                Arguments::Each(_) if n.is_empty() => String::new(),
                Arguments::Each(each) => {
                    format!("{}n{}{n}{}", each.before_key, each.before_json, each.after_value)
                }
            };
            format!("{}{begin}{arguments}{end}{}", writing.open(), writing.close())
        };
        let grammar = |is_single, beside| Grammar::calls(writing, &tools, is_single, beside).unwrap().grammar;
        if let Some(channels) = writing.channels() {
            stand_in_channels(channels, &grammar, &call);
            continue;
        }
        let (many, one) = (grammar(false, Beside::Text), grammar(true, Beside::Text));
        let tight = call("f", "5").replace("\"n\": ", "\"n\":");
        for (text, is_right, is_single) in [
            (String::new(), true, true),
            ("No call.".into(), true, true),
            (call("f", "5"), true, true),
            (format!("Let me see.\n{}", call("g", "")), true, true),
            (format!("Let me see.\n{} Well.\n{}\nDone.", call("f", "5"), call("g", "")), true, false),
            (call("f", "x"), false, false),
            (call("f", ""), false, false),
            // Written otherwise than templates write it, if there is a colon.
            (tight.clone(), tight == call("f", "5"), true),
            (format!("Let me see.\n{}", call("g", "5")), false, false),
            (format!("Let me see.\n{}", call("h", "")), false, false),
            (format!("Let me see. {}", writing.trigger()), false, false),
        ] {
            assert_eq!(accepts(&many, &text), is_right, "{name}: {text}");
            assert_eq!(accepts(&one, &text), is_right && is_single, "{name}: {text}");
        }
        let either = grammar(true, Beside::Instead(Grammar::Choice(vec!["yes".into(), "no".into()])));
        for (text, is_right) in
            [(call("f", "5"), true), ("yes".into(), true), ("maybe".into(), false), (call("f", "x"), false)]
        {
            assert_eq!(accepts(&either, &text), is_right, "{name}: {text}");
        }
    }
}

/// Calls of models that write several messages: one is the last message, or an answer is.
fn stand_in_channels(
    channels: &Channels,
    grammar: &dyn Fn(bool, Beside) -> Grammar,
    call: &dyn Fn(&str, &str) -> String,
) {
    let message = |(begin, end): (&str, &str), text: &str| format!("{begin}{text}{end}");
    let thought = message(channels.reasoning, "Why? {}");
    let preamble = message(channels.preamble, "Let me see.");
    let answer = |text: &str| format!("{}{text}", channels.answer);
    let choice = || Grammar::Choice(vec!["yes".into(), "no".into()]);
    for (text, [alone, beside, instead]) in [
        (call("f", "5"), [true; 3]),
        (thought.clone() + &call("f", "5"), [true; 3]),
        (thought.clone() + &thought + &call("g", ""), [true; 3]),
        (thought.clone() + &preamble + &call("g", ""), [false, true, false]),
        (thought.clone() + &answer("No call."), [false, true, false]),
        (thought.clone() + &answer("yes"), [false, true, true]),
        (answer("no"), [false, true, true]),
        (thought.clone() + &call("f", "x"), [false; 3]),
        (call("f", "5") + &call("g", ""), [false; 3]),
        (thought.clone(), [false; 3]),
        ("No call.".into(), [false; 3]),
    ] {
        assert_eq!(accepts(&grammar(false, Beside::Nothing), &text), alone, "{text}");
        assert_eq!(accepts(&grammar(true, Beside::Text), &text), beside, "{text}");
        assert_eq!(accepts(&grammar(true, Beside::Instead(choice())), &text), instead, "{text}");
    }
}
