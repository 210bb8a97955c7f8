//! [`Guard`]: access control by host, origin and API key.
//!
//! Any web page open in the user's browser can send requests to this machine, and by DNS rebinding it can even read the
//! answers. So the `Host` and `Origin` headers are checked before anything else, and then the API key.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use axum::extract::Request;
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::Settings;
use crate::errors::{ApiError, quoted};
use crate::http::origin::{self, ANY};

/// Most refused hosts and origins that are logged, once each. Beyond that they are made up, and no setting is
/// wrong.
const MAX_HINTS: usize = 16;

/// Access control.
#[derive(Debug)]
pub(crate) struct Guard {
    bound: IpAddr,
    hosts: Vec<String>,
    origins: Vec<String>,
    keys: Vec<String>,
    /// Messages already logged about refused hosts and origins.
    hints: Mutex<Vec<String>>,
}

/// An origin that may read answers (CORS), to be named in each.
#[derive(Debug)]
pub(crate) struct Reader(HeaderValue);

/// The caller, as far as callers are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Any caller, as there are no API keys or only one.
    #[default]
    Anyone,
    /// The holder of this one of several keys.
    Key(usize),
}

impl Caller {
    /// Salt of the caches of callers with different keys, which share nothing.
    pub(crate) fn salt(self) -> Option<String> {
        if let Caller::Key(n) = self { Some(format!("key {n}")) } else { None }
    }

    /// Caller of a request that passed the guard.
    pub(crate) fn of(request: &Request) -> Caller {
        request.extensions().get().copied().unwrap_or_default()
    }
}

impl Guard {
    pub(crate) fn new(settings: &Settings, bound: SocketAddr) -> std::io::Result<Guard> {
        let lower = |texts: &[String]| texts.iter().map(|text| text.to_ascii_lowercase()).collect();
        settings.check().map_err(|why| std::io::Error::new(std::io::ErrorKind::InvalidInput, why))?;
        let mut keys = Vec::new();
        for key in &settings.api_keys {
            // A key given twice is one key.
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        Ok(Guard {
            bound: bound.ip(),
            hosts: lower(&settings.allow_hosts),
            origins: lower(&settings.allow_origins),
            keys,
            hints: Mutex::default(),
        })
    }

    /// Checks `Host` and `Origin`. Returns the origin that may read the answer, if the request has one.
    pub(crate) fn origin(&self, headers: &HeaderMap) -> Result<Option<Reader>, ApiError> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next().and_then(|host| host.to_str().ok()), hosts.next()) else {
            return Err(ApiError::bad("the request needs one Host header"));
        };
        let host = host.to_ascii_lowercase();
        let name = without_port(&host);
        if !self.knows(name) {
            let why = format!("the host {} is not allowed here", quoted(name));
            return Err(self.forbidden(why, "--allow-host", name));
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let Some(value) = origins.next() else { return Ok(None) };
        let origin = value.to_str().unwrap_or_default().to_ascii_lowercase();
        let same = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if origins.next().is_none() {
            if same == Some(host.as_str()) && !self.origins.contains(&origin) {
                return Ok(None);
            }
            if self.origins.iter().any(|known| *known == origin || known == ANY) || origin::is_local(&origin)
            {
                return Ok(Some(Reader(value.clone())));
            }
        }
        let why = format!("pages of {} may not use this server", quoted(&origin));
        Err(self.forbidden(why, "--allow-origin", &origin))
    }

    /// A 403 that names the flag that allows it; also logged, once.
    fn forbidden(&self, why: String, flag: &str, value: &str) -> ApiError {
        let why = format!("{why}; whoever runs it can allow that with {flag} {}", plain(value));
        let mut hints = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
        if hints.len() < MAX_HINTS && !hints.contains(&why) {
            tracing::warn!("{why}");
            hints.push(why.clone());
        }
        ApiError::new(StatusCode::FORBIDDEN, why)
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
            // Bound to all addresses, any of them may be meant. Only names can be rebound to point here.
            Ok(address) => self.bound.is_unspecified() || address.to_canonical() == self.bound.to_canonical(),
            Err(_) => !self.bound.to_canonical().is_loopback() && origin::is_near(host),
        }
    }

    /// Checks the API key, if any are configured, and returns the caller.
    pub(crate) fn key(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        if self.keys.is_empty() {
            return Ok(Caller::Anyone);
        }
        let bearer = headers.get(header::AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
        let bearer = match bearer.split_at_checked(7) {
            Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => key,
            _ => b"",
        };
        let other = |name| headers.get(name).map_or(&b""[..], HeaderValue::as_bytes);
        // All keys are compared, and in full, so that timing reveals nothing.
        let mut known = None;
        for given in [bearer, other("x-api-key"), other("api-key")] {
            for (i, key) in self.keys.iter().enumerate() {
                let is_it = same(given, key.as_bytes());
                known = if is_it { Some(i) } else { known };
            }
        }
        match known {
            Some(_) if self.keys.len() == 1 => Ok(Caller::Anyone),
            Some(i) => Ok(Caller::Key(i)),
            None => {
                let why =
                    "a valid key is needed: send the header authorization: Bearer KEY, or x-api-key: KEY";
                Err(ApiError::new(StatusCode::UNAUTHORIZED, why).code("invalid_api_key"))
            }
        }
    }
}

/// The text if it is short and consists only of characters of hosts and origins, else `NAME`.
fn plain(text: &str) -> String {
    let plain = |c: &char| c.is_ascii_alphanumeric() || "-._~:/[]".contains(*c);
    match text.chars().count() <= 128 && text.chars().all(|c| plain(&c)) && !text.is_empty() {
        true => text.to_owned(),
        false => "NAME".to_owned(),
    }
}

/// Host of a `Host` header, without the port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Constant-time comparison: its time depends on `given` and not on `known`.
fn same(given: &[u8], known: &[u8]) -> bool {
    let mut different = given.len() ^ known.len();
    for (i, byte) in given.iter().enumerate() {
        let other = known[i % known.len()];
        different |= usize::from(std::hint::black_box(byte ^ other));
    }
    different == 0
}

/// True if this is a CORS preflight request.
pub(crate) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

const PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");

impl Reader {
    /// Answers a preflight request: these methods are allowed, separated by commas. An allowed origin may send any headers.
    pub(crate) fn preflight(&self, request: &HeaderMap, methods: String) -> Response {
        let headers =
            [(header::ACCESS_CONTROL_ALLOW_METHODS, methods), (header::ACCESS_CONTROL_MAX_AGE, "600".into())];
        let mut response = (StatusCode::NO_CONTENT, headers).into_response();
        let wanted = request.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        let usual = HeaderValue::from_static("authorization, content-type, x-api-key, x-request-id");
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.unwrap_or(usual));
        if request.contains_key(PRIVATE_NETWORK) {
            response.headers_mut().insert(ALLOW_PRIVATE_NETWORK, HeaderValue::from_static("true"));
        }
        response
    }

    /// Adds CORS headers that let the origin read a response.
    pub(crate) fn allow(&self, headers: &mut HeaderMap) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, self.0.clone());
        let varies = HeaderValue::from_static("origin, access-control-request-headers");
        headers.insert(header::VARY, varies);
        let shown = HeaderValue::from_static("x-request-id, retry-after");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, shown);
    }
}
