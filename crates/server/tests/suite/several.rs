//! A server of several models: which one answers, what is loaded for it, and what has to go.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tallow_engine::handle::{EngineHandle, Info};
use tallow_engine::sim::{self, Script};
use tallow_server::{
    LoadError, LoadedModel, MakeRoom, ModelCard, ModelEntry, ModelKind, ModelLoader, Models, Served, Settings,
};
use tallow_support::PATIENCE;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::common::bodies::{CHAT, TEXT, chat, text};
use crate::common::client::{Reply, ask, post, read};
use crate::common::{END, HasAddress, info, script, templates, wait};

/// Loads simulated engines, of which so many fit. A model's answers are its number in letters.
#[derive(Debug)]
struct TestLoader {
    room: usize,
    here: Arc<AtomicUsize>,
    /// Names in the order in which they were loaded.
    loads: Mutex<Vec<String>>,
    /// Time that loading takes.
    takes: Duration,
    /// Time from one token to the next.
    pace: Duration,
    /// Names that cannot be loaded.
    broken: Mutex<Vec<String>>,
    /// Models that are found on demand.
    found: Vec<String>,
    /// The engine of a model panics after so many tokens.
    dies_after: Option<usize>,
}

impl Default for TestLoader {
    fn default() -> TestLoader {
        TestLoader {
            room: 2,
            here: Arc::default(),
            loads: Mutex::default(),
            takes: Duration::ZERO,
            pace: Duration::from_millis(1),
            broken: Mutex::default(),
            found: Vec::new(),
            dies_after: None,
        }
    }
}

/// An engine that takes room until it is dropped.
struct Engine(EngineHandle, Arc<AtomicUsize>);

impl Drop for Engine {
    fn drop(&mut self) {
        self.0.drain(Duration::ZERO);
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ModelLoader for TestLoader {
    fn load(&self, entry: &ModelEntry, make_room: &mut MakeRoom<'_>) -> Result<LoadedModel, LoadError> {
        let name = entry.names[0].clone();
        self.loads.lock().unwrap().push(name.clone());
        while self.here.load(Ordering::SeqCst) >= self.room {
            if !make_room("shelf", 1000) {
                return Err(LoadError::NoRoom(format!(
                    "{} models are here, which is all that fit",
                    self.room
                )));
            }
        }
        std::thread::sleep(self.takes);
        if self.broken.lock().unwrap().contains(&name) {
            return Err(LoadError::Failed("its file is broken".into()));
        }
        self.here.fetch_add(1, Ordering::SeqCst);
        // `a` answers with `a`, and so on.
        let reply = vec![u32::from(name.as_bytes()[0]), END];
        let script = Script { pace: self.pace, dies_after: self.dies_after, ..script(&reply) };
        let handle = sim::start(Info { names: entry.names.clone(), ..info() }, script);
        let served = Served {
            handle: handle.clone(),
            templates: Some(templates()),
            tool_format: None,
            max_tokens: None,
            receipts: None,
        };
        let owner = Engine(handle, self.here.clone());
        // A model with a name in capitals is a small one.
        let bytes = if name.chars().all(char::is_uppercase) { 10 } else { 1000 };
        Ok(LoadedModel { device: "shelf".into(), bytes, ..LoadedModel::new(served, owner) })
    }

    fn find(&self, name: &str) -> Result<Option<ModelEntry>, LoadError> {
        Ok(self.found.iter().any(|found| found == name).then(|| entry(name)))
    }

    fn finds(&self) -> bool {
        !self.found.is_empty()
    }
}

fn entry(name: &str) -> ModelEntry {
    ModelEntry {
        names: vec![name.to_owned(), format!("{name}-alias")],
        kind: ModelKind::Generator,
        card: ModelCard { family: "sim".into(), ..ModelCard::default() },
        pinned: false,
        keep_alive: None,
    }
}

struct Server {
    address: SocketAddr,
    loader: Arc<TestLoader>,
    runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    served: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
}

impl HasAddress for Server {
    fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Server {
    fn start(loader: TestLoader, entries: Vec<ModelEntry>) -> Server {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let (address, loader) = (listener.local_addr().unwrap(), Arc::new(loader));
        let (stop, stopped) = oneshot::channel::<()>();
        let entries = entries.into_iter().map(|entry| (entry, None)).collect();
        let models = Models::several(entries, loader.clone());
        let stopped = async { drop(stopped.await) };
        let served = runtime.spawn(tallow_server::serve(listener, models, Settings::default(), stopped));
        Server { address, loader, runtime, stop: Some(stop), served: Some(served) }
    }

    fn of(loader: TestLoader, names: &[&str]) -> Server {
        Server::start(loader, names.iter().map(|name| entry(name)).collect())
    }

    fn loads(&self) -> String {
        self.loader.loads.lock().unwrap().join(" ")
    }

    /// Status of each model.
    fn statuses(&self) -> String {
        let list = ask("GET", "/v1/models").get(self).json();
        let is_primary = |model: &&Value| model["id"] == model["root"];
        let one = |model: &Value| format!("{} {}", model["id"], model["status"]["value"]).replace('"', "");
        list["data"].as_array().unwrap().iter().filter(is_primary).map(one).collect::<Vec<_>>().join(", ")
    }

    /// Ends it in time.
    fn end(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        let served = self.served.take().unwrap();
        self.runtime
            .block_on(async { tokio::time::timeout(PATIENCE, served).await })
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

fn named(name: &str) -> Value {
    chat(json!({"model": name, "max_tokens": 4}))
}

/// The text of a chat's answer.
fn said(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

/// The text of a stream, which is whole.
fn told(reply: &Reply) -> String {
    let chunks = reply.chunks();
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
}

#[test]
fn requests_go_to_the_model_that_they_name() {
    let server = Server::of(TestLoader { room: 3, ..Default::default() }, &["a", "b", "c"]);
    for name in ["b", "a", "c", "b-alias", "a:latest"] {
        let body = named(name);
        let reply = post(CHAT, &body).get(&server);
        if name.ends_with(":latest") {
            // The tag is of Ollama's API alone.
            assert_eq!(reply.status, 404);
            let body =
                json!({"model": name, "stream": false, "messages": [{"role": "user", "content": "Hi"}]});
            assert_eq!(post("/api/chat", body).get(&server).json()["message"]["content"], "a");
        } else {
            assert_eq!(said(&reply), name[..1], "{name}");
        }
    }
    assert_eq!(server.loads(), "b a c", "each is loaded once");
    let reply = post(TEXT, text(json!({"model": "c"}))).get(&server);
    assert_eq!(reply.json()["choices"][0]["text"], "c");
    let reply = post("/v1/messages", named("c")).with("anthropic-version", "2023-06-01").get(&server);
    assert_eq!(reply.json()["content"][0]["text"], "c");
    assert_eq!(ask("GET", "/props?model=b").get(&server).json()["model_alias"], "b");
    // A body that is read before it is known whose it is has the limits that it always has.
    let reply = post(CHAT, chat(json!({"model": "a", "x": "x".repeat(17 << 20)}))).get(&server);
    assert_eq!(reply.status, 413, "{}", reply.text());
    let reply = post(CHAT, named("a")).with("content-type", "text/plain").get(&server);
    assert_eq!(reply.status, 415);
}

#[test]
fn what_names_no_model_is_refused_with_words() {
    let mut entries = vec![entry("a"), entry("b"), entry("v"), entry("w")];
    entries[2].kind = ModelKind::Encoder;
    entries[3].kind = ModelKind::Speech;
    let server = Server::start(TestLoader::default(), entries);
    let mut all = String::new();
    for reply in [
        post(CHAT, named("d")).get(&server),
        post(CHAT, chat(json!({}))).get(&server),
        post(CHAT, named("v")).get(&server),
        post(CHAT, named("w")).get(&server),
        post("/v1/embeddings", json!({"model": "a", "input": "x"})).get(&server),
        post("/v1/audio/transcriptions", json!({"model": "a"})).get(&server),
        post(CHAT, json!({"model": 5})).get(&server),
        post(CHAT, "{").get(&server),
        ask("GET", "/props").get(&server),
        ask("GET", "/v1/models/d").get(&server),
        post("/models/load", json!({"model": "d"})).get(&server),
        post("/models/unload", json!({"model": "a"})).get(&server),
        post("/models/unload", json!({})).get(&server),
        post("/api/show", json!({"model": "d"})).get(&server),
    ] {
        all += &format!(
            "{} {}\n",
            reply.status,
            reply.json()["error"]["message"].as_str().unwrap_or(&reply.text())
        );
    }
    insta::assert_snapshot!(all);
    assert_eq!(server.loads(), "", "nothing is loaded for what is refused");
}

#[test]
fn the_least_recently_used_makes_room() {
    let mut entries: Vec<_> = ["a", "b", "c", "d"].map(entry).into();
    entries[1].pinned = true;
    let server = Server::start(TestLoader { room: 3, ..Default::default() }, entries);
    for name in ["a", "b", "c", "a", "d"] {
        assert_eq!(said(&post(CHAT, named(name)).get(&server)), name);
    }
    assert_eq!(server.statuses(), "a loaded, b loaded, c unloaded, d loaded");
    // It would be b's turn, which is pinned.
    assert_eq!(said(&post(CHAT, named("c")).get(&server)), "c");
    assert_eq!(server.statuses(), "a unloaded, b loaded, c loaded, d loaded");
    assert_eq!(server.loads(), "a b c d c");
    assert_eq!(server.loader.here.load(Ordering::SeqCst), 3);
}

#[test]
fn who_takes_next_to_nothing_makes_room_last() {
    let server = Server::of(TestLoader { room: 3, ..Default::default() }, &["A", "b", "c", "d"]);
    for name in ["A", "b", "c", "d"] {
        assert_eq!(said(&post(CHAT, named(name)).get(&server)), name);
    }
    // The first of them has been idle longest.
    assert_eq!(server.statuses(), "A loaded, b unloaded, c loaded, d loaded");
    // Where there is nothing else, it goes.
    let mut entries: Vec<_> = ["A", "b", "c"].map(entry).into();
    entries[1].pinned = true;
    let server = Server::start(TestLoader::default(), entries);
    for name in ["A", "b", "c"] {
        assert_eq!(said(&post(CHAT, named(name)).get(&server)), name);
    }
    assert_eq!(server.statuses(), "A unloaded, b loaded, c loaded");
}

#[test]
fn a_stream_is_not_cut_for_another_model() {
    let slow = TestLoader { room: 1, pace: Duration::from_millis(30), ..Default::default() };
    let server = Server::of(slow, &["a", "b"]);
    let long = |name: &str| {
        // The script repeats its reply, whose end is ignored.
        chat(json!({"model": name, "max_tokens": 40, "stream": true, "ignore_eos": true}))
    };
    let first = post(CHAT, long("a")).with("connection", "close").send(&server);
    wait(|| server.loads() == "a", "a is being loaded");
    wait(|| server.statuses().starts_with("a loaded"), "a is loaded");
    let second = post(CHAT, long("b")).with("connection", "close").send(&server);
    wait(|| server.loads() == "a b", "b is being loaded");
    // This one comes behind b, for which a has to go.
    let third = post(CHAT, named("a")).with("connection", "close").send(&server);
    let [first, second, third] = [first, second, third].map(read);
    for (reply, letter) in [(&first, "a"), (&second, "b")] {
        assert_eq!(told(reply), letter.repeat(20), "the whole answer");
    }
    assert_eq!(said(&third), "a");
    assert_eq!(server.loads(), "a b a");
    assert_eq!(server.loader.here.load(Ordering::SeqCst), 1);
}

#[test]
fn a_model_that_cannot_be_loaded_fails_its_requests_alone() {
    let mut entries: Vec<_> = ["a", "b", "c"].map(entry).into();
    entries[0].pinned = true;
    let server = Server::start(TestLoader { room: 1, ..Default::default() }, entries);
    assert_eq!(said(&post(CHAT, named("a")).get(&server)), "a");
    let reply = post(CHAT, named("b")).get(&server);
    let (why, _, _, code) = reply.error();
    assert_eq!((reply.status, code.as_deref()), (503, Some("no_room")));
    assert_eq!(why, "model b cannot be loaded now: 1 models are here, which is all that fit");
    // What is wrong is tried again by the next request.
    let server = Server::of(TestLoader::default(), &["a", "b"]);
    server.loader.broken.lock().unwrap().push("b".into());
    let reply = post(CHAT, named("b")).get(&server);
    let (why, _, _, code) = reply.error();
    assert_eq!((reply.status, code.as_deref()), (500, Some("load_failed")));
    assert_eq!(why, "model b cannot be loaded: its file is broken");
    assert_eq!(said(&post(CHAT, named("a")).get(&server)), "a");
    let list = ask("GET", "/v1/models/b").get(&server).json();
    let status = json!({"value": "unloaded", "failed": true, "error": why, "requests": 0, "waiting": 0});
    assert_eq!(list["status"], status);
    let health = ask("GET", "/health").get(&server);
    assert_eq!(health.status, 200);
    assert!(health.text().contains("model b could not be loaded"), "{}", health.text());
    server.loader.broken.lock().unwrap().clear();
    assert_eq!(said(&post(CHAT, named("b")).get(&server)), "b");
    assert_eq!(ask("GET", "/health").get(&server).json(), json!({"status": "ok"}));
}

#[test]
fn an_engine_that_has_ended_is_loaded_again() {
    let server = Server::of(TestLoader { dies_after: Some(3), ..Default::default() }, &["a"]);
    // Two tokens, and then the fourth.
    assert_eq!(said(&post(CHAT, named("a")).get(&server)), "a");
    let reply = post(CHAT, named("a")).get(&server);
    assert!(reply.status >= 500, "{}", reply.text());
    assert_eq!(said(&post(CHAT, named("a")).get(&server)), "a");
    assert_eq!(server.loads(), "a a");
    assert_eq!(ask("GET", "/ready").get(&server).status, 200);
}

#[test]
fn requests_wait_while_a_model_is_loaded_once() {
    let server =
        Server::of(TestLoader { takes: Duration::from_millis(300), ..Default::default() }, &["a", "b"]);
    let waiting: Vec<_> =
        (0..6).map(|_| post(CHAT, named("a")).with("connection", "close").send(&server)).collect();
    wait(|| server.loads() == "a", "a is being loaded");
    assert!(server.statuses().starts_with("a loading"), "{}", server.statuses());
    // Clients that go away do not end it.
    drop(post(CHAT, named("b")).send(&server));
    waiting.into_iter().for_each(|stream| assert_eq!(said(&read(stream)), "a"));
    wait(|| server.statuses() == "a loaded, b loaded", "b is loaded as well");
    assert_eq!(server.loads(), "a b");
}

#[test]
fn the_line_for_a_model_is_bounded() {
    let server = Server::of(TestLoader { takes: Duration::from_millis(1500), ..Default::default() }, &["a"]);
    let waiting: Vec<_> =
        (0..260).map(|_| post(CHAT, named("a")).with("connection", "close").send(&server)).collect();
    let replies: Vec<Reply> = waiting.into_iter().map(read).collect();
    let refused =
        |reply: &&Reply| reply.status == 429 && reply.text().contains("256 requests wait for model a");
    assert_eq!(replies.iter().filter(refused).count(), 4);
    // The others are in the engine's line, which is bounded too.
    assert!(replies.iter().any(|reply| reply.status == 200));
}

#[test]
fn models_are_loaded_and_unloaded_by_request() {
    let server = Server::of(TestLoader::default(), &["a", "b"]);
    let load = |path: &str| post(path, json!({"model": "a"})).get(&server);
    assert_eq!(load("/models/load").json(), json!({"success": true}));
    assert_eq!(server.statuses(), "a loaded, b unloaded");
    assert_eq!(load("/models/load").status, 200);
    let ps = ask("GET", "/api/ps").get(&server).json();
    let names: Vec<&Value> = ps["models"].as_array().unwrap().iter().map(|model| &model["name"]).collect();
    assert_eq!(names, ["a", "a-alias"]);
    assert_eq!(load("/models/unload").json(), json!({"success": true}));
    assert_eq!(server.statuses(), "a unloaded, b unloaded");
    assert_eq!(load("/models/unload").error().3.as_deref(), Some("not_loaded"));
    assert_eq!(server.loader.here.load(Ordering::SeqCst), 0);
    assert_eq!(ask("GET", "/api/ps").get(&server).json(), json!({"models": []}));
    let tags = ask("GET", "/api/tags").get(&server).json();
    assert_eq!(tags["models"].as_array().unwrap().len(), 4);
    assert_eq!(server.loads(), "a");
}

#[test]
fn a_client_that_leaves_while_it_unloads_a_model_does_not_stop_it() {
    let slow = TestLoader { pace: Duration::from_millis(30), ..Default::default() };
    let server = Server::of(slow, &["a"]);
    let body = chat(json!({"model": "a", "max_tokens": 120, "stream": true, "ignore_eos": true}));
    let stream = post(CHAT, body).with("connection", "close").send(&server);
    wait(|| server.statuses() == "a loaded", "a is loaded");
    let leaves = post("/models/unload", json!({"model": "a"})).send(&server);
    // Whoever asks for it now waits until it is loaded again.
    let next = loop {
        let next = post(CHAT, named("a")).with("connection", "close").send(&server);
        let begun = Instant::now();
        let waits =
            || ask("GET", "/metrics").get(&server).text().contains("vllm:model_waiting{model_name=\"a\"} 1");
        while begun.elapsed() < Duration::from_millis(50) && !waits() {}
        if waits() {
            break next;
        }
    };
    drop(leaves);
    assert_eq!(told(&read(stream)), "a".repeat(60), "the whole answer");
    assert_eq!(said(&read(next)), "a");
    assert_eq!(server.loads(), "a a");
}

#[test]
fn idle_models_are_unloaded() {
    let mut entries: Vec<_> = ["a", "b"].map(entry).into();
    entries[0].keep_alive = Some(Duration::ZERO);
    let server = Server::start(TestLoader::default(), entries);
    for name in ["a", "b"] {
        assert_eq!(said(&post(CHAT, named(name)).get(&server)), name);
    }
    wait(|| server.statuses() == "a unloaded, b loaded", "a is unloaded");
    // Clients of Ollama's API say for how long.
    let body = |keep: Value| json!({"model": "b", "prompt": "Hi", "stream": false, "keep_alive": keep});
    assert_eq!(post("/api/generate", body(json!("10m"))).get(&server).status, 200);
    let ps = ask("GET", "/api/ps").get(&server).json();
    assert!(!ps["models"][0]["expires_at"].as_str().unwrap().starts_with("9999"), "{ps}");
    assert_eq!(post("/api/generate", body(json!(-1))).get(&server).status, 200);
    let ps = ask("GET", "/api/ps").get(&server).json();
    assert!(ps["models"][0]["expires_at"].as_str().unwrap().starts_with("9999"), "{ps}");
    assert_eq!(post("/api/generate", body(json!(0))).get(&server).status, 200);
    wait(|| server.statuses() == "a unloaded, b unloaded", "b is unloaded");
}

#[test]
fn models_are_found_on_demand() {
    let server = Server::of(TestLoader { found: vec!["x".into(), "y".into()], ..Default::default() }, &["a"]);
    assert_eq!(said(&post(CHAT, named("x")).get(&server)), "x");
    assert_eq!(post(CHAT, named("z")).get(&server).error().3.as_deref(), Some("model_not_found"));
    for name in ["y", "a", "x"] {
        assert_eq!(said(&post(CHAT, named(name)).get(&server)), name);
    }
    assert_eq!(server.statuses(), "a loaded, x loaded, y unloaded");
    assert_eq!(server.loads(), "x y a x");
}

#[test]
fn metrics_of_several_models_stand_together() {
    let server = Server::of(TestLoader::default(), &["a", "b"]);
    for name in ["a", "b"] {
        assert_eq!(said(&post(CHAT, named(name)).get(&server)), name);
    }
    let page = ask("GET", "/metrics").get(&server).text();
    let heads: Vec<&str> = page.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    let mut different = heads.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(heads.len(), different.len(), "a metric begins twice");
    let family = |line: &str| line.split(['{', ' ']).next().unwrap().to_owned();
    let names: Vec<String> = page.lines().filter(|line| !line.starts_with('#')).map(family).collect();
    for line in [
        "vllm:request_success_total{model_name=\"a\",engine=\"0\",finished_reason=\"stop\"} 1",
        "vllm:request_success_total{model_name=\"b\",engine=\"0\",finished_reason=\"stop\"} 1",
        "vllm:model_loaded{model_name=\"a\"} 1",
        "vllm:model_loads_total{model_name=\"b\"} 1",
        "vllm:model_memory_bytes{model_name=\"b\"} 1000",
    ] {
        assert!(page.lines().any(|other| other == line), "{line} is not in\n{page}");
    }
    let at = |name: &str| names.iter().position(|other| other == name).unwrap();
    let first = at("vllm:num_requests_running");
    assert_eq!(names[first], names[first + 1], "the samples of both models stand together");
    assert!(page.contains("\nvllm:connections "), "of the server as a whole: {page}");
}

#[test]
fn a_server_that_stops_waits_for_no_model() {
    let mut server =
        Server::of(TestLoader { takes: Duration::from_millis(500), ..Default::default() }, &["a", "b"]);
    assert_eq!(said(&post(CHAT, named("a")).get(&server)), "a");
    let waiting = post(CHAT, named("b")).with("connection", "close").send(&server);
    wait(|| server.loads() == "a b", "b is being loaded");
    let begun = Instant::now();
    server.end();
    let reply = read(waiting);
    assert_eq!((reply.status, reply.error().3.as_deref()), (503, Some("shutting_down")));
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(server.loader.here.load(Ordering::SeqCst), 0, "all engines have ended");
}
