//! The page at `/`, on which people chat and look after the server, and a text in its place for other programs.
//!
//! Its files are in `crates/server/page` and are part of the program. Nothing of it comes from elsewhere, and its content
//! security policy allows nothing that does.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::{ENDPOINTS, Endpoint};
use crate::errors::{ApiError, quoted};
use crate::registry::Registry;

const PAGE: &str = include_str!("../../page/index.html");
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Parts of the page: name, type and content.
const FILES: [(&str, &str, &str); 13] = [
    ("api.js", JAVASCRIPT, include_str!("../../page/api.js")),
    ("chat.js", JAVASCRIPT, include_str!("../../page/chat.js")),
    ("conversation.js", JAVASCRIPT, include_str!("../../page/conversation.js")),
    ("dom.js", JAVASCRIPT, include_str!("../../page/dom.js")),
    ("highlight.js", JAVASCRIPT, include_str!("../../page/highlight.js")),
    ("icon.svg", "image/svg+xml", include_str!("../../page/icon.svg")),
    ("main.js", JAVASCRIPT, include_str!("../../page/main.js")),
    ("markdown.js", JAVASCRIPT, include_str!("../../page/markdown.js")),
    ("message.js", JAVASCRIPT, include_str!("../../page/message.js")),
    ("models.js", JAVASCRIPT, include_str!("../../page/models.js")),
    ("settings.js", JAVASCRIPT, include_str!("../../page/settings.js")),
    ("status.js", JAVASCRIPT, include_str!("../../page/status.js")),
    ("style.css", "text/css; charset=utf-8", include_str!("../../page/style.css")),
];

/// Nothing from elsewhere, no script or style in the page's text, and no text that becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

/// A file of the page. Another version of the program has others under the same names, so none is used unasked.
fn file(kind: &'static str, content: &'static str) -> Response {
    let headers: [(HeaderName, &str); 5] = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, content).into_response()
}

pub(crate) async fn page(State(server): State<Arc<Registry>>, headers: HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accepts.contains("text/html") {
        return file("text/html; charset=utf-8", PAGE);
    }
    // Clients without a key must not learn what is served.
    let names = if server.settings.api_keys.is_empty() { models(&server) } else { Vec::new() };
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text(&names)).into_response()
}

pub(crate) async fn part(path: Result<Path<String>, PathRejection>) -> Result<Response, ApiError> {
    let Path(name) = path.map_err(|e| ApiError::bad(e.body_text()))?;
    let found = FILES.iter().find(|(file, ..)| *file == name);
    let none = || ApiError::new(StatusCode::NOT_FOUND, format!("the page has no {}", quoted(&name)));
    let (_, kind, content) = found.ok_or_else(none)?;
    Ok(file(kind, content))
}

/// Primary names of the models.
fn models(server: &Registry) -> Vec<String> {
    server.statuses().iter().map(|status| status.name().to_owned()).collect()
}

fn text(names: &[String]) -> String {
    let mut text = format!("Tallow {} is running.\n", env!("CARGO_PKG_VERSION"));
    match names {
        [] => {}
        [name] => {
            let _ = writeln!(text, "Model: {name}");
        }
        names => {
            let _ = writeln!(text, "Models: {}", names.join(", "));
        }
    }
    for Endpoint { method, path, what, .. } in ENDPOINTS.iter().filter(|endpoint| endpoint.is_main) {
        let _ = writeln!(text, "{} {path}: {what}", method.name());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::*;

    /// Everything in the folder, and everything that a file of it asks for.
    #[test]
    fn every_file_of_the_page_is_there() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("page");
        let name =
            |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut there: BTreeSet<String> = std::fs::read_dir(folder).unwrap().map(name).collect();
        assert!(there.remove("index.html"));
        let served: BTreeSet<String> = FILES.iter().map(|(name, ..)| (*name).to_owned()).collect();
        assert_eq!(served, there);
        for (file, _, content) in FILES {
            let imported = content.split("from \"./").skip(1).filter_map(|rest| rest.split('"').next());
            imported.for_each(|name| assert!(served.contains(name), "{file} imports {name}"));
        }
        let linked = PAGE.split("=\"page/").skip(1).filter_map(|rest| rest.split('"').next());
        assert_eq!(linked.filter(|name| served.contains(*name)).count(), 3);
    }

    #[test]
    fn the_page_is_small_and_asks_nothing_of_others() {
        let all: Vec<&str> = FILES.iter().map(|(.., content)| *content).chain([PAGE]).collect();
        assert!(all.iter().map(|content| content.len()).sum::<usize>() < 250_000);
        for content in all {
            // The namespace of SVG is no address.
            let addresses = content.matches("http://").count() + content.matches("https://").count();
            assert_eq!(addresses, content.matches("http://www.w3.org/2000/svg").count());
            // Ways for a text to become markup or a script.
            for way in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]
            {
                assert!(!content.contains(way), "{way}");
            }
        }
        assert!(!PAGE.contains("<style") && !PAGE.contains(" style=") && !PAGE.contains(" onclick="));
    }
}
