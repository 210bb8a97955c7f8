//! [`AnswerWriter`]: an answer in the JSON of one API, whole or as a stream.

use crate::errors::ApiError;
use crate::generation::outputs::{AnswerPart, ChoiceEvent, End, Totals};

/// Fields that all parts of an answer share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) id: String,
    /// Unix time in seconds.
    pub(crate) created: u64,
    pub(crate) model: String,
    /// Number of choices.
    pub(crate) choices: usize,
    /// Tokens of the prompts.
    pub(crate) prompt_tokens: usize,
    pub(crate) wants_tokens: bool,
    /// True if the last chunk of a stream reports the usage.
    pub(crate) include_usage: bool,
}

/// A complete choice.
#[derive(Debug, Default)]
pub(crate) struct CompleteChoice {
    pub(crate) part: AnswerPart,
    pub(crate) end: End,
}

/// Writes an answer in the JSON of one API. An answer that is not streamed is written by `complete` alone; a stream by the
/// other methods, each of which appends to `out`.
pub(crate) trait AnswerWriter: Send {
    /// The whole answer.
    fn complete(&mut self, choices: Vec<CompleteChoice>, totals: &Totals) -> String;

    /// Media type of a stream.
    fn stream_type(&self) -> &'static str {
        "text/event-stream"
    }

    /// Beginning of a stream.
    fn begin(&mut self, out: &mut String);

    /// An event of a choice. `totals` is set for the last one.
    fn update(&mut self, event: ChoiceEvent, totals: Option<&Totals>, out: &mut String);

    /// End of a stream, behind the last event.
    fn finish(&mut self, totals: &Totals, out: &mut String);

    /// End of a stream by an error.
    fn fail(&mut self, error: &ApiError, out: &mut String);

    /// Sent after a long silence, so that no proxy takes the connection for dead.
    fn keep_alive(&self) -> Option<&'static str> {
        Some(": keep-alive\n\n")
    }

    /// True if it keeps the text of a stream until the end.
    fn keeps_text(&self) -> bool {
        false
    }
}

/// Appends a server-sent event without a name.
pub(crate) fn data(out: &mut String, data: &str) {
    *out += "data: ";
    *out += data;
    *out += "\n\n";
}

/// Appends a server-sent event with a name.
pub(crate) fn event(out: &mut String, name: &str, json: &str) {
    *out += "event: ";
    *out += name;
    *out += "\n";
    data(out, json);
}
