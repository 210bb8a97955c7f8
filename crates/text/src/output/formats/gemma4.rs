//! `<|tool_call>call:f{key:<|"|>text<|"|>,n:3}<tool_call|>`

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::marks::Marks;
use crate::output::step::{Open, Section, Slot, Step};

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "gemma4",
    models: "Gemma 4",
    shown_by: &[&["<|tool_call>call:"], &["<|tool_call>", "<tool_call|>"]],
    marks: Marks::Tags { open: "<|channel>thought\n", close: "<channel|>" },
    sections: &[Section {
        open: Open::Marker(&["<|tool_call>"]),
        steps: &[
            Step::Space,
            Step::Lit("call:"),
            Step::Word(Slot::Name, &["{"]),
            Step::Braces("<|\"|>"),
            Step::Space,
            Step::Close("<tool_call|>"),
            Step::Emit,
        ],
    }],
    ..PLAIN
};
