//! The log of this process: lines of all servers that tests start, since a program has one log.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Mutex, OnceLock};

use serde_json::Value;
use tracing::field::Field;

/// A line of the log.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) target: &'static str,
    pub(crate) level: tracing::Level,
    pub(crate) message: String,
    pub(crate) fields: BTreeMap<&'static str, Value>,
    /// Message and fields as `Debug` writes them, which is how logs are written.
    pub(crate) debug: String,
}

static LINES: Mutex<Vec<Line>> = Mutex::new(Vec::new());

/// Begins to collect lines, if no other test has.
pub(crate) fn listen() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| tracing::subscriber::set_global_default(Log).unwrap());
}

/// All log lines so far.
pub(crate) fn lines() -> Vec<Line> {
    LINES.lock().unwrap().clone()
}

impl Line {
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(|value| value.as_str().unwrap())
    }

    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.fields.get(name).map(|value| value.as_f64().unwrap())
    }
}

struct Log;

impl tracing::field::Visit for Line {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.fields.insert(field.name(), value.into());
        self.debug += &format!("{value:?}");
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.insert(field.name(), value.into());
        self.debug += &format!("{value:?}");
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.into());
        self.debug += &format!("{value:?}");
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        self.debug += &text;
        match field.name() {
            "message" => self.message = text,
            name => drop(self.fields.insert(name, text.into())),
        }
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, about: &tracing::Metadata<'_>) -> bool {
        about.target().starts_with("tallow")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let (target, level) = (event.metadata().target(), *event.metadata().level());
        let (message, debug) = (String::new(), String::new());
        let mut line = Line { target, level, message, fields: BTreeMap::new(), debug };
        event.record(&mut line);
        LINES.lock().unwrap().push(line);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
