//! `tallow ps`, `tallow stop`: the models of a running server.

use serde_json::{Value, json};

use super::print;
use crate::args::{Ps, Stop};
use crate::memory::size;
use crate::remote::Remote;
use crate::settings::Sources;
use crate::{Failed, terminal};

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
