//! [`HttpMetrics`]: counts of HTTP requests, whichever model they are for.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use axum::http::Method;

use crate::errors::ApiError;
use crate::exposition::Page;

/// `handler` label of requests that matched no route.
const NO_ROUTE: &str = "none";

/// Answers by method, route and status.
type Answered = BTreeMap<(&'static str, String, u16), u64>;
/// Refused and failed requests by status and code.
type Refused = BTreeMap<(u16, &'static str), u64>;

/// Metrics of HTTP requests, whatever they are for.
#[derive(Debug, Default)]
pub(crate) struct HttpMetrics {
    answered: Mutex<Answered>,
    refused: Mutex<Refused>,
}

impl HttpMetrics {
    /// Records a request's HTTP status.
    pub(crate) fn answered(&self, method: &Method, route: Option<&str>, status: u16) {
        // Clients may invent methods.
        let methods = ["GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH"];
        let method = methods.iter().find(|known| **known == method.as_str()).unwrap_or(&"OTHER");
        let key = (*method, route.unwrap_or(NO_ROUTE).to_owned(), status);
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        *answered.entry(key).or_default() += 1;
    }

    /// Records a refused or failed request.
    pub(crate) fn refused(&self, error: &ApiError) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry((error.status.as_u16(), error.code_name().unwrap_or("none"))).or_default() += 1;
    }

    /// Writes them.
    pub(crate) fn write(&self, page: &mut Page) {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let refused: Vec<_> = refused.into_iter().map(|((s, code), n)| (s.to_string(), code, n)).collect();
        let labels: Vec<_> =
            refused.iter().map(|(s, code, _)| [("status", s.as_str()), ("code", *code)]).collect();
        page.counters(
            "vllm:request_refusals",
            "Requests that were refused or failed before an answer began, by HTTP status and code.",
            labels.iter().zip(&refused).map(|(labels, (.., n))| (labels.as_slice(), *n)),
        );
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let answered: Vec<_> =
            answered.into_iter().map(|((method, route, s), n)| (method, route, s.to_string(), n)).collect();
        let label = |(method, route, s, _): &'_ (&'static str, String, String, u64)| {
            [("method", (*method).to_owned()), ("handler", route.clone()), ("status", s.clone())]
        };
        let owned: Vec<_> = answered.iter().map(label).collect();
        let labels: Vec<Vec<(&str, &str)>> = owned
            .iter()
            .map(|all| all.iter().map(|(name, value)| (*name, value.as_str())).collect())
            .collect();
        page.counters(
            "http_requests",
            "Requests by method, route and HTTP status; 499 where the client went away before it was answered.",
            labels.iter().zip(&answered).map(|(labels, (.., n))| (labels.as_slice(), *n)),
        );
    }
}
