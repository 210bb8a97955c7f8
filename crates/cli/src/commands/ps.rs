//! `tallow ps`, `tallow stop`: the models of a running server.

use std::time::Duration;

use serde_json::{Value, json};
use ureq::{Agent, RequestBuilder};

use super::print;
use crate::args::{Ps, ServerAddress, Stop};
use crate::memory::size;
use crate::settings::Sources;
use crate::{Failed, env, terminal};

/// A running server.
struct Remote {
    agent: Agent,
    address: String,
    /// API key, if there is one.
    key: Option<String>,
}

/// `tallow ps`
pub(crate) fn ps(args: &Ps, sources: &Sources) -> Result<(), Failed> {
    let list = Remote::new(&args.server, sources)?.get("/v1/models")?;
    let models = list["data"].as_array().cloned().unwrap_or_default();
    // Other names of a model, and its adapters, are listed behind it.
    let models: Vec<Value> = models
        .into_iter()
        .filter(|model| model["id"] == model["root"] && model["parent"].is_null())
        .collect();
    if args.json {
        return print(&format!("{:#}\n", Value::Array(models)));
    }
    let head = ["NAME", "STATE", "DEVICE", "MEMORY", "CONTEXT", "REQUESTS", "UNLOADED IN"].map(String::from);
    let rows: Vec<[String; 7]> = std::iter::once(head).chain(models.iter().map(row)).collect();
    let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    let line = |row: &[String; 7]| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    print(&rows.iter().map(line).collect::<String>())
}

/// A model's line.
fn row(model: &Value) -> [String; 7] {
    let (text, status) = (
        |value: &Value| terminal::sanitized(value.as_str().unwrap_or_default()).into_owned(),
        &model["status"],
    );
    let state = match (status["value"].as_str(), status["failed"].as_bool()) {
        // A server of one model does not say.
        (None, _) => "loaded".to_owned(),
        (Some(_), Some(true)) => "failed".to_owned(),
        (Some(value), _) => terminal::sanitized(value).into_owned(),
    };
    let number = |value: &Value| value.as_u64().map(|n| n.to_string()).unwrap_or_default();
    let waiting =
        status["waiting"].as_u64().filter(|n| *n > 0).map(|n| format!(" + {n} waiting")).unwrap_or_default();
    [
        text(&model["id"]),
        state,
        text(&status["device"]),
        status["memory"].as_u64().map(size).unwrap_or_default(),
        number(&model["max_model_len"]),
        number(&status["requests"]) + &waiting,
        status["expires_in"].as_u64().map(|seconds| format!("{seconds} s")).unwrap_or_default(),
    ]
}

/// `tallow stop`
pub(crate) fn stop(args: &Stop, sources: &Sources) -> Result<(), Failed> {
    Remote::new(&args.server, sources)?.post("/models/unload", &json!({"model": args.model}))?;
    print(&format!("{} is unloaded\n", terminal::sanitized(&args.model)))
}

impl Remote {
    fn new(at: &ServerAddress, sources: &Sources) -> Result<Remote, Failed> {
        let host = sources.get("host", at.host.clone(), "127.0.0.1".to_owned())?.value;
        let port = sources.get("port", at.port, 8080)?.value;
        // A server on all addresses is on this one, too.
        let host = match host.as_str() {
            "0.0.0.0" => "127.0.0.1".to_owned(),
            "::" | "[::]" => "[::1]".to_owned(),
            host if host.contains(':') && !host.starts_with('[') => format!("[{host}]"),
            _ => host,
        };
        let config = Agent::config_builder().http_status_as_error(false).proxy(None);
        let agent = config.timeout_connect(Some(Duration::from_secs(5))).build().into();
        let key = env::get("TALLOW_API_KEY").and_then(|keys| Some(keys.split(',').next()?.trim().to_owned()));
        Ok(Remote { agent, address: format!("http://{host}:{port}"), key: key.filter(|key| !key.is_empty()) })
    }

    fn get(&self, path: &str) -> Result<Value, Failed> {
        let request = self.agent.get(format!("{}{path}", self.address));
        self.answer(self.with_key(request).call())
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, Failed> {
        let request = self.agent.post(format!("{}{path}", self.address));
        let request = request.header("Content-Type", "application/json");
        self.answer(self.with_key(request).send(body.to_string()))
    }

    fn with_key<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("Authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    /// The JSON of an answer, or why there is none.
    fn answer(&self, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value, Failed> {
        let address = &self.address;
        let mut answer = answer.map_err(|why| {
            Failed::new(format!(
                "no server answers at {address}: {why}; `tallow serve MODEL` starts one, --host and --port say where it is"
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
                "what answers at {address} is not a Tallow server (status {status})"
            ))),
        }
    }
}
