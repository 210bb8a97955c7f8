//! Calls that models are made to write: what is written is read as it was meant, and is what templates write.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use tallow_support::shared;

use super::super::{Arguments, Event, OutputFormat, ToolFormat, Tools, Writing};
use super::always;
use crate::template::{Chat, ChatTemplate, Ending, Now};

/// Arguments as a model writes them: an object, or strings as they are and other values as JSON.
fn written(writing: &Writing, arguments: &Json) -> String {
    let Arguments::Each(each) = writing.arguments() else { return arguments.to_string() };
    let one = |(key, value): (&String, &Json)| {
        let (before, value) = match value {
            Json::String(text) => (each.before_text, text.clone()),
            other => (each.before_json, other.to_string()),
        };
        format!("{}{key}{before}{value}{}", each.before_key, each.after_value)
    };
    arguments.as_object().unwrap().iter().map(one).collect()
}

fn text(writing: &Writing, calls: &[(&str, &Json)]) -> String {
    let call = |(name, arguments): &(&str, &Json)| {
        let (begin, end) = writing.around(name).unwrap();
        format!("{begin}{}{end}", written(writing, arguments))
    };
    let calls: Vec<String> = calls.iter().map(call).collect();
    format!("{}{}{}", writing.open(), calls.join(writing.between().unwrap_or_default()), writing.close())
}

#[test]
fn what_is_written_is_read() {
    let tools = json!([
        {"name": "weather", "parameters": {"properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": "array"}}}},
        {"name": "a.b-c_d", "parameters": {"properties": {"x": {"type": "string"}, "y": {"type": "object"}}}},
        {"name": "none"},
    ]);
    let tools = Arc::new(Tools::from_json(&tools).unwrap());
    let arguments = [
        (
            "weather",
            json!({"city": "Zürich\n\"quoted\" 'x' <b> </tool_call> ]}", "days": 3, "units": ["a, \"b\"", null]}),
        ),
        ("a.b-c_d", json!({"x": "", "y": {"deep": [{"é": 1.5e3}], "z": true}})),
        ("none", json!({})),
        ("a.b-c_d", json!({"x": "5"})),
        ("weather", json!({"city": "\n two lines \n", "units": []})),
    ];
    let mut seen = 0;
    for format in ToolFormat::ALL {
        for writing in format.writings {
            let most = if writing.between().is_some() { arguments.len() } else { 1 };
            for at in 0..arguments.len() {
                for count in 1..=most.min(arguments.len() - at) {
                    let calls: Vec<(&str, &Json)> =
                        arguments[at..at + count].iter().map(|(name, all)| (*name, all)).collect();
                    let text = text(writing, &calls);
                    let parser = OutputFormat::new(format).parser("", Some(tools.clone()));
                    let read = always(&parser, &text, format.name());
                    let read: Vec<(String, Json)> = read
                        .into_iter()
                        .map(|event| match event {
                            Event::Call(call) => (call.name, serde_json::from_str(&call.arguments).unwrap()),
                            other => panic!("{}: {other:?} in {text}", format.name()),
                        })
                        .collect();
                    let calls: Vec<(String, Json)> =
                        calls.into_iter().map(|(name, all)| (name.to_owned(), all.clone())).collect();
                    assert_eq!(read, calls, "{}: {text}", format.name());
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 200, "{seen}");
    let plain: Vec<&str> = ToolFormat::ALL
        .iter()
        .filter(|format| format.writings.is_empty())
        .map(|format| format.name())
        .collect();
    assert_eq!(plain, ["gemma4", "functiongemma"], "their calls cannot be forced yet");
}

#[test]
fn names_that_would_be_read_otherwise_are_not_written() {
    for format in ToolFormat::ALL {
        for writing in format.writings {
            let written = writing.around("say \"it\"");
            match writing.arguments() {
                Arguments::Object if writing.before_name.ends_with('"') => {
                    assert!(written.unwrap().0.contains(r#"say \"it\""#), "{}", format.name());
                }
                _ => assert!(written.is_none(), "{}", format.name()),
            }
        }
    }
}

/// A model that is made to call writes what its template shows it of earlier calls.
#[test]
fn templates_write_the_same() {
    let Some(folder) = shared("chat-templates") else { return };
    let mut same = Vec::new();
    let mut others = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ext| ext != "json") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let template = ChatTemplate::new(tallow_support::json(&path)["template"].as_str().unwrap()).unwrap();
        let format = OutputFormat::of(&template);
        let Some(writing) = format.writing().filter(|_| template.reads("tools")) else { continue };
        let arguments = json!({"city": "Bern", "days": 3});
        let messages = json!([
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "abcdefghi", "name": "weather", "content": "Sun."},
        ]);
        let ends = json!({"bos_token": "<s>", "eos_token": "</s>"});
        let values = ends.as_object().unwrap().clone();
        let tools = json!([{"type": "function", "function": {"name": "weather", "description": "w", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}]);
        let chat = Chat {
            tools: Some(&tools),
            ending: Ending::Closed,
            values: &values,
            ..Chat::new(&messages, Now::from_unix(0))
        };
        let rendered = template.render(&chat).unwrap_or_else(|e| panic!("{name}: {e}"));
        // Templates write JSON with a space behind colons and commas.
        let (begin, end) = writing.around("weather").unwrap();
        let all = match writing.arguments() {
            Arguments::Object => "{\"city\": \"Bern\", \"days\": 3}".to_owned(),
            Arguments::Each(_) => written(writing, &arguments),
        };
        let wanted = format!("{}{begin}{all}{end}{}", writing.open(), writing.close());
        if rendered.contains(&wanted) { same.push(name) } else { others.push(name) }
    }
    same.sort();
    others.sort();
    insta::assert_debug_snapshot!((same, others));
}
