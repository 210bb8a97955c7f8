//! [`Guard`]: who may ask at all.
//!
//! A page from anywhere, open in the user's browser, can send requests to this machine, and with a name of its own that
//! it lets point here it can even read the answers. So the `Host` that a request is for and the `Origin` that it comes
//! from are looked at before anything else, and then its key.

use std::net::{IpAddr, SocketAddr};

use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::Settings;
use crate::errors::{ApiError, quoted};

/// Stands for all hosts, or all origins.
const ANY: &str = "*";

/// Who may ask.
#[derive(Debug)]
pub(crate) struct Guard {
    bound: IpAddr,
    hosts: Vec<String>,
    origins: Vec<String>,
    keys: Vec<String>,
}

/// An origin that may read answers, to be said in each.
#[derive(Debug)]
pub(crate) struct Reader(HeaderValue);

impl Guard {
    pub(crate) fn new(settings: &Settings, bound: SocketAddr) -> std::io::Result<Guard> {
        if settings.api_keys.iter().any(String::is_empty) {
            let why = "an API key is empty, which everybody knows";
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, why));
        }
        let lower = |texts: &[String]| texts.iter().map(|text| text.to_ascii_lowercase()).collect();
        Ok(Guard {
            bound: bound.ip(),
            hosts: lower(&settings.allow_hosts),
            origins: lower(&settings.allow_origins),
            keys: settings.api_keys.clone(),
        })
    }

    /// Looks where a request goes and where it comes from. Gives the origin that may read the answer, if it has one.
    pub(crate) fn origin(&self, headers: &HeaderMap) -> Result<Option<Reader>, ApiError> {
        let forbidden = |why: String| Err(ApiError::new(StatusCode::FORBIDDEN, why));
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next().and_then(|host| host.to_str().ok()), hosts.next()) else {
            return Err(ApiError::bad("the request needs one Host header"));
        };
        let host = host.to_ascii_lowercase();
        if !self.knows(without_port(&host)) {
            let why = format!(
                "the host {} is not allowed here; whoever runs this server can allow it",
                quoted(&host)
            );
            return forbidden(why);
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let Some(value) = origins.next() else { return Ok(None) };
        let origin = value.to_str().unwrap_or_default().to_ascii_lowercase();
        let same = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if origins.next().is_none() {
            if self.origins.iter().any(|known| *known == origin || known == ANY) {
                return Ok(Some(Reader(value.clone())));
            }
            if same == Some(host.as_str()) {
                return Ok(None);
            }
        }
        let why =
            format!("pages of {} may not use this server; whoever runs it can allow them", quoted(&origin));
        forbidden(why)
    }

    fn knows(&self, host: &str) -> bool {
        if ["localhost", "127.0.0.1", "[::1]"].contains(&host) {
            return true;
        }
        if self.hosts.iter().any(|known| known == host || known == ANY) {
            return true;
        }
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        match bare.parse::<IpAddr>() {
            // Bound to all addresses, any of them may be meant. Only names can be made to point here.
            Ok(address) => self.bound.is_unspecified() || address.to_canonical() == self.bound.to_canonical(),
            Err(_) => false,
        }
    }

    /// Looks at the key, if there are any.
    pub(crate) fn key(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let given = headers.get(header::AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
        let given = match given.split_at_checked(7) {
            Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => key,
            _ => b"",
        };
        // All keys are compared, and all of each, so that the time tells nothing.
        let known = self.keys.iter().fold(false, |known, key| known | same(given, key.as_bytes()));
        if known {
            return Ok(());
        }
        let why = "a valid key is needed: send the header authorization: Bearer KEY";
        Err(ApiError::new(StatusCode::UNAUTHORIZED, why).code("invalid_api_key"))
    }
}

/// The host of a `Host` header.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Are they the same? Takes a time that depends on what is given, and not on what is known.
fn same(given: &[u8], known: &[u8]) -> bool {
    let mut different = given.len() ^ known.len();
    for (i, byte) in given.iter().enumerate() {
        let other = known[i % known.len()];
        different |= usize::from(std::hint::black_box(byte ^ other));
    }
    different == 0
}

/// Is it a browser's question whether a page may ask?
pub(crate) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

impl Reader {
    /// The answer to a browser's question.
    pub(crate) fn preflight(&self) -> Response {
        let headers = [
            (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, "authorization, content-type, x-request-id"),
            (header::ACCESS_CONTROL_MAX_AGE, "600"),
        ];
        (StatusCode::NO_CONTENT, headers).into_response()
    }

    /// Lets the origin read a response.
    pub(crate) fn allow(&self, headers: &mut HeaderMap) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, self.0.clone());
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
        let shown = HeaderValue::from_static("x-request-id, retry-after");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, shown);
    }
}

/// The header with a request's name.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What to call a request: as its client does if that is short and plain, else something new. It is for people who
/// read logs; nothing is looked up by it.
pub(crate) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let plain = |id: &&HeaderValue| {
        (1..=128).contains(&id.len()) && id.as_bytes().iter().all(|b| (b' '..=b'~').contains(b))
    };
    let theirs = headers.get(REQUEST_ID).filter(plain).cloned();
    let ours = || HeaderValue::try_from(crate::run::unique()).ok();
    theirs.or_else(ours).unwrap_or(HeaderValue::from_static("none"))
}
