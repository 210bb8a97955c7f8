//! `<|tool_call|>[{"name": "f", "arguments": {}}]`; Granite 3.0 writes `<tool_call>`, and Granite 20B `<function_call>`
//! with an object.

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{ITEMS, NAMED, Open, Section, Step};
use crate::output::writing::{OBJECT, OBJECTS, Writing};

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "granite3",
    models: "Granite 3",
    shown_by: &[&["<|tool_call|>", "<|start_of_role|>"], &["<function_call>", "<|function_call_library|>"]],
    sections: &[
        Section {
            open: Open::Marker(&["<|tool_call|>", "<tool_call>"]),
            steps: &[
                Step::Space,
                Step::Lit("["),
                Step::Any(&[ITEMS]),
                Step::Opt(&[Step::Space, Step::Close("</tool_call>")]),
            ],
        },
        Section {
            open: Open::Marker(&["<function_call>"]),
            steps: &[Step::Space, Step::Call(&NAMED), Step::Emit],
        },
    ],
    writings: &[
        Writing { shown_by: "<|function_call_library|>", open: "<function_call> ", ..OBJECT },
        Writing { open: "<|tool_call|>[", close: "]", ..OBJECTS },
    ],
    ..PLAIN
};
