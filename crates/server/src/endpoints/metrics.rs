//! `/metrics`, for Prometheus.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};

use crate::exposition::{Format, Labels, Page};
use crate::state::AnyServer;

pub(crate) async fn metrics(State(server): State<Arc<AnyServer>>, headers: HeaderMap) -> Response {
    let format = Format::accepted(&headers);
    let mut page = Page::new(format, server.model.names().first().map_or("", String::as_str));
    server.model.metrics(&mut page, &server.metrics);
    server.metrics.of_requests(&mut page);
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
