//! `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>`

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{Open, Section, Slot, Step};
use crate::output::writing::{OBJECT, Writing};

/// A call behind `<|tool_call_begin|>`.
const CALL: &[Step] = &[
    Step::Space,
    Step::Word(Slot::NamedId, &["<|tool_call_argument_begin|>"]),
    Step::Space,
    Step::Lit("<|tool_call_argument_begin|>"),
    Step::Space,
    Step::Any(&[
        &[Step::Arguments, Step::Space, Step::Close("<|tool_call_end|>")],
        &[Step::Lit("<|tool_call_end|>")],
    ]),
    Step::Emit,
    Step::Opt(&[Step::Space, Step::Close("<|tool_calls_section_end|>")]),
];

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "kimi_k2",
    models: "Kimi K2",
    shown_by: &[&["<|tool_calls_section_begin|>"]],
    sections: &[
        Section {
            open: Open::Marker(&["<|tool_calls_section_begin|>"]),
            steps: &[Step::Space, Step::Lit("<|tool_call_begin|>"), Step::Any(&[CALL])],
        },
        Section { open: Open::Marker(&["<|tool_call_begin|>"]), steps: CALL },
    ],
    writings: &[Writing {
        open: "<|tool_calls_section_begin|>",
        before_name: "<|tool_call_begin|>functions.",
        // The calls of an answer are numbered.
        before_arguments: ":0<|tool_call_argument_begin|>",
        after_arguments: "<|tool_call_end|>",
        close: "<|tool_calls_section_end|>",
        ..OBJECT
    }],
    prefix: "functions.",
    ..PLAIN
};
