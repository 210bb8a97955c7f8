//! Request ids: the client's `x-request-id`, or a new one.

use std::hash::{BuildHasher, RandomState};

use axum::http::header::HeaderName;
use axum::http::{HeaderMap, HeaderValue};

/// Header of the request id.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The request's id: the client's if it is short and printable, else a new one. It is only for people who read logs;
/// nothing is looked up by it.
pub(crate) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let plain = |id: &&HeaderValue| {
        (1..=128).contains(&id.len()) && id.as_bytes().iter().all(|b| (b' '..=b'~').contains(b))
    };
    let theirs = headers.get(REQUEST_ID).filter(plain).cloned();
    let ours = || HeaderValue::try_from(unique()).ok();
    theirs.or_else(ours).unwrap_or(HeaderValue::from_static("none"))
}

/// A random id, unique among requests.
pub(crate) fn unique() -> String {
    // Each `RandomState` has its own keys, and the first ones are random.
    let half = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", half(), half())
}
