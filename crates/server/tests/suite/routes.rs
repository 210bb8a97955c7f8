//! Paths and methods that a server answers, over HTTP.

use crate::common::client::ask;
use crate::common::{ServerBuilder, hello, info, script, start_server};
use tallow_engine::sim;
use tallow_server::Settings;

/// Paths of endpoints, of other kinds of model, and of nothing.
const PATHS: [&str; 25] = [
    "/",
    "/page/style.css",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/classify",
    "/v1/audio/transcriptions",
    "/v1/audio/speech",
    "/v1/audio",
    "/tokenize",
    "/detokenize",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/lora-adapters",
    "/v1/models",
    "/v1/models/tiny",
    "/v1/models/org/name",
    "/health",
    "/ready",
    "/metrics",
    "/version",
    "/v1/chat/completions/",
    "/nothing",
    "/v1",
];

#[test]
fn a_path_takes_its_methods() {
    let server = start_server(&hello());
    let mut text = String::new();
    for path in PATHS {
        text += path;
        for method in ["GET", "HEAD", "POST", "OPTIONS"] {
            let reply = ask(method, path).get(&server);
            let allow = reply.header("allow").map(|allow| format!(" ({allow})")).unwrap_or_default();
            text += &format!(" {method} {}{allow}", reply.status);
        }
        text += "\n";
    }
    insta::assert_snapshot!(text, @r#"
    / GET 200 HEAD 200 POST 405 (GET,HEAD) OPTIONS 405 (GET,HEAD)
    /page/style.css GET 200 HEAD 200 POST 405 (GET,HEAD) OPTIONS 405 (GET,HEAD)
    /v1/chat/completions GET 405 (POST) HEAD 405 (POST) POST 415 OPTIONS 405 (POST)
    /v1/completions GET 405 (POST) HEAD 405 (POST) POST 415 OPTIONS 405 (POST)
    /v1/embeddings GET 404 HEAD 404 POST 404 OPTIONS 404
    /v1/rerank GET 404 HEAD 404 POST 404 OPTIONS 404
    /classify GET 404 HEAD 404 POST 404 OPTIONS 404
    /v1/audio/transcriptions GET 404 HEAD 404 POST 404 OPTIONS 404
    /v1/audio/speech GET 404 HEAD 404 POST 404 OPTIONS 404
    /v1/audio GET 404 HEAD 404 POST 404 OPTIONS 404
    /tokenize GET 405 (POST) HEAD 405 (POST) POST 415 OPTIONS 405 (POST)
    /detokenize GET 405 (POST) HEAD 405 (POST) POST 415 OPTIONS 405 (POST)
    /v1/load_lora_adapter GET 405 (POST) HEAD 405 (POST) POST 415 OPTIONS 405 (POST)
    /v1/unload_lora_adapter GET 405 (POST) HEAD 405 (POST) POST 415 OPTIONS 405 (POST)
    /lora-adapters GET 200 HEAD 200 POST 405 (GET,HEAD) OPTIONS 405 (GET,HEAD)
    /v1/models GET 200 HEAD 200 POST 405 (GET,HEAD) OPTIONS 405 (GET,HEAD)
    /v1/models/tiny GET 200 HEAD 200 POST 405 (GET,HEAD) OPTIONS 405 (GET,HEAD)
    /v1/models/org/name GET 404 HEAD 404 POST 405 (GET,HEAD) OPTIONS 405 (GET,HEAD)
    /health GET 200 HEAD 200 POST 405 (GET,HEAD) OPTIONS 405 (GET,HEAD)
    /ready GET 200 HEAD 200 POST 405 (GET,HEAD) OPTIONS 405 (GET,HEAD)
    /metrics GET 200 HEAD 200 POST 405 (GET,HEAD) OPTIONS 405 (GET,HEAD)
    /version GET 200 HEAD 200 POST 405 (GET,HEAD) OPTIONS 405 (GET,HEAD)
    /v1/chat/completions/ GET 404 HEAD 404 POST 404 OPTIONS 404
    /nothing GET 404 HEAD 404 POST 404 OPTIONS 404
    /v1 GET 404 HEAD 404 POST 404 OPTIONS 404
    "#);
    // The metrics have the routes, and not the paths, which clients may invent.
    let metrics = ask("GET", "/metrics").get(&server).text();
    let label = |line: &str| Some(line.split_once("handler=\"")?.1.split_once('"')?.0.to_owned());
    let mut handlers: Vec<String> = metrics.lines().filter_map(label).collect();
    handlers.dedup();
    handlers.sort();
    handlers.dedup();
    insta::assert_snapshot!(handlers.join("\n"), @r#"
    /
    /classify
    /detokenize
    /health
    /lora-adapters
    /metrics
    /page/{file}
    /ready
    /tokenize
    /v1/audio/{*what}
    /v1/chat/completions
    /v1/completions
    /v1/embeddings
    /v1/load_lora_adapter
    /v1/models
    /v1/models/{*id}
    /v1/rerank
    /v1/unload_lora_adapter
    /version
    none
    "#);
}

#[test]
fn a_generative_model_says_what_it_does_instead() {
    let server = start_server(&hello());
    let mut text = String::new();
    for path in ["/v1/embeddings", "/v1/rerank", "/classify", "/v1/audio/transcriptions", "/v1/audio/speech"]
    {
        text += &format!("{path}: {}\n", ask("POST", path).get(&server).error().0);
    }
    insta::assert_snapshot!(text, @r#"
    /v1/embeddings: the model of this server computes no embeddings and classifies nothing; it has /v1/chat/completions and /v1/completions
    /v1/rerank: the model of this server computes no embeddings and classifies nothing; it has /v1/chat/completions and /v1/completions
    /classify: the model of this server computes no embeddings and classifies nothing; it has /v1/chat/completions and /v1/completions
    /v1/audio/transcriptions: the model of this server does not transcribe audio; serve a speech model for that
    /v1/audio/speech: the model of this server does not transcribe audio; serve a speech model for that
    "#);
}

#[test]
fn probes_and_the_page_need_no_key() {
    for private_health in [false, true] {
        let settings = Settings { api_keys: vec!["secret".into()], private_health, ..Settings::default() };
        let server =
            ServerBuilder { settings, ..ServerBuilder::new(sim::start(info(), script(&hello()))) }.start();
        let open: Vec<&str> =
            PATHS.into_iter().filter(|path| ask("GET", path).get(&server).status != 401).collect();
        let expected: &[&str] = if private_health {
            &["/", "/page/style.css"]
        } else {
            &["/", "/page/style.css", "/health", "/ready"]
        };
        assert_eq!(open, expected);
    }
}

#[test]
fn pages_may_use_the_methods_that_there_are() {
    let server = start_server(&hello());
    let request = ask("OPTIONS", "/v1/models").with("origin", "http://localhost:3000");
    let reply = request.with("access-control-request-method", "GET").get(&server);
    assert_eq!(
        (reply.status, reply.header("access-control-allow-methods")),
        (204, Some("GET, POST, DELETE"))
    );
}

#[test]
fn a_text_lists_endpoints() {
    insta::assert_snapshot!(ask("GET", "/").get(&start_server(&hello())).text(), @r#"
    Tallow 0.1.0 is running.
    Model: tiny
    POST /v1/chat/completions: chats
    POST /v1/completions: texts to be continued
    GET /v1/models: the models that are served
    GET /health: whether the server is well
    GET /metrics: what it does, for Prometheus
    "#);
}
