//! `tallow serve --receipts` and `tallow replay`.

#![cfg(unix)]

use std::path::{Path, PathBuf};

use crate::common::Home;
use crate::common::server::{Server, answer};
use serde_json::{Value, json};

/// A server that writes receipts to a folder of its home.
fn start(args: &[&str]) -> Server {
    let home = Home::new();
    let command = home.command(&[&["serve", "demo", "--port", "0", "--receipts", "receipts"], args].concat());
    Server::of(home, command)
}

/// Requests of many kinds, all of them greedy or not. Returns how many answers they have.
fn ask(server: &Server, greedy: bool) -> usize {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]});
    let story = json!([{"role": "user", "content": "Tell me about a clever fox."}]);
    let requests = [
        ("/v1/completions", json!({"prompt": "Once upon", "max_tokens": 20, "temperature": 0})),
        ("/v1/completions", json!({"prompt": "Once upon", "max_tokens": 20, "n": 3})),
        (
            "/v1/completions",
            json!({"prompt": ["One day", "The end"], "max_tokens": 9, "seed": 7, "logprobs": 2}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "The fox", "max_tokens": 60, "stop": [" and", "."], "top_p": 0.9}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "A", "max_tokens": 9, "repetition_penalty": 1.3, "logit_bias": {"70": 2.5}}),
        ),
        ("/v1/chat/completions", json!({"messages": story, "max_tokens": 30})),
        (
            "/v1/chat/completions",
            json!({"messages": story, "max_tokens": 40, "guided_json": schema, "temperature": 0.7}),
        ),
        ("/v1/messages", json!({"messages": story, "max_tokens": 12, "model": "demo"})),
        ("/completion", json!({"prompt": "Hi", "n_predict": 8, "min_p": 0.05, "ignore_eos": true})),
    ];
    for (path, body) in &requests {
        let mut body = body.clone();
        if greedy {
            body["temperature"] = json!(0);
        }
        let (status, text) = answer(server.request("POST", path, &body.to_string()));
        assert_eq!(status, 200, "{path} {body}: {text}");
    }
    requests.len() + 2 + 1
}

/// The file of receipts, once it has so many.
fn file(server: &Server, answers: usize) -> PathBuf {
    let begun = std::time::Instant::now();
    loop {
        let files = std::fs::read_dir(server.home.path().join("receipts")).unwrap();
        let file = files.map(|entry| entry.unwrap().path()).next().unwrap();
        if std::fs::read_to_string(&file).unwrap().lines().count() == answers {
            return file;
        }
        assert!(begun.elapsed() < tallow_support::PATIENCE, "not all receipts are written");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn read(file: &Path) -> Vec<Value> {
    std::fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn write(file: &Path, receipts: &[Value]) {
    std::fs::write(file, receipts.iter().map(|receipt| format!("{receipt}\n")).collect::<String>()).unwrap();
}

#[test]
fn answers_are_repeated_from_their_receipts() {
    let server = start(&["--slots", "3"]);
    let answers = ask(&server, false);
    let file = file(&server, answers);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let home = &server.home;
    let same = home.run(&["replay", "receipts"]).ok();
    assert!(same.starts_with(&format!("{answers} answers: {answers} the same, 0 different (")), "{same}");
    // With other slots and steps of other sizes, too.
    let path = file.to_str().unwrap();
    let lines =
        home.run(&["replay", path, "--json", "--batch", "5", "--speculative", "off", "--threads", "1"]).ok();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() == answers && lines.iter().all(|line| line["same"] == true), "{lines:?}");
    // An answer that is not what it was.
    let mut receipts = read(&file);
    let changed = &mut receipts[0];
    let id = changed["id"].as_str().unwrap().to_owned();
    changed["answer"]["tokens"][4] = json!(5);
    write(&file, &receipts);
    let found = home.run(&["replay", path]);
    assert_eq!(found.code, Some(1));
    assert!(found.out.contains(&format!("{id}, choice 0: token 5 of ")), "{found:?}");
    assert!(found.out.contains("and was 5 \""), "{found:?}");
    assert!(found.err.contains("error: 1 answer different"), "{found:?}");
}

#[test]
fn structure_behind_reasoning_and_calls_of_tools_are_repeated() {
    let template = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/clients/agent.jinja");
    let server = start(&["--chat-template", template]);
    let schema =
        json!({"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]});
    let function = json!({"type": "function", "function": {"name": "look", "parameters": schema}});
    let thinks = json!({"enable_thinking": true});
    let chat = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 80});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        answer(server.request("POST", "/v1/chat/completions", &body.to_string()))
    };
    let asked = [
        json!({"chat_template_kwargs": thinks, "thinking_budget": 6, "guided_json": schema}),
        json!({"chat_template_kwargs": thinks, "thinking_budget": 6}),
        json!({"tools": [function], "tool_choice": "required"}),
        json!({"tools": [function], "chat_template_kwargs": thinks, "temperature": 0}),
    ];
    let answers: Vec<(u16, String)> = asked.iter().cloned().map(chat).collect();
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    let whole: Value = serde_json::from_str(&answers[0].1).unwrap();
    let (message, receipts) = (&whole["choices"][0]["message"], read(&file(&server, asked.len())));
    assert!(
        message["reasoning_content"].is_string() && message["content"].as_str().unwrap().starts_with('{')
    );
    assert_eq!(receipts[0]["request"]["reasoning"]["limit"]["tokens"], 6);
    assert!(receipts[0]["request"]["grammar"].is_object() && receipts[1]["request"]["grammar"].is_null());
    let same = server.home.run(&["replay", "receipts"]).ok();
    assert!(same.starts_with("4 answers: 4 the same, "), "{same}");
}

/// Sums of another order differ in the last bit, which the KV cache keeps as it is. That decides between two tokens where they are as
/// likely to seven digits: of the likeliest ones that is rare, of those that draws compare it is not.
#[test]
fn exact_answers_are_the_same_on_another_instruction_set() {
    let server = start(&["--arithmetic", "exact", "--device", "cpu"]);
    let answers = ask(&server, true);
    file(&server, answers);
    let same = server.home.run(&["replay", "receipts", "--isa", "scalar"]).ok();
    assert_eq!(same, format!("{answers} answers: {answers} the same, 0 different (scalar, exact)\n"));
}

#[test]
fn what_cannot_be_repeated_is_said() {
    let mut server = start(&[]);
    let body = json!({"prompt": "Once", "max_tokens": 4, "temperature": 0});
    assert_eq!(answer(server.complete(&body)).0, 200);
    // The last receipt is written before the server ends.
    server.signal(libc::SIGTERM);
    assert_eq!(server.ended(tallow_support::PATIENCE), Some(0));
    let files = std::fs::read_dir(server.home.path().join("receipts")).unwrap();
    let file = files.map(|entry| entry.unwrap().path()).next().unwrap();
    assert_eq!(read(&file).len(), 1);
    let home = &server.home;
    let receipts = read(&file);
    let altered = |name: &str, change: &dyn Fn(&mut Value)| {
        let mut receipts = receipts.clone();
        change(&mut receipts[0]);
        write(&home.path().join(name), &receipts);
    };
    altered("other.jsonl", &|receipt| receipt["model"]["digest"] = json!("00"));
    altered("adapter.jsonl", &|receipt| receipt["request"]["adapter"] = json!(["fox", 1.0]));
    altered("version.jsonl", &|receipt| receipt["model"]["program"] = json!("0.0.1 (abc)"));
    home.file("broken.jsonl", "{\"receipt\": 1}\n");
    home.file("empty.jsonl", "");
    let whole = std::fs::read_to_string(&file).unwrap();
    home.file("cut.jsonl", format!("{whole}{}", &whole[..100]));
    let shown = home.run(&["replay", "version.jsonl"]);
    assert!(shown.err.starts_with("note: the answers are of version 0.0.1 (abc), and this is "), "{shown:?}");
    let cut = home.run(&["replay", "cut.jsonl"]);
    assert!(cut.err.contains("line 2: it is not complete") && cut.code == Some(0), "{cut:?}");
    let said = [
        home.run(&["replay", "missing.jsonl"]).failed(),
        home.run(&["replay", "broken.jsonl"]).failed(),
        home.run(&["replay", "empty.jsonl"]).failed(),
        home.run(&["replay", "adapter.jsonl"]).failed(),
        home.run(&["replay", "other.jsonl"]).failed(),
    ];
    let digest = receipts[0]["model"]["digest"].as_str().unwrap();
    let id = receipts[0]["id"].as_str().unwrap();
    insta::assert_snapshot!(said.concat().replace(digest, "DIGEST").replace(id, "ID"));
    home.file("a file", "");
    let refused = home.run(&["serve", "demo", "--port", "0", "--receipts", "a file"]).failed();
    assert!(refused.starts_with("error: --receipts a file: "), "{refused}");
}
