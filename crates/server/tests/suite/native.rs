//! llama-server's own endpoints, and filling in the middle by each protocol.

use serde_json::{Value, json};
use tallow_engine::handle::Info;
use tallow_engine::sim;
use tallow_text::tokenizer::Shown;

use crate::common::agent::{answering, prompt, refusals};
use crate::common::bodies::{TEXT, refused, with};
use crate::common::client::{ask, post};
use crate::common::{
    ServerBuilder, VOCAB, hello, info, recording_engine, script, start_server, tokenizer_with,
};

const COMPLETION: &str = "/completion";
const INFILL: &str = "/infill";
const MARKS: [&str; 4] = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"];

fn coder(marks: &[&str]) -> Info {
    Info { tokenizer: tokenizer_with(marks), vocab: VOCAB + marks.len(), context: 1024, ..info() }
}

/// The prompt that a model with these marks gets.
fn filled(marks: &[&str], path: &str, body: &Value) -> String {
    let (handle, requests) = recording_engine(coder(marks));
    let server = ServerBuilder::new(handle).start();
    let reply = post(path, body).get(&server);
    assert_eq!(reply.status, 200, "{body}: {}", reply.text());
    tokenizer_with(marks).decode(&requests.try_recv().unwrap().prompt, Shown::All)
}

#[test]
fn texts_are_filled_in_by_every_protocol() {
    let wanted = "<s><|fim_prefix|>a = <|fim_suffix|> + b<|fim_middle|>";
    for (path, body) in [
        (TEXT, json!({"prompt": "a = ", "suffix": " + b"})),
        (INFILL, json!({"input_prefix": "a = ", "input_suffix": " + b"})),
        (INFILL, json!({"input_prefix": "a ", "prompt": "= ", "input_suffix": " + b", "input_extra": []})),
        ("/api/generate", json!({"model": "tiny", "prompt": "a = ", "suffix": " + b", "stream": false})),
    ] {
        assert_eq!(filled(&MARKS, path, &body), wanted, "{path} {body}");
    }
    let body = json!({"input_prefix": "a = ", "input_suffix": " + b",
        "input_extra": [{"filename": "b.py", "text": "b = 1"}]});
    assert_eq!(filled(&MARKS, INFILL, &body), format!("<s><|file_sep|>b.py\nb = 1\n{}", &wanted[3..]));
    // Some have the suffix first.
    let body = json!({"prompt": "a = ", "suffix": " + b"});
    assert_eq!(filled(&["[PREFIX]", "[SUFFIX]"], TEXT, &body), "<s>[SUFFIX] + b[PREFIX]a = ");
    // Marks in a text are text.
    let body = json!({"prompt": "<|fim_suffix|>", "suffix": "x"});
    let (handle, requests) = recording_engine(coder(&MARKS));
    post(TEXT, &body).get(&ServerBuilder::new(handle).start());
    let ids = requests.try_recv().unwrap().prompt;
    assert_eq!(ids.iter().filter(|id| **id as usize == VOCAB + 1).count(), 1);
}

#[test]
fn what_cannot_be_filled_in_is_refused() {
    let server = start_server(&hello());
    let message = refused(&server, TEXT, &json!({"prompt": "a", "suffix": "b"}), "suffix");
    assert!(message.contains("no tokens for filling in the middle"), "{message}");
    refused(&server, TEXT, &json!({"prompt": [1, 2], "suffix": "b"}), "suffix");
    refused(&server, TEXT, &json!({"prompt": "a", "suffix": "b", "echo": true}), "echo");
    refused(&server, INFILL, &json!({"input_prefix": "a"}), "input_suffix");
    let handle = sim::start(coder(&MARKS), script(&hello()));
    let server = ServerBuilder::new(handle).start();
    let long = json!({"input_prefix": "a".repeat(20_000), "input_suffix": "b"});
    assert_eq!(post(INFILL, long).get(&server).error().3.as_deref(), Some("context_length_exceeded"));
}

#[test]
fn texts_are_continued_in_the_servers_own_form() {
    let server = answering("one\ntwo. three");
    let steady = |mut line: Value| {
        assert!(line["timings"].take().is_object());
        line
    };
    let whole = steady(post(COMPLETION, json!({"prompt": "Hi", "n_predict": 50})).get(&server).json());
    insta::assert_snapshot!(crate::common::agent::pretty(&whole));
    for path in [COMPLETION, "/completions"] {
        let reply = post(path, json!({"prompt": "Hi", "stream": true})).get(&server);
        let mut lines: Vec<Value> =
            reply.events().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let last = steady(lines.pop().unwrap());
        assert!(lines.iter().all(|line| line["stop"] == false && line.get("stop_type").is_none()));
        let text: String = lines.iter().map(|line| line["content"].as_str().unwrap()).collect();
        assert_eq!(
            (json!(text), with(last, json!({"content": text}))),
            (whole["content"].clone(), whole.clone())
        );
    }
    let ends = |more: Value| {
        let line = post(COMPLETION, with(json!({"prompt": "Hi"}), more)).get(&server).json();
        (line["stop_type"].clone(), line["stopping_word"].clone())
    };
    assert_eq!(ends(json!({"n_predict": 3})), (json!("limit"), json!("")));
    assert_eq!(ends(json!({"stop": ["."]})), (json!("word"), json!(".")));
    assert_eq!(ends(json!({"n_predict": -1})), (json!("eos"), json!("")));
    let tokens = post(COMPLETION, json!({"prompt": [1, 2, 3]})).get(&server).json();
    assert_eq!(tokens["tokens_evaluated"], 3);
    let said = |reply: &Value| reply["error"]["message"].as_str().unwrap().to_owned();
    let all = [
        json!({}),
        json!({"prompt": 5}),
        json!({"prompt": "x", "n_predict": 0}),
        json!({"prompt": "x", "n": 2}),
    ];
    insta::assert_snapshot!(refusals(COMPLETION, &all, said), @r"
    prompt is missing
    prompt should be text or tokens, and is a number
    n_predict is 0, which leaves nothing to do
    there is one answer; leave n out
    ");
}

#[test]
fn a_chat_is_shown_as_its_prompt() {
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "enable_thinking": false});
    let text = post("/apply-template", &body).get(&answering("x")).json();
    assert_eq!(text, json!({"prompt": prompt("/v1/chat/completions", &body)}));
    let props = ask("GET", "/props").get(&answering("x")).json();
    assert_eq!((&props["total_slots"], &props["model_alias"]), (&json!(4), &json!("tiny")));
    assert_eq!(props["default_generation_settings"]["n_ctx"], 1024);
    assert!(props["chat_template"].as_str().unwrap().contains("add_generation_prompt"));
}

#[test]
fn paths_may_be_without_their_beginning() {
    let server = answering("Yes.");
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let chat = post("/chat/completions", json!({"messages": messages})).get(&server).json();
    assert_eq!(chat["choices"][0]["message"]["content"], "Yes.");
    assert_eq!(post("/responses", json!({"input": "Hi"})).get(&server).json()["object"], "response");
    assert_eq!(ask("GET", "/models").get(&server).json()["data"][0]["id"], "tiny");
}
