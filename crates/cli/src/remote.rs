//! [`Remote`]: a running server, as a client has it.

use std::time::Duration;

use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body, RequestBuilder};

use crate::args::ServerAddress;
use crate::settings::Sources;
use crate::{Failed, env, terminal};

/// A running server.
#[derive(Debug)]
pub(crate) struct Remote {
    agent: Agent,
    /// Its URL, without a path.
    pub(crate) address: String,
    /// The options that name it, for errors.
    named_by: &'static str,
    /// API key, if there is one.
    key: Option<String>,
}

impl Remote {
    /// A server of Tallow, by its host and port.
    pub(crate) fn new(at: &ServerAddress, sources: &Sources) -> Result<Remote, Failed> {
        let host = sources.get("host", at.host.clone(), "127.0.0.1".to_owned())?.value;
        let port = sources.get("port", at.port, 8080)?.value;
        // A server on all addresses is on this one, too.
        let host = match host.as_str() {
            "0.0.0.0" => "127.0.0.1".to_owned(),
            "::" | "[::]" => "[::1]".to_owned(),
            host if host.contains(':') && !host.starts_with('[') => format!("[{host}]"),
            _ => host,
        };
        Ok(Remote::at(format!("http://{host}:{port}"), "--host and --port say"))
    }

    /// A server of any kind, by its URL without a path, and the options that name it.
    pub(crate) fn at(address: String, named_by: &'static str) -> Remote {
        let config = Agent::config_builder().http_status_as_error(false).proxy(None);
        // Each of many clients keeps its connection.
        let config = config.timeout_connect(Some(Duration::from_secs(5))).max_idle_connections_per_host(4096);
        let config = config.max_idle_connections(4096);
        let key = env::get("TALLOW_API_KEY").and_then(|keys| Some(keys.split(',').next()?.trim().to_owned()));
        let key = key.filter(|key| !key.is_empty());
        Remote { agent: config.build().into(), address, named_by, key }
    }

    pub(crate) fn get(&self, path: &str) -> Result<Value, Failed> {
        let request = self.agent.get(format!("{}{path}", self.address));
        self.json(self.with_key(request).call())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, Failed> {
        self.json(self.send(path, body))
    }

    /// The answer to a request with a body in JSON, whatever its status.
    pub(crate) fn send(&self, path: &str, body: &Value) -> Result<Response<Body>, ureq::Error> {
        let request = self.agent.post(format!("{}{path}", self.address));
        let request = request.header("Content-Type", "application/json");
        self.with_key(request).send(body.to_string())
    }

    fn with_key<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("Authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    /// The JSON of an answer, or why there is none.
    fn json(&self, answer: Result<Response<Body>, ureq::Error>) -> Result<Value, Failed> {
        let Remote { address, named_by, .. } = self;
        let mut answer = answer.map_err(|why| {
            Failed::new(format!(
                "no server answers at {address}: {why}; `tallow serve MODEL` starts one, {named_by} where it is"
            ))
        })?;
        let body: Option<Value> =
            answer.body_mut().read_to_string().ok().and_then(|text| serde_json::from_str(&text).ok());
        let why = body.as_ref().and_then(|body| body["error"]["message"].as_str());
        match (answer.status().as_u16(), why, body.clone()) {
            (200, _, Some(body)) => Ok(body),
            (401, _, _) => Err(Failed::new(format!("{address} wants an API key: set TALLOW_API_KEY"))),
            (_, Some(why), _) => Err(Failed::new(terminal::sanitized(why))),
            (status, None, _) => Err(Failed::new(format!(
                "what answers at {address} does not speak this API (status {status})"
            ))),
        }
    }
}
