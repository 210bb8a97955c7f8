//! [`OutputParser`]: divides a generated text into reasoning, content and tool calls.
//!
//! One engine reads all families of models; a [`ToolFormat`] is data. It is chosen by the chat template's own text,
//! which also says how reasoning is marked. Text may be cut anywhere: the events, joined, are the same. What turns out
//! not to be a valid call is content, character for character.

mod attempt;
mod braces;
mod format;
mod formats;
mod header;
mod held;
mod json;
mod lookout;
mod marks;
mod parser;
mod python;
mod step;
#[cfg(test)]
mod tests;
mod tools;
mod writing;

use std::sync::Arc;

use crate::template::ChatTemplate;
use crate::tokenizer::{Special, Tokenizer};

pub use format::ToolFormat;
pub use parser::OutputParser;
pub use tools::{Tools, ToolsError};
pub use writing::{Arguments, Channels, Each, Writing};

use marks::Marks;

/// Longest call in bytes. What is longer is content.
pub const MOST_CALL: usize = 8 << 20;

/// A piece of a generated text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Reasoning.
    Reasoning(String),
    /// Text of the answer.
    Content(String),
    /// A tool call, as a whole.
    Call(ToolCall),
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id, if the model writes one.
    pub id: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// Text of a JSON object.
    pub arguments: String,
}

/// How a model writes its output: tool calls and reasoning.
#[derive(Debug, Clone, Copy)]
pub struct OutputFormat {
    tools: &'static ToolFormat,
    marks: Marks,
    writing: Option<&'static Writing>,
}

impl OutputFormat {
    /// By a model's chat template.
    pub fn of(template: &ChatTemplate) -> OutputFormat {
        OutputFormat::with(ToolFormat::of(template), template)
    }

    /// The format of a model without a chat template: text alone.
    pub fn plain() -> OutputFormat {
        OutputFormat { tools: &format::PLAIN_FORMAT, marks: Marks::None, writing: None }
    }

    /// With tool calls as a format says, and reasoning as a template says.
    pub fn with(tools: &'static ToolFormat, template: &ChatTemplate) -> OutputFormat {
        let marks = match tools.marks {
            // Channels have both.
            Marks::Channels => Marks::Channels,
            _ => Marks::of(template),
        };
        OutputFormat { tools, marks, writing: tools.writing(template.source()) }
    }

    /// With tool calls and reasoning as the models of a format usually write them.
    pub fn new(tools: &'static ToolFormat) -> OutputFormat {
        OutputFormat { tools, marks: tools.marks, writing: tools.writing("") }
    }

    /// The same without reasoning: it stays in the content, with its markers.
    #[must_use]
    pub fn inline(self) -> OutputFormat {
        OutputFormat { marks: Marks::None, ..self }
    }

    /// The format as a text, from which [`named`](Self::named) makes it again, but for how calls are forced.
    pub fn name(&self) -> String {
        format!("{} {}", self.tools.name(), self.marks.name())
    }

    /// The format that has such a [`name`](Self::name); `None` if there is none.
    pub fn named(name: &str) -> Option<OutputFormat> {
        let (tools, marks) = name.split_once(' ')?;
        let tools = match tools {
            _ if tools == format::PLAIN_FORMAT.name() => &format::PLAIN_FORMAT,
            _ => ToolFormat::named(tools)?,
        };
        let of_formats = ToolFormat::ALL.iter().map(|format| format.marks);
        let marks =
            Marks::named(marks).or_else(|| of_formats.into_iter().find(|known| known.name() == marks))?;
        Some(OutputFormat { tools, marks, writing: None })
    }

    /// How tool calls are written.
    pub fn tools(&self) -> &'static ToolFormat {
        self.tools
    }

    /// How the model writes calls where it is made to; `None` if it cannot be.
    pub fn writing(&self) -> Option<&'static Writing> {
        self.writing
    }

    /// True if the model marks reasoning.
    pub fn reasons(&self) -> bool {
        self.marks != Marks::None
    }

    /// Special tokens among the markers of reasoning and, if there are tools, of calls. A detokenizer that hides special
    /// tokens must show these.
    pub fn special_tokens(&self, tokenizer: &Tokenizer, calls: bool) -> Vec<u32> {
        let of_calls = if calls { self.tools.texts() } else { Vec::new() };
        let texts = [of_calls, self.marks.texts()].concat();
        // A marker may be a special token followed by plain text.
        let parts = texts.iter().flat_map(|text| {
            let parts = text.split_inclusive(['>', ']']);
            parts.chain([*text])
        });
        let mut ids: Vec<u32> = parts.filter_map(|part| tokenizer.id_of(part)).collect();
        ids.retain(|id| tokenizer.is_special(*id));
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The token with which the model opens its reasoning, if one token does.
    pub fn opening_token(&self, tokenizer: &Tokenizer) -> Option<u32> {
        match self.marks {
            Marks::None => None,
            // A marker may be a special token followed by plain text.
            Marks::Tags { open, .. } => tokenizer.id_of(open.split_inclusive('>').next().unwrap_or(open)),
            Marks::Channels => tokenizer.id_of(marks::CHANNEL),
        }
    }

    /// The tokens that close the model's reasoning and begin its answer; none if it does not reason.
    pub fn closing_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let text = match self.marks {
            Marks::None => return Vec::new(),
            Marks::Tags { close, .. } => close,
            Marks::Channels => marks::TO_ANSWER,
        };
        tokenizer.encode(text, Special::RENDERED).unwrap_or_default()
    }

    /// A parser for the answer to a rendered prompt, or to the text of its last tokens: some prompts open the
    /// reasoning.
    ///
    /// With tools, only their names are calls, and their schemas say how arguments without types are read; with an
    /// empty list there are no calls. `None` if the tools are not known: then any plausible name is a call.
    pub fn parser(&self, prompt: &str, tools: Option<Arc<Tools>>) -> OutputParser {
        OutputParser::new(self.tools, self.marks, prompt, tools)
    }
}
