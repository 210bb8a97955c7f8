//! [`Metrics`]: what is counted, as Prometheus reads it, under the names that routers and dashboards look for.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tallow_engine::embedder::EmbedderHandle;
use tallow_engine::handle::{Done, EngineHandle};

use crate::wire::finish_reason;

/// Bounds in seconds.
const SHORT: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0];
const LONG: &[f64] =
    &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0];
const REASONS: [&str; 4] = ["stop", "length", "abort", "error"];

/// How long something took, counted by bounds.
#[derive(Debug)]
struct Histogram {
    name: &'static str,
    what: &'static str,
    bounds: &'static [f64],
    /// One for each bound, and one for what is above all.
    counts: Vec<AtomicU64>,
    micros: AtomicU64,
}

impl Histogram {
    fn new(name: &'static str, what: &'static str, bounds: &'static [f64]) -> Histogram {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { name, what, bounds, counts, micros: AtomicU64::new(0) }
    }

    fn add(&self, took: Duration) {
        let at = self.bounds.partition_point(|bound| *bound < took.as_secs_f64());
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.micros.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    fn write(&self, out: &mut Page) {
        out.head(self.name, "histogram", self.what);
        let mut sum = 0;
        let bounds = self.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&self.counts) {
            sum += count.load(Ordering::Relaxed);
            out.line(&format!("{}_bucket", self.name), &format!(",le=\"{bound}\""), sum);
        }
        let seconds = self.micros.load(Ordering::Relaxed) as f64 / 1e6;
        out.line(&format!("{}_sum", self.name), "", seconds);
        out.line(&format!("{}_count", self.name), "", sum);
    }
}

/// What the server itself counts; the rest is the engine's.
#[derive(Debug)]
pub(crate) struct Metrics {
    first: Histogram,
    next: Histogram,
    whole: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    /// For each of the reasons.
    ended: [AtomicU64; REASONS.len()],
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let new = Histogram::new;
        Metrics {
            first: new("time_to_first_token_seconds", "From the request to its first token.", LONG),
            next: new("inter_token_latency_seconds", "From one token to the next.", SHORT),
            whole: new("e2e_request_latency_seconds", "From the request to its end.", LONG),
            queue: new(
                "request_queue_time_seconds",
                "From the request to the beginning of its prompt.",
                LONG,
            ),
            prefill: new("request_prefill_time_seconds", "From there to the first token.", LONG),
            decode: new("request_decode_time_seconds", "From the first token to the last.", LONG),
            ended: Default::default(),
        }
    }

    pub(crate) fn first_token(&self, took: Duration) {
        self.first.add(took);
    }

    pub(crate) fn next_token(&self, took: Duration) {
        self.next.add(took);
    }

    /// An answer is complete.
    pub(crate) fn done(&self, done: &Done, took: Duration) {
        self.whole.add(took);
        self.queue.add(done.timings.queue);
        self.prefill.add(done.timings.prefill);
        self.decode.add(done.timings.decode);
        self.ended(finish_reason(&done.reason));
    }

    /// An answer has ended, for whatever reason.
    pub(crate) fn ended(&self, reason: &str) {
        if let Some(at) = REASONS.iter().position(|known| *known == reason) {
            self.ended[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All there is to say, with what the engine counts.
    pub(crate) fn page(&self, handle: &EngineHandle) -> String {
        let (info, stats) = (handle.info(), handle.stats());
        let mut out =
            Page { text: String::new(), model: label(info.names.first().map_or("", String::as_str)) };
        let pages = stats.pages_in_use.load(Ordering::Relaxed) as f64 / info.pages.max(1) as f64;
        out.gauge(
            "num_requests_running",
            "Requests under way.",
            stats.running.load(Ordering::Relaxed) as f64,
        );
        out.gauge(
            "num_requests_waiting",
            "Requests that wait.",
            stats.waiting.load(Ordering::Relaxed) as f64,
        );
        out.gauge("kv_cache_usage_perc", "Share of the cache in use, from 0 to 1.", pages);
        out.gauge(
            "step_tokens_beside_answers",
            "Tokens that a step may have while answers are under way.",
            stats.beside.load(Ordering::Relaxed) as f64,
        );
        out.head("cache_config_info", "gauge", "How the cache is divided.");
        let config = format!(",block_size=\"{}\",num_gpu_blocks=\"{}\"", info.page_len, info.pages);
        out.line("cache_config_info", &config, 1);
        out.head("lora_requests_info", "gauge", "Adapters in use; none can be loaded.");
        let none = ",max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"";
        out.line("lora_requests_info", none, 1);
        for (name, what, count) in [
            ("prompt_tokens_total", "Prompt tokens of finished requests.", &stats.prompt_tokens),
            ("generation_tokens_total", "Tokens generated.", &stats.new_tokens),
            ("prefix_cache_queries_total", "Prompt tokens looked for in the cache.", &stats.prefix_queries),
            ("prefix_cache_hits_total", "Prompt tokens found there.", &stats.prefix_hits),
            ("num_preemptions_total", "Sequences that had to give way.", &stats.preemptions),
        ] {
            out.head(name, "counter", what);
            out.line(name, "", count.load(Ordering::Relaxed));
        }
        self.success(&mut out);
        for histogram in [&self.first, &self.next, &self.whole, &self.queue, &self.prefill, &self.decode] {
            histogram.write(&mut out);
        }
        out.text
    }

    /// The same for an embedder.
    pub(crate) fn page_of_embedder(&self, handle: &EmbedderHandle) -> String {
        let (info, stats) = (handle.info(), handle.stats());
        let mut out =
            Page { text: String::new(), model: label(info.names.first().map_or("", String::as_str)) };
        out.gauge("num_requests_running", "Requests under way or waiting.", handle.taken() as f64);
        for (name, what, count) in [
            ("prompt_tokens_total", "Tokens of texts that have been done.", &stats.tokens),
            ("embedded_texts_total", "Texts that have been done.", &stats.texts),
            ("steps_total", "Steps run.", &stats.steps),
        ] {
            out.head(name, "counter", what);
            out.line(name, "", count.load(Ordering::Relaxed));
        }
        self.success(&mut out);
        self.whole.write(&mut out);
        out.text
    }

    /// The same for a model that hears, with so many requests.
    pub(crate) fn page_of_speech(&self, name: &str, taken: usize) -> String {
        let mut out = Page { text: String::new(), model: label(name) };
        out.gauge("num_requests_running", "Requests under way or waiting.", taken as f64);
        self.success(&mut out);
        self.whole.write(&mut out);
        out.text
    }

    /// A request to an embedder is complete.
    pub(crate) fn embedded(&self, took: Duration) {
        self.whole.add(took);
        self.ended("stop");
    }

    fn success(&self, out: &mut Page) {
        out.head("request_success_total", "counter", "Answers that have ended, by reason.");
        for (reason, count) in REASONS.iter().zip(&self.ended) {
            let label = format!(",finished_reason=\"{reason}\"");
            out.line("request_success_total", &label, count.load(Ordering::Relaxed));
        }
    }
}

/// A page in the text format. All names have the prefix that is looked for, all lines the model.
struct Page {
    text: String,
    model: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, what: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "# HELP vllm:{name} {what}\n# TYPE vllm:{name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "vllm:{name}{{model_name=\"{}\"{labels}}} {value}", self.model);
    }

    fn gauge(&mut self, name: &str, what: &str, value: f64) {
        self.head(name, "gauge", what);
        self.line(name, "", value);
    }
}

/// A text as a label's value.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
