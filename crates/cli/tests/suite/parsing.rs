//! `tallow parse`: a model's output taken apart.

use serde_json::{Value, json};

use crate::common::{Did, Home, did};

const OUTPUT: &str = "They want <tool_call>s.\n</think>\n\nTwo at once: é.\n<tool_call>\n\
    {\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich </tool_call>\", \"days\": 3}}\n</tool_call>\n\
    <tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>";

fn parse(home: &Home, args: &[&str], text: &str) -> Did {
    did(home.command(&[&["parse"], args].concat()), text.as_bytes())
}

#[test]
fn reasoning_content_and_calls_are_told_apart() {
    let home = Home::new();
    let how = ["--tool-format", "hermes", "--prefix", "<|im_start|>assistant\n<think>\n"];
    insta::assert_snapshot!(parse(&home, &how, OUTPUT).ok());
    let tools =
        json!([{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}]);
    let tools = home.file("tools.json", tools.to_string());
    let known = parse(&home, &[&how[..], &["--tools", &tools]].concat(), OUTPUT).ok();
    let known: Value = serde_json::from_str(&known).unwrap();
    assert_eq!(known["calls"], json!([{"id": null, "name": "clock", "arguments": "{}"}]));
    assert!(known["content"].as_str().unwrap().contains("\"weather\""), "{known}");
}

#[test]
fn deltas_join_to_the_whole() {
    let home = Home::new();
    let how = ["--tool-format", "hermes", "--prefix", "<think>"];
    let whole: Value = serde_json::from_str(&parse(&home, &how, OUTPUT).ok()).unwrap();
    for each in ["1", "2", "7", "1000"] {
        let lines = parse(&home, &[&how[..], &["--stream", each]].concat(), OUTPUT).ok();
        assert!(each == "1000" || lines.lines().count() > 3, "{lines}");
        let mut joined = json!({"reasoning": "", "content": "", "calls": []});
        for line in lines.lines() {
            let delta: Value = serde_json::from_str(line).unwrap();
            for name in ["reasoning", "content"] {
                let more = delta[name].as_str().unwrap_or_default();
                joined[name] = format!("{}{more}", joined[name].as_str().unwrap()).into();
            }
            let calls = delta["calls"].as_array().cloned().unwrap_or_default();
            joined["calls"].as_array_mut().unwrap().extend(calls);
        }
        assert_eq!(joined, whole, "{each} characters at a time");
    }
}

#[test]
fn what_cannot_be_parsed_is_said() {
    let home = Home::new();
    let said = parse(&home, &["--tool-format", "xml"], "").failed();
    assert!(said.starts_with("error: --tool-format xml: there is no such format; there are "), "{said}");
    assert!(parse(&home, &[], "").ok().lines().any(|line| line.starts_with("hermes ")));
    let hermes = |file: &str| parse(&home, &["--tool-format", "hermes", "--tools", file], "").failed();
    let none = hermes("none.json");
    assert!(none.contains("none.json: there is no such file"), "{none}");
    for (text, why) in [("{", "it is no JSON: "), ("[{\"function\": {}}]", "name")] {
        let said = hermes(&home.file("bad.json", text));
        assert!(said.contains("bad.json: ") && said.contains(why), "{said}");
    }
}
