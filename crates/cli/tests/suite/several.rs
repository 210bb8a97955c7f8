//! `tallow serve` with several models.

#![cfg(unix)]

use crate::common::server::{Server, answer};
use crate::common::{HUB, Home};
use serde_json::{Value, json};
use tallow_support::{image_encoder, listener, text_encoder};

/// A home with models of each kind beside the demo.
fn home() -> Home {
    let home = Home::new();
    text_encoder(&home.path().join("tiny"), None);
    text_encoder(&home.path().join("rank"), Some(1));
    image_encoder(&home.path().join("clip"));
    listener(&home.path().join("ears"));
    home
}

fn start(home: Home, args: &[&str]) -> Server {
    let command = home.command(&[&["serve", "--port", "0"], args].concat());
    Server::of(home, command)
}

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let (status, text) = answer(server.request("POST", path, &body.to_string()));
    (status, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")))
}

/// Models and their states.
fn states(server: &Server) -> String {
    let list: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    let one = |model: &Value| format!("{} {}", model["id"], model["status"]["value"]).replace('"', "");
    list["data"].as_array().unwrap().iter().map(one).collect::<Vec<_>>().join(", ")
}

#[test]
fn models_of_all_kinds_are_served_by_one_process() {
    let server = start(home(), &["demo", "tiny", "rank", "clip", "ears"]);
    assert_eq!(states(&server), "demo loaded, tiny loaded, rank loaded, clip loaded, ears loaded");
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0});
    // The only one that chats need not be named.
    let (status, unnamed) = post(&server, "/v1/chat/completions", &chat);
    assert_eq!(status, 200, "{unnamed}");
    assert_eq!(unnamed["model"], "demo");
    let embed = |model: &str| post(&server, "/v1/embeddings", &json!({"model": model, "input": "the cat"})).1;
    let length = |answer: &Value| answer["data"][0]["embedding"].as_array().map_or(0, Vec::len);
    assert_eq!((length(&embed("tiny")), length(&embed("clip"))), (48, 24));
    let ranked = json!({"model": "rank", "query": "a cat", "documents": ["the cat", "a dog"]});
    assert_eq!(post(&server, "/v1/rerank", &ranked).1["results"].as_array().map_or(0, Vec::len), 2);
    // Put away, and back with the same answers.
    let before = embed("tiny");
    assert_eq!(post(&server, "/models/unload", &json!({"model": "tiny"})).0, 200);
    assert_eq!(states(&server), "demo loaded, tiny unloaded, rank loaded, clip loaded, ears loaded");
    assert_eq!(embed("tiny")["data"], before["data"]);
    assert!(states(&server).contains("tiny loaded"));
    assert_eq!(server.metric("vllm:model_loads_total{model_name=\"tiny\"}"), 2.0);
    let (status, why) = post(&server, "/v1/embeddings", &json!({"input": "x"}));
    assert_eq!(status, 400, "{why}");
}

#[test]
fn a_file_of_models_has_settings_for_each() {
    let home = home();
    let file = "slots = 2\n\n[models.chat]\nmodel = \"demo\"\ncontext = 256\nalias = [\"talk\"]\npinned = true\n\n\
                [models.again]\nmodel = \"demo\"\n\n\
                [models.vectors]\nmodel = \"tiny\"\nkeep-alive = 0\n";
    home.file("models.toml", file);
    let mut server = start(home, &["--models", "models.toml"]);
    let names: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    let names: Vec<&str> =
        names["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["chat", "talk", "again", "vectors"]);
    let (_, props) = server.get("/props?model=talk");
    let props: Value = serde_json::from_str(&props).unwrap();
    assert_eq!(
        (&props["default_generation_settings"]["n_ctx"], &props["total_slots"]),
        (&json!(256), &json!(2))
    );
    let (status, body) = post(&server, "/v1/embeddings", &json!({"model": "vectors", "input": "the cat"}));
    assert_eq!((status, &body["model"]), (200, &json!("vectors")));
    server.signal(libc::SIGTERM);
    assert_eq!(server.ended(tallow_support::PATIENCE), Some(0));
}

#[test]
fn downloaded_models_are_loaded_on_demand() {
    let home = Home::new();
    home.caches("one");
    home.caches("two");
    let server = start(home, &["--on-demand"]);
    assert_eq!(states(&server), "org/one:Q8_0 unloaded, org/two:Q8_0 unloaded");
    let text = json!({"model": "org/two:Q8_0", "prompt": "a", "max_tokens": 2});
    let (status, body) = post(&server, "/v1/completions", &text);
    assert_eq!(status, 200, "{body}");
    assert_eq!(states(&server), "org/one:Q8_0 unloaded, org/two:Q8_0 loaded");
    // What was removed meanwhile is not downloaded again for a request.
    std::fs::remove_dir_all(server.home.path().join(HUB).join("models--org--one")).unwrap();
    let (status, body) = post(&server, "/v1/completions", &json!({"model": "org/one:Q8_0", "prompt": "a"}));
    let why = body["error"]["message"].as_str().unwrap();
    assert!(
        status == 500 && why.contains("org/one:Q8_0 is not on this machine, and requests download nothing"),
        "{body}"
    );
    for name in ["org/three", "/etc/passwd", "../x", "demo"] {
        let (status, body) = post(&server, "/v1/completions", &json!({"model": name, "prompt": "a"}));
        assert_eq!((status, &body["error"]["code"]), (404, &json!("model_not_found")), "{name}: {body}");
    }
}

#[test]
fn one_model_may_be_unloaded_while_it_is_idle() {
    let server = start(Home::new(), &["demo", "--keep-alive", "0"]);
    let text = json!({"prompt": "a", "max_tokens": 2, "temperature": 0});
    let (status, first) = post(&server, "/v1/completions", &text);
    assert_eq!(status, 200, "{first}");
    let begun = std::time::Instant::now();
    while states(&server) != "demo unloaded" {
        assert!(begun.elapsed() < tallow_support::PATIENCE, "{}", states(&server));
    }
    assert_eq!(post(&server, "/v1/completions", &text).1["choices"], first["choices"]);
    // A file's settings of a model are not those of another.
    let home = Home::new();
    home.caches("one");
    home.file("config.toml", "[models.demo]\ncontext = 128\n");
    let server = start(home, &["demo", "--on-demand", "--config", "config.toml"]);
    for (name, context) in [("demo", 128), ("org/one:Q8_0", 1024)] {
        let text = json!({"model": name, "prompt": "a", "max_tokens": 1});
        assert_eq!(post(&server, "/v1/completions", &text).0, 200);
        let model: Value = serde_json::from_str(&server.get(&format!("/v1/models/{name}")).1).unwrap();
        assert_eq!(model["max_model_len"], context, "{model}");
    }
}

#[test]
fn a_running_servers_models_are_shown_and_unloaded() {
    let server = start(home(), &["demo", "tiny", "--keep-alive", "600"]);
    let (home, port) = (Home::new(), server.address.rsplit(':').next().unwrap().to_owned());
    let shown = home.run(&["ps", "--port", &port]).ok();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 3, "{shown}");
    assert!(lines[0].starts_with("NAME  STATE   DEVICE  MEMORY"), "{shown}");
    assert!(lines[1].starts_with("demo  loaded  cpu     ") && lines[1].ends_with(" s"), "{shown}");
    assert_eq!(home.run(&["stop", "tiny", "--port", &port]).ok(), "tiny is unloaded\n");
    assert!(home.run(&["ps", "--port", &port]).ok().contains("\ntiny  unloaded"));
    let json: Value = serde_json::from_str(&home.run(&["ps", "--port", &port, "--json"]).ok()).unwrap();
    assert_eq!(json[1]["status"]["value"], "unloaded");
    // A server of one model has no more to say of it.
    let one = Server::start(&[]);
    let own = one.address.rsplit(':').next().unwrap().to_owned();
    assert!(home.run(&["ps", "--port", &own]).ok().contains("\ndemo  loaded"));
    let said = [
        home.run(&["stop", "tiny", "--port", &port]),
        home.run(&["stop", "other", "--port", &port]),
        home.run(&["stop", "demo", "--port", &own]),
        home.run(&["ps", "--port", "9"]),
    ];
    insta::assert_snapshot!(said.map(|did| did.failed()).concat());
}

#[test]
fn running_servers_are_measured_in_turn() {
    let (one, two) = (Server::start(&[]), Server::start(&["--slots", "2"]));
    let home = Home::new();
    let urls = format!("http://{},http://{}/v1", one.address, two.address);
    let bench =
        ["bench", "serve", "--base-url", &urls, "-n", "6", "--rounds", "2", "--random-output-len", "5"];
    let more = ["--random-input-len", "40", "-c", "3", "--ignore-eos", "--result-filename", "out.json"];
    let shown = home.run(&[&bench[..], &more].concat()).ok();
    let row = |name: &str| -> Vec<String> {
        let line =
            shown.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {shown}"));
        line[name.len()..].split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(
        (row("successful requests"), row("failed requests")),
        (vec!["12".into(); 2], vec!["0".into(); 2])
    );
    assert_eq!(row("generated tokens"), ["60", "60"]);
    let json: Value =
        serde_json::from_str(&std::fs::read_to_string(home.path().join("out.json")).unwrap()).unwrap();
    for server in json.as_array().unwrap() {
        // Prompts are about as long as they should be, and gaps are those between five tokens.
        let tokens = server["total_input_tokens"].as_u64().unwrap();
        assert!((12 * 36..=12 * 44).contains(&tokens), "{tokens}");
        let ms = |name: &str| server[name].as_f64().unwrap();
        assert!(
            ms("mean_ttft_ms") > 0.0 && ms("mean_tpot_ms") > 0.0 && ms("p99_e2el_ms") >= ms("median_e2el_ms")
        );
        assert_eq!((&server["model_id"], &server["completed"]), (&json!("demo"), &json!(12)));
    }
    // Chats, of prompts in a file, at a rate.
    home.file(
        "prompts.jsonl",
        "{\"prompt\": \"Once upon a time\"}\n\n{\"prompt\": \"Hi\", \"output_len\": 2}\n",
    );
    let chat = ["--api", "chat", "--dataset-path", "prompts.jsonl", "-n", "4", "--request-rate", "100"];
    let url = format!("http://{}", one.address);
    let rest = ["--random-output-len", "3", "--ignore-eos", "--goodput", "ttft:60000", "e2el:60000"];
    let shown = home.run(&[&["bench", "serve", "--base-url", &url], &chat[..], &rest].concat()).ok();
    let lines: Vec<&str> = shown.lines().filter(|line| line.starts_with("generated")).collect();
    assert_eq!(lines[0].split_whitespace().last(), Some("10"), "{shown}");
    assert!(shown.contains("goodput (requests a second)"), "{shown}");
    home.file("wrong.jsonl", "{\"prompt\": 5}\n");
    let said = [
        home.run(&["bench", "serve", "--base-url", "127.0.0.1:9"]),
        home.run(&["bench", "serve", "--base-url", "http://127.0.0.1:9"]),
        home.run(&["bench", "serve", "--base-url", &url, "--model", "other"]),
        home.run(&["bench", "serve", "--base-url", &url, "--random-input-len", "5000", "-n", "2"]),
        home.run(&["bench", "serve", "--base-url", &url, "--dataset-path", "wrong.jsonl"]),
        home.run(&["bench", "serve", "--goodput", "itl:5"]),
        home.run(&["bench", "serve", "--request-rate", "0"]),
        home.run(&["bench", "serve", "-n", "3000"]),
    ];
    let said = said.map(|did| {
        assert!(matches!(did.code, Some(1 | 2)), "{did:?}");
        did.err
    });
    insta::assert_snapshot!(said.concat().replace(&one.address, "ADDRESS"));
}

#[test]
fn what_cannot_be_served_together_is_said() {
    let home = home();
    home.file("empty.toml", "slots = 2\n");
    home.file("same.toml", "[models.a]\nmodel = \"demo\"\n[models.b]\nmodel = \"tiny\"\nalias = \"a\"\n");
    home.file("wrong.toml", "[models.a]\nmodel = \"demo\"\ncontxt = 5\n");
    let serve = |args: &[&str]| home.run(&[&["serve", "--port", "0"], args].concat()).failed();
    let said = [
        serve(&["demo", "tiny", "--alias", "x"]),
        serve(&["demo", "tiny", "--lora", "x"]),
        serve(&["demo", "demo"]),
        serve(&["demo", "missing.gguf"]),
        serve(&["demo", "tiny", "--context", "4096"]),
        serve(&["--models", "missing.toml"]),
        serve(&["--models", "empty.toml"]),
        serve(&["--models", "same.toml"]),
        serve(&["--models", "wrong.toml"]).split("; there are").next().unwrap().to_owned() + "\n",
    ];
    insta::assert_snapshot!(said.concat());
}
