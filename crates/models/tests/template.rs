//! Chat templates against what their reference implementation renders, and against what would do harm.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

use serde_json::{Map, Value, json};
use tallow_models::template::{Chat, ChatTemplate, Ending, Failure, Now};
use tallow_support::shared;

/// 9 March 2025, 14:05, which is the time of the goldens.
fn now() -> Now {
    Now::from_unix(1_741_529_100)
}

fn template(file: &Value) -> ChatTemplate {
    let mut template = ChatTemplate::new(file["template"].as_str().unwrap()).unwrap();
    for name in ["bos_token", "eos_token"] {
        if let Some(text) = file[name].as_str() {
            template = template.with_token(name, text);
        }
    }
    template
}

#[test]
fn real_templates_render_as_the_reference_does() {
    let Some(folder) = shared("chat-templates") else { return };
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ext| ext != "json") {
            continue;
        }
        let file = tallow_support::json(&path);
        assert_eq!(file["now"], "2025-03-09T14:05:00");
        let template = template(&file);
        for case in file["cases"].as_array().unwrap() {
            let flag = |name: &str| case[name].as_bool().unwrap();
            let ending = match (flag("add_generation_prompt"), flag("continue_final_message")) {
                (_, true) => Ending::Open,
                (true, _) => Ending::Prompt,
                _ => Ending::Closed,
            };
            let values = case["kwargs"].as_object().unwrap();
            let tools = Some(&case["tools"]).filter(|tools| !tools.is_null());
            let chat = Chat { tools, ending, values, ..Chat::new(&case["messages"], now()) };
            let name = format!("{} {}", path.display(), case["name"]);
            match (template.render(&chat), case["expected"].as_str()) {
                (Ok(text), Some(want)) => assert_eq!(text, want, "{name}"),
                (Err(_), None) => assert!(case["error"].is_string()),
                (rendered, want) => panic!("{name}: {rendered:?}\nshould be {want:?} {:?}", case["error"]),
            }
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
}
