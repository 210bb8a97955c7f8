//! Access control, request limits and timeouts.

use std::io::Write as _;
use std::sync::atomic::Ordering;

use crate::common::client::{Reply, RequestBuilder, ask, connect, post, raw, read};
use crate::common::{ServerBuilder, TestServer, hello, info, script, start_server};
use serde_json::{Value, json};
use tallow_engine::sim;
use tallow_server::Settings;

const CHAT: &str = "/v1/chat/completions";

fn chat() -> Value {
    json!({"messages": [{"role": "user", "content": "Hi"}]})
}

fn guarded(settings: Settings) -> TestServer {
    ServerBuilder { settings, ..ServerBuilder::new(sim::start(info(), script(&hello()))) }.start()
}

/// The request is refused with the common error format.
fn refused(request: RequestBuilder, server: &TestServer, status: u16) -> Reply {
    let reply = request.get(server);
    assert_eq!(reply.status, status, "{reply:?}");
    reply.error();
    assert!(reply.header("x-request-id").is_some());
    reply
}

#[test]
fn item_18_routes_methods_and_kinds() {
    let server = start_server(&hello());
    for path in ["//", "/nowhere", "/v1", "/v1/chat", "/v1/models/", "/v1/embeddings", "//health", "/health/"]
    {
        refused(ask("GET", path), &server, 404);
    }
    for (method, path) in [
        ("GET", CHAT),
        ("PUT", CHAT),
        ("DELETE", "/v1/models/tiny"),
        ("POST", "/health"),
        ("POST", "/metrics"),
        ("OPTIONS", CHAT),
        ("BREW", "/tokenize"),
    ] {
        let reply = refused(ask(method, path), &server, 405);
        assert!(reply.header("allow").is_some(), "{reply:?}");
    }
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""] {
        refused(post(CHAT, chat()).with("content-type", kind), &server, 415);
    }
    refused(ask("POST", CHAT).body(chat().to_string()), &server, 415);
    assert_eq!(
        post(CHAT, chat()).with("content-type", "Application/JSON; charset=utf-8").get(&server).status,
        200
    );
}

#[test]
fn item_18_headers_without_end() {
    let server = start_server(&hello());
    let long = format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "x".repeat(1 << 20));
    assert_eq!(raw(&server, long.as_bytes()).status, 431);
    let many = (0..10_000).map(|i| format!("x{i}: y\r\n")).collect::<String>();
    assert_eq!(raw(&server, format!("GET /health HTTP/1.1\r\n{many}\r\n").as_bytes()).status, 431);
    let few = (0..98).map(|i| format!("x{i}: y\r\n")).collect::<String>();
    let few = format!("GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{few}\r\n");
    assert_eq!(raw(&server, few.as_bytes()).status, 200);
    for bytes in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ] {
        assert_eq!(raw(&server, bytes).status, 400);
    }
    assert_eq!(ask("GET", "/health").get(&server).status, 200);
}

#[test]
fn item_18_chunks_without_end() {
    let server = start_server(&hello());
    let mut stream = connect(&server);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = [&b"10000\r\n"[..], &[b' '; 0x10000], b"\r\n"].concat();
    // As much as the server reads, and a little more, so that the answer is not lost to a reset.
    for _ in 0..256 {
        stream.write_all(&chunk).unwrap();
    }
    stream.write_all(b"1\r\n \r\n").unwrap();
    assert_eq!(read(stream).status, 413);
    assert_eq!(post(CHAT, chat()).get(&server).status, 200);
}

#[test]
fn item_36_hosts() {
    let server = start_server(&hello());
    let port = server.address.port();
    let host = |host: &str| ask("GET", "/health").with("host", host);
    for known in ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80", &format!("127.0.0.1:{port}")] {
        assert_eq!(host(known).get(&server).status, 200, "{known}");
    }
    for evil in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "[::2]",
        "",
        "localhost:x",
        "a\u{1b}[31m",
    ] {
        let reply = host(evil).get(&server);
        assert!([403, 400].contains(&reply.status), "{evil}");
    }
    refused(host("evil.example"), &server, 403);
    assert_eq!(raw(&server, b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n").status, 400);
    let two = b"GET /health HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    assert_eq!(raw(&server, two).status, 400);
    let open = guarded(Settings { allow_hosts: vec!["Models.Example".into()], ..Settings::default() });
    assert_eq!(host("models.example:8080").get(&open).status, 200);
    refused(host("other.example"), &open, 403);
    let any = guarded(Settings { allow_hosts: vec!["*".into()], ..Settings::default() });
    assert_eq!(host("other.example").get(&any).status, 200);
    let everywhere =
        ServerBuilder { bind: "0.0.0.0:0", ..ServerBuilder::new(sim::start(info(), script(&hello()))) }
            .start();
    assert_eq!(
        host("192.168.1.7:80").get(&everywhere).status,
        200,
        "an address cannot be made to point here"
    );
    for near in ["tallow:8080", "my-box", "my-box.local:80", "host.docker.internal"] {
        assert_eq!(host(near).get(&everywhere).status, 200, "{near} is of the own network");
        let (message, ..) = refused(host(near), &server, 403).error();
        let name = near.split(':').next().unwrap();
        assert!(
            message.ends_with(&format!("whoever runs it can allow that with --allow-host {name}")),
            "{message}"
        );
    }
    refused(host("evil.example"), &everywhere, 403);
    refused(host("tallow.evil.example"), &everywhere, 403);
}

#[test]
fn hosts_and_origins_that_can_never_match_stop_the_start() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let mut host = guarded(Settings { allow_hosts: names(&["tallow", "http://x"]), ..Settings::default() });
    assert!(host.failed().to_string().ends_with("--allow-host x"));
    let mut origin = guarded(Settings { allow_origins: names(&["chat.example"]), ..Settings::default() });
    assert!(origin.failed().to_string().contains("--allow-origin https://chat.example"));
}

#[test]
fn item_36_origins() {
    let server = start_server(&hello());
    let from = |origin: &str| ask("GET", "/v1/models").with("host", "localhost:80").with("origin", origin);
    for known in ["http://localhost:80", "https://LOCALHOST:80"] {
        let reply = from(known).get(&server);
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, None));
    }
    for evil in [
        "https://evil.example",
        "null",
        "file://",
        "http://localhost:80.evil.example",
        "http://localhost.evil.example",
        "http://192.168.1.5:3000",
    ] {
        let (message, ..) = refused(from(evil), &server, 403).error();
        assert!(message.ends_with(&format!("can allow that with --allow-origin {evil}")), "{message}");
    }
    for local in [
        "http://localhost",
        "http://localhost:3000",
        "http://127.0.0.1:5173",
        "vscode-webview://1a",
        "app://x",
    ] {
        let reply = from(local).get(&server);
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, Some(local)));
    }
    let preflight = |origin: &str| {
        let request = ask("OPTIONS", CHAT).with("origin", origin);
        request
            .with("access-control-request-method", "POST")
            .with("access-control-request-headers", "authorization,content-type,x-stainless-os")
    };
    refused(preflight("https://evil.example"), &server, 403);
    let friend = "https://chat.example";
    let settings = Settings {
        allow_origins: vec![friend.into()],
        api_keys: vec!["secret".into()],
        ..Settings::default()
    };
    let server = guarded(settings);
    refused(preflight("https://evil.example"), &server, 403);
    let reply = preflight(friend).get(&server);
    assert_eq!(
        (reply.status, reply.header("access-control-allow-origin")),
        (204, Some(friend)),
        "no key is needed to ask"
    );
    assert_eq!(reply.header("access-control-allow-methods"), Some("GET, POST, DELETE"));
    assert_eq!(
        reply.header("access-control-allow-headers"),
        Some("authorization,content-type,x-stainless-os"),
        "whatever the client sends"
    );
    assert_eq!(reply.header("access-control-allow-private-network"), None);
    let reply = preflight(friend).with("access-control-request-private-network", "true").get(&server);
    assert_eq!(reply.header("access-control-allow-private-network"), Some("true"));
    let reply = refused(from(friend), &server, 401);
    assert_eq!(
        (reply.header("access-control-allow-origin"), reply.header("vary")),
        (Some(friend), Some("origin, access-control-request-headers"))
    );
    assert_eq!(from(friend).with("authorization", "Bearer secret").get(&server).status, 200);
}

#[test]
fn item_36_keys_are_needed_on_every_route() {
    let settings = Settings { api_keys: vec!["first".into(), "second".into()], ..Settings::default() };
    let server = guarded(settings);
    let routes = [
        ("POST", CHAT),
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/alias"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/metrics"),
        ("GET", "/version"),
        ("GET", "/nowhere"),
        ("GET", "/health/"),
        ("OPTIONS", CHAT),
    ];
    for (method, path) in routes {
        let reply = ask(method, path).get(&server);
        assert_eq!(
            (reply.status, reply.header("www-authenticate")),
            (401, Some("Bearer")),
            "{method} {path}"
        );
    }
    let key = |key: &str| ask("GET", "/v1/models").with("authorization", key);
    let huge = format!("Bearer {}", "first".repeat(10_000));
    for wrong in [
        "",
        "first",
        "Basic first",
        "Bearer",
        "Bearer ",
        "Bearer firs",
        "Bearer firstfirst",
        "Bearer First",
        "Bearer second ,",
        "Bearer third",
        &huge,
    ] {
        refused(key(wrong), &server, 401);
    }
    for right in ["Bearer first", "bearer second"] {
        assert_eq!(key(right).get(&server).status, 200);
    }
    for name in ["x-api-key", "api-key"] {
        assert_eq!(ask("GET", "/version").with(name, "second").get(&server).status, 200);
        for wrong in ["", "third", "Bearer second"] {
            refused(ask("GET", "/version").with(name, wrong), &server, 401);
        }
    }
    // Clients that must send some key in the usual header can send the right one in the other.
    let both = ask("GET", "/version").with("authorization", "Bearer none").with("x-api-key", "first");
    assert_eq!(both.get(&server).status, 200);
    assert_eq!(refused(key("x"), &server, 401).error().3.as_deref(), Some("invalid_api_key"));
    assert_eq!(ask("GET", "/nowhere").with("authorization", "Bearer first").get(&server).status, 404);
    let mut empty = guarded(Settings { api_keys: vec![String::new()], ..Settings::default() });
    assert!(empty.failed().to_string().contains("empty"));
}

/// Liveness probes rarely have a key.
#[test]
fn probes_need_no_key_unless_that_is_asked_for() {
    let keys = || vec!["secret".to_owned()];
    let server = guarded(Settings { api_keys: keys(), ..Settings::default() });
    for path in ["/health", "/ready"] {
        assert_eq!(ask("GET", path).get(&server).status, 200, "{path}");
        assert_eq!(ask("HEAD", path).get(&server).status, 200, "{path}");
        assert_eq!(ask("GET", path).with("host", "evil.example").get(&server).status, 403, "{path}");
    }
    let server = guarded(Settings { api_keys: keys(), private_health: true, ..Settings::default() });
    for path in ["/health", "/ready"] {
        assert_eq!(ask("GET", path).get(&server).status, 401, "{path}");
        let with = ask("GET", path).with("authorization", "Bearer secret");
        assert_eq!(with.get(&server).status, 200, "{path}");
    }
}

/// `/health` reports problems that do not stop requests without taking the server out of rotation.
#[test]
fn health_tells_of_a_log_and_a_cache_in_trouble() {
    let server = guarded(Settings::default());
    let log = server.log.clone();
    let get = |path: &str| ask("GET", path).get(&server);
    log.failed(&"No space left on device");
    log.dropped();
    let problem = "the log cannot be written: No space left on device; lines dropped: 2";
    for (path, status) in [("/health", "ok"), ("/ready", "ready")] {
        let reply = get(path);
        assert_eq!((reply.status, reply.json()), (200, json!({"status": status, "problems": [problem]})));
    }
    assert!(
        get("/metrics").text().contains("vllm:log_lines_dropped_total{model_name=\"tiny\",engine=\"0\"} 2\n")
    );
    log.written();
    server.handle.stats().page_faults.fetch_add(1, Ordering::Relaxed);
    let problems = get("/health").json()["problems"].clone();
    assert!(problems[0].as_str().unwrap().contains("pages were found out of order"), "{problems}");
    assert_eq!(problems.as_array().unwrap().len(), 1);
}

#[test]
fn the_small_routes() {
    let server = start_server(&hello());
    let get = |path: &str| ask("GET", path).get(&server);
    let models = get("/v1/models").json();
    let ids: Vec<_> = models["data"].as_array().unwrap().iter().map(|m| m["id"].clone()).collect();
    assert_eq!((models["object"].as_str(), ids), (Some("list"), vec![json!("tiny"), json!("alias")]));
    let model = get("/v1/models/alias").json();
    assert_eq!(
        (&model["object"], &model["root"], &model["max_model_len"]),
        (&json!("model"), &json!("tiny"), &json!(256))
    );
    assert_eq!(get("/version").json(), json!({"version": env!("CARGO_PKG_VERSION")}));
    let built = guarded(Settings { commit: Some("0123456789"), ..Settings::default() });
    let version = ask("GET", "/version").get(&built).json();
    assert_eq!(version, json!({"version": env!("CARGO_PKG_VERSION"), "commit": "0123456789"}));
    assert_eq!(get("/health").json(), json!({"status": "ok"}));
    assert_eq!(get("/ready").json(), json!({"status": "ready"}));
}
