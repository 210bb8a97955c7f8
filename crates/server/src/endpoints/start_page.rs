//! The page at `/`: for people who open the server's address in a browser, and for clients that check whether it runs.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};

use super::{ENDPOINTS, Endpoint};
use crate::registry::Registry;

pub(crate) async fn start_page(State(server): State<Arc<Registry>>, headers: HeaderMap) -> Response {
    // Clients without a key must not learn what is served.
    let names = if server.settings.api_keys.is_empty() { models(&server) } else { Vec::new() };
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accepts.contains("text/html") {
        let policy = "default-src 'none'; style-src 'unsafe-inline'";
        let headers =
            [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, policy)];
        return (headers, html(&names)).into_response();
    }
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text(&names)).into_response()
}

/// Primary names of the models.
fn models(server: &Registry) -> Vec<String> {
    server.statuses().iter().map(|status| status.name().to_owned()).collect()
}

/// Endpoints listed on the page.
fn listed() -> impl Iterator<Item = (String, &'static str)> {
    let endpoints = ENDPOINTS.iter().filter(|endpoint| endpoint.on_start_page);
    endpoints.map(|Endpoint { method, path, what, .. }| (format!("{} {path}", method.name()), *what))
}

fn text(names: &[String]) -> String {
    let mut page = format!("Tallow {} is running.\n", env!("CARGO_PKG_VERSION"));
    match names {
        [] => {}
        [name] => {
            let _ = writeln!(page, "Model: {name}");
        }
        names => {
            let _ = writeln!(page, "Models: {}", names.join(", "));
        }
    }
    for (route, what) in listed() {
        let _ = writeln!(page, "{route}: {what}");
    }
    page
}

fn html(names: &[String]) -> String {
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Tallow</title>\
         <style>body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:3em auto;padding:0 1em}\
         code{background:#8882;padding:.1em .3em;border-radius:3px}</style><h1>Tallow is running</h1>",
    );
    if !names.is_empty() {
        let names: Vec<String> = names.iter().map(|name| format!("<code>{}</code>", escaped(name))).collect();
        let _ = write!(page, "<p>It serves {}.</p>", names.join(", "));
    }
    page += "<p>Its API is OpenAI's: give a client this address with <code>/v1</code> behind it.</p><ul>";
    for (route, what) in listed() {
        let _ = write!(page, "<li><code>{route}</code>: {what}</li>");
    }
    let _ = writeln!(page, "</ul><p>Version {}.</p></html>", env!("CARGO_PKG_VERSION"));
    page
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
