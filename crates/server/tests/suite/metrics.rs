//! `/metrics`: the names that routers and dashboards read, in both formats, and correct counts.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::client::{ask, post};
use crate::common::{ServerBuilder, TestServer, bytes, hello, info, script, start_server, wait};
use serde_json::{Value, json};
use tallow_engine::handle::Info;
use tallow_engine::sim::{self, Script};
use tallow_server::Settings;

const CHAT: &str = "/v1/chat/completions";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Samples by name and labels.
type Samples = BTreeMap<String, f64>;

/// Parses a page by the rules of its format: each family has its type first and is contiguous, each sample belongs to a
/// family, counters end in `_total`, buckets never decrease, and the last bucket equals the count.
fn parsed(text: &str, open: bool) -> Samples {
    let (mut types, mut samples) = (BTreeMap::new(), Samples::new());
    let (mut family, mut bucket) = (String::new(), 0.0);
    let mut lines = text.lines().peekable();
    if open {
        assert!(text.ends_with("\n# EOF\n") && text.matches("# EOF").count() == 1, "{text}");
    }
    while let Some(line) = lines.next().filter(|line| *line != "# EOF") {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, what) = rest.split_once(' ').unwrap();
            assert!(!what.is_empty() && !what.contains('"'), "{line}");
            let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).unwrap();
            assert!(["gauge", "counter", "histogram"].contains(&kind), "{line}");
            assert!(types.insert(name.to_owned(), kind).is_none(), "{name} twice");
            if kind == "counter" {
                assert_eq!(name.ends_with("_total"), !open, "{name}");
            }
            (family, bucket) = (name.to_owned(), 0.0);
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        let (name, labels) = match sample.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').unwrap()),
            None => (sample, ""),
        };
        let suffix = name.strip_prefix(&*family).unwrap_or_else(|| panic!("{line} is not of {family}"));
        match types[&family] {
            "gauge" => assert_eq!(suffix, "", "{line}"),
            "counter" => assert_eq!(suffix, if open { "_total" } else { "" }, "{line}"),
            _ => match suffix {
                "_bucket" => {
                    let bound = labels.rsplit_once("le=\"").unwrap().1.strip_suffix('"').unwrap();
                    assert!(bound == "+Inf" || bound.contains('.') || bound.contains('e'), "{line}");
                    assert!(value >= bucket, "{line}");
                    bucket = value;
                }
                "_count" => assert_eq!(value, bucket, "{line}"),
                "_sum" => assert!(value >= 0.0),
                _ => panic!("{line}"),
            },
        }
        assert_eq!(
            name.starts_with("vllm:"),
            labels.starts_with("model_name=\"") && labels.contains(",engine=\"0\"")
        );
        assert!(samples.insert(sample.to_owned(), value).is_none(), "{line} twice");
    }
    samples
}

fn page(server: &TestServer) -> Samples {
    let reply = ask("GET", "/metrics").get(server);
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    parsed(&reply.text(), false)
}

/// A sample of the model `tiny`.
fn of(samples: &Samples, name: &str, labels: &str) -> f64 {
    let full = format!("vllm:{name}{{model_name=\"tiny\",engine=\"0\"{labels}}}");
    *samples.get(&full).unwrap_or_else(|| panic!("no {full} in {samples:#?}"))
}

#[test]
fn metrics_have_the_names_that_routers_and_dashboards_read() {
    let server =
        ServerBuilder::new(sim::start(info(), Script { pace: Duration::from_millis(1), ..script(&hello()) }))
            .start();
    for n in [1, 1, 2] {
        assert_eq!(post(CHAT, chat(json!({"n": n, "max_tokens": 40}))).get(&server).status, 200);
    }
    wait(|| server.handle.stats().running.load(Ordering::Relaxed) == 0, "the engine is idle");
    let samples = page(&server);
    let is = |name: &str, labels: &str, value: f64| assert_eq!(of(&samples, name, labels), value, "{name}");
    for name in ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"] {
        is(name, "", 0.0);
    }
    is("cache_config_info", ",block_size=\"16\",num_gpu_blocks=\"64\"", 1.0);
    is("request_success_total", ",finished_reason=\"stop\"", 4.0);
    is("request_success_total", ",finished_reason=\"abort\"", 0.0);
    for name in [
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_time_per_output_token_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
    ] {
        is(&format!("{name}_count"), "", 4.0);
        is(&format!("{name}_bucket"), ",le=\"+Inf\"", 4.0);
    }
    // Each answer has three tokens and the end-of-sequence token.
    is("request_generation_tokens_sum", "", 16.0);
    is("request_generation_tokens_bucket", ",le=\"2.0\"", 0.0);
    is("request_generation_tokens_bucket", ",le=\"5.0\"", 4.0);
    is("inter_token_latency_seconds_count", "", 8.0);
    // Per request, however many choices it has.
    is("request_params_n_sum", "", 4.0);
    is("request_params_n_count", "", 3.0);
    is("request_params_max_tokens_sum", "", 120.0);
    is("request_max_num_generation_tokens_sum", "", 12.0);
    is("request_max_num_generation_tokens_count", "", 3.0);
    assert!(of(&samples, "iteration_tokens_total_count", "") >= 4.0);
    for name in [
        "failed_steps_total",
        "steps_ahead_total",
        "wasted_tokens_total",
        "reused_answer_tokens_total",
        "page_faults_total",
        "num_preemptions_total",
        "log_lines_dropped_total",
    ] {
        is(name, "", 0.0);
    }
    is("build_info", &format!(",version=\"{}\",commit=\"\"", env!("CARGO_PKG_VERSION")), 1.0);
    assert_eq!(
        samples[&format!("http_requests_total{{method=\"POST\",handler=\"{CHAT}\",status=\"200\"}}")],
        3.0
    );
    if cfg!(target_os = "linux") {
        assert!(samples["process_resident_memory_bytes"] > 1e6);
        assert!(samples["process_virtual_memory_bytes"] > samples["process_resident_memory_bytes"]);
        assert!(
            samples["process_open_fds"] > 3.0 && samples["process_open_fds"] < samples["process_max_fds"]
        );
        assert!(samples.contains_key("process_cpu_seconds_total"));
    }
    assert!(samples["process_start_time_seconds"] > 1.7e9);
}

#[test]
fn whoever_asks_for_open_metrics_gets_it() {
    let mut named = info();
    named.names = vec!["a\"b\\c\nd".into()];
    let server = ServerBuilder::new(sim::start(named, script(&hello()))).start();
    assert_eq!(post(CHAT, chat(json!({}))).get(&server).status, 200);
    let reply = ask("GET", "/metrics")
        .with("accept", "application/openmetrics-text;version=1.0.0,*/*;q=0.1")
        .get(&server);
    assert_eq!(reply.header("content-type"), Some(OPEN_METRICS));
    let samples = parsed(&reply.text(), true);
    let name = r#"vllm:generation_tokens_total{model_name="a\"b\\c\nd",engine="0"}"#;
    assert!(samples.contains_key(name), "{samples:#?}");
    // The same samples in the other format.
    let plain: Vec<String> = page(&server).into_keys().collect();
    let known = |name: &String| samples.contains_key(name) || name.contains("handler=\"/metrics\"");
    assert!(plain.iter().all(known), "{plain:#?}");
}

/// Refusals are counted by status and code, and not as finished requests.
#[test]
fn refusals_and_statuses_are_counted() {
    let engine = sim::start(
        Info { slots: 1, queue: 1, ..info() },
        Script { pace: Duration::from_millis(5), ..script(&bytes("x")) },
    );
    let keys = vec!["secret".to_owned()];
    let mut builder = ServerBuilder::new(engine);
    builder.settings = Settings { api_keys: keys, ..Settings::default() };
    let server = builder.start();
    let key = |request: crate::common::client::RequestBuilder| request.with("authorization", "Bearer secret");
    let busy: Vec<_> =
        (0..2).map(|_| key(post(CHAT, chat(json!({"ignore_eos": true})))).send(&server)).collect();
    wait(|| server.handle.taken() == 2, "it is full");
    assert_eq!(key(post(CHAT, chat(json!({})))).get(&server).status, 429);
    assert_eq!(key(post(CHAT, chat(json!({"nonsense": 1})))).get(&server).status, 400);
    assert_eq!(key(post(CHAT, chat(json!({"model": "other"})))).get(&server).status, 404);
    assert_eq!(key(ask("GET", "/nowhere")).get(&server).status, 404);
    assert_eq!(key(ask("BREW", "/coffee")).get(&server).status, 404);
    assert_eq!(post(CHAT, chat(json!({}))).get(&server).status, 401);
    drop(busy);
    server.wait_free();
    let answered = |samples: &Samples, method: &str, route: &str, status: u16| {
        let name =
            format!("http_requests_total{{method=\"{method}\",handler=\"{route}\",status=\"{status}\"}}");
        samples.get(&name).copied()
    };
    let metrics = || parsed(&key(ask("GET", "/metrics")).get(&server).text(), false);
    wait(|| answered(&metrics(), "POST", CHAT, 499) == Some(2.0), "those who went away are counted");
    let samples = metrics();
    for (status, code, count) in [
        (429, "queue_full", 1.0),
        (400, "unknown_field", 1.0),
        (404, "model_not_found", 1.0),
        (404, "none", 2.0),
        (401, "invalid_api_key", 1.0),
    ] {
        let labels = format!(",status=\"{status}\",code=\"{code}\"");
        assert_eq!(of(&samples, "request_refusals_total", &labels), count, "{labels}");
    }
    for (method, route, status, count) in [
        ("POST", CHAT, 429, 1.0),
        ("POST", CHAT, 401, 1.0),
        ("GET", "none", 404, 1.0),
        ("OTHER", "none", 404, 1.0),
    ] {
        assert_eq!(answered(&samples, method, route, status), Some(count), "{method} {route} {status}");
    }
    assert_eq!(of(&samples, "request_success_total", ",finished_reason=\"error\""), 0.0);
    assert_eq!(of(&samples, "request_success_total", ",finished_reason=\"abort\""), 2.0);
}

#[test]
fn the_small_page_of_an_idle_server_is_whole() {
    let server = start_server(&hello());
    let samples = page(&server);
    assert_eq!(of(&samples, "iteration_tokens_total_count", ""), 0.0);
    let none = ",max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"";
    assert!(of(&samples, "lora_requests_info", none) > 1.7e9);
}

/// Those of a disk cache are there if there is one.
#[test]
fn a_disk_cache_is_counted() {
    let engine = sim::start(info(), script(&hello()));
    let disk = engine.stats().disk.clone();
    let server = ServerBuilder::new(engine).start();
    assert!(!page(&server).keys().any(|name| name.contains("disk_cache") || name.contains("external")));
    disk.is_on.store(true, Ordering::Relaxed);
    let counts =
        [&disk.queries, &disk.hits, &disk.saved_bytes, &disk.loaded_bytes, &disk.refused_bytes, &disk.bytes];
    (1..).zip(counts).for_each(|(n, count)| count.store(n, Ordering::Relaxed));
    let samples = page(&server);
    let names = [
        "external_prefix_cache_queries_total",
        "external_prefix_cache_hits_total",
        "disk_cache_saved_bytes_total",
        "disk_cache_loaded_bytes_total",
        "disk_cache_refused_bytes_total",
        "disk_cache_bytes",
    ];
    (1..).zip(names).for_each(|(n, name)| assert_eq!(of(&samples, name, ""), f64::from(n), "{name}"));
}

/// So are those of a RAM cache; what neither has is one query.
#[test]
fn a_ram_cache_is_counted() {
    let engine = sim::start(info(), script(&hello()));
    let (ram, disk) = (engine.stats().ram.clone(), engine.stats().disk.clone());
    let server = ServerBuilder::new(engine).start();
    assert!(!page(&server).keys().any(|name| name.contains("ram_cache") || name.contains("external")));
    ram.is_on.store(true, Ordering::Relaxed);
    let counts = [&ram.queries, &ram.hits, &ram.saved_bytes, &ram.loaded_bytes, &ram.bytes];
    (1..).zip(counts).for_each(|(n, count)| count.store(10 * n, Ordering::Relaxed));
    disk.queries.store(7, Ordering::Relaxed);
    disk.hits.store(2, Ordering::Relaxed);
    let samples = page(&server);
    for (name, want) in [
        ("external_prefix_cache_queries_total", 10.0),
        ("external_prefix_cache_hits_total", 22.0),
        ("ram_cache_saved_bytes_total", 30.0),
        ("ram_cache_loaded_bytes_total", 40.0),
        ("ram_cache_bytes", 50.0),
    ] {
        assert_eq!(of(&samples, name, ""), want, "{name}");
    }
    assert!(!samples.keys().any(|name| name.contains("disk_cache")));
}
