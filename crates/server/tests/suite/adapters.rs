//! LoRA adapters over HTTP: which one a request gets, the model list, loading and unloading, and permissions.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::common::bodies::{CHAT, TEXT, chat, text};
use crate::common::client::{ask, post};
use crate::common::{ServerBuilder, TestServer, hello, info, script};
use serde_json::{Value, json};
use tallow_engine::handle::{Command, EngineHandle, Event, LoadLora, Request};
use tallow_engine::lora::{LoadedLora, LoraId, LoraRef};
use tallow_engine::service::Message;
use tallow_engine::sim;
use tallow_models::adapter::AdapterFile;
use tallow_server::Settings;
use tallow_support::golden;

const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";

/// A served simulated engine with two adapters; clients may load those among the goldens.
fn adapted(folder: Option<PathBuf>) -> TestServer {
    let handle = sim::start(info(), script(&hello()));
    for (name, scale) in [("one", 1.0), ("two", 0.5)] {
        let file = AdapterFile::open(&golden("adapters/llama")).unwrap();
        handle.load_lora(LoadLora { name: name.into(), file, scale }).unwrap();
    }
    let settings = Settings { adapters: folder, ..Settings::default() };
    ServerBuilder { settings, ..ServerBuilder::new(handle) }.start()
}

fn goldens() -> Option<PathBuf> {
    Some(golden("adapters").canonicalize().unwrap())
}

/// An engine with two adapters that ends every answer at once, and the requests it received.
fn recording_engine() -> (EngineHandle, std::sync::mpsc::Receiver<Request>) {
    let (send, requests) = std::sync::mpsc::channel();
    let (handle, commands, alive) = EngineHandle::new(info());
    let listed = |(i, name): (u64, &str)| {
        let lora = LoraRef { id: LoraId(7 + i), scale: 0.5 };
        LoadedLora { name: name.into(), path: PathBuf::from("somewhere"), lora }
    };
    alive.list([(0, "one"), (1, "two")].map(listed).to_vec());
    std::thread::spawn(move || {
        while let Ok(Message::Take(Command::Submit(mut submission))) = commands.recv() {
            let _ = send.send(submission.request.clone());
            submission.listener.tell(Event::Done(crate::common::done(submission.request.prompt.len())));
        }
        drop(alive);
    });
    (handle, requests)
}

/// The metrics name the adapters in use, which routers read.
#[test]
fn metrics_name_the_adapters_that_requests_have() {
    let pace = std::time::Duration::from_millis(5);
    let slow = sim::Script { pace, ..script(&crate::common::bytes("x")) };
    let handle = sim::start(tallow_engine::handle::Info { slots: 2, ..info() }, slow);
    for name in ["one", "two", "three"] {
        let file = AdapterFile::open(&golden("adapters/llama")).unwrap();
        handle.load_lora(LoadLora { name: name.into(), file, scale: 1.0 }).unwrap();
    }
    let server = ServerBuilder::new(handle).start();
    let used = |running: &str, waiting: &str| {
        let page = ask("GET", "/metrics").get(&server).text();
        let labels = format!(
            "max_lora=\"2\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"}} "
        );
        page.lines().any(|line| line.starts_with("vllm:lora_requests_info") && line.contains(&labels))
    };
    assert!(used("", ""));
    let ask_for = |model: &str| post(CHAT, chat(json!({"model": model, "max_tokens": 200}))).send(&server);
    let running = [ask_for("one"), ask_for("two")];
    crate::common::wait(|| used("one,two", ""), "two are in use");
    let waiting = ask_for("three");
    crate::common::wait(|| used("one,two", "three"), "one waits");
    drop((running, waiting));
    server.wait_free();
    crate::common::wait(|| used("", ""), "none is in use");
}

#[test]
fn a_request_gets_the_adapter_that_it_names() {
    let (handle, requests) = recording_engine();
    let server = ServerBuilder::new(handle).start();
    let adapter = |id, scale| Some(LoraRef { id: LoraId(id), scale });
    for (more, want) in [
        (json!({}), None),
        (json!({"model": "tiny"}), None),
        (json!({"model": "alias"}), None),
        (json!({"model": "one"}), adapter(7, 0.5)),
        (json!({"model": "two"}), adapter(8, 0.5)),
        (json!({"lora": []}), None),
        (json!({"lora": [{"id": 1, "scale": 0.25}]}), adapter(8, 0.25)),
        (
            json!({"model": "tiny", "lora": [{"id": 0, "scale": 0}, {"id": 1, "scale": -1.5}]}),
            adapter(8, -1.5),
        ),
        (json!({"lora": [{"id": 0, "scale": 0.0}]}), None),
    ] {
        for (path, body) in [(CHAT, chat(more.clone())), (TEXT, text(more.clone()))] {
            let reply = post(path, body).get(&server);
            assert_eq!(reply.status, 200, "{more}");
            assert_eq!(reply.json()["model"], more.get("model").cloned().unwrap_or(json!("tiny")));
            assert_eq!(requests.recv().unwrap().adapter, want, "{path} {more}");
        }
    }
}

#[test]
fn what_cannot_be_chosen_is_refused() {
    let server = adapted(goldens());
    let mut all = String::new();
    for body in [
        json!({"model": "three"}),
        json!({"lora": [{"id": 2, "scale": 1}]}),
        json!({"lora": [{"id": 0, "scale": 1}, {"id": 1, "scale": 1}]}),
        json!({"model": "one", "lora": [{"id": 0, "scale": 1}]}),
        json!({"lora": [{"id": 0}]}),
        json!({"lora": [{"scale": 1}]}),
        json!({"lora": [{"id": 0, "scale": "much"}]}),
        json!({"lora": [{"id": -1, "scale": 1}]}),
        json!({"lora": {"id": 0, "scale": 1}}),
        json!({"lora": [{"id": 0, "scale": 1, "name": "one"}]}),
    ] {
        let (message, _, param, _) = post(CHAT, chat(body)).get(&server).error();
        writeln!(all, "{}: {message}", param.unwrap_or_default()).unwrap();
    }
    insta::assert_snapshot!(all);
}

#[test]
fn adapters_are_listed_with_their_model() {
    let server = adapted(None);
    let models = ask("GET", "/v1/models").get(&server).json();
    let facts = |m: &Value| [m["id"].clone(), m["root"].clone(), m["parent"].clone()];
    let got: Vec<[Value; 3]> = models["data"].as_array().unwrap().iter().map(facts).collect();
    let want = [
        [json!("tiny"), json!("tiny"), Value::Null],
        [json!("alias"), json!("tiny"), Value::Null],
        [json!("one"), json!("one"), json!("tiny")],
        [json!("two"), json!("two"), json!("tiny")],
    ];
    assert_eq!(got, want);
    assert_eq!(ask("GET", "/v1/models/two").get(&server).json()["parent"], "tiny");
    let shown = ask("GET", "/lora-adapters").get(&server).json();
    assert_eq!(
        shown,
        json!([{"id": 0, "name": "one", "scale": 1.0}, {"id": 1, "name": "two", "scale": 0.5}])
    );
    assert_eq!(post("/tokenize", json!({"model": "two", "prompt": "x"})).get(&server).status, 200);
}

#[test]
fn clients_load_and_unload_what_lies_in_the_folder() {
    let server = adapted(goldens());
    let load =
        |name: &str, path: &str| post(LOAD, json!({"lora_name": name, "lora_path": path})).get(&server);
    let listed = |name: &str| server.handle.loras().iter().any(|a| a.name == name);
    let absolute = golden("adapters/llama/adapter.gguf").canonicalize().unwrap();
    for (name, path) in [("three", "llama"), ("four", absolute.to_str().unwrap())] {
        let reply = load(name, path);
        assert_eq!((reply.status, listed(name)), (200, true), "{}", reply.text());
        assert_eq!(post(CHAT, chat(json!({"model": name}))).get(&server).status, 200);
    }
    assert_eq!(post(UNLOAD, json!({"lora_name": "three"})).get(&server).status, 200);
    assert!(!listed("three"));
    assert_eq!(post(CHAT, chat(json!({"model": "three"}))).get(&server).status, 404);
    let mut all = String::new();
    let mut note = |reply: crate::common::client::Reply| {
        let (message, _, param, _) = reply.error();
        writeln!(all, "{} {}: {message}", reply.status, param.unwrap_or_default()).unwrap();
    };
    note(load("one", "llama"));
    note(load("tiny", "llama"));
    note(load("five", "no-such"));
    note(load("five", "../llama"));
    note(load("five", "/etc/passwd"));
    note(load("five", "llama/../../../../README.md"));
    note(load("five", "."));
    note(load("", "llama"));
    note(post(LOAD, json!({"lora_name": "five"})).get(&server));
    note(post(LOAD, json!({"lora_name": "five", "lora_path": "llama", "load_inplace": true})).get(&server));
    note(post(UNLOAD, json!({"lora_name": "nobody"})).get(&server));
    note(post(UNLOAD, json!({"lora_name": "one", "more": 1})).get(&server));
    insta::assert_snapshot!(all);
    // Errors about files within the folder have details, but not the folder's path.
    let (message, ..) = load("five", "llama/golden.json").error();
    let folder = golden("adapters").canonicalize().unwrap();
    assert!(
        message.contains("llama/golden.json") && !message.contains(folder.to_str().unwrap()),
        "{message}"
    );
}

#[test]
fn without_a_folder_nobody_loads_anything() {
    let server = adapted(None);
    let body = json!({"lora_name": "x", "lora_path": golden("adapters/llama").to_str().unwrap()});
    for (path, body) in [(LOAD, body), (UNLOAD, json!({"lora_name": "one"}))] {
        let reply = post(path, body).get(&server);
        let (message, kind, ..) = reply.error();
        assert_eq!((reply.status, kind.as_str()), (403, "permission_error"));
        assert!(message.contains("--lora-dir"), "{message}");
    }
    assert_eq!(server.handle.loras().len(), 2);
}
