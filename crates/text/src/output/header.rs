//! [`Header`]: the header of a channel (harmony).

use std::ops::Range;

use super::marks::{ANALYSIS, CHANNEL, RECIPIENT};

/// The header of a channel: `<|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// True if the channel is that of reasoning.
    pub(super) is_reasoning: bool,
    /// The tool that the message is addressed to, as a range of the header.
    pub(super) recipient: Option<Range<usize>>,
}

impl Header {
    /// Reads the text in front of `<|message|>`. The recipient may stand in front of the channel or behind it.
    pub(super) fn read(text: &str) -> Header {
        let channel = text.split_once(CHANNEL).map_or("", |(_, name)| name);
        Header { is_reasoning: channel.trim_start().starts_with(ANALYSIS), recipient: recipient(text) }
    }
}

fn recipient(text: &str) -> Option<Range<usize>> {
    let begins = |at: &usize| {
        let before = text.get(..*at).unwrap_or_default();
        before.is_empty() || before.ends_with(char::is_whitespace) || before.ends_with("|>")
    };
    let (at, _) = text.match_indices(RECIPIENT).find(|(at, _)| begins(at))?;
    let from = at + RECIPIENT.len();
    let rest = text.get(from..)?;
    let ends =
        |(i, c): (usize, char)| c.is_whitespace() || rest.get(i..).is_some_and(|rest| rest.starts_with("<|"));
    let length = rest.char_indices().find(|found| ends(*found)).map_or(rest.len(), |(i, _)| i);
    let name = rest.get(..length)?;
    // What is addressed to the assistant is a tool's answer.
    (!name.is_empty() && name != "assistant").then_some(from..from + length)
}
