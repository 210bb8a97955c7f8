//! [`Native`]: answers in the form of llama-server's own API.

use serde::Serialize;

use crate::errors::ApiError;
use crate::generation::openai::Timings;
use crate::generation::outputs::{ChoiceEvent, End, Totals};
use crate::generation::writer::{Answer, AnswerWriter, CompleteChoice, data};

/// Writes an answer.
#[derive(Debug)]
pub(crate) struct Native {
    answer: Answer,
    has_newline: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    index: usize,
    content: &'a str,
    tokens: [u32; 0],
    stop: bool,
    #[serde(flatten)]
    end: Option<Ended<'a>>,
}

/// Fields of the last line.
#[derive(Serialize)]
struct Ended<'a> {
    model: &'a str,
    id_slot: i32,
    tokens_predicted: usize,
    tokens_evaluated: usize,
    tokens_cached: usize,
    truncated: bool,
    has_new_line: bool,
    stop_type: &'static str,
    stopping_word: &'a str,
    timings: Timings,
}

impl Native {
    pub(crate) fn new(answer: Answer) -> Native {
        Native { answer, has_newline: false }
    }

    fn line<'a>(&'a self, index: usize, content: &'a str, end: Option<(&'a End, &Totals)>) -> String {
        let ended = |(end, totals): (&'a End, &Totals)| {
            let (stop_type, stopping_word) = match end {
                End::Complete | End::Called => ("eos", ""),
                End::Stopped(word) => ("word", word.as_str()),
                End::Length => ("limit", ""),
            };
            Ended {
                model: &self.answer.model,
                // Requests have no slot of their own.
                id_slot: -1,
                tokens_predicted: totals.new,
                tokens_evaluated: totals.prompt,
                tokens_cached: totals.cached,
                truncated: false,
                has_new_line: self.has_newline,
                stop_type,
                stopping_word,
                timings: totals.timings(),
            }
        };
        let line = Line { index, content, tokens: [], stop: end.is_some(), end: end.map(ended) };
        // Serialization of texts and numbers cannot fail.
        serde_json::to_string(&line).unwrap_or_default()
    }
}

impl AnswerWriter for Native {
    fn complete(&mut self, choices: Vec<CompleteChoice>, totals: &Totals) -> String {
        let CompleteChoice { part, end } = choices.into_iter().next().unwrap_or_default();
        self.has_newline = part.text.contains('\n');
        self.line(0, &part.text, Some((&end, totals)))
    }

    fn begin(&mut self, _out: &mut String) {}

    fn update(&mut self, event: ChoiceEvent, totals: Option<&Totals>, out: &mut String) {
        let ChoiceEvent { index, part, end, .. } = event;
        if let Some(part) = part {
            self.has_newline |= part.text.contains('\n');
            data(out, &self.line(index, &part.text, None));
        }
        if let (Some(end), Some(totals)) = (end, totals) {
            data(out, &self.line(index, "", Some((&end, totals))));
        }
    }

    fn finish(&mut self, _totals: &Totals, _out: &mut String) {}

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        data(out, &error.json());
    }
}
