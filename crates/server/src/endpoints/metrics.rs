//! `/metrics`, for Prometheus.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};

use crate::exposition::{Format, Labels, Page};
use crate::model_status::ModelStatus;
use crate::registry::Registry;

pub(crate) async fn metrics(State(server): State<Arc<Registry>>, headers: HeaderMap) -> Response {
    let format = Format::accepted(&headers);
    let (mut page, statuses) = (Page::new(format), server.statuses());
    for status in &statuses {
        if let Some(loaded) = &status.loaded {
            page.of_model(Some(status.name()));
            loaded.server.model.metrics(&mut page, &loaded.server.metrics);
        }
    }
    // What follows is the server's, and carries the name of its model if it has only one.
    if server.manages() {
        page.of_model(None);
        models(&mut page, &statuses);
    }
    server.http_metrics.write(&mut page);
    let (log, version) = (&server.settings.log, env!("CARGO_PKG_VERSION"));
    page.counter("vllm:log_lines_dropped", "Log lines dropped.", log.total_dropped());
    let occupancy = server.connection_table.occupancy();
    page.gauge("vllm:connections", "Open connections.", occupancy.connections);
    page.gauge("vllm:connections_max", "Limit of open connections.", occupancy.capacity);
    page.counter(
        "vllm:connections_given_up",
        "Idle or stalled connections closed for new ones.",
        occupancy.evicted,
    );
    let refused = "Connections turned away since their address had too many.";
    page.counter("vllm:connections_refused", refused, occupancy.refused);
    let memory = "Memory that requests hold: bodies, prompts and answers that are not sent yet.";
    page.gauge("vllm:memory_in_flight_bytes", memory, server.budget.used());
    let build: Labels<'_> = &[("version", version), ("commit", server.settings.commit.unwrap_or_default())];
    page.gauges("vllm:build_info", "Version and commit of this build.", [(build, 1)]);
    crate::process::write(&mut page, server.since);
    ([(header::CONTENT_TYPE, format.content_type())], page.finish()).into_response()
}

/// State of each model.
fn models(page: &mut Page, statuses: &[ModelStatus]) {
    let labels: Vec<_> = statuses.iter().map(|status| [("model_name", status.name())]).collect();
    let labels = || labels.iter().map(|labels| labels.as_slice());
    let loaded = statuses.iter().map(|status| u8::from(status.loaded.is_some()));
    page.gauges("vllm:model_loaded", "1 if the model is loaded.", labels().zip(loaded));
    let loads = statuses.iter().map(|status| status.loads);
    page.counters(
        "vllm:model_loads",
        "Times that the model was loaded, or that was tried.",
        labels().zip(loads),
    );
    let running = statuses.iter().map(|status| status.in_use);
    page.gauges("vllm:model_requests", "Requests under way with the model.", labels().zip(running));
    let waiting = statuses.iter().map(|status| status.waiting);
    page.gauges(
        "vllm:model_waiting",
        "Requests that wait for the model to be loaded.",
        labels().zip(waiting),
    );
    let bytes = statuses.iter().map(|status| status.loaded.as_ref().map_or(0, |loaded| loaded.bytes));
    page.gauges("vllm:model_memory_bytes", "Memory that the model takes on its device.", labels().zip(bytes));
}
