//! `<start_function_call>call:f{key:<escape>text<escape>,n:3}<end_function_call>`

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{Open, Section, Slot, Step};

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "functiongemma",
    models: "FunctionGemma",
    shown_by: &[&["<start_function_call>"]],
    sections: &[Section {
        open: Open::Marker(&["<start_function_call>"]),
        steps: &[
            Step::Space,
            Step::Lit("call:"),
            Step::Word(Slot::Name, &["{"]),
            Step::Braces("<escape>"),
            Step::Space,
            Step::Close("<end_function_call>"),
            Step::Emit,
        ],
    }],
    ..PLAIN
};
