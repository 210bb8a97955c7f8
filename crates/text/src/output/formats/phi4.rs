//! `<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>`, an object without a list, and `functools[{...}]`.

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{ITEMS, NAMED, Open, Section, Step};
use crate::output::writing::{OBJECTS, Writing};

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "phi4",
    models: "Phi-4-mini",
    shown_by: &[&["<|/tool_call|>"], &["<|/tool|>"]],
    sections: &[
        Section {
            open: Open::Marker(&["<|tool_call|>"]),
            steps: &[
                Step::Space,
                Step::Any(&[
                    &[Step::Lit("["), Step::Any(&[ITEMS]), Step::Space, Step::Close("<|/tool_call|>")],
                    &[Step::Call(&NAMED), Step::Space, Step::Close("<|/tool_call|>"), Step::Emit],
                ]),
            ],
        },
        Section { open: Open::Marker(&["functools["]), steps: ITEMS },
    ],
    writings: &[Writing { open: "<|tool_call|>[", close: "]<|/tool_call|>", ..OBJECTS }],
    ..PLAIN
};
