//! [`Metrics`]: counters and histograms, under vLLM's names, which routers and dashboards look for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tallow_engine::cache_tier::TierCounts;
use tallow_engine::counts::StepSizes;
use tallow_engine::embedder::EmbedderHandle;
use tallow_engine::handle::{Done, EngineHandle};

use crate::exposition::{Labels, Page};

/// Bucket bounds in seconds.
const SHORT: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0];
const LONG: &[f64] =
    &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0];
/// Bucket bounds in tokens.
const TOKENS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6];
/// Bucket bounds in choices of a request.
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
const REASONS: [&str; 4] = ["stop", "length", "abort", "error"];
/// A histogram.
#[derive(Debug)]
struct Histogram {
    name: &'static str,
    what: &'static str,
    bounds: &'static [f64],
    /// One count per bound, and one for values above all.
    counts: Vec<AtomicU64>,
    /// Sum of all values, in millionths.
    millionths: AtomicU64,
}

impl Histogram {
    fn new(name: &'static str, what: &'static str, bounds: &'static [f64]) -> Histogram {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { name, what, bounds, counts, millionths: AtomicU64::new(0) }
    }

    fn add(&self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.millionths.fetch_add((value * 1e6) as u64, Ordering::Relaxed);
    }

    fn took(&self, time: Duration) {
        self.add(time.as_secs_f64());
    }

    fn write(&self, page: &mut Page) {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let sum = self.millionths.load(Ordering::Relaxed) as f64 / 1e6;
        page.histogram(self.name, self.what, self.bounds, &counts, sum);
    }
}

/// Metrics of a model's requests; the rest is the engine's.
#[derive(Debug)]
pub(crate) struct Metrics {
    time_to_first_token: Histogram,
    inter_token: Histogram,
    end_to_end: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    per_token: Histogram,
    prompt_tokens: Histogram,
    new_tokens: Histogram,
    longest_choice: Histogram,
    max_tokens: Histogram,
    choices: Histogram,
    /// Tokens of earlier answers that took the place of a prompt's own.
    reused: AtomicU64,
    /// Counts by [`REASONS`].
    ended: [AtomicU64; REASONS.len()],
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let seconds = |name, what| Histogram::new(name, what, LONG);
        let tokens = |name, what| Histogram::new(name, what, TOKENS);
        Metrics {
            time_to_first_token: seconds(
                "vllm:time_to_first_token_seconds",
                "From the request to its first token.",
            ),
            inter_token: Histogram::new(
                "vllm:inter_token_latency_seconds",
                "From one token to the next.",
                SHORT,
            ),
            end_to_end: seconds("vllm:e2e_request_latency_seconds", "From the request to its end."),
            queue: seconds(
                "vllm:request_queue_time_seconds",
                "From the request to the beginning of its prefill.",
            ),
            prefill: seconds(
                "vllm:request_prefill_time_seconds",
                "From the beginning of the prefill to the first token.",
            ),
            decode: seconds("vllm:request_decode_time_seconds", "From the first token to the last."),
            inference: seconds(
                "vllm:request_inference_time_seconds",
                "From the beginning of the prefill to the last token.",
            ),
            per_token: Histogram::new(
                "vllm:request_time_per_output_token_seconds",
                "Mean time from one token of a request to the next.",
                SHORT,
            ),
            prompt_tokens: tokens("vllm:request_prompt_tokens", "Prompt tokens of a request."),
            new_tokens: tokens("vllm:request_generation_tokens", "Tokens generated for a choice."),
            longest_choice: tokens(
                "vllm:request_max_num_generation_tokens",
                "Tokens of a request's longest choice.",
            ),
            max_tokens: tokens("vllm:request_params_max_tokens", "Token limit of a choice."),
            choices: Histogram::new("vllm:request_params_n", "Choices of a request.", CHOICES),
            reused: AtomicU64::new(0),
            ended: Default::default(),
        }
    }

    pub(crate) fn first_token(&self, took: Duration) {
        self.time_to_first_token.took(took);
    }

    pub(crate) fn next_token(&self, took: Duration) {
        self.inter_token.took(took);
    }

    /// Records a request that the engine accepted, with `choices` of at most `max_tokens` each.
    pub(crate) fn taken(&self, choices: usize, max_tokens: usize) {
        self.choices.add(choices as f64);
        self.max_tokens.add(max_tokens as f64);
    }

    /// Records tokens of earlier answers that took the place of a prompt's own.
    pub(crate) fn reused(&self, tokens: usize) {
        self.reused.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// Records a complete choice, with its finish reason.
    pub(crate) fn done(&self, done: &Done, reason: &str, took: Duration) {
        self.end_to_end.took(took);
        self.queue.took(done.timings.queue);
        self.prefill.took(done.timings.prefill);
        self.decode.took(done.timings.decode);
        self.inference.took(done.timings.prefill + done.timings.decode);
        if done.new_tokens > 1 {
            self.per_token.add(done.timings.decode.as_secs_f64() / (done.new_tokens - 1) as f64);
        }
        self.prompt_tokens.add(done.prompt_tokens as f64);
        self.new_tokens.add(done.new_tokens as f64);
        self.ended(reason);
    }

    /// Records that a request is complete; `longest`: tokens of its longest choice.
    pub(crate) fn all_done(&self, longest: usize) {
        self.longest_choice.add(longest as f64);
    }

    /// Records that a choice has ended, for any of [`REASONS`].
    pub(crate) fn ended(&self, reason: &str) {
        if let Some(at) = REASONS.iter().position(|known| *known == reason) {
            self.ended[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Metrics of a generative model.
    pub(crate) fn of_generator(&self, page: &mut Page, handle: &EngineHandle) {
        let stats = handle.stats();
        let load = |n: &std::sync::atomic::AtomicUsize| n.load(Ordering::Relaxed);
        router_gauges(page, load(&stats.running), load(&stats.waiting), cache_usage(handle));
        adapters(page, handle);
        engine(page, handle);
        page.counter(
            "vllm:reused_answer_tokens",
            "Tokens of earlier answers in prompts, where the tokenizer would divide their text otherwise.",
            self.reused.load(Ordering::Relaxed),
        );
        self.success(page);
        for histogram in [
            &self.time_to_first_token,
            &self.inter_token,
            &self.end_to_end,
            &self.queue,
            &self.prefill,
            &self.decode,
            &self.inference,
            &self.per_token,
            &self.prompt_tokens,
            &self.new_tokens,
            &self.longest_choice,
            &self.max_tokens,
            &self.choices,
        ] {
            histogram.write(page);
        }
    }

    /// Metrics of an encoder.
    pub(crate) fn of_encoder(&self, page: &mut Page, handle: &EmbedderHandle) {
        let (stats, steps) = (handle.stats(), handle.steps());
        let running = stats.running.load(Ordering::Relaxed);
        // It has no KV cache.
        router_gauges(page, running, handle.taken().saturating_sub(running), 0.0);
        for (name, what, count) in [
            ("vllm:prompt_tokens", "Tokens of embedded texts.", &stats.tokens),
            ("vllm:embedded_texts", "Texts embedded.", &stats.texts),
            ("vllm:steps", "Steps run.", &steps.run),
            ("vllm:failed_steps", "Steps that failed.", &steps.failed),
        ] {
            page.counter(name, what, count.load(Ordering::Relaxed));
        }
        self.success(page);
        self.end_to_end.write(page);
    }

    /// Metrics of a speech-to-text model; `taken`: requests in flight or waiting.
    pub(crate) fn of_speech(&self, page: &mut Page, handle: &EngineHandle, taken: usize) {
        let windows = handle.stats().running.load(Ordering::Relaxed);
        // A request has one window in work at a time; between two windows the server works on it.
        let running = taken.min(handle.info().slots.max(windows));
        router_gauges(page, running, taken - running, cache_usage(handle));
        engine(page, handle);
        self.success(page);
        self.end_to_end.write(page);
    }

    fn success(&self, page: &mut Page) {
        let labels = REASONS.map(|reason| [("finished_reason", reason)]);
        let counts = self.ended.iter().map(|count| count.load(Ordering::Relaxed));
        page.counters(
            "vllm:request_success",
            "Answers that have ended, by reason.",
            labels.iter().map(|label| label.as_slice()).zip(counts),
        );
    }
}

/// Counts a request to an encoder or speech model when it ends; as aborted, unless its end was recorded.
#[derive(Debug)]
pub(crate) struct TrackedRequest {
    metrics: Arc<Metrics>,
    counted: bool,
}

impl TrackedRequest {
    pub(crate) fn new(metrics: Arc<Metrics>) -> TrackedRequest {
        TrackedRequest { metrics, counted: false }
    }

    pub(crate) fn done(&mut self, took: Duration) {
        self.counted = true;
        self.metrics.end_to_end.took(took);
        self.metrics.ended("stop");
    }

    pub(crate) fn failed(&mut self) {
        self.counted = true;
        self.metrics.ended("error");
    }

    /// Refused because of the client's mistake; not counted.
    pub(crate) fn refused(&mut self) {
        self.counted = true;
    }
}

impl Drop for TrackedRequest {
    fn drop(&mut self) {
        if !self.counted {
            self.metrics.ended("abort");
        }
    }
}

/// Gauges that routers balance load by.
fn router_gauges(page: &mut Page, running: usize, waiting: usize, usage: f64) {
    page.gauge("vllm:num_requests_running", "Requests being processed.", running);
    page.gauge("vllm:num_requests_waiting", "Requests waiting in the queue.", waiting);
    page.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, from 0 to 1.", usage);
}

/// Share of the KV cache in use.
fn cache_usage(handle: &EngineHandle) -> f64 {
    handle.stats().pages_in_use.load(Ordering::Relaxed) as f64 / handle.info().pages.max(1) as f64
}

/// Metrics of an engine's KV cache, sequences and steps.
fn engine(page: &mut Page, handle: &EngineHandle) {
    let (info, stats, steps) = (handle.info(), handle.stats(), handle.steps());
    page.gauge(
        "vllm:decode_budget_tokens",
        "Step budget, in tokens, while all slots are being decoded.",
        stats.decode_budget.load(Ordering::Relaxed),
    );
    let (block, blocks) = (info.page_len.to_string(), info.pages.to_string());
    let config: Labels<'_> = &[("block_size", &block), ("num_gpu_blocks", &blocks)];
    page.gauges("vllm:cache_config_info", "Configuration of the KV cache.", [(config, 1)]);
    for (name, what, count) in [
        ("vllm:prompt_tokens", "Prompt tokens of finished requests.", &stats.prompt_tokens),
        ("vllm:generation_tokens", "Tokens generated.", &stats.new_tokens),
        ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", &stats.prefix_queries),
        ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", &stats.prefix_hits),
        ("vllm:num_preemptions", "Sequences that were preempted.", &stats.preemptions),
        ("vllm:spec_decode_num_draft_tokens", "Tokens computed as drafts.", &stats.drafted),
        ("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that sampling chose.", &stats.accepted),
        ("vllm:steps", "Steps run.", &steps.run),
        ("vllm:failed_steps", "Steps that failed.", &steps.failed),
        ("vllm:steps_ahead", "Steps launched before the tokens that they compute were read.", &steps.ahead),
        ("vllm:wasted_tokens", "Tokens computed for requests that ended meanwhile.", &steps.wasted),
        ("vllm:page_faults", "Failed consistency checks of the KV cache's pages.", &stats.page_faults),
    ] {
        page.counter(name, what, count.load(Ordering::Relaxed));
    }
    tiers(page, &stats.ram, &stats.disk);
    let sizes = &stats.step_sizes;
    page.histogram(
        "vllm:iteration_tokens_total",
        "Tokens computed in a step.",
        &StepSizes::BOUNDS.map(|bound| bound as f64),
        &sizes.counts(),
        sizes.tokens() as f64,
    );
}

/// Metrics of the RAM cache and the disk cache, if there are any.
fn tiers(page: &mut Page, ram: &TierCounts, disk: &TierCounts) {
    let has = |counts: &TierCounts| counts.is_on.load(Ordering::Relaxed);
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    if has(ram) || has(disk) {
        // What the RAM cache has not is looked up on disk, and is no further query.
        let queries = read(&ram.queries).max(read(&disk.queries));
        page.counter(
            "vllm:external_prefix_cache_queries",
            "Prompt tokens looked up in RAM or on disk, which were not in the prefix cache.",
            queries,
        );
        let hits = read(&ram.hits) + read(&disk.hits);
        let what = "Prompt tokens loaded from RAM or disk.";
        page.counter("vllm:external_prefix_cache_hits", what, hits);
    }
    if has(ram) {
        page.gauge("vllm:ram_cache_bytes", "Bytes of pages in RAM.", read(&ram.bytes) as usize);
        let what = "Bytes of pages copied to RAM.";
        page.counter("vllm:ram_cache_saved_bytes", what, read(&ram.saved_bytes));
        let what = "Bytes of pages copied from RAM.";
        page.counter("vllm:ram_cache_loaded_bytes", what, read(&ram.loaded_bytes));
    }
    if has(disk) {
        page.gauge("vllm:disk_cache_bytes", "Bytes of pages on disk.", read(&disk.bytes) as usize);
        for (name, what, count) in [
            ("vllm:disk_cache_saved_bytes", "Bytes of pages written to disk.", &disk.saved_bytes),
            ("vllm:disk_cache_loaded_bytes", "Bytes of pages read from disk.", &disk.loaded_bytes),
            (
                "vllm:disk_cache_refused_bytes",
                "Bytes of files that were removed because something was wrong with them.",
                &disk.refused_bytes,
            ),
        ] {
            page.counter(name, what, read(count));
        }
    }
}

/// LoRA adapters in use. The value is the time, as routers expect.
fn adapters(page: &mut Page, handle: &EngineHandle) {
    let (listed, used) = (handle.loras(), handle.lora_use());
    let names = |ids: &[tallow_engine::lora::LoraId]| {
        let name = |id| listed.iter().find(|a| a.lora.id == id).map(|a| a.name.clone());
        ids.iter().filter_map(|id| name(*id)).collect::<Vec<_>>().join(",")
    };
    let (running, waiting) = (names(&used.running), names(&used.waiting));
    // Each of a step's sequences may have a different one.
    let room = handle.info().adapter_room > 0 || !listed.is_empty();
    let max = if room { handle.info().slots } else { 0 }.to_string();
    let labels: Labels<'_> =
        &[("max_lora", &max), ("running_lora_adapters", &running), ("waiting_lora_adapters", &waiting)];
    page.gauges(
        "vllm:lora_requests_info",
        "LoRA adapters of running and waiting requests.",
        [(labels, crate::clock::unix_time())],
    );
}
