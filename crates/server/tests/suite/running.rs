//! Clients that disconnect, floods, failing engines, and graceful shutdown.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::client::{Reply, ask, connect, parse, post, read, read_until};
use crate::common::log;
use crate::common::{HasAddress, ServerBuilder, TestServer, bytes, hello, info, script, start_server, wait};
use serde_json::{Value, json};
use tallow_engine::handle::{Command, EngineHandle, Event, Failure, Info};
use tallow_engine::sampler::Choice;
use tallow_engine::service::Message;
use tallow_engine::sim::{self, Script};
use tallow_server::{Limits, Loading, Served, Settings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const CHAT: &str = "/v1/chat/completions";

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// An engine whose answers never end on their own, one token per 5 ms.
fn endless(context: usize) -> EngineHandle {
    let pace = Duration::from_millis(5);
    sim::start(Info { context, ..info() }, Script { pace, ..script(&bytes("x")) })
}

fn healthy(server: &TestServer) {
    let reply = post(CHAT, chat(json!({"max_tokens": 3}))).get(server);
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[test]
fn item_37_clients_that_go_free_their_places() {
    let server = ServerBuilder::new(endless(100_000)).start();
    for stream in [false, true] {
        let clients: Vec<_> =
            (0..4).map(|_| post(CHAT, chat(json!({"stream": stream}))).send(&server)).collect();
        wait(|| server.handle.stats().running.load(Ordering::Relaxed) == 4, "four run");
        // These wait for a slot.
        let queued: Vec<_> =
            (0..3).map(|_| post(CHAT, chat(json!({"stream": stream, "n": 2}))).send(&server)).collect();
        wait(|| server.handle.taken() == 10, "six wait");
        drop(queued);
        wait(|| server.handle.taken() == 4, "those that waited are gone");
        assert_eq!(server.handle.stats().running.load(Ordering::Relaxed), 4);
        drop(clients);
        server.wait_free();
        healthy(&server);
    }
    let mut client = post(CHAT, chat(json!({"stream": true}))).send(&server);
    read_until(&mut client, "\"x\"");
    drop(client);
    server.wait_free();
    let page = ask("GET", "/metrics").get(&server).text();
    assert!(page.contains("finished_reason=\"abort\"} 21\n"), "{page}");
}

#[test]
fn item_37_a_client_that_never_reads_keeps_nobody_waiting() {
    let pace = Duration::from_micros(50);
    let engine = sim::start(Info { context: 1 << 20, ..info() }, Script { pace, ..script(&bytes("x")) });
    let server = ServerBuilder::new(engine).start();
    let more = json!({"stream": true, "logprobs": true, "top_logprobs": 20, "max_tokens": 1_000_000});
    let silent: Vec<_> = (0..3).map(|_| post(CHAT, chat(more.clone())).send(&server)).collect();
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..20 {
        healthy(&server);
    }
    wait(|| server.handle.taken() == 3, "only the silent ones are left");
    drop(silent);
    server.wait_free();
}

#[test]
fn while_the_model_is_loaded_clients_are_told_so() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let server = Early(listener.local_addr().unwrap());
    let loading = Loading::begin(runtime.handle(), listener, Limits::default());
    for request in [ask("GET", "/health"), ask("GET", "/ready"), ask("GET", "/"), post(CHAT, chat(json!({})))]
    {
        let reply = request.get(&server);
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
        assert_eq!(reply.header("connection"), Some("close"));
        assert_eq!(reply.error().3.as_deref(), Some("model_loading"), "{reply:?}");
    }
    // A client that is connected by then and sends nothing delays nobody.
    let silent = connect(&server);
    let listener = runtime.block_on(loading.finish()).unwrap();
    let served = Served {
        handle: sim::start(info(), script(&hello())),
        templates: None,
        tool_format: None,
        max_tokens: None,
        receipts: None,
    };
    runtime.spawn(tallow_server::serve(listener, served, Settings::default(), std::future::pending()));
    assert_eq!(post(CHAT, chat(json!({"max_tokens": 3}))).get(&server).status, 200);
    drop(silent);
}

/// A server whose model may not be loaded yet.
struct Early(SocketAddr);

impl HasAddress for Early {
    fn address(&self) -> SocketAddr {
        self.0
    }
}

#[test]
fn item_38_ten_thousand_requests() {
    let engine = sim::start(Info { slots: 8, queue: 16, ..info() }, script(&hello()));
    let server = ServerBuilder::new(engine).start();
    // A concurrent client whose answer must not change.
    let expected = post(CHAT, chat(json!({"seed": 1}))).get(&server).json()["choices"].clone();
    let served = AtomicUsize::new(0);
    let refused = AtomicUsize::new(0);
    let bytes = post(CHAT, chat(json!({"seed": 1}))).bytes();
    std::thread::scope(|threads| {
        for _ in 0..20 {
            threads.spawn(|| {
                for _ in 0..5 {
                    // A hundred connections that all send before the first one reads.
                    let mut clients: Vec<_> = (0..100).map(|_| connect(&server)).collect();
                    clients.iter_mut().for_each(|client| client.write_all(&bytes).unwrap());
                    for client in clients {
                        let reply = read(client);
                        match reply.status {
                            200 => {
                                assert_eq!(reply.json()["choices"], expected);
                                served.fetch_add(1, Ordering::Relaxed)
                            }
                            429 | 503 => {
                                assert!(reply.header("retry-after").unwrap().parse::<u32>().unwrap() > 0);
                                assert_eq!(reply.error().3.as_deref(), Some("queue_full"));
                                refused.fetch_add(1, Ordering::Relaxed)
                            }
                            other => panic!("{other}"),
                        };
                    }
                }
            });
        }
    });
    let (served, refused) = (served.into_inner(), refused.into_inner());
    assert_eq!(served + refused, 10_000);
    assert!(served > 0 && refused > 0, "{served} {refused}");
    server.wait_free();
    healthy(&server);
}

#[test]
fn of_several_choices_none_runs_if_one_is_refused() {
    let server = ServerBuilder::new(endless(100_000)).start();
    let _busy: Vec<_> = (0..10).map(|_| post(CHAT, chat(json!({}))).send(&server)).collect();
    wait(|| server.handle.taken() == 10, "ten of twelve places are taken");
    let reply = post(CHAT, chat(json!({"n": 3}))).get(&server);
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")));
    wait(|| server.handle.taken() == 10, "none of the three has stayed");
    let reply = post(CHAT, chat(json!({"n": 3, "stream": true}))).get(&server);
    assert_eq!(reply.status, 429, "streams are refused before they begin");
}

#[test]
fn item_40_failures_have_a_status_before_the_first_byte_and_an_event_after() {
    let broken = |after| sim::start(info(), Script { breaks_after: Some(after), ..script(&bytes("x")) });
    let server = ServerBuilder::new(broken(0)).start();
    for stream in [false, true] {
        let reply = post(CHAT, chat(json!({"stream": stream}))).get(&server);
        assert_eq!((reply.status, reply.error().1.as_str()), (500, "server_error"));
    }
    let server = ServerBuilder::new(broken(3)).start();
    assert_eq!(post(CHAT, chat(json!({}))).get(&server).status, 500);
    let reply = post(CHAT, chat(json!({"stream": true, "n": 2}))).get(&server);
    assert_eq!(reply.status, 200);
    let events = reply.events();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(
        (&last["error"]["type"], &last["error"]["message"]),
        (&json!("server_error"), &json!("the script says so"))
    );
    assert_eq!(events.iter().filter(|e| e.contains("error")).count(), 1);
    assert!(!reply.text().contains("[DONE]"));
    server.wait_free();
    assert_eq!(ask("GET", "/health").get(&server).status, 200, "a request has failed, not the server");
}

#[test]
fn item_40_an_engine_that_dies() {
    let request = |stream: bool| post(CHAT, chat(json!({"stream": stream}))).with("connection", "close");
    let pace = Duration::from_millis(2);
    let server =
        ServerBuilder::new(sim::start(info(), Script { dies_after: Some(20), pace, ..script(&bytes("x")) }))
            .start();
    let streams: Vec<_> = (0..6).map(|_| request(true).send(&server)).collect();
    let whole = request(false).send(&server);
    for stream in streams {
        let reply = read(stream);
        if reply.status == 200 {
            assert!(reply.events().last().unwrap().contains("\"error\""), "{}", reply.text());
        } else {
            assert!([500, 503].contains(&reply.status));
        }
    }
    assert!([500, 503].contains(&read(whole).status));
    wait(|| !server.handle.is_alive(), "it is dead");
    for (method, path) in [("GET", "/health"), ("GET", "/ready")] {
        let reply = ask(method, path).get(&server);
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("10")), "{path}");
    }
    let reply = post(CHAT, chat(json!({}))).get(&server);
    assert_eq!((reply.status, reply.error().3.as_deref()), (503, Some("engine_stopped")));
    assert_eq!(ask("GET", "/metrics").get(&server).status, 200);
    server.wait_free();
}

#[test]
fn item_40_a_device_that_is_lost() {
    let (handle, commands, alive) = EngineHandle::new(info());
    let engine = std::thread::spawn(move || {
        let take = || match commands.recv().unwrap() {
            Message::Take(Command::Submit(submission)) => submission.listener,
            other => panic!("{other:?}"),
        };
        let (mut stream, whole) = (take(), take());
        stream
            .tell(Event::Piece { text: "x".into(), choice: Choice { token: 1, logprob: None, top: vec![] } });
        alive.end(Failure::Broken("gpu is lost: it fell off the bus; restart the server".into()));
        drop((stream, whole));
    });
    let server = ServerBuilder::new(handle).start();
    let request = |stream: bool| post(CHAT, chat(json!({"stream": stream}))).with("connection", "close");
    let stream = request(true).send(&server);
    wait(|| server.handle.taken() == 1, "the stream comes first");
    let lost = |reply: Reply| {
        let (message, _, _, code) = reply.error();
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("10")));
        assert_eq!(code.as_deref(), Some("engine_stopped"));
        assert_eq!(message, "gpu is lost: it fell off the bus; restart the server");
    };
    lost(request(false).get(&server));
    engine.join().unwrap();
    let stream = read(stream).events();
    assert!(stream[stream.len() - 1].contains("it fell off the bus"), "{stream:?}");
    lost(post(CHAT, chat(json!({}))).get(&server));
    lost(ask("GET", "/health").get(&server));
    lost(ask("GET", "/ready").get(&server));
    assert_eq!(ask("GET", "/metrics").get(&server).status, 200);
    server.wait_free();
}

#[test]
fn item_40_a_stream_that_is_open_finishes_and_new_requests_are_refused() {
    let mut server = ServerBuilder::new(endless(256)).start();
    let mut open = post(CHAT, chat(json!({"stream": true, "max_tokens": 100}))).send(&server);
    let whole = post(CHAT, chat(json!({"max_tokens": 100}))).send(&server);
    let mut begun = read_until(&mut open, "\"x\"");
    wait(|| server.handle.taken() == 2, "both are taken");
    // Idle and unused connections do not delay shutdown.
    let (_unused, mut idle) = (connect(&server), ask("GET", "/health").send(&server));
    read_until(&mut idle, "ok");
    server.stop();
    wait(|| !server.handle.is_ready(), "it drains");
    for (request, path) in [(post(CHAT, chat(json!({}))), CHAT), (ask("GET", "/ready"), "/ready")] {
        let reply = request.get(&server);
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("10")), "{path}");
        assert_eq!(
            (reply.error().3.as_deref(), reply.header("connection")),
            (Some("shutting_down"), Some("close"))
        );
    }
    assert_eq!(ask("GET", "/health").get(&server).status, 200, "it lives until it has finished");
    open.read_to_end(&mut begun).unwrap();
    let chunks = parse(&begun).chunks();
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    assert_eq!(read(whole).json()["usage"]["completion_tokens"], 100);
    server.join();
    assert!(std::net::TcpStream::connect(server.address).is_err(), "nobody listens any more");
}

#[test]
fn item_40_a_stream_that_takes_too_long_ends_with_an_error() {
    let mut builder = ServerBuilder::new(endless(1 << 20));
    builder.settings.drain = Duration::from_millis(200);
    let mut server = builder.start();
    let mut open = post(CHAT, chat(json!({"stream": true}))).send(&server);
    let mut all = read_until(&mut open, "\"x\"");
    let whole = post(CHAT, chat(json!({}))).send(&server);
    wait(|| server.handle.taken() == 2, "both are taken");
    server.stop();
    open.read_to_end(&mut all).unwrap();
    let reply = parse(&all);
    let last: Value = serde_json::from_str(reply.events().last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "shutting_down");
    assert!(!reply.text().contains("[DONE]"));
    assert_eq!(read(whole).status, 503);
    server.join();
}

/// An engine that no longer receives commands: it is in a step that does not end.
fn stuck() -> EngineHandle {
    let (handle, commands, alive) = EngineHandle::new(info());
    std::thread::spawn(move || {
        let held: Vec<Message<Command>> = commands.iter().collect();
        drop((alive, held));
    });
    handle
}

#[test]
fn item_40_an_engine_that_is_stuck_does_not_keep_the_server() {
    let mut builder = ServerBuilder::new(stuck());
    builder.settings.drain = Duration::from_millis(200);
    let mut server = builder.start();
    let clients: Vec<_> =
        [true, false].iter().map(|s| post(CHAT, chat(json!({"stream": s}))).send(&server)).collect();
    wait(|| server.handle.taken() == 2, "both are taken");
    let begun = Instant::now();
    server.stop();
    for client in clients {
        let reply = read(client);
        assert_eq!((reply.status, reply.error().3.as_deref()), (503, Some("shutting_down")));
    }
    server.join();
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn silence_is_filled_with_comments() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tallow_server::Served {
        handle: stuck(),
        templates: None,
        tool_format: None,
        max_tokens: None,
        receipts: None,
    };
    tokio::spawn(tallow_server::serve(listener, served, Default::default(), std::future::pending()));
    let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
    client.write_all(&post(CHAT, chat(json!({"stream": true}))).bytes()).await.unwrap();
    let begun = tokio::time::Instant::now();
    let (mut all, mut piece) = (String::new(), [0; 1024]);
    while all.matches(": keep-alive\n\n").count() < 3 {
        let n = client.read(&mut piece).await.unwrap();
        assert!(n > 0, "{all}");
        all += std::str::from_utf8(&piece[..n]).unwrap();
    }
    // One keep-alive interval before the stream begins, and one before each comment.
    assert!(begun.elapsed() >= Duration::from_secs(60), "{:?}", begun.elapsed());
    assert!(all.contains("200 OK") && all.contains("assistant"));
}

#[test]
fn item_39_answers_end_where_the_context_does() {
    let server = start_server(&bytes("x"));
    let reply = post(CHAT, chat(json!({"n": 12, "max_tokens": 1_000_000}))).get(&server).json();
    let choices = reply["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 12);
    assert!(choices.iter().all(|c| c["finish_reason"] == "length"));
    let usage = &reply["usage"];
    let (prompt, new) =
        (usage["prompt_tokens"].as_u64().unwrap(), usage["completion_tokens"].as_u64().unwrap());
    assert_eq!(12 * (256 - prompt), new);
}

#[test]
fn item_43_nothing_that_clients_choose_acts_in_the_log() {
    log::listen();
    let server = start_server(&hello());
    let bytes = b"GET /\x1b[31m\x07forged HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let _ = crate::common::client::raw(&server, bytes);
    ask("GET", "/%1b%0aforged").with("x-request-id", "quoted\"id").get(&server);
    post(CHAT, chat(json!({"model": "a\u{1b}[2J\nforged"}))).get(&server);
    ask("GET", &format!("/{}", "x".repeat(10_000))).get(&server);
    let all: Vec<String> = log::lines().into_iter().map(|line| line.debug).collect();
    for logged in ["/%1b%0aforged", r#"quoted\"id"#] {
        assert!(all.iter().any(|line| line.contains(logged)), "{all:#?}");
    }
    for line in all {
        assert!(!line.contains(char::is_control) && line.len() < 500, "{line:?}");
    }
}
