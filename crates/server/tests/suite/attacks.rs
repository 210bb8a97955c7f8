//! Clients that take more than their share of memory, time or connections.

use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::common::bodies::{CHAT, TEXT, chat, text};
use crate::common::client::{Reply, ask, connect, post, raw, read, read_until};
use crate::common::{ServerBuilder, TestServer, bytes, hello, info, script, start_server, wait};
use serde_json::json;
use tallow_engine::handle::Info;
use tallow_engine::sim::{self, Script};
use tallow_server::{Limits, Settings};

const MIB: usize = 1 << 20;

fn limited(limits: Limits) -> TestServer {
    let settings = Settings { limits, ..Settings::default() };
    ServerBuilder { settings, ..ServerBuilder::new(sim::start(info(), script(&hello()))) }.start()
}

/// Answers of `tokens` tokens, one per `pace`.
fn slow(tokens: usize, pace: Duration) -> TestServer {
    let engine = sim::start(
        Info { context: 1 << 16, ..info() },
        Script { pace, ..script(&bytes(&"x".repeat(tokens))) },
    );
    ServerBuilder::new(engine).start()
}

/// A small request is answered within `within`.
fn healthy(server: &TestServer, within: Duration) {
    let begun = Instant::now();
    let reply = post(CHAT, chat(json!({}))).get(server);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(begun.elapsed() < within, "{:?}", begun.elapsed());
}

/// Sends the head of a request and the first `sent` bytes of a body of that length, and nothing more.
fn stalled(server: &TestServer, length: usize, sent: usize) -> TcpStream {
    let mut stream = connect(server);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![b' '; sent]).unwrap();
    stream
}

#[test]
fn stalled_bodies_hold_nobody_up() {
    let server = start_server(&hello());
    let held: Vec<TcpStream> = (0..64).map(|_| stalled(&server, 1_000_000, 70_000)).collect();
    healthy(&server, Duration::from_secs(1));
    let begun = Instant::now();
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(91_000)}]});
    let reply = post(CHAT, long).get(&server);
    assert_eq!((reply.status, reply.error().3.as_deref()), (400, Some("context_length_exceeded")));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    drop(held);
}

#[test]
fn bodies_that_fill_the_memory_and_stall_are_given_up_for_others() {
    let server = limited(Limits { memory: 32 * MIB, ..Limits::default() });
    // They hold the whole budget for large bodies, and one waits for more.
    let held: Vec<TcpStream> = (0..7).map(|_| stalled(&server, 8 * MIB, 4 * MIB - 1)).collect();
    std::thread::sleep(Duration::from_millis(300));
    healthy(&server, Duration::from_secs(1));
    let begun = Instant::now();
    let prompt = "x".repeat(4 * MIB);
    assert_eq!(post(TEXT, json!({"prompt": prompt})).get(&server).status, 400);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    let mut ends: Vec<Reply> = Vec::new();
    for stream in held {
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        if matches!(stream.peek(&mut [0]), Ok(n) if n > 0) {
            ends.push(read(stream));
        }
    }
    assert!(!ends.is_empty(), "those who stall are told why");
    assert!(ends.iter().all(|reply| [408, 429].contains(&reply.status)), "{ends:?}");
}

#[test]
fn prompts_that_cannot_fit_cost_little() {
    let server = start_server(&hello());
    for body in [
        json!({"prompt": "a".repeat(15_000_000)}),
        json!({"prompt": ["b", "Once upon a time ".repeat(800_000)]}),
        json!({"messages": [{"role": "user", "content": "a".repeat(15_000_000)}]}),
    ] {
        let path = if body.get("prompt").is_some() { TEXT } else { CHAT };
        let begun = Instant::now();
        let reply = post(path, body).get(&server);
        let (message, _, param, code) = reply.error();
        assert_eq!((reply.status, code.as_deref()), (400, Some("context_length_exceeded")), "{message}");
        assert!(["prompt", "messages"].contains(&param.as_deref().unwrap()));
        assert!(message.contains("more than 256 tokens"), "{message}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
    // A prompt slightly over the limit is counted exactly.
    let reply = post(TEXT, json!({"prompt": "a".repeat(300)})).get(&server);
    assert!(reply.error().0.contains("the prompt has 301 tokens"), "{:?}", reply.error());
}

#[test]
fn large_bodies_of_one_client_do_not_delay_small_ones() {
    let server = start_server(&hello());
    let body = post(TEXT, json!({"prompt": "a".repeat(15_000_000)})).with("connection", "close").bytes();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    assert_eq!(raw(&server, &body).status, 400);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(200));
        let mut took: Vec<Duration> = (0..10)
            .map(|_| {
                let begun = Instant::now();
                assert_eq!(post(TEXT, text(json!({}))).get(&server).status, 200);
                begun.elapsed()
            })
            .collect();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        took.sort();
        assert!(took[5] < Duration::from_secs(1), "{took:?}");
    });
}

#[test]
fn texts_to_tokenize_are_bounded_and_so_are_their_answers() {
    let server = start_server(&hello());
    let head = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 15000000\r\n\r\n";
    let reply = raw(&server, head.as_bytes());
    assert_eq!(reply.status, 413, "{}", reply.error().0);
    let reply =
        post("/tokenize", json!({"prompt": "a".repeat(1_000_000), "return_token_strs": true})).get(&server);
    let body = reply.json();
    assert_eq!((reply.status, &body["count"]), (200, &json!(1_000_001)));
    assert_eq!(body["token_strs"].as_array().unwrap().len(), 1_000_001);
    let ids = vec![0; 500_000];
    assert_eq!(post("/detokenize", json!({"tokens": ids})).get(&server).status, 413, "too many values");
}

#[test]
fn answers_that_nobody_takes_keep_only_their_own_room() {
    let server = limited(Limits { memory: 64 * MIB, ..Limits::default() });
    let ask = || {
        post("/tokenize", json!({"prompt": "a".repeat(1_000_000), "return_token_strs": true})).send(&server)
    };
    // More clients than there is room for: those that do not read are dropped in favour of newer ones.
    let _silent: Vec<TcpStream> = (0..6).map(|_| ask()).collect();
    let begun = Instant::now();
    let reply = read(ask());
    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body[..reply.body.len().min(300)]));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    healthy(&server, Duration::from_secs(1));
}

#[test]
fn log_probabilities_of_a_whole_answer_have_a_bound() {
    let server = limited(Limits { memory: 8 * MIB, ..Limits::default() });
    let wanted = |more| crate::common::bodies::with(json!({"prompt": "Hi", "logprobs": 5}), more);
    let reply = post(TEXT, wanted(json!({"n": 8, "max_tokens": 200}))).get(&server);
    let (message, _, param, code) = reply.error();
    assert_eq!(
        (reply.status, param.as_deref(), code.as_deref()),
        (400, Some("max_tokens"), Some("request_too_large"))
    );
    assert!(message.contains("an answer of 1600 tokens") && message.contains("or for a stream"), "{message}");
    let stream = post(TEXT, wanted(json!({"n": 8, "max_tokens": 200, "stream": true}))).get(&server);
    assert_eq!((stream.status, stream.chunks().is_empty()), (200, false));
    assert_eq!(post(TEXT, wanted(json!({"n": 8, "max_tokens": 20}))).get(&server).status, 200);
}

#[test]
fn idle_connections_make_way() {
    let server = limited(Limits { connections: 20, connections_per_address: 16, ..Limits::default() });
    let mut stream = post(CHAT, chat(json!({"stream": true}))).send(&server);
    let idle: Vec<TcpStream> = (0..200).map(|_| connect(&server)).collect();
    let half: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut stream = connect(&server);
            let _ = stream.write_all(b"GET /health HTTP/1.1\r\nx: ");
            stream
        })
        .collect();
    healthy(&server, Duration::from_secs(1));
    read_until(&mut stream, "[DONE]");
    drop((idle, half));
}

#[test]
fn an_address_whose_connections_are_all_in_use_is_turned_away() {
    let engine = sim::start(
        Info { context: 1 << 16, ..info() },
        Script { pace: Duration::from_millis(20), ..script(&bytes(&"x".repeat(1000))) },
    );
    let limits = Limits { connections_per_address: 3, ..Limits::default() };
    let server =
        ServerBuilder { settings: Settings { limits, ..Settings::default() }, ..ServerBuilder::new(engine) }
            .start();
    let mut busy: Vec<TcpStream> = (0..3)
        .map(|_| {
            let mut stream =
                post(TEXT, json!({"prompt": "Hi", "max_tokens": 1000, "stream": true})).send(&server);
            read_until(&mut stream, "data: ");
            stream
        })
        .collect();
    let reply = read(connect(&server));
    assert_eq!((reply.status, reply.error().3.as_deref()), (429, Some("too_many_connections")));
    busy.pop();
    wait(|| server.handle.taken() == 2, "the third is noticed");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(ask("GET", "/health").get(&server).status, 200);
}

#[test]
fn a_client_that_has_ended_its_side_gets_its_answer() {
    let server = slow(20, Duration::from_millis(20));
    for stream in [false, true] {
        let more = json!({"max_tokens": 20, "stream": stream});
        let request = post(TEXT, text(more)).with("connection", "close");
        let expected = request.bytes();
        let client = request.send(&server);
        client.shutdown(Shutdown::Write).unwrap();
        let got = read_all(client);
        let got = got.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n").expect("it is asked whether it is there");
        assert!(got.starts_with("HTTP/1.1 200"), "{got}");
        assert!(got.matches('x').count() >= 20, "{got}");
        assert_eq!(got.contains("[DONE]"), stream, "{} {got}", expected.len());
    }
    // HTTP/1.0 clients are not probed with `100 Continue`.
    let body = text(json!({"max_tokens": 20})).to_string();
    let mut client = connect(&server);
    let head = format!(
        "POST {TEXT} HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write_all((head + &body).as_bytes()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(client).starts_with("HTTP/1.0 200"));
}

fn read_all(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut all).unwrap();
    String::from_utf8(all).unwrap()
}

#[test]
fn a_client_that_has_gone_is_told_from_one_that_waits() {
    let server = slow(60_000, Duration::from_millis(20));
    for more in [json!({"max_tokens": 60_000}), json!({"max_tokens": 60_000, "stream": true, "n": 3})] {
        let client = post(TEXT, text(more)).send(&server);
        wait(|| server.handle.taken() > 0, "it has begun");
        drop(client);
        let begun = Instant::now();
        server.wait_free();
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }
}

#[test]
fn requests_that_cannot_be_read_are_told_why() {
    let server = start_server(&hello());
    let long = |n| "x".repeat(n);
    for (bytes, status, reason) in [
        (format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", long(1 << 20)), 431, "headers"),
        (format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", long(66_000)), 431, "path"),
        ("\x16\x03\x01\x02\r\n\r\n".to_owned(), 400, "https"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_owned(), 505, "HTTP/2"),
    ] {
        let reply = raw(&server, bytes.as_bytes());
        assert_eq!(reply.status, status, "{reason}");
        assert!(reply.error().0.contains(reason), "{:?}", reply.error());
        assert!(reply.header("x-request-id").is_some_and(|id| id.len() == 32), "{reply:?}");
        assert_eq!(reply.header("connection"), Some("close"));
    }
    // A valid request, followed by an invalid one on the same connection.
    let mut stream = connect(&server);
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    read_until(&mut stream, "ok");
    stream.write_all(b"\0\0\r\n\r\n").unwrap();
    let reply = read(stream);
    assert_eq!(reply.status, 400);
    reply.error();
}

#[test]
fn a_target_that_names_a_host_is_for_that_host() {
    let server = start_server(&hello());
    let to = |target: &str, host: &str| {
        let get = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        raw(&server, get.as_bytes()).status
    };
    assert_eq!(to("http://evil.example/health", "localhost"), 403);
    assert_eq!(to("http://localhost/health", "evil.example"), 200);
    assert_eq!(to("http://localhost/health", "localhost"), 200);
    assert_eq!(to("http://localhost@evil.example/health", "localhost"), 403);
}
