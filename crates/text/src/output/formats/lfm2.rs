//! `<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>`, or JSON in the list where it is asked for.

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{ITEMS, Open, PYTHON_ITEMS, Section, Step};
use crate::output::writing::{OBJECTS, Writing};

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "lfm2",
    models: "LFM2",
    shown_by: &[&["<|tool_call_start|>"], &["<|tool_list_start|>"]],
    sections: &[Section {
        open: Open::Marker(&["<|tool_call_start|>"]),
        steps: &[
            Step::Space,
            Step::Lit("["),
            Step::Any(&[&[Step::Any(&[PYTHON_ITEMS])], ITEMS]),
            Step::Space,
            Step::Close("<|tool_call_end|>"),
        ],
    }],
    writings: &[Writing { open: "<|tool_call_start|>[", close: "]<|tool_call_end|>", ..OBJECTS }],
    ..PLAIN
};
