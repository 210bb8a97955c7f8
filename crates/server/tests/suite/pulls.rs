//! Models that clients download and remove, by Ollama's API.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tallow_engine::sim;
use tallow_server::{ModelStore, PullProgress, Settings, StoreError};

use crate::common::client::{RequestBuilder, ask, post, read_until};
use crate::common::{ServerBuilder, TestServer, hello, info, script, wait};

/// What a name does: `missing`, `refused` and `failed` fail, `broken` in the middle, `busy` tells of much, and `endless` never ends
/// by itself.
#[derive(Debug, Default)]
struct Shop {
    stopped: AtomicUsize,
}

impl ModelStore for Shop {
    fn pull(
        &self,
        name: &str,
        watch: &mut dyn FnMut(PullProgress<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let file = |done| PullProgress::File { file: "a.gguf", done, total: 300 };
        match name {
            "missing" => return Err(StoreError::Missing("there is no model".into())),
            "refused" => return Err(StoreError::Refused("it is gated".into())),
            "failed" => return Err(StoreError::Failed("the disk is full".into())),
            "endless" => {
                while watch(file(100)).is_continue() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.stopped.fetch_add(1, Ordering::Relaxed);
                return Err(StoreError::Failed("stopped".into()));
            }
            _ => {}
        }
        let _ = watch(PullProgress::Note("downloading 2 files, 1 KiB"));
        let steps = if name == "busy" { 100_000 } else { 1 };
        for _ in 0..steps {
            let _ = watch(file(100));
        }
        let _ = watch(file(300));
        if name == "broken" {
            return Err(StoreError::Failed("the network is gone".into()));
        }
        let _ = watch(PullProgress::File { file: "b.json", done: 7, total: 7 });
        Ok(())
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        match name {
            "there" => Ok(()),
            "served" => Err(StoreError::Refused("it is served here".into())),
            _ => Err(StoreError::Missing("it is not in the cache".into())),
        }
    }
}

fn shop() -> (TestServer, Arc<Shop>) {
    let shop = Arc::<Shop>::default();
    let settings =
        Settings { models: Some(shop.clone()), drain: Duration::from_millis(100), ..Settings::default() };
    let builder = ServerBuilder { settings, ..ServerBuilder::new(sim::start(info(), script(&hello()))) };
    (builder.start(), shop)
}

fn pull(body: Value) -> RequestBuilder {
    post("/api/pull", body)
}

fn delete(body: Value) -> RequestBuilder {
    // Ollama's clients name no type.
    ask("DELETE", "/api/delete").body(body.to_string())
}

/// Lines without the hashes of names.
fn lines(text: &str) -> String {
    let line = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        if let Some(digest) = line.get_mut("digest") {
            assert_eq!(digest.take().as_str().unwrap().len(), 64);
        }
        line.to_string() + "\n"
    };
    text.lines().map(line).collect()
}

#[test]
fn downloads_tell_of_their_progress() {
    let (server, _shop) = shop();
    let reply = pull(json!({"model": "good:latest", "insecure": false})).get(&server);
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"));
    insta::assert_snapshot!(lines(&reply.text()), @r#"
    {"status":"downloading 2 files, 1 KiB"}
    {"status":"pulling a.gguf","digest":null,"total":300,"completed":100}
    {"status":"pulling a.gguf","digest":null,"total":300,"completed":300}
    {"status":"pulling b.json","digest":null,"total":7,"completed":7}
    {"status":"success"}
    "#);
    // Most of what comes within a tenth of a second is not told.
    let busy = pull(json!({"model": "busy"})).get(&server).text();
    assert!((2..1000).contains(&busy.lines().count()), "{busy}");
    let reply = pull(json!({"name": "good", "stream": false})).get(&server);
    assert_eq!((reply.status, reply.json()), (200, json!({"status": "success"})));
    let reply = pull(json!({"model": "broken"})).get(&server);
    assert_eq!(reply.status, 200);
    let last = reply.text().lines().last().unwrap().to_owned();
    assert_eq!(last, r#"{"error":"the network is gone"}"#);
    assert_eq!(pull(json!({"model": "broken", "stream": false})).get(&server).status, 502);
}

#[test]
fn what_cannot_be_done_is_said() {
    let (server, _shop) = shop();
    let closed = ServerBuilder::new(sim::start(info(), script(&hello()))).start();
    let mut all = String::new();
    let mut said = |server: &TestServer, asked: RequestBuilder| {
        let reply = asked.get(server);
        let json = reply.json();
        all += &format!("{} {}\n", reply.status, json["error"].as_str().unwrap());
    };
    said(&closed, pull(json!({"model": "good"})));
    said(&closed, delete(json!({"model": "there"})));
    for body in [
        json!({"model": "missing"}),
        json!({"model": "refused"}),
        json!({"model": "failed"}),
        json!({"model": "failed", "stream": false}),
        json!({}),
        json!({"model": "x".repeat(2000)}),
        json!({"model": 5}),
        json!({"model": "good", "insecure": true}),
        json!({"model": "good", "extra": 1}),
    ] {
        said(&server, pull(body));
    }
    for model in ["served", "elsewhere"] {
        said(&server, delete(json!({"model": model})));
    }
    insta::assert_snapshot!(all, @r#"
    403 clients may not download or remove models here; start the server with --allow-pull to allow it, or use `tallow pull` and `tallow rm`
    403 clients may not download or remove models here; start the server with --allow-pull to allow it, or use `tallow pull` and `tallow rm`
    404 there is no model
    400 it is gated
    502 the disk is full
    502 the disk is full
    400 model is missing
    400 model should have at most 1024 bytes, and has 2000
    400 model should be text, and is a number
    400 insecure with this value is not supported: leave it out
    400 the field "extra" is not known
    400 it is served here
    404 it is not in the cache
    "#);
    let removed = delete(json!({"model": "there"})).get(&server);
    assert_eq!((removed.status, removed.body.len()), (200, 0));
}

/// Whoever goes away ends the download; there are few of them at a time; and a server that stops does not wait for them.
#[test]
fn downloads_end_with_their_clients() {
    let (mut server, shop) = shop();
    let endless = || {
        let mut stream = pull(json!({"model": "endless"})).send(&server);
        read_until(&mut stream, "pulling a.gguf");
        stream
    };
    let (first, second) = (endless(), endless());
    let reply = pull(json!({"model": "good"})).get(&server);
    assert_eq!(reply.status, 429);
    assert!(reply.json()["error"].as_str().unwrap().contains("other models are being downloaded"));
    drop(first);
    wait(|| shop.stopped.load(Ordering::Relaxed) == 1, "the download has ended");
    wait(|| pull(json!({"model": "good"})).get(&server).status == 200, "there is room for another");
    // The rest of the answer, beginning with lines that were not read yet.
    server.stop();
    let rest = std::thread::spawn(move || {
        let (mut stream, mut all) = (second, Vec::new());
        std::io::Read::read_to_end(&mut stream, &mut all).unwrap();
        String::from_utf8(all).unwrap()
    });
    server.join();
    let rest = rest.join().unwrap();
    assert!(rest.contains(r#"{"error":"the server is stopping"#), "{rest}");
    wait(|| shop.stopped.load(Ordering::Relaxed) == 2, "the other has ended, too");
}
