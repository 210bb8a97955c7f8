//! Which paths and methods a server answers, over HTTP.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use common::client::ask;
use common::{Plan, hello, info, script, site};
use tallow_engine::sim;
use tallow_server::Settings;

/// Paths of endpoints, of other kinds of model, and of nothing.
const PATHS: [&str; 24] = [
    "/",
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
    let site = site(&hello());
    let mut text = String::new();
    for path in PATHS {
        text += path;
        for method in ["GET", "HEAD", "POST", "OPTIONS"] {
            let reply = ask(method, path).get(&site);
            let allow = reply.header("allow").map(|allow| format!(" ({allow})")).unwrap_or_default();
            text += &format!(" {method} {}{allow}", reply.status);
        }
        text += "\n";
    }
    insta::assert_snapshot!(text, @"");
    // The metrics have the routes, and not the paths, which clients may invent.
    let metrics = ask("GET", "/metrics").get(&site).text();
    let label = |line: &str| Some(line.split_once("handler=\"")?.1.split_once('"')?.0.to_owned());
    let mut handlers: Vec<String> = metrics.lines().filter_map(label).collect();
    handlers.dedup();
    handlers.sort();
    handlers.dedup();
    insta::assert_snapshot!(handlers.join("\n"), @"");
}

#[test]
fn a_generative_model_says_what_it_does_instead() {
    let site = site(&hello());
    let mut text = String::new();
    for path in ["/v1/embeddings", "/v1/rerank", "/classify", "/v1/audio/transcriptions", "/v1/audio/speech"]
    {
        text += &format!("{path}: {}\n", ask("POST", path).get(&site).error().0);
    }
    insta::assert_snapshot!(text, @"");
}

#[test]
fn probes_and_the_page_need_no_key() {
    for private_health in [false, true] {
        let settings = Settings { api_keys: vec!["secret".into()], private_health, ..Settings::default() };
        let site = Plan { settings, ..Plan::new(sim::start(info(), script(&hello()))) }.start();
        let open: Vec<&str> =
            PATHS.into_iter().filter(|path| ask("GET", path).get(&site).status != 401).collect();
        let expected: &[&str] = if private_health { &["/"] } else { &["/", "/health", "/ready"] };
        assert_eq!(open, expected);
    }
}

#[test]
fn pages_may_use_the_methods_that_there_are() {
    let site = site(&hello());
    let asked = ask("OPTIONS", "/v1/models").with("origin", "http://localhost:3000");
    let reply = asked.with("access-control-request-method", "GET").get(&site);
    assert_eq!((reply.status, reply.header("access-control-allow-methods")), (204, Some("GET, POST")));
}

#[test]
fn the_page_lists_endpoints() {
    insta::assert_snapshot!(ask("GET", "/").get(&site(&hello())).text(), @"");
}
